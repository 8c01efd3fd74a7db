"""Confounders: what must be equal for a verdict on the engines and is not, with the step from which it acts.

Differences of the engines themselves (packages, parameters, sampling) are findings and no confounders. Steps before a
confounder acts can still be judged.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from harness.parity.subjects.prompts.observed_digests import equal_in_rollouts
from harness.parity.subjects.ranks.observed import Ranks
from harness.recordings.records.learner_update import DIGESTED, NOTHING_LEARNED, LearnerUpdate
from harness.recordings.records.process_start import ProcessEnvironment, ProcessStart
from harness.recordings.records.weight_sync import LEARNER
from harness.recordings.store import Recording
from probes.format import number, whole
from reports.model import Finding
from scenarios.engines import registry

Shares = Mapping[int, tuple[tuple[int, ...], ...]]  # rank -> the samples of each mini-batch

# What a confounder can affect: everything that two runs share, the prompts (each sample then shows whether its own is
# equal), the numbers that the learner makes from the rollouts, or only the update that follows them.
Scope = Literal["everything", "prompts", "experience", "train"]

_SCOPES: dict[str, Scope] = {
    "seed": "everything",
    "model.path": "everything",
    "model.dtype": "everything",
    "model.reward": "experience",
    "rollout.mode": "everything",
    "rollout.prompts_per_step": "prompts",
    "rollout.samples_per_prompt": "prompts",
    "train": "train",
    "ppo.kl_coef": "experience",
    "ppo.gamma": "experience",
    "ppo.gae_lambda": "experience",
    "ppo.normalize_advantages": "experience",
    "ppo.world_size": "experience",
    "ppo.packing": "experience",
    "ppo.micro_batch_size": "experience",
}
# Nothing here knows what a framework's own settings affect.
_SECTIONS: dict[str, Scope] = {"ppo": "train", "prompts": "prompts", "framework": "everything"}
_HARMLESS = {"ppo.checkpoint_every"}
# Settings that cut a batch otherwise for the same sums. They change rounding, unless the cuts coincide.
DEALING = "samples of the ranks"
MICRO_BATCHES = "micro-batches of the learner"
CUTS = {"ppo.world_size", "ppo.packing", "ppo.micro_batch_size", DEALING, MICRO_BATCHES}
# Packages installed beside the learner that have no part in its numbers, in addition to those of the engines, which run
# in their own environments.
_WITHOUT_NUMBERS = {
    "pandas",
    "pyarrow",
    "pydantic",
    "ray",
    "rlhf-harness",
    "torchvision",
    "xgrammar",
    "flashinfer-python",
}
_DEVICE_FACTS = ("name", "capability", "cuda_built")


@dataclass(frozen=True)
class Confounder:
    finding: Finding
    scope: Scope
    step: int = 0  # the first step in which it acts


def find(baseline: Recording, candidate: Recording, ranks: tuple[Ranks, Ranks]) -> list[Confounder]:
    """Return every confounder, in the order framework, configuration, environment, weights, data, ranks."""
    # A cut of the batch that left every update bit-identical confounds nothing. So the step from which the learners
    # part comes first, and two of the searches below depend on it.
    parted = _parted(baseline, candidate)
    configured = list(_configuration(baseline, candidate, parted))
    is_cut_as_configured = any(confounder.finding.name in CUTS for confounder in configured)
    confounders = [
        *_framework(baseline, candidate),
        *configured,
        *_environment(baseline, candidate),
        *_initial_weights(baseline, candidate),
        *_data(baseline, candidate),
    ]
    if parted == math.inf:
        return confounders
    confounders += _dealing(*ranks)
    if not is_cut_as_configured:
        confounders += _micro_batches(baseline, candidate, int(parted))
    return confounders


def flatten(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return `{"ppo": {"clip": 0.2}}` as `{"ppo.clip": 0.2}`."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def differences(baseline: Mapping[str, Any], candidate: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return key -> both values, where they differ; None stands for an absent key."""
    keys = list(dict.fromkeys([*baseline, *candidate]))
    return {key: (baseline.get(key), candidate.get(key)) for key in keys if baseline.get(key) != candidate.get(key)}


def _framework(baseline: Recording, candidate: Recording) -> Iterator[Confounder]:
    """Find jobs of two frameworks: whatever else differs follows from that."""
    name_b, name_c = (
        recording.records.manifest.framework or "the reference scenario" for recording in (baseline, candidate)
    )
    if name_b != name_c:
        summary = f"the baseline is a job of {name_b} and the candidate one of {name_c}: they do not do the same work"
        yield Confounder(Finding("framework", summary, details={"baseline": name_b, "candidate": name_c}), "everything")


def _configuration(baseline: Recording, candidate: Recording, parted: float) -> Iterator[Confounder]:
    """Find settings that differ. `parted`: the result of `_parted`.

    If the gradients of the step `parted` were recorded, another cut of the batch acts only from the step after it:
    those gradients are compared (`harness.parity.subjects.learner.observed`).
    """
    if not baseline.scenario or not candidate.scenario:
        return
    # Another cut of the batch that changed no update for the whole run is no confounder.
    harmless = _HARMLESS | CUTS if parted == math.inf else _HARMLESS
    unequal = differences(flatten(baseline.scenario), flatten(candidate.scenario))
    for key, (baseline_value, candidate_value) in unequal.items():
        scope = _SCOPES.get(key) or _SECTIONS.get(key.split(".")[0])
        if scope is None or key in harmless:
            continue
        summary = f"{key} is {baseline_value!r} in the baseline and {candidate_value!r} in the candidate"
        first = _first_unequal_step(baseline, candidate, parted) if key in CUTS else 0
        details = {"baseline": baseline_value, "candidate": candidate_value}
        yield Confounder(Finding(key, summary, details=details), scope, first)


def _parted(baseline: Recording, candidate: Recording) -> float:
    """Return the first step whose batch, actor and critic digests are not all equal in both runs.

    A missing digest counts as different. Returns infinity where there is no such step, -1 without any step.
    """
    baseline_updates, candidate_updates = Weights(baseline, candidate).updates
    steps = sorted({*baseline.steps("experience"), *candidate.steps("experience")})
    for step in steps:
        baseline_digests = baseline_updates.get(step, NOTHING_LEARNED).digests
        candidate_digests = candidate_updates.get(step, NOTHING_LEARNED).digests
        if baseline_digests != candidate_digests or not baseline_digests.keys() >= {*DIGESTED}:
            return step
    return math.inf if steps else -1


def _gradients_recorded(baseline: Recording, candidate: Recording, step: float) -> bool:
    return all(updates.get(int(step), NOTHING_LEARNED).norms for updates in Weights(baseline, candidate).updates)


def _first_unequal_step(baseline: Recording, candidate: Recording, parted: float) -> int:
    """Return the first step from which another cut of the batch confounds: after `parted` if its gradients can be
    compared."""
    return int(parted) + 1 if _gradients_recorded(baseline, candidate, parted) else 0


def learner_packages(recording: Recording) -> dict[str, str]:
    """Return package -> version over every process but the engines'; several versions are joined.

    A package of which one process says two versions is left out for it.
    """
    versions_by_name: dict[str, set[str]] = {}
    for (_, role), versions in process_packages(recording).items():
        if role == "rollout":  # an engine has an environment of its own
            continue
        for name, of_process in versions.items():
            listed = versions_by_name.setdefault(name, set())
            if len(of_process) == 1:
                listed |= of_process
    return {name: " and ".join(sorted(versions)) for name, versions in sorted(versions_by_name.items()) if versions}


def process_packages(recording: Recording) -> dict[tuple[str, str | None], dict[str, set[str]]]:
    """Return (file, role) of each process -> package -> the versions that it recorded, python's among them.

    A sound process has one version of each.
    """
    by_process: dict[tuple[str, str | None], dict[str, set[str]]] = {}
    processes: list[ProcessStart | ProcessEnvironment] = [*recording.records.starts, *recording.records.environments]
    for process in processes:
        versions = by_process.setdefault((process.file, process.role), {})
        for name, version in [*process.packages.items(), ("python", process.python)]:
            if version:
                versions.setdefault(name, set()).add(version)
    return by_process


def learner_devices(recording: Recording) -> dict[str, list[str]]:
    """Return what the learner's processes computed on: CUDA or not, device facts and processor model."""
    values_by_fact: dict[str, set[str]] = {}
    cuda: list[bool] = []
    for environment in recording.records.environments:
        if environment.role == "rollout":
            continue
        if "cuda_initialized" in environment.device:
            cuda.append(bool(environment.device["cuda_initialized"]))
        facts = {key: environment.device.get(key) for key in _DEVICE_FACTS}
        facts["cpu"] = environment.machine.get("cpu")
        for key, value in facts.items():
            if value is not None:
                values_by_fact.setdefault(key, set()).add(str(value))
    if cuda:  # a CPU has no device name that could differ
        values_by_fact["device"] = {"cuda" if any(cuda) else "cpu"}
    return {key: sorted(values) for key, values in values_by_fact.items()}


def _environment(baseline: Recording, candidate: Recording) -> Iterator[Confounder]:
    different: dict[str, tuple[Any, Any]] = {}
    baseline_packages, candidate_packages = learner_packages(baseline), learner_packages(candidate)
    if baseline_packages and candidate_packages:
        idle = _WITHOUT_NUMBERS.union(*(spec.process.packages for spec in registry.specs().values()))
        packages = differences(baseline_packages, candidate_packages)
        different |= {name: pair for name, pair in packages.items() if name not in idle}
    devices = differences(learner_devices(baseline), learner_devices(candidate))
    different |= {name: pair for name, pair in devices.items() if None not in pair}
    if different:
        listed = "; ".join(f"{name} {show(a)} against {show(b)}" for name, (a, b) in different.items())
        summary = f"the learner's environment differs: {listed}"
        details = {name: {"baseline": a, "candidate": b} for name, (a, b) in different.items()}
        yield Confounder(Finding("learner environment", summary, where="learner", details=details), "experience")


def show(value: Any) -> str:
    if value is None:
        return "absent"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value) or "empty"


class Weights:
    """The learner's weights as both runs recorded them: for each version (`weights` events) and step (`learner`
    events).

    They are empty where the runs' digests were made by different hashes.
    """

    def __init__(self, baseline: Recording, candidate: Recording) -> None:
        self.comparable = baseline.hashed_by == candidate.hashed_by
        recordings = (baseline, candidate) if self.comparable else ()
        self.versions = tuple(map(_versions, recordings)) or ({}, {})
        self.updates = tuple(map(_updates, recordings)) or ({}, {})

    def initial(self) -> bool | None:
        """Whether the first recorded weights were equal; None where they were not recorded."""
        baseline_versions, candidate_versions = self.versions
        if not baseline_versions or not candidate_versions:
            return None
        first, first2 = self.begin()
        return baseline_versions[first] == candidate_versions[first2]

    def begin(self) -> tuple[int, int]:
        """Return the first versions that can be compared: the first that both recorded, else the first of each."""
        baseline_versions, candidate_versions = self.versions
        common_versions = set(baseline_versions) & set(candidate_versions)
        if common_versions:
            return min(common_versions), min(common_versions)
        return min(baseline_versions), min(candidate_versions)

    def differing(self, version_b: int, version_c: int) -> list[str]:
        """Return the tensors whose digests differ between these versions."""
        baseline_digests, candidate_digests = self.versions[0].get(version_b, {}), self.versions[1].get(version_c, {})
        return sorted(differences(baseline_digests, candidate_digests))

    def equal(self, step: int, version_b: Any, version_c: Any) -> bool | None:
        """Whether this step was rolled out with equal weights; None where that is unknown.

        The digests of the versions decide, else the updates before the step.
        """
        baseline_versions, candidate_versions = self.versions
        if version_b in baseline_versions and version_c in candidate_versions:
            return baseline_versions[version_b] == candidate_versions[version_c]
        # Without digests of these versions: equal weights at the start and bit-identical updates since give equal
        # weights now. One unequal update decides against it, even where others were not recorded.
        before = [self.initial(), *(self.same_update(earlier_step) for earlier_step in range(step))]
        if False in before:
            return False
        return True if all(before) else None

    def same_update(self, step: int) -> bool | None:
        """Whether the actor is bit-identical after this step's update; None where it was not recorded."""
        baseline_digest, candidate_digest = (
            updates.get(step, NOTHING_LEARNED).digests.get("actor") for updates in self.updates
        )
        if baseline_digest is None or candidate_digest is None:
            return None
        return baseline_digest == candidate_digest


def _versions(recording: Recording) -> dict[int, dict[str, str]]:
    digests_by_version: dict[int, dict[str, str]] = {}
    for version, record in recording.records.digests_of(LEARNER):
        digests_by_version.setdefault(version, {}).update(record.nonempty)
    return {version: digests for version, digests in digests_by_version.items() if digests}


def _updates(recording: Recording) -> dict[int, LearnerUpdate]:
    """Return step -> the learner's digests after it, without those for which a step has two values."""
    by_step: dict[int, LearnerUpdate] = {}
    for update in recording.records.updates:
        if update.step is not None:
            by_step[update.step] = by_step.get(update.step, update).agreeing(update)
    return by_step


def _initial_weights(baseline: Recording, candidate: Recording) -> Iterator[Confounder]:
    weights = Weights(baseline, candidate)
    if weights.initial() is False:
        names = weights.differing(*weights.begin())
        summary = f"the learners began with other weights: {len(names):,} tensors differ, the first is {names[0]}"
        yield Confounder(
            Finding("initial weights", summary, where="learner", details={"tensors": names[:50]}), "everything"
        )


def _data(baseline: Recording, candidate: Recording) -> Iterator[Confounder]:
    # Digests of two hash functions say nothing about each other. The numbers of the samples are compared in any case.
    comparable = baseline.hashed_by == candidate.hashed_by
    baseline_prompts, candidate_prompts = (_prompts(run, with_digests=comparable) for run in (baseline, candidate))
    steps = []
    for step in sorted(baseline_prompts.keys() & candidate_prompts.keys()):
        (digests_b, samples_b), (digests_c, samples_c) = baseline_prompts[step], candidate_prompts[step]
        # What one run did not record does not differ.
        other_digests = bool(digests_b and digests_c) and digests_b != digests_c
        other_samples = bool(samples_b and samples_c) and samples_b != samples_c
        if (other_digests or other_samples) and not equal_in_rollouts(baseline, candidate, step):
            steps.append(step)
    if steps:
        several = f" and in {len(steps) - 1} more steps" if len(steps) > 1 else ""
        summary = f"the prompts differ in step {steps[0]}{several}"
        yield Confounder(Finding("data", summary, details={"steps": steps}), "prompts", steps[0])


def _prompts(run: Recording, *, with_digests: bool) -> dict[int, tuple[list[str], list[tuple[int, ...]]]]:
    """Return step -> digests of its prompts and numbers of its samples, over all ranks and batches of the step."""
    by_step: dict[int, tuple[list[str], list[tuple[int, ...]]]] = {}
    for batch in run.records.prompts:
        if batch.step is None:
            continue
        digests, samples = by_step.setdefault(batch.step, ([], []))
        if with_digests and batch.digest is not None:
            digests.append(batch.digest)
        if batch.samples is not None:
            samples.append(batch.samples)
    return by_step


def _dealing(baseline: Ranks, candidate: Ranks) -> Iterator[Confounder]:
    """Find ranks that train on other samples of the same mini-batch, with the same number for each rank and each sample
    once.

    Their sums are those of the other run, but round otherwise. Shares of other sizes are no matter of rounding
    (`SHAPE`).
    """
    # Only the first step counts: from there on the learners round differently, whatever is dealt later.
    baseline_updates, candidate_updates = baseline.updates, candidate.updates
    for key in baseline_updates:
        baseline_shares, candidate_shares = (
            {rank: updates.samples for rank, updates in dealt.get(key, {}).items()}
            for dealt in (baseline_updates, candidate_updates)
        )
        if baseline_shares == candidate_shares or not _same_batches(baseline_shares, candidate_shares):
            continue
        step, role = key
        rank = next(rank for rank in baseline_shares if baseline_shares[rank] != candidate_shares[rank])
        summary = (
            f"in step {step} rank {rank} of the {role} trains on other samples of the same mini-batches: "
            "the sums over the ranks round differently"
        )
        details = {
            "baseline": list(map(list, baseline_shares[rank])),
            "candidate": list(map(list, candidate_shares[rank])),
        }
        yield Confounder(Finding(DEALING, summary, where="learner", details=details), "train", step)
        return


def _micro_batches(baseline: Recording, candidate: Recording, parted: int) -> Iterator[Confounder]:
    """Find a learner that cuts the batch of the step `parted` into other micro-batches, though no setting says so.

    Only jobs of the reference scenario are compared, which take the samples by their numbers. Those of a framework take
    them as engines finish them, and may size each micro-batch by its tokens.
    """
    if any(recording.records.manifest.framework for recording in (baseline, candidate)):
        return
    batches = [_forward_batches(recording, parted) for recording in (baseline, candidate)]
    shares = [{rank: sum(sizes) for rank, sizes in by_rank.items()} for by_rank in batches]
    # Ranks with other numbers of samples are another difference, which has a check of its own.
    if batches[0] == batches[1] or shares[0] != shares[1]:
        return
    counts = [sum(map(len, by_rank.values())) for by_rank in batches]
    summary = f"in step {parted} the actor scores the same samples in {counts[0]} micro-batches in the baseline and in "
    summary += f"{counts[1]} in the candidate: sums round differently"
    details = dict(zip(("baseline", "candidate"), counts, strict=True))
    first = _first_unequal_step(baseline, candidate, parted)
    yield Confounder(Finding(MICRO_BATCHES, summary, where="learner", details=details), "experience", first)


def _forward_batches(recording: Recording, step: int) -> dict[int, list[float]]:
    """Return rank -> the number of samples of each micro-batch of the actor's forward pass, in ascending order."""
    by_rank: dict[int, list[float]] = {}
    for event in recording.labelled("shapes", "actor_forward"):
        if event.get("step") == step:
            by_rank.setdefault(whole(event.get("rank"), 0), []).append(number(event.get("samples"), 0))
    return {rank: sorted(sizes) for rank, sizes in by_rank.items()}


def _same_batches(baseline: Shares, candidate: Shares) -> bool:
    """Whether both deal every mini-batch whole, with no sample twice, in shares of the same sizes."""
    if _sizes(baseline) != _sizes(candidate):
        return False
    batches = _undealt(baseline)
    return batches == _undealt(candidate) and all(len(set(batch)) == len(batch) for batch in batches)


def _sizes(shares: Shares) -> dict[int, list[int]]:
    """Return rank -> the number of its samples in each mini-batch."""
    return {rank: [len(batch) for batch in batches] for rank, batches in shares.items()}


def _undealt(shares: Shares) -> list[list[int]]:
    """Return the samples of each mini-batch over all ranks, in ascending order."""
    return [sorted(itertools.chain(*of_ranks)) for of_ranks in zip(*shares.values(), strict=False)]
