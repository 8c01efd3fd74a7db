"""The floor: how far an engine is from itself, measured, and capped so that a noisy engine cannot excuse itself.

Each engine draws the same samples with the same weights and randomness in other batch compositions and orders, and
scores them by prefill instead of decode. The job of a framework is run again as a whole. The floor is the largest |Δ
log-probability| before the first difference of tokens, without the allowed outliers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from harness.parity.facts.align import Match, equal_rows, shared
from harness.parity.facts.probabilities import binomial_from, poisson_limit
from harness.parity.subjects.log_probabilities.observed_outliers import (
    EXTREME,
    EXTREME_HALF,
    FALSE_OUTLIERS,
    THOUSANDTH,
    Share,
    outliers,
)
from harness.parity.subjects.precision.observed_rounding import (
    BELIEVED,
    BULK,
    FARTHEST,
    Rounding,
    as_far,
    of_the_floor,
)
from harness.recordings.store import Recording
from harness.recordings.tables import Rows, Table
from scenarios.lifted import HALF

# Largest floor that can be noise, in nats. In float32 batch composition alone reached 1.2e-5 in SGLang on a tiny model,
# and engines were within 1.4e-6 of Transformers. In bfloat16 published figures are 0.01 to 0.05; larger models may need
# another cap (`judge(cap=...)`).
CAPS = {"float32": 1e-4, "bfloat16": 0.05, "float16": 0.05}
# The cap of float32 where kernels may multiply in TF32, which has the mantissa of float16. Triton's `tl.dot` does, and
# so does the attention of vLLM and SGLang on GPUs. On an H200 engines were up to 0.0013 nats from themselves, and 0.012
# from their learner (docs/measurements/gpu.md).
CAP_TF32 = 0.05
EPSILON = 2.0**-23  # spacing of float32 at 1
# How an engine is asked again to be held against itself: name in a recording -> in words.
VARIANTS = {"batch": "in other batches", "order": "in another order", "prefill": "by prefill in place of decoding"}
# Tokens of which one may lie beyond the cap in float32. On the built-in policy after five PPO steps the number of
# tokens beyond x nats fell as 1/x: of 24,075 that SGLang and its learner scored 15 were beyond 5e-6, 6 beyond 1e-5, and
# one at 1.2e-4, with float64 between the two. So one in about 40,000 exceeds the cap by rounding alone.
TAIL_TOKENS = 4_724
MINIMUM_TOKENS = 64  # fewer tokens say nothing about an extreme value
HEADROOM = 10.0  # times the floor: see `Tolerance.value`
RESOLUTION = 16.0  # times the spacing of float32: see `Tolerance.value`
LARGEST_SCALE = 20.0  # nats: a damaged number must not widen its own tolerance
Pair = tuple[int, str, Table, Table]  # step, variant, samples of the base run, samples of the variant
IMPLAUSIBLE = 1e-6  # least probability at which the flips of an engine against itself can be ties


@dataclass(frozen=True)
class Sharded:
    """How far the learner's log-probabilities move when its layers are split as tensor parallelism splits them, in
    nats.

    `level`: the largest move without the allowed outliers. `mean`: the mean move.
    """

    level: float
    mean: float

    @staticmethod
    def of(recording: Recording) -> Sharded | None:
        """Measure it from a recording.

        Returns None where the engine has one rank, the model could not be split, or the move is too large to be
        rounding.
        """
        bases = ((step, recording.table("floor", step, variant="base")) for step in recording.steps("floor"))
        rows = [of_the_floor(recording, step, base, "sharding") for step, base in bases if base is not None]
        sizes = np.concatenate([np.zeros(0), *(column.values for column in rows if column is not None)])
        cap = CAPS.get(recording.records.settings.model.dtype or "", CAPS["float32"])
        if len(sizes) < MINIMUM_TOKENS or not np.isfinite(sizes).all() or np.quantile(sizes, BULK) > cap:
            return None
        return Sharded(_level(sizes), float(sizes.mean()))


@dataclass(frozen=True)
class EngineFloor:
    """One engine against itself, in nats; NaN where nothing was compared.

    `largest`: the largest |Δ|. `level`: the largest without the allowed outliers. `mean`: the mean. `unrounded`: the
    largest at a token where the learner's own rounding in half precision does not account for it; None where that was
    not recorded. `elsewhere`: the largest of the other samples than the one with the largest. `not_finite_samples`: the
    samples with NaN or infinity. `sharded`: for an engine of several ranks, which cannot be asked for the numbers of
    one rank.
    """

    largest: float = float("nan")
    level: float = float("nan")
    tokens: int = 0
    flips: int = 0
    not_finite: int = 0
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    where: Mapping[str, Any] = field(default_factory=dict)  # step, sample, position, rank, variant, base, other
    unrounded: float | None = None
    mean: float = float("nan")
    elsewhere: float = 0.0
    not_finite_samples: int = 0
    sharded: Sharded | None = None

    @property
    def changed(self) -> float:
        """Return `level`, or the level of splitting the layers as the engine's ranks do, where that is larger."""
        return max(self.level, self.sharded.level) if self.sharded is not None else self.level

    @property
    def changed_mean(self) -> float:
        """Return `mean`, or the mean of splitting the layers, where that is larger."""
        return max(self.mean, self.sharded.mean) if self.sharded is not None else self.mean

    @property
    def measured(self) -> bool:
        return self.tokens >= MINIMUM_TOKENS

    def exceeds(self, allowed: Tolerance) -> bool:
        """Whether the engine differs from itself by more than the cap allows, or gave NaN or infinity."""
        return self.noisy(allowed) or self.not_finite > 0

    def noisy(self, allowed: Tolerance) -> bool:
        """Whether finite numbers lie beyond the cap: more than the outliers allowed, or one that is far beyond."""
        largest = self.largest if self.unrounded is None or not allowed.half else self.unrounded
        return self.tokens > 0 and (self.level > allowed.cap or largest > allowed.extreme_drawn)

    def of_one_sample(self, allowed: Tolerance) -> bool:
        """Whether everything that exceeds the cap is of one sample, which is no property of an engine."""
        within = not self.level > allowed.cap and self.elsewhere <= allowed.extreme_drawn
        return within and self.not_finite_samples <= (0 if self.noisy(allowed) else 1)

    @property
    def absent(self) -> list[str]:
        """Return the variants of which no token was compared."""
        return [name for name in VARIANTS if not self.variants.get(name, {}).get("tokens")]

    def implausible_flips(self, cap: float, temperature: float) -> bool:
        """Whether there are more flips than ties of engines within the cap can explain."""
        return implausible(self.flips, self.tokens + self.flips, cap, temperature)


def asked_again(variants: Iterable[str]) -> str:
    """Return in words how an engine was asked again."""
    return ", ".join(VARIANTS.get(variant, "in a second run") for variant in variants)


def implausible(flips: int, tokens: int, cap: float, temperature: float) -> bool:
    """Whether these are more flips than ties of engines within `cap` nats of each other can explain.

    The gap g between the two best perturbed logits of a Gumbel-max draw has P(g < x) <= x. So a difference of `cap` in
    each of two logits flips a token with probability 2 cap / T at most.
    """
    rate = min(1.0, 2.0 * cap / max(temperature, 1e-6))
    return flips > 0 and binomial_from(flips, tokens, rate) < IMPLAUSIBLE


def measure(recording: Recording, repeated: Iterable[Pair] = (), *, drawn: bool = True) -> EngineFloor:
    """Measure the floor of one recording's engine, over every step at which it was taken.

    `repeated`: pairs of samples of a second run of the whole job. `drawn`: whether the second draw had to give the same
    tokens. An engine's own sampler need not, and its flips then say nothing.
    """
    sizes: list[np.ndarray] = []
    not_finite = 0
    samples = _Samples()
    variants: dict[str, dict[str, Any]] = {}
    where: dict[str, Any] = {}
    largest = unrounded = 0.0
    half = recording.records.settings.model.dtype in HALF
    # Rounding in half precision is known of the engine's own pairs only; a repeated job recorded none.
    own_pairs = ((pair, of_the_floor(recording, pair[0], pair[2]) if half else None) for pair in _own_pairs(recording))
    repeated_pairs = ((pair, None) for pair in repeated)
    for (step, variant, base, variant_table), rounding in (*own_pairs, *repeated_pairs):
        comparison = _against(base, variant_table, rounding)
        unrounded = max(unrounded, comparison.unrounded)
        samples.add(step, comparison.samples, comparison.far)
        sums = variants.setdefault(variant, {"max": 0.0, "tokens": 0, "flips": 0})
        sums["max"] = max(sums["max"], comparison.largest)
        sums["tokens"] += len(comparison.sizes)
        sums["flips"] += comparison.flips
        sizes.append(comparison.sizes)
        not_finite += comparison.not_finite
        # The place of the largest difference, or of the first pair where nothing differs.
        if comparison.largest > largest or not where:
            largest = max(largest, comparison.largest)
            where = {**comparison.where, "step": step, "variant": variant}
    all_sizes = np.concatenate(sizes) if sizes else np.zeros(0)
    flips = sum(totals["flips"] for totals in variants.values()) if drawn else 0
    if not len(all_sizes):
        return EngineFloor(
            flips=flips,
            not_finite=not_finite,
            not_finite_samples=samples.not_finite,
            variants=variants,
            where=where,
        )
    level, mean = _level(all_sizes), float(all_sizes.mean())
    sharded = Sharded.of(recording)
    return EngineFloor(
        largest=largest,
        level=level,
        tokens=len(all_sizes),
        flips=flips,
        not_finite=not_finite,
        variants=variants,
        where=where,
        unrounded=unrounded,
        mean=mean,
        elsewhere=samples.elsewhere,
        not_finite_samples=samples.not_finite,
        sharded=sharded,
    )


@dataclass
class _Samples:
    """The largest |Δ| of each sample that was compared, (step, sample) -> nats; NaN where one of them is not finite."""

    largest: dict[tuple[int, int], float] = field(default_factory=dict)

    def add(self, step: int, samples: np.ndarray, largest: np.ndarray) -> None:
        for sample, size in zip(samples.tolist(), largest.tolist(), strict=True):
            self.largest[step, sample] = float(np.maximum(self.largest.get((step, sample), 0.0), size))

    @property
    def not_finite(self) -> int:
        return sum(not math.isfinite(size) for size in self.largest.values())

    @property
    def elsewhere(self) -> float:
        """Return the second largest of those that are finite; 0 where there are not two."""
        finite = sorted((size for size in self.largest.values() if math.isfinite(size)), reverse=True)
        return finite[1] if len(finite) > 1 else 0.0


def _level(sizes: np.ndarray) -> float:
    """Return the largest size without the allowed outliers."""
    rank = max(0, len(sizes) - 1 - outliers(len(sizes)))
    return float(np.partition(sizes, rank)[rank])


def _own_pairs(recording: Recording) -> Iterator[Pair]:
    """Yield the variants that the engine itself drew, at the steps at which it was asked to."""
    for step in recording.steps("floor"):
        base = recording.table("floor", step, variant="base")
        if base is None:
            continue
        for variant in VARIANTS:
            variant_table = recording.table("floor", step, variant=variant)
            if variant_table is not None:
                yield step, variant, base, variant_table


@dataclass(frozen=True)
class _Comparison:
    """One variant against the base run. `sizes`: every finite |Δ|. `largest`: the largest of them, which is at `where`.

    `far`: of each sample in `samples`, the largest |Δ| that the learner's rounding does not account for; NaN stays.
    `unrounded`: the largest of these. `flips`: samples with other tokens.
    """

    flips: int = 0
    sizes: np.ndarray = field(default_factory=lambda: np.zeros(0))
    largest: float = 0.0
    not_finite: int = 0
    unrounded: float = 0.0
    samples: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    far: np.ndarray = field(default_factory=lambda: np.zeros(0))
    where: dict[str, Any] = field(default_factory=dict)


def _against(base: Table, variant_table: Table, rounding: Rows | None) -> _Comparison:
    """Compare one variant with the base run, over the tokens before the first difference of each sample.

    `rounding`: the learner's rounding at each token of the base run.
    """
    columns = [base.rows("output"), base.rows("logprob"), variant_table.rows("output"), variant_table.rows("logprob")]
    output, logprob, output2, logprob2 = columns
    if output is None or logprob is None or output2 is None or logprob2 is None:
        return _Comparison()
    match = Match.of(base.sample, variant_table.sample)
    if not len(match.sample):
        return _Comparison()
    grid = shared([(output, match.a), (logprob, match.a), (output2, match.b), (logprob2, match.b)])
    differs = grid.take(output, match.a) != grid.take(output2, match.b)
    # From the first other token on the contexts differ, and log-probabilities with them.
    comparable = grid.position < grid.first(differs)[grid.row]
    base_logprobs, variant_logprobs = grid.take(logprob, match.a), grid.take(logprob2, match.b)
    with np.errstate(invalid="ignore"):  # infinity minus infinity is NaN, which is counted below
        size = np.where(comparable, np.abs(variant_logprobs.astype(np.float64) - base_logprobs), 0.0)
    finite = np.isfinite(size)
    flips = int(np.count_nonzero(~equal_rows(output, match.a, output2, match.b)))
    if not grid.size:
        return _Comparison(flips)
    # Differences that the learner's rounding accounts for at the same token do not count as `unrounded`.
    far = size
    if rounding is not None:
        far = np.where(as_far(size, grid.take(rounding, match.a), CAPS["bfloat16"]), 0.0, size)
    at = int(np.where(finite, size, -1.0).argmax())
    row, position = int(grid.row[at]), int(grid.position[at])
    farthest = np.zeros(len(match.sample))
    with np.errstate(invalid="ignore"):  # NaN stays
        np.maximum.at(farthest, grid.row, far)
    return _Comparison(
        flips=flips,
        sizes=size[comparable & finite],
        largest=float(size[at]) if finite[at] else 0.0,
        not_finite=int(np.count_nonzero(~finite)),
        unrounded=float(np.max(far[finite], initial=0.0)),
        samples=match.sample,
        far=farthest,
        where={
            "sample": int(match.sample[row]),
            "position": position,
            "rank": int(base.rank[match.a[row]]),
            "base": float(base_logprobs[at]),
            "other": float(variant_logprobs[at]),
        },
    )


@dataclass(frozen=True)
class Tolerance:
    """What counts as equal, in nats of log-probability, and where the number comes from."""

    dtype: str
    cap: float
    resolution: float
    floor: float  # the larger of the two engines' floors, without outliers; NaN where not measured
    temperature: float
    share: Share = THOUSANDTH  # how many tokens may lie between the tolerance and `extreme`
    within: float = float("nan")  # ten floors of an engine against itself, where only those were measured
    rounding: Rounding = field(default_factory=Rounding)

    @property
    def value(self) -> float:
        """min(cap, max(10 x floor, resolution)); the cap alone where no floor was measured.

        The factor is ten because the floor is taken from a few hundred tokens within one engine. The comparison covers
        many more, between two engines with other kernels and a learner with its own. The resolution is 16 eps of
        float32 at the scale of the learner's log-probabilities, the rounding of a few operations: vLLM's floor on a CPU
        was exactly 0 where its distance from the learner was 5e-6. In half precision the resolution would exceed every
        cap. There the learner's rounding is measured instead, and belongs to the floor. The cap bounds all of them.
        """
        if np.isnan(self.floor):
            return self.cap
        return min(self.cap, max(HEADROOM * self.floor, self.resolution))

    @property
    def capped(self) -> bool:
        """Whether the cap, and not a floor, set the tolerance."""
        return self.value >= self.cap

    @property
    def half(self) -> bool:
        return self.dtype in HALF

    @property
    def extreme(self) -> float:
        """Return the difference, in nats, that no single token may exceed."""
        return self.farthest(self.rounding.largest)

    @property
    def extreme_drawn(self) -> float:
        """Return the same for tokens that the run drew and the learner scored, whose own rounding was measured."""
        return self.farthest(self.rounding.drawn)

    def farthest(self, rounding: float) -> float:
        """Return the same where the learner rounds by at most `rounding` nats."""
        return max((EXTREME_HALF if self.half else EXTREME) * self.cap, FARTHEST * rounding)

    @property
    def most(self) -> float:
        """Return the difference, in nats, that is no rounding, however many tokens there are."""
        return self.farthest(BELIEVED * self.cap)

    def spared(self, tokens: int) -> int:
        """Return how many of `tokens` tokens may lie beyond `extreme`, up to `most`.

        The largest of a heavy-tailed rounding grows with the number of tokens. In half precision that is none for as
        many tokens as the rounding was measured on, and one more for each further multiple: vLLM's native stage against
        SGLang's, in bfloat16 on a CPU, had 2 of 18,452 tokens beyond 0.2 nats, 0.31 at most, where 0.06 was the largest
        of 1,776. In float32 it is one for each `TAIL_TOKENS`.
        """
        if not self.half:
            return tokens // TAIL_TOKENS
        return max(0, tokens // self.rounding.tokens - 1) if self.rounding.measured else 0

    @property
    def margin(self) -> float:
        """Return the widest gap between the two best perturbed logits (logits/T + noise) that a tolerated difference
        can reverse: 2 tol/T.
        """
        return 2.0 * self.value / max(self.temperature, 1e-6)

    @property
    def far_margin(self) -> float:
        """Return the same for the few tokens that half precision rounds beyond the tolerance; 0 where that was not
        measured.
        """
        is_measured = self.half and self.rounding.measured
        return 2.0 * self.extreme_drawn / max(self.temperature, 1e-6) if is_measured else 0.0

    @property
    def turned(self) -> float:
        """Return the largest share of all choices that such tokens reverse.

        The gap of a draw is below x nats with a probability of at most x
        (`harness.parity.subjects.sampling.observed_margins`).
        """
        return self.share.most * min(1.0, self.margin)

    def far_flips(self, tokens: int) -> int:
        """Return how many choices such tokens reverse at most; there are more with a probability of
        `FALSE_OUTLIERS`.
        """
        return poisson_limit(FALSE_OUTLIERS, self.turned * tokens)

    @staticmethod
    def of(
        dtype: str,
        floors: list[EngineFloor],
        *,
        scale: float,
        temperature: float,
        cap: float | None,
        rounding: Rounding | None = None,
    ) -> Tolerance:
        """Build the tolerance of a comparison from both floors.

        `scale`: largest |log-probability| of the learner, clipped to [1, `LARGEST_SCALE`]. `rounding`: the learner's;
        in half precision no floor is known without it.
        """
        measured = [engine_floor.changed for engine_floor in floors if engine_floor.measured]
        floor = max(measured) if len(measured) == len(floors) else float("nan")
        known_dtype = dtype if dtype in CAPS else "float32"  # an unknown dtype gets the strictest cap
        scale = min(max(scale, 1.0), LARGEST_SCALE) if np.isfinite(scale) else 1.0
        cap = CAPS[known_dtype] if cap is None else cap
        rounding = rounding or Rounding()
        if known_dtype not in HALF:
            return Tolerance(known_dtype, cap, RESOLUTION * EPSILON * scale, floor, temperature, rounding=rounding)
        # Half precision has a floor only where the learner's rounding is part of it. Otherwise ten floors of the engine
        # alone say what is within its own noise.
        within, share = HEADROOM * floor, THOUSANDTH
        if rounding.measured:
            floor, within, share = max(floor, rounding.level), float("nan"), rounding.share
        else:
            floor = float("nan")
        return Tolerance(
            dtype=known_dtype,
            cap=cap,
            resolution=0.0,
            floor=floor,
            temperature=temperature,
            share=share,
            within=within,
            rounding=rounding,
        )

    def facts(self, floors: Mapping[str, EngineFloor]) -> dict[str, Any]:
        """Return what the report shows: the floor of each side, `combined`, `cap`, `tolerance`, all in nats."""
        figures: dict[str, Any] = {}
        for name, engine_floor in floors.items():
            figures[name] = engine_floor.level if engine_floor.measured else "not measured"
        figures["combined"] = "not measured" if np.isnan(self.floor) else self.floor
        for name, engine_floor in floors.items():
            figures[f"largest of the {name}"] = engine_floor.largest if engine_floor.measured else "not measured"
            if engine_floor.sharded is not None:
                figures[f"layers cut as in the {name}"] = engine_floor.sharded.level
        return figures | {
            "cap": self.cap,
            "dtype": self.dtype,
            **(self.rounding.facts() if self.half else {"resolution": self.resolution}),
            "tolerance": self.value,
            "decided by": "the cap, not a floor" if self.capped else "the floor",
            "bound of a single token": self.extreme_drawn,
            "flip margin": self.margin,
            "unit": "nats",
        }
