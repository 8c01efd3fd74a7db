"""Contradictions within the records of one step, compared while the tables of the step are loaded.

`observed_consistency` explains why, and compares what belongs to no step. Facts that the job of a framework records
only once are not compared: its digests and means may be of other things than ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from harness.parity.subjects.learner.observed_experience import ROUNDINGS, SPACING
from harness.parity.subjects.prompts.observed_boundaries import TokenBoundaries
from harness.parity.subjects.prompts.observed_digests import prompt_digests
from harness.parity.subjects.recording.observed_replay import replayed
from harness.parity.subjects.recording.observed_witnesses import Witnesses
from harness.recordings.records.values import integer
from harness.recordings.records.weight_sync import LEARNER
from harness.recordings.store import Recording
from harness.recordings.tables import Rows, Table
from probes import weights
from probes.format import number

T = TypeVar("T")

SAME_MEAN = 1e-5  # relative, and absolute below one: float32 sums over a batch in another order
SAME_PENALTY = 1e-6  # nats: two roundings of float32
CLAMP = 10.0  # nats: frameworks clamp a KL estimate to this (verl core_algos.py, low_var_kl)
# Schulman, "Approximating KL divergence" (2020); OpenRLHF's `compute_approx_kl`, which clamps to 10 nats.
_ESTIMATORS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "k1": lambda ratio: ratio,
    "k2": lambda ratio: ratio * ratio / 2,
    "k3": lambda ratio: np.exp(-ratio) - 1 + ratio,
    "none": np.zeros_like,
}


@dataclass(frozen=True)
class StepTables:
    """The tables that one recording has of one step."""

    step: int
    rollout: Table | None
    experience: Table | None

    @property
    def rollout_rows(self) -> dict[int, int]:
        """Return sample -> its row in the rollout."""
        return {} if self.rollout is None else self.rollout.row_by_sample

    @property
    def experience_rows(self) -> dict[int, int]:
        """Return sample -> its row in the experience."""
        return {} if self.experience is None else self.experience.row_by_sample


_Compare = Callable[[StepTables], Iterator[str]]


class StepWitnesses:
    """Compare the records of each step of one recording with each other. The fields are those of `Witnesses`."""

    def __init__(self, recording: Recording, boundaries: TokenBoundaries) -> None:
        self.first: dict[str, str] = {}
        self.batch_agrees: dict[int, bool] = {}
        self.seen_as_sent: set[int] = set()
        self._boundaries = boundaries
        self._digests_compare = recording.hashed_by == weights.HASH
        records = recording.records
        self._data = _by_step((batch.step, batch) for batch in records.prompts)
        self._learner = _by_step((update.step, update) for update in records.updates)
        self._step = _by_step((metrics.step, metrics) for metrics in records.steps)
        shapes = recording.shapes_of("experience")
        self._shape_events = _by_step((integer(event.get("step")), event) for event in shapes)
        sent = records.digests_of(LEARNER)
        self._versions_sent = [(record.step, version) for version, record in sent if record.step is not None]
        self._spacing = SPACING.get(records.settings.model.dtype or "", 0.0)
        self._fitting = {*_ESTIMATORS}
        self._guided_run = records.manifest.guided if replayed(recording) is None else None
        self._compared: dict[str, _Compare] = {"prompts": self._prompts, "ends": self._ends}
        if records.manifest.framework:
            self._compared |= {"estimate": self._estimate}
        else:
            self._compared |= {
                "versions": self._versions, "batches": self._batches, "penalty": self._penalty,
                "means": self._means, "shapes": self._shapes, "guided": self._guided,
            }  # fmt: skip

    def add(self, tables: StepTables) -> None:
        """Compare what the recording has of one step. Steps must be added in order."""
        if self._digests_compare and self._learner.get(tables.step):
            self._note_batches(tables)
        self._note_prompts(tables)
        for name, compare in self._compared.items():
            if name not in self.first and (disagreement := next(compare(tables), "")):
                self.first[name] = disagreement

    def witnesses(self) -> Witnesses:
        """Return what the steps so far showed."""
        first = {name: self.first[name] for name in self._compared if name in self.first}
        return Witnesses(first, self.batch_agrees, frozenset(self.seen_as_sent))

    def _prompts(self, tables: StepTables) -> Iterator[str]:
        """Compare the digests of the data with the prompts that were rolled out."""
        if not self._digests_compare or tables.rollout is None:
            return
        rows = tables.rollout.rows("prompt")
        if rows is None:
            return
        for batch in self._data.get(tables.step, ()):
            if batch.digest is None or batch.samples is None:
                continue
            places = [tables.rollout_rows.get(sample) for sample in batch.samples]
            if len(set(places)) < len(places):
                yield f"the data of step {tables.step} names a sample twice"
            elif None in places:
                yield f"the prompts of step {tables.step} are not of the samples that its data names"
            elif batch.digest not in prompt_digests(rows, np.array(places, np.int64)):
                yield f"the prompts of step {tables.step} do not have the digest of its data"

    def _note_prompts(self, tables: StepTables) -> None:
        """Hold the digests of the data against the prompts that the engine saw, where those are others."""
        rollout = tables.rollout
        if rollout is None or not self._data.get(tables.step):
            return
        sent, observed = rollout.rows("prompt"), rollout.rows("prompt_seen")
        if sent is None or observed is None or np.array_equal(sent.values, observed.values):
            return
        if not next(self._prompts(tables), ""):
            return
        # The data contradicts what was sent. Put the prompts that the engine saw in its place: if the digest fits now,
        # the rollouts are wrong about what they sent, and the engine was sent the data.
        as_observed = replace(rollout, columns={**rollout.columns, "prompt": observed})
        if not next(self._prompts(replace(tables, rollout=as_observed)), ""):
            self.seen_as_sent.add(tables.step)

    def _ends(self, tables: StepTables) -> Iterator[str]:
        """Compare the recorded ends of samples with the samples."""
        if tables.rollout is None:
            return
        samples = _SampleEnds(tables.rollout)
        for event in self._boundaries.events(tables.step):
            sample = event.get("sample")
            if not isinstance(sample, int) or sample not in tables.rollout_rows:
                continue
            if wrong := samples.differing(event, tables.rollout_rows[sample]):
                yield f"{wrong} of sample {sample} in step {tables.step} is not that of its boundaries"

    def _estimate(self, tables: StepTables) -> Iterator[str]:
        """Check that a framework's KL penalty is the same one of `_ESTIMATORS` in every step.

        It is computed from the two columns beside it. It may be zero where the loss has the KL term instead.
        """
        columns = _penalty_columns(tables.experience)
        if columns is None:
            return
        # A token without a number in any of the three columns contradicts nothing; other checks report it.
        wide = [column.astype(np.float64) for column in columns]
        kl, actor, reference = (column[np.isfinite(wide).all(axis=0)] for column in wide)
        ratio, scale = actor - reference, np.maximum(1.0, np.maximum(np.abs(actor), np.abs(reference)))
        # A job uses one estimator throughout: one that failed in an earlier step is not tried again.
        for name in sorted(self._fitting):
            estimate = _ESTIMATORS[name](np.clip(ratio, -700, 700))  # exp overflows float64 beyond 709
            # The columns are float32: kl is off by the rounding of both log-probabilities, of their difference and of
            # the estimate, and by the spacing of the type that the framework computed in.
            off = np.abs(np.clip(kl, -CLAMP, CLAMP) - np.clip(estimate, -CLAMP, CLAMP))
            allowed = 2.0**-24 * scale * (1 + np.abs(ratio) + np.abs(estimate)) + self._spacing * np.abs(estimate)
            if not (off <= ROUNDINGS * allowed).all():
                self._fitting -= {name}
        if not self._fitting:
            yield f"kl of step {tables.step} does not follow from actor_logprob and reference_logprob by k1, k2 or k3"

    # --- what the harness' own runs say twice ---------------------------------------------------------

    def _versions(self, tables: StepTables) -> Iterator[str]:
        """Compare the version that a step was trained at with the learner's newest before it. Frameworks may train at
        an older one.
        """
        if tables.experience is None:
            return
        trained_at = tables.experience.header.weight_version
        newest = max((version for step, version in self._versions_sent if step < tables.step), default=None)
        if trained_at is not None and newest not in (None, trained_at):
            yield f"step {tables.step} was trained at weight version {trained_at}, and the learner was at {newest}"

    def _note_batches(self, tables: StepTables) -> None:
        batches = self._data.get(tables.step, ())
        digest = batch_digest(tables, batches[-1].samples if batches else None)
        for update in self._learner[tables.step]:
            if "batch" in update.digests and digest is not None:
                agrees = self.batch_agrees.get(tables.step, True)
                self.batch_agrees[tables.step] = agrees and digest == update.digests["batch"]

    def _batches(self, tables: StepTables) -> Iterator[str]:
        """Compare the digest of what was trained on with the experience."""
        if not self.batch_agrees.get(tables.step, True):
            yield f"the experience of step {tables.step} does not have the digest that the learner recorded"

    def _penalty(self, tables: StepTables) -> Iterator[str]:
        """Check that the KL penalty is the difference of the two columns beside it."""
        columns = _penalty_columns(tables.experience)
        if columns is None:
            return
        kl, actor, reference = columns
        # Nearly every step ends with this one comparison. `allclose`, which also lets equal NaN and infinities pass,
        # is only called where it fails.
        with np.errstate(invalid="ignore"):
            penalty = actor - reference
            near = bool((np.abs(kl - penalty) <= SAME_PENALTY).all())
        if not near and not np.allclose(kl, penalty, atol=SAME_PENALTY, equal_nan=True):
            yield f"kl of step {tables.step} is not actor_logprob less reference_logprob"

    def _means(self, tables: StepTables) -> Iterator[str]:
        """Compare the trainer's metrics of a step with its samples."""
        records = self._step.get(tables.step, ())
        if tables.experience is None or tables.rollout is None or not records:
            return
        means = dict(_means_of(tables.experience, tables.rollout))
        for record in records:
            for name, mean in means.items():
                recorded = record.number(name)
                if name in record.metrics and not math.isclose(recorded, mean, rel_tol=SAME_MEAN, abs_tol=SAME_MEAN):
                    yield f"{name} of step {tables.step} is {recorded:.6g}, and its samples give {mean:.6g}"

    def _shapes(self, tables: StepTables) -> Iterator[str]:
        """Compare the sizes of the experience batch with the samples."""
        if tables.experience is None or tables.rollout is None:
            return
        tokens, prompts = tables.experience.rows("tokens"), tables.rollout.rows("prompt")
        if tokens is None or prompts is None:
            return
        sizes = {"samples": len(tokens), "real_tokens": int(tokens.lengths.sum() + prompts.lengths.sum())}
        for event in self._shape_events.get(tables.step, ()):
            for name, size in sizes.items():
                if name in event and number(event[name]) != size:
                    yield f"{name} of the batch of step {tables.step} is {event[name]!r}, and its samples give {size}"

    def _guided(self, tables: StepTables) -> Iterator[str]:
        """Compare run.json with the frames on whether the run followed a guide.

        A replay follows what it replays, and an engine's own sampler follows nothing: both are skipped.
        """
        rollout = tables.rollout
        if self._guided_run is None or rollout is None or rollout.header.mode == "native":
            return
        if rollout.header.guided != self._guided_run:
            by_run, by_frames = ("guided", "not guided") if self._guided_run else ("not guided", "guided")
            yield f"the run was {by_run} by run.json, and step {tables.step} was {by_frames} by its rollouts"


class _SampleEnds:
    """The ends of the samples of one rollout, to compare with `boundaries` events."""

    def __init__(self, rollout: Table) -> None:
        self._finish = rollout.finish
        self._output = _ends_of(rollout.rows("output"))
        prompts = [rollout.rows("prompt"), rollout.rows("prompt_seen")]
        self._prompts = [ends for ends in map(_ends_of, prompts) if ends is not None]

    def differing(self, event: dict[str, Any], row: int) -> str:
        """Return which end of a sample its event contradicts; "" where none."""
        if self._output is not None and not _is_end(event, "output", self._output, row):
            return "the output"
        if self._prompts and not any(_is_end(event, "prompt", ends, row) for ends in self._prompts):
            return "the prompt"
        finish = event.get("finish")
        if self._finish is not None and finish and self._finish[row] and finish != self._finish[row]:
            return "the finish reason"
        return ""


def _ends_of(rows: Rows | None) -> tuple[np.ndarray, list[int]] | None:
    """Return the values of rows, and where each begins; as a list, which is faster to index than an array."""
    return None if rows is None else (rows.values, rows.offsets.tolist())


def _is_end(event: dict[str, Any], what: str, ends: tuple[np.ndarray, list[int]], row: int) -> bool:
    values, (start, end) = ends[0], ends[1][row : row + 2]
    first, last, length = event.get(f"{what}_first"), event.get(f"{what}_last"), event.get(f"{what}_len")
    if isinstance(first, list) and first != values[start : min(end, start + len(first))].tolist():
        return False
    if isinstance(last, list) and last != values[max(start, end - len(last)) : end].tolist():
        return False
    return not isinstance(length, int) or length == end - start


def _by_step(records: Iterable[tuple[int | None, T]]) -> dict[int, list[T]]:
    """Return step -> its records; those of no step are left out."""
    by_step: dict[int, list[T]] = {}
    for step, record in records:
        if step is not None:
            by_step.setdefault(step, []).append(record)
    return by_step


def batch_digest(tables: StepTables, order: tuple[int, ...] | None) -> str | None:
    """Return the digest of a batch as `scenarios.ppo.experience` makes it; None where a part of it was not recorded.

    `order`: the samples in the order in which they were trained on, where that was recorded.
    """
    rollout, experience = tables.rollout, tables.experience
    if rollout is None or experience is None:
        return None
    prompts, tokens, reward = rollout.rows("prompt"), experience.rows("tokens"), experience.flat("reward")
    names = {"logprob": "actor_logprob", "advantage": "advantage", "return": "return", "value": "value"}
    columns = {ours: experience.rows(theirs) for ours, theirs in names.items()}
    if prompts is None or tokens is None or reward is None or None in columns.values():
        return None
    # The learner digests the batch in the order in which it trained. An order that names other samples than the
    # experience has cannot be it, so the experience's own order is taken then.
    samples = experience.sample.tolist()
    if order is not None and set(order) == tables.experience_rows.keys():
        samples = list(order)
    if not tables.rollout_rows.keys() >= set(samples):
        return None
    trained = np.array([tables.experience_rows[sample] for sample in samples], np.int64)
    drawn = np.array([tables.rollout_rows[sample] for sample in samples], np.int64)
    parts = {"tokens": _sequences(prompts, drawn, tokens, trained), "reward": reward[trained]}
    parts |= {name: column.joined_at(trained) for name, column in columns.items() if column is not None}
    return weights.combine(weights.digests(parts))


def _sequences(prompts: Rows, drawn: np.ndarray, tokens: Rows, trained: np.ndarray) -> np.ndarray:
    """Return the ids of each sample's prompt and response, one sample after the other."""
    joined = Rows.joined([Rows(rows.values.astype(np.int32, copy=False), rows.offsets) for rows in (prompts, tokens)])
    return joined.joined_at(np.stack([drawn, len(prompts) + trained], axis=1).ravel())


def _penalty_columns(experience: Table | None) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Return kl, actor_logprob and reference_logprob; None unless all have the same number of tokens (`gaps` reports
    it).
    """
    if experience is None:
        return None
    recorded = experience.together("kl", "actor_logprob", "reference_logprob")
    if recorded is None:
        return None
    kl, actor, reference = (column.values for column in recorded)
    return (kl, actor, reference) if len(kl) == len(actor) == len(reference) else None


def _means_of(experience: Table, rollout: Table) -> Iterator[tuple[str, float]]:
    reward, tokens, kl = experience.flat("reward"), experience.rows("tokens"), experience.rows("kl")
    cached = rollout.flat("cached")
    if reward is not None and np.isfinite(reward).all():
        yield "reward_mean", float(reward.mean(dtype=np.float64))
    if kl is not None and len(kl.values) and np.isfinite(kl.values).all():
        yield "kl_mean", float(kl.values.mean(dtype=np.float64))
    if tokens is not None and len(tokens):
        yield "length_mean", float(tokens.lengths.mean())
        yield "length_max", float(tokens.lengths.max())
        yield "tokens", float(tokens.lengths.sum())
    if rollout.finish is not None and not rollout.header.guided:  # a guided run ends as its guide did
        yield "truncated_fraction", float((rollout.finish == "length").mean())
    if cached is not None:
        yield "cached_tokens", float(cached.sum())
