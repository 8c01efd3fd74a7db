"""Confounders: what must be equal for a verdict on the engines and is not, and from where on it acts.

Differences of the engines themselves (their packages, their parameters, sampling) are no confounders but findings
(`suspicions`). What was recorded before a confounder could act stays judgeable.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from harness.parity.subjects.ranks.observed import Ranks
from harness.recordings.store import Recording
from probes.format import mapping
from reports.model import Finding
from scenarios.engines import registry

Shares = Mapping[int, tuple[tuple[int, ...], ...]]  # by rank, the samples of each mini-batch

# What a confounder can have touched: everything that two runs share, the prompts (each sample then shows whether its
# own is equal), the numbers that the learner makes from the rollouts, or only the update that follows them.
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
# Of another framework's own settings nobody here knows what they touch.
_SECTIONS: dict[str, Scope] = {"ppo": "train", "prompts": "prompts", "framework": "everything"}
_HARMLESS = {"ppo.checkpoint_every"}
# How a batch is cut for the same sums: they round otherwise, unless the cuts fall into each other.
DEALING = "samples of the ranks"
CUTS = {"ppo.world_size", "ppo.packing", "ppo.micro_batch_size", DEALING}
# Installed beside the learner without a part in its numbers, beside the engines, which run in their own environments.
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
    """Every confounder, in the order framework, configuration, environment, weights, data, ranks."""
    parted = _parted(baseline, candidate)
    return [
        *_framework(baseline, candidate),
        *_configuration(baseline, candidate, parted),
        *_environment(baseline, candidate),
        *_initial_weights(baseline, candidate),
        *_data(baseline, candidate),
        *([] if parted == math.inf else _dealing(*ranks)),
    ]


def flatten(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{"ppo": {"clip": 0.2}}` as `{"ppo.clip": 0.2}`."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, dict):
            found |= flatten(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def differences(baseline: dict[str, Any], candidate: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Key -> both values, where they differ; None stands for an absent key."""
    keys = list(dict.fromkeys([*baseline, *candidate]))
    return {key: (baseline.get(key), candidate.get(key)) for key in keys if baseline.get(key) != candidate.get(key)}


def _framework(baseline: Recording, candidate: Recording) -> Iterator[Confounder]:
    """Jobs of two frameworks: whatever else differs follows from that."""
    one, two = (str(each.manifest.get("framework") or "the reference scenario") for each in (baseline, candidate))
    if one != two:
        summary = f"the baseline is a job of {one} and the candidate one of {two}: they do not do the same work"
        yield Confounder(Finding("framework", summary, details={"baseline": one, "candidate": two}), "everything")


def _configuration(baseline: Recording, candidate: Recording, parted: float) -> Iterator[Confounder]:
    """`parted`: see `_parted`. How a batch is cut matters from the step after that one on, if its gradients are told:
    they are then held against each other (`harness.parity.subjects.learner.observed`)."""
    if not baseline.scenario or not candidate.scenario:
        return
    harmless = _HARMLESS | (CUTS if parted == math.inf else set())
    for key, (one, two) in differences(flatten(baseline.scenario), flatten(candidate.scenario)).items():
        scope = _SCOPES.get(key) or _SECTIONS.get(key.split(".")[0])
        if scope is None or key in harmless:
            continue
        summary = f"{key} is {one!r} in the baseline and {two!r} in the candidate"
        first = int(parted) + 1 if key in CUTS and _gradients_told(baseline, candidate, parted) else 0
        yield Confounder(Finding(key, summary, details={"baseline": one, "candidate": two}), scope, first)


def _parted(baseline: Recording, candidate: Recording) -> float:
    """The first step of which both learners did not record the same to the last bit of the batch, the actor and the
    critic, where that was recorded; infinity if there is none."""
    one, two = Weights(baseline, candidate).updates
    steps = sorted({*baseline.steps("experience"), *candidate.steps("experience")})
    apart = (
        step
        for step in steps
        for part in ("batch", "actor", "critic")
        if one.get(step, {}).get(part) is None or one[step][part] != two.get(step, {}).get(part)
    )
    return next(apart, math.inf) if steps else -1


def _gradients_told(baseline: Recording, candidate: Recording, step: float) -> bool:
    return all(bool(mapping(one.get(int(step), {}).get("norms"))) for one in Weights(baseline, candidate).updates)


def learner_packages(recording: Recording) -> dict[str, str]:
    """Package -> version over every process but the engines', several versions joined."""
    found: dict[str, set[str]] = {}
    for event in recording.all("open") + recording.all("environment"):
        if event.get("role") != "rollout":
            for name, version in mapping(event.get("packages")).items():
                found.setdefault(name, set()).add(str(version))
            if event.get("python"):
                found.setdefault("python", set()).add(str(event["python"]))
    return {name: " and ".join(sorted(versions)) for name, versions in sorted(found.items())}


def learner_devices(recording: Recording) -> dict[str, list[str]]:
    """What the learner's processes computed on: CUDA or not, device facts and processor model."""
    found: dict[str, set[str]] = {}
    cuda: list[bool] = []
    for event in recording.all("environment"):
        if event.get("role") != "rollout":
            if "cuda_initialized" in mapping(event.get("device")):
                cuda.append(bool(event["device"]["cuda_initialized"]))
            facts = {key: mapping(event.get("device")).get(key) for key in _DEVICE_FACTS}
            facts["cpu"] = mapping(event.get("machine")).get("cpu")
            for key, value in facts.items():
                if value is not None:
                    found.setdefault(key, set()).add(str(value))
    if cuda:  # on a CPU there is no name of a device that could differ
        found["device"] = {"cuda" if any(cuda) else "cpu"}
    return {key: sorted(values) for key, values in found.items()}


def _environment(baseline: Recording, candidate: Recording) -> Iterator[Confounder]:
    one, two = learner_packages(baseline), learner_packages(candidate)
    idle = _WITHOUT_NUMBERS.union(*(spec.process.packages for spec in registry.specs().values()))
    packages = {k: v for k, v in differences(one, two).items() if k not in idle} if one and two else {}
    devices = differences(learner_devices(baseline), learner_devices(candidate))
    devices = {key: pair for key, pair in devices.items() if None not in pair}
    different = {**packages, **devices}
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
    """The learner's weights as both runs recorded them: per version (`weights` events) and per step (`learner`
    events). Nothing, where the digests of the runs were made by different hashes.
    """

    def __init__(self, baseline: Recording, candidate: Recording) -> None:
        self.comparable = baseline.hashed_by == candidate.hashed_by
        told = (baseline, candidate) if self.comparable else ()
        self.versions = tuple(map(_versions, told)) or ({}, {})
        self.updates = tuple(map(_updates, told)) or ({}, {})

    def initial(self) -> bool | None:
        """Were the first recorded weights equal? None: not recorded."""
        one, two = self.versions
        if not one or not two:
            return None
        first, first2 = self.begin()
        return one[first] == two[first2]

    def begin(self) -> tuple[int, int]:
        """The first versions that can be compared: the first that both recorded, where there is one."""
        one, two = self.versions
        both = set(one) & set(two)
        return (min(both), min(both)) if both else (min(one), min(two))

    def differing(self, version_b: int, version_c: int) -> list[str]:
        """Tensors whose digests differ between these versions."""
        one, two = self.versions[0].get(version_b, {}), self.versions[1].get(version_c, {})
        return sorted(differences(one, two))

    def equal(self, step: int, version_b: Any, version_c: Any) -> bool | None:
        """Were the weights equal with which this step was rolled out? By their digests, else by the updates before;
        None: unknown.
        """
        one, two = self.versions
        if version_b in one and version_c in two:
            return one[version_b] == two[version_c]
        before = [self.same_update(k) for k in range(step)]
        if False in before or self.initial() is False:
            return False
        return True if self.initial() and all(before) else None

    def same_update(self, step: int) -> bool | None:
        """Is the actor bit-identical after this step's update? None: not recorded."""
        one, two = (updates.get(step, {}).get("actor") for updates in self.updates)
        return None if one is None or two is None else one == two


def _versions(recording: Recording) -> dict[int, dict[str, str]]:
    found: dict[int, dict[str, str]] = {}
    for event in recording.all("weights"):
        if event.get("source") == "learner" and isinstance(event.get("version"), int):
            digests = mapping(event.get("digests"))
            found.setdefault(event["version"], {}).update({name: one for name, one in digests.items() if one})
    return {version: digests for version, digests in found.items() if digests}


def _updates(recording: Recording) -> dict[int, dict[str, Any]]:
    """Step -> the learner's digests after it; without those of which a step says two things."""
    found: dict[int, dict[str, Any]] = {}
    for event in recording.all("learner"):
        if isinstance(event.get("step"), int):
            known = found.setdefault(event["step"], dict(event))
            for part in ("actor", "critic", "batch"):
                if known.get(part) != event.get(part) or known.get(part) == "":
                    known[part] = None
    return found


def _initial_weights(baseline: Recording, candidate: Recording) -> Iterator[Confounder]:
    weights = Weights(baseline, candidate)
    if weights.initial() is False:
        names = weights.differing(*weights.begin())
        summary = f"the learners began with other weights: {len(names)} tensors differ, the first is {names[0]}"
        yield Confounder(
            Finding("initial weights", summary, where="learner", details={"tensors": names[:50]}), "everything"
        )


def _data(baseline: Recording, candidate: Recording) -> Iterator[Confounder]:
    one, two = (_prompts(run) for run in (baseline, candidate))
    if baseline.hashed_by != candidate.hashed_by:
        one, two = ({step: ([], samples) for step, (_, samples) in run.items()} for run in (one, two))
    pairs = {step: list(zip(one[step], two[step], strict=True)) for step in sorted(set(one) & set(two))}
    steps = [step for step, both in pairs.items() if any(all(pair) and pair[0] != pair[1] for pair in both)]
    if steps:
        several = f" and in {len(steps) - 1} more steps" if len(steps) > 1 else ""
        summary = f"the prompts differ in step {steps[0]}{several}"
        yield Confounder(Finding("data", summary, details={"steps": steps}), "prompts", steps[0])


def _prompts(run: Recording) -> dict[int, tuple[list[Any], list[Any]]]:
    """Step -> digests of its prompts and numbers of its samples: several ranks, and several batches of a step, each
    say theirs."""
    found: dict[int, tuple[list[Any], list[Any]]] = {}
    for event in run.all("data"):
        if _has_step(event):
            for told, name in zip(found.setdefault(event["step"], ([], [])), ("prompts", "samples"), strict=True):
                told += [event[name]] if event.get(name) is not None else []
    return found


def _has_step(event: dict[str, Any]) -> bool:
    return isinstance(event.get("step"), int)


def _dealing(baseline: Ranks, candidate: Ranks) -> Iterator[Confounder]:
    """Ranks that train on other samples of the same mini-batch, as many and each sample once: their sums are those of
    the other run, and round otherwise. Shares of other sizes are no matter of rounding (`SHAPE`)."""
    one, two = baseline.updates, candidate.updates
    for key in one:
        shares, others = ({rank: own.samples for rank, own in dealt.get(key, {}).items()} for dealt in (one, two))
        if shares == others or not _same_batches(shares, others):
            continue
        step, role = key
        rank = next(rank for rank in shares if shares[rank] != others[rank])
        summary = (
            f"in step {step} rank {rank} of the {role} trains on other samples of the same mini-batches: "
            "the sums over the ranks round otherwise"
        )
        details = {"baseline": list(map(list, shares[rank])), "candidate": list(map(list, others[rank]))}
        yield Confounder(Finding(DEALING, summary, where="learner", details=details), "train", step)
        return


def _same_batches(one: Shares, two: Shares) -> bool:
    """Do both deal every mini-batch whole, no sample twice, in shares of the same sizes?"""
    sizes = [{rank: [len(batch) for batch in batches] for rank, batches in each.items()} for each in (one, two)]
    if sizes[0] != sizes[1]:
        return False
    whole = [[sorted(itertools.chain(*batch)) for batch in zip(*each.values(), strict=False)] for each in (one, two)]
    return whole[0] == whole[1] and all(len(set(batch)) == len(batch) for batch in whole[0])
