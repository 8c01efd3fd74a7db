"""What rounding in half precision costs, measured: the learner's log-probabilities against float32's of its weights.

The floor compares an engine with itself, and its kernels round alike each time: vLLM's floor in bfloat16 on a CPU was
exactly 0 in every variant, where it was 0.067 nats at most from a learner with the same weights. The learner's own
rounding, at the tokens that are compared, says what other kernels may differ by.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.parity.facts.align import Match
from harness.parity.subjects.log_probabilities.observed_outliers import OUTLIERS, THOUSANDTH, Rung, Share, outliers
from harness.recordings.store import Recording
from harness.recordings.tables import Rows, Table

LEAST = 200  # tokens; the tail of fewer is not known
BULK = 0.99  # of the tokens: a learner that rounds more of them by more than the cap does not measure rounding
SPREAD = 2.0**0.5  # of the difference of two numbers that round independently, over that of one
# An engine's share of outliers over what two roundings of the learner's size give. Measured on a CPU in bfloat16, vLLM,
# SGLang and the embedded engine against the learner and each other: 0.3 to 3 times.
TAIL_HEADROOM = 4.0
# Times the cap: where the tail is held against the learner's once more. From the last on, single tokens are.
RUNGS = (2.0, 4.0, 8.0)
# What no token may differ by, over the largest rounding of the learner: two that round independently, one of them twice
# as much. Measured: 1.5 times, 0.28 nats in SGLang's native stage beside 0.18 in the learner.
FARTHEST = 2.0 * SPREAD
BELIEVED = 10.0  # times the cap: a larger one is no rounding


@dataclass(frozen=True)
class Rounding:
    """The learner's |half precision − float32|, in nats; NaN where it was not recorded or is no rounding.

    `level`: what all but the allowed outliers stay within. `share`: of the tokens, at which two such roundings may be
    further apart than the cap. `drawn`: the largest of them; `largest`: of all, native samples and the sequences of the
    floor, whose last ids no model would draw, included.
    """

    mean: float = float("nan")
    level: float = float("nan")
    tokens: int = 0
    share: Share = THOUSANDTH
    drawn: float = 0.0
    largest: float = 0.0
    native: Share | None = None  # as `share`, of native samples: other prompts, and likelier to be odd ones
    refused: str = ""  # why it is not believed

    @property
    def measured(self) -> bool:
        return bool(np.isfinite(self.level))

    @staticmethod
    def of(recording: Recording, cap: float, other: Recording | None = None) -> Rounding:
        """That of every step whose experience has both log-probabilities. `other`: what it is compared with, whose
        learner scored native samples of its own.
        """
        sizes = []
        for step in recording.steps("experience"):
            table = recording.table("experience", step)
            pair = None if table is None else both(table, "actor_logprob", "exact_logprob")
            if pair is not None:
                sizes.append(np.abs(pair[0].values.astype(np.float64) - pair[1].values))
        size = np.concatenate(sizes) if sizes else np.zeros(0)
        if len(size) < LEAST or not np.isfinite(size).all():
            return Rounding(tokens=len(size))
        if np.quantile(size, BULK) > cap:
            refused = f"a hundredth of the learner's log-probabilities is more than {cap:g} nats from float32's"
            return Rounding(tokens=len(size), refused=refused)
        level = float(np.partition(size, -1 - outliers(len(size)))[-1 - outliers(len(size))])
        share = share_of(size, cap)
        drawn = min(BELIEVED * cap, float(size.max()))
        native = np.concatenate([_of_native_samples(run) for run in (recording, other) if run is not None])
        other_largest = float(np.max(native, initial=0.0)), largest_of_the_floor(recording, cap)
        largest = min(BELIEVED * cap, max(drawn, *other_largest))
        has_native = len(native) >= LEAST and np.quantile(native, BULK) <= cap
        native_share = share_of(native, cap) if has_native else None
        return Rounding(
            mean=float(size.mean()),
            level=level,
            tokens=len(size),
            share=share,
            drawn=drawn,
            largest=largest,
            native=native_share,
        )

    @staticmethod
    def of_float32(recordings: Iterable[Recording], cap: float) -> Rounding:
        """In float32, where it bounds single tokens only: the learners' own in the sequences of the floor, held against
        float64.

        Of the built-in model after 4 steps at a learning rate of 1e-3 and micro-batches of 4, one learner was 6.2e-5
        nats from float64 at one token of 2,000, and the embedded engine's prefill 1.6e-4 from its decode at another.
        """
        largest = max((largest_of_the_floor(recording, cap) for recording in recordings), default=0.0)
        return Rounding(drawn=largest, largest=largest)

    def facts(self) -> dict[str, Any]:
        """For the report."""
        if not self.measured:
            return {"rounding of the learner": self.refused or "not recorded"}
        return {"rounding of the learner": self.level, "mean rounding of the learner": self.mean}


def share_of(size: np.ndarray, cap: float) -> Share:
    """Of tokens that round by so much, how many may be further apart than the cap, and than some times the cap: there
    as many as the count that was seen allows, for a share of so few says little."""

    def seen(nats: float) -> int:
        return int(np.count_nonzero(SPREAD * size > nats))

    far, tokens = seen(cap), len(size)
    rungs = tuple(Rung(times * cap, Share(1.0, seen(times * cap), tokens)) for times in RUNGS)
    return Share(max(OUTLIERS, TAIL_HEADROOM * far / tokens), far, tokens, rungs)


def largest_of_the_floor(recording: Recording, cap: float) -> float:
    """The largest rounding of the recording's learner in the sequences with which the floor was taken; 0 where it was
    not recorded or is none."""
    tables = (recording.table("floor", step, variant="rounding") for step in recording.steps("floor"))
    rows = [column.values for table in tables if table is not None and (column := table.rows("rounding")) is not None]
    return largest_of(np.concatenate([np.zeros(0), *rows]), cap)


def of_the_floor(recording: Recording, step: int, base: Table, variant: str = "rounding") -> Rows | None:
    """What the learner's rounding, or another `variant` of it, moves at each token of the engine's base run of the
    floor; None where it was not recorded."""
    table, output = recording.table("floor", step, variant=variant), base.rows("output")
    rows = None if table is None else table.rows(variant)
    if table is None or output is None or rows is None:
        return None
    values = np.zeros(len(output.values))
    match = Match.of(base.sample, table.sample)
    for to, source in zip(match.a.tolist(), match.b.tolist(), strict=True):
        start, end = output.offsets[to : to + 2].tolist()
        if (row := rows.row(source)[start - end :]).size == end - start:  # behind the prompt
            values[start:end] = row
    return Rows(values, output.offsets)


def as_far(sizes: np.ndarray, rounding: np.ndarray, cap: float) -> np.ndarray:
    """Which of these differences of an engine from itself its learner's rounding accounts for at the same token, by
    token. Only where that is among the hundredth that rounds most: a learner that rounds everywhere excuses nothing.

    A token rounds far where much is subtracted, whatever the kernel: SGLang was 0.202 nats from itself at one token of
    1,024, at which its learner was 4.98 from float32; at all others it was 0.036 at most.
    """
    if not len(rounding):
        return np.zeros(0, bool)
    rounding = np.where(np.isfinite(rounding), rounding, 0.0)
    most = rounding >= np.quantile(rounding, BULK)
    excused: np.ndarray = most & (sizes <= FARTHEST * np.minimum(rounding, BELIEVED * cap))
    return excused


def misrounded(engine: np.ndarray, learner: np.ndarray, exact: np.ndarray, farthest: float) -> np.ndarray:
    """Tokens at which the learner's own number is off and the engine's is not: by float32 of the same weights, which
    the engine is within `farthest` nats of and the learner is not. Of the hundredth only at which the learner is
    furthest: where it is off everywhere it does not round, it reports something else.
    """
    apart = np.abs(learner.astype(np.float64) - exact)
    finite = np.isfinite(apart)
    if not finite.any():
        return np.zeros(len(apart), bool)
    far = finite & (apart > farthest) & (apart >= np.quantile(apart[finite], BULK))
    is_misrounded: np.ndarray = far & (np.abs(engine.astype(np.float64) - exact) <= farthest)
    return is_misrounded


def largest_of(sizes: np.ndarray, cap: float) -> float:
    """The largest of these roundings; 0 where there is none, or they are so large that they are no rounding."""
    sizes = sizes[np.isfinite(sizes)]
    if not len(sizes) or np.quantile(sizes, BULK) > cap:
        return 0.0
    return min(BELIEVED * cap, float(sizes.max()))


def _of_native_samples(recording: Recording) -> np.ndarray:
    """The rounding of the learner in the samples that an engine's own sampler drew, finite, by token."""
    tables = [recording.table("native_score", step) for step in recording.steps("native_score")]
    pairs = [(table.rows("learner_logprob"), table.rows("exact_logprob")) for table in tables if table is not None]
    sizes = [np.abs(learner.values.astype(np.float64) - wide.values) for learner, wide in pairs
             if learner is not None and wide is not None and np.array_equal(learner.lengths, wide.lengths)]  # fmt: skip
    all_sizes = np.concatenate(sizes) if sizes else np.zeros(0)
    return all_sizes[np.isfinite(all_sizes)]


def both(table: Table, *names: str) -> tuple[Rows, ...] | None:
    """These columns of a frame, where it has all of them with a number for each trained token."""
    tokens, named_columns = table.rows("tokens"), [table.rows(name) for name in names]
    columns = tuple(column for column in named_columns if column is not None)
    if tokens is None or len(columns) < len(named_columns):
        return None
    return columns if all(np.array_equal(column.lengths, tokens.lengths) for column in columns) else None
