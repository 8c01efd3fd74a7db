"""Whether the losses that a learner applies are what its own experience gives.

In the first update of a step the policy has not moved yet. The ratio is one, and the new values are the old ones: so
the loss of each token follows from its advantage, or from its value and return (`scenarios.ppo.losses`). The loss is
their mean over the tokens of the mini-batch. Only runs of the harness's own trainer record that loss.

In later updates of the step the policy has moved, and with it the ratio of its probabilities to the old ones. Where the
step's mean of that divergence is exactly zero, the loss took the present log-probabilities for the old ones, and
nothing is ever clipped.

Where a learner and its engine disagree, or have few tokens in common, the log-probabilities that it recorded may not
be those of its weights. The ratio is then not one, and the actor's loss of that step tells nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from harness.parity.facts.divergence import Kind
from harness.parity.facts.evidence_builder import EvidenceBuilder, SideBuilder
from harness.parity.subjects.learner.observed_learner_faults import AppliedLosses, Divisor
from harness.parity.subjects.recording.observed_step_consistency import StepTables
from harness.recordings.records.learner_update import FirstUpdate
from harness.recordings.records.run_settings import LearnerSettings
from harness.recordings.tables import Table
from reports.model import Place, place_of_step
from reports.text import figure

# Nats by which a step moves the log-probabilities in the mean. The first of ten updates then moves them by a tenth of
# it, whose divergence (half the square) is a hundred times what rounding in float32 hides.
MOVED = 0.05
SUMS = 1e-6  # relative: float32 sums over a mini-batch in another order


@dataclass(frozen=True)
class _Tokens:
    """The losses of one role's tokens in a mini-batch, and how far rounding may move each. `part`, `sample`: numbers
    of the micro-batch and of the sample that a token is of.
    """

    loss: np.ndarray
    rounding: np.ndarray
    part: np.ndarray
    sample: np.ndarray

    def mean(self) -> float:
        return float(self.loss.mean())

    def mean_of(self, group: np.ndarray) -> float:
        """Return the mean over groups of their own means."""
        counts = np.bincount(group)
        return float((np.bincount(group, self.loss)[counts > 0] / counts[counts > 0]).mean())

    @property
    def bounds(self) -> _Tokens:
        """Return the tokens with the most that each loss may be off for its loss. A reading is a mean, so what it makes
        of them bounds what it makes of the losses.
        """
        return replace(self, loss=self.rounding + SUMS * np.abs(self.loss))


_READINGS: Mapping[Divisor, Callable[[_Tokens, int], float]] = {
    Divisor.MICRO_BATCHES: lambda tokens, ranks: tokens.mean_of(tokens.part),
    Divisor.SAMPLES: lambda tokens, ranks: tokens.mean_of(tokens.sample),
    Divisor.RANKS: lambda tokens, ranks: tokens.mean() / ranks,
}


@dataclass
class LossSums:
    """What the steps of one side have shown so far. `fitting`: readings that give every loss that does not follow.
    `nearer`: step -> readings that are nearer to each of its losses than the mean, however little.
    """

    updates: Mapping[int, FirstUpdate]
    compared: int = 0
    roles: set[str] = field(default_factory=set)
    places: list[Place] = field(default_factory=list)
    fitting: set[Divisor] = field(default_factory=lambda: set(Divisor))
    nearer: dict[int, set[Divisor]] = field(default_factory=dict)

    @staticmethod
    def of(side: SideBuilder) -> LossSums:
        records = side.recording.records
        return LossSums({update.step: update.first for update in records.updates if update.step is not None})

    def add(self, e: EvidenceBuilder, side: SideBuilder, tables: StepTables, scored: int) -> None:
        """Compare the losses of one step's first update with its experience, where both are recorded.

        `scored`: tokens of the step at which the learner's log-probabilities were compared with its engine's.
        """
        first, table = self.updates.get(tables.step), tables.experience
        if first is None or first.parts is None or table is None or side.recording.records.manifest.framework:
            return
        learner = side.recording.records.settings.learner
        trained, moved = table.rows("tokens"), tables.step in e.places.get(Kind.ENGINE.of(side.name), {})
        right = trained is not None and 2 * scored >= len(trained.values) and not moved
        for role, loss in first.losses.items():
            if role == "actor" and not right:
                continue  # its log-probabilities may be wrong: then the ratio is not one
            tokens = _tokens(role, learner, table, first.parts, e.tolerance.value)
            if tokens is None or not np.isfinite(loss):
                continue
            ranks = learner.world_size or 1
            self.nearer.setdefault(tables.step, set(Divisor)).intersection_update(_nearer(tokens, loss, ranks))
            if self._is_wrong(tokens, loss, ranks):
                self.roles.add(role)
                self.places.append(_place(side, table, role, loss, tokens.mean()))

    def _is_wrong(self, tokens: _Tokens, loss: float, ranks: int) -> bool:
        """Whether the recorded loss of a mini-batch is not the mean of its tokens' losses. Counts it as compared."""
        expected, allowed = tokens.mean(), tokens.bounds.mean()
        readings = {divisor: read(tokens, ranks) for divisor, read in _READINGS.items()}
        off = {divisor: abs(loss - reading) for divisor, reading in readings.items()}
        if abs(loss - expected) <= allowed:
            # An agreement says something only where another divisor would have shown: half as far would not do.
            self.compared += any(abs(reading - expected) > 2 * allowed for reading in readings.values())
            return False
        # A reading explains the losses only if it gives every one of them.
        self.compared += 1
        self.fitting -= {divisor for divisor, read in _READINGS.items() if off[divisor] > read(tokens.bounds, ranks)}
        return True

    def losses(self, e: EvidenceBuilder, side: SideBuilder) -> AppliedLosses:
        """Return what the run showed, and note its divergences."""
        for place in self.places:
            e.note_divergence(Kind.APPLIED_LOSS.of(side.name), [], place)
        fitting = next(iter(self.fitting)) if self.places and len(self.fitting) == 1 else None
        steps = tuple(sorted({place.step for place in self.places}))
        fixed = () if self.places else _with_fixed_ratio(side)
        for step, shift in fixed:
            e.note_divergence(Kind.APPLIED_LOSS.of(side.name), [], _place_of_fixed(side, step, shift))
        return AppliedLosses(
            compared=self.compared,
            wrong=len(self.places),
            steps=steps,
            roles=tuple(sorted(self.roles)),
            divisor=fitting,
            fixed_ratio=tuple(step for step, _ in fixed),
            since=self._since(fitting, steps[0]) if steps else 0,
        )

    def _since(self, divisor: Divisor | None, first: int) -> int:
        """Return the step from which on a reading is nearer to each loss than the mean is, `first` at most: before the
        first loss that rounding does not explain, the same divisor moves losses by less than rounding may."""
        for step in sorted((step for step in self.nearer if step < first), reverse=True):
            if divisor not in self.nearer[step]:
                break
            first = step
        return first


def _nearer(tokens: _Tokens, loss: float, ranks: int) -> set[Divisor]:
    """Return the readings that are nearer to an applied loss than the mean of its tokens' losses is."""
    off = abs(loss - tokens.mean())
    return {divisor for divisor, read in _READINGS.items() if abs(loss - read(tokens, ranks)) < off}


def _with_fixed_ratio(side: SideBuilder) -> tuple[tuple[int, float], ...]:
    """Return (step, nats by which it moved the log-probabilities) where the ratio of probabilities stayed one; () if it
    did not in any step that tells.
    """
    records = side.recording.records
    if records.manifest.framework:
        return ()  # others average these figures over other tokens
    updates = {update.step: len(update.norms.get("actor", ())) for update in records.updates}
    shifts: list[tuple[int, float]] = []
    for metrics in records.steps:
        shift = metrics.number("update_logprob_shift")
        # In the only update of a step the ratio is one in a sound learner, too.
        if metrics.step is None or updates.get(metrics.step, 0) <= 1 or not shift >= MOVED:
            continue
        if metrics.number("approx_kl") != 0.0:
            return ()
        shifts.append((metrics.step, shift))
    return tuple(shifts)


def _place_of_fixed(side: SideBuilder, step: int, shift: float) -> Place:
    return place_of_step(
        step=step,
        phase="train",
        field="ratio of the actor's probabilities",
        **side.paired(1.0, 1.0),
        context=f"the {side.name}'s updates of step {step} moved its log-probabilities by {figure(shift)} nats in the "
        "mean, and the ratio to the old ones was one in each of them",
    )


def _tokens(
    role: str, settings: LearnerSettings, table: Table, parts: tuple[tuple[int, ...], ...], rounding: float
) -> _Tokens | None:
    """Return the losses of a mini-batch's tokens; None where a column, a sample or a setting is missing.

    `rounding`: how far a number of the same weights may be off in another batch.
    """
    row_of = table.row_by_sample
    samples = [sample for part in parts for sample in part]
    if not samples or not row_of.keys() >= set(samples):
        return None
    rows = np.array([row_of[sample] for sample in samples], np.int64)
    if role == "actor" and settings.entropy_coef == 0.0 and (actor := table.together("advantage")):
        # With a ratio of one the clipped objective is the advantage. Rounding of log-probabilities by r makes it e^r.
        loss = -actor[0].joined_at(rows).astype(np.float64)
        moved = np.abs(loss) * np.expm1(rounding)
        lengths = actor[0].lengths[rows]
    elif role == "critic" and np.isfinite(settings.value_coef) and (critic := table.together("value", "return")):
        # Half the squared error. A value that is off by r moves it by at most (|error| + r) r.
        value, returns = (column.joined_at(rows).astype(np.float64) for column in critic)
        error = value - returns
        loss = settings.value_coef * error**2 / 2
        moved = settings.value_coef * (np.abs(error) + rounding) * rounding
        lengths = critic[0].lengths[rows]
    else:
        return None
    if not len(loss) or not np.isfinite(loss).all() or not np.isfinite(rounding):
        return None
    part = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    return _Tokens(loss, moved, np.repeat(part, lengths), np.repeat(np.arange(len(samples)), lengths))


def _place(side: SideBuilder, table: Table, role: str, applied: float, expected: float) -> Place:
    return place_of_step(
        step=table.step,
        phase="train",
        field=f"loss of the {role}'s first update",
        **side.paired(applied, expected),
        context=f"the {side.name}'s {role} applied a loss of {figure(applied)} in the first update of step "
        f"{table.step}; the experience of its samples gives {figure(expected)}",
    )
