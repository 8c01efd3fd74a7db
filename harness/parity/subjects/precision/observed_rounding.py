"""The cost of rounding in half precision: the learner's log-probabilities against those of its weights in float32.

The floor compares an engine with itself, and its kernels round alike each time. vLLM's floor in bfloat16 on a CPU was
exactly 0 in every variant, where it was up to 0.067 nats from a learner with the same weights. The learner's own
rounding, at the tokens that are compared, says how far other kernels may be off.
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

LEAST = 200  # tokens; with fewer the tail is unknown
BULK = 0.99  # quantile of the tokens; a learner that is off by more than the cap there shows no rounding
SPREAD = 2.0**0.5  # spread of the difference of two numbers that round independently, over that of one
# Times the share of outliers that two roundings of the learner's size give. Measured on a CPU in bfloat16, vLLM, SGLang
# and the embedded engine against the learner and each other: 0.3 to 3 times.
TAIL_HEADROOM = 4.0
# Times the cap: distances at which the tail is held against the learner's again. Beyond the last, single tokens are.
RUNGS = (2.0, 4.0, 8.0)
# Largest difference of a token, over the learner's largest rounding: two numbers that round independently, one of them
# twice as much. Measured: 1.5 times, 0.28 nats in SGLang's native stage beside 0.18 in the learner.
FARTHEST = 2.0 * SPREAD
BELIEVED = 10.0  # times the cap; a larger difference is no rounding


@dataclass(frozen=True)
class Rounding:
    """The learner's |half precision − float32|, in nats; NaN where it was not recorded or is no rounding.

    `mean`, `level`: the mean, and the largest without the allowed outliers. `share`: how many tokens may be further
    apart than the cap after two such roundings. `drawn`: the largest of the trained tokens. `largest`: the largest of
    all, including native samples and the sequences of the floor, whose last ids no model would draw.
    """

    mean: float = float("nan")
    level: float = float("nan")
    tokens: int = 0
    share: Share = THOUSANDTH
    drawn: float = 0.0
    largest: float = 0.0
    native: Share | None = None  # `share` for native samples, which have other prompts, and odd ones more often
    refused: str = ""  # why the measurement is not used

    @property
    def measured(self) -> bool:
        return bool(np.isfinite(self.level))

    @staticmethod
    def of(recording: Recording, cap: float, other: Recording | None = None) -> Rounding:
        """Measure the rounding over every step whose experience has both log-probabilities.

        `other`: the other side's recording, whose learner scored native samples of its own.
        """
        size = _sizes(recording)
        if len(size) < LEAST or not np.isfinite(size).all():
            return Rounding(tokens=len(size))
        # A learner that is far off at many tokens does not round: it computes something else.
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
        """Measure the learners' own rounding in float32, against float64, in the sequences of the floor. It bounds
        single tokens only.

        With the built-in model after 4 steps at a learning rate of 1e-3 and micro-batches of 4, a learner was 6.2e-5
        nats from float64 at one token of 2,000, and the embedded engine's prefill 1.6e-4 from its decode at another.
        """
        largest = max((largest_of_the_floor(recording, cap) for recording in recordings), default=0.0)
        return Rounding(drawn=largest, largest=largest)

    def facts(self) -> dict[str, Any]:
        """Return what the report shows."""
        if not self.measured:
            return {"rounding of the learner": self.refused or "not recorded"}
        return {"rounding of the learner": self.level, "mean rounding of the learner": self.mean}


def _sizes(recording: Recording) -> np.ndarray:
    """Return the rounding of each trained token of the run, in nats, where both of its log-probabilities are there."""
    sizes = [np.zeros(0)]
    for step in recording.steps("experience"):
        table = recording.table("experience", step)
        pair = None if table is None else both(table, "actor_logprob", "exact_logprob")
        if pair is not None:
            sizes.append(np.abs(pair[0].values.astype(np.float64) - pair[1].values))
    return np.concatenate(sizes)


def share_of(size: np.ndarray, cap: float) -> Share:
    """Return how many tokens may be further apart than the cap, and than multiples of it, given these roundings.

    At the multiples only the measured count decides, since a share of so few tokens says little.
    """

    def beyond(nats: float) -> int:
        return int(np.count_nonzero(SPREAD * size > nats))

    far, tokens = beyond(cap), len(size)
    rungs = tuple(Rung(times * cap, Share(1.0, beyond(times * cap), tokens)) for times in RUNGS)
    return Share(max(OUTLIERS, TAIL_HEADROOM * far / tokens), far, tokens, rungs)


def largest_of_the_floor(recording: Recording, cap: float) -> float:
    """Return the learner's largest rounding in the sequences of the floor; 0 where it was not recorded or is no
    rounding.
    """
    columns = [recording.rows("floor", step, "rounding", variant="rounding") for step in recording.steps("floor")]
    values = [column.values for column in columns if column is not None]
    return largest_of(np.concatenate([np.zeros(0), *values]), cap)


def of_the_floor(recording: Recording, step: int, base: Table, variant: str = "rounding") -> Rows | None:
    """Return how far the learner's rounding, or another `variant`, moves each token of the engine's base run of the
    floor.

    Returns None where it was not recorded.
    """
    table, output = recording.table("floor", step, variant=variant), base.rows("output")
    if table is None or output is None or (rows := table.rows(variant)) is None:
        return None
    values = np.zeros(len(output.values))
    match = Match.of(base.sample, table.sample)
    for to, source in zip(match.a.tolist(), match.b.tolist(), strict=True):
        start, end = output.offsets[to : to + 2].tolist()
        if (row := rows.row(source)[start - end :]).size == end - start:  # the last part, behind the prompt
            values[start:end] = row
    return Rows(values, output.offsets)


def as_far(sizes: np.ndarray, rounding: np.ndarray, cap: float) -> np.ndarray:
    """Return a mask of the engine's differences from itself that the learner's rounding at the same token explains.

    Only tokens among the hundredth that round most are excused: a learner that rounds everywhere excuses nothing. A
    token rounds far where much is subtracted, whatever the kernel. SGLang was 0.202 nats from itself at one token of
    1,024, at which its learner was 4.98 from float32; at all others it was within 0.036.
    """
    if not len(rounding):
        return np.zeros(0, bool)
    rounding = np.where(np.isfinite(rounding), rounding, 0.0)
    most = rounding >= np.quantile(rounding, BULK)
    excused: np.ndarray = most & (sizes <= FARTHEST * np.minimum(rounding, BELIEVED * cap))
    return excused


def misrounded(engine: np.ndarray, learner: np.ndarray, exact: np.ndarray, farthest: float) -> np.ndarray:
    """Return a mask of tokens at which the learner's own number is wrong and the engine's is right.

    There the engine is within `farthest` nats of float32 with the same weights, and the learner is not. Only the
    hundredth at which the learner is furthest counts: a learner that is wrong everywhere does not round but reports
    something else.
    """
    apart = np.abs(learner.astype(np.float64) - exact)
    finite = np.isfinite(apart)
    if not finite.any():
        return np.zeros(len(apart), bool)
    far = finite & (apart > farthest) & (apart >= np.quantile(apart[finite], BULK))
    is_misrounded: np.ndarray = far & (np.abs(engine.astype(np.float64) - exact) <= farthest)
    return is_misrounded


def largest_of(sizes: np.ndarray, cap: float) -> float:
    """Return the largest of these roundings; 0 where there is none, or where they are too large to be rounding."""
    sizes = sizes[np.isfinite(sizes)]
    if not len(sizes) or np.quantile(sizes, BULK) > cap:
        return 0.0
    return min(BELIEVED * cap, float(sizes.max()))


def _of_native_samples(recording: Recording) -> np.ndarray:
    """Return the learner's finite roundings in the samples of an engine's own sampler, by token."""
    tables = [recording.table("native_score", step) for step in recording.steps("native_score")]
    pairs = [(table.rows("learner_logprob"), table.rows("exact_logprob")) for table in tables if table is not None]
    sizes = [np.abs(learner.values.astype(np.float64) - wide.values) for learner, wide in pairs
             if learner is not None and wide is not None and np.array_equal(learner.lengths, wide.lengths)]  # fmt: skip
    all_sizes = np.concatenate(sizes) if sizes else np.zeros(0)
    return all_sizes[np.isfinite(all_sizes)]


def both(table: Table, *names: str) -> tuple[Rows, ...] | None:
    """Return these columns of a frame where it has all of them, with one number for each trained token; else None."""
    tokens, named_columns = table.rows("tokens"), [table.rows(name) for name in names]
    columns = tuple(column for column in named_columns if column is not None)
    if tokens is None or len(columns) < len(named_columns):
        return None
    return columns if all(np.array_equal(column.lengths, tokens.lengths) for column in columns) else None
