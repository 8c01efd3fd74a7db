"""Each engine's sampler against the learner, the third opinion: does it draw what it was asked to draw?

Under the right sampler a token's surprisal less the entropy of its position has mean zero and a known variance, and the
mass before the token in the order of probability, plus a random share of its own, is uniform (Rosenblatt 1952). Two
tests a side, in the family of `distributions`; one engine's samples are enough, so they say which engine it is. A token
outside of the support is no matter of chance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from harness.parity.facts.divergence import Kind
from harness.parity.facts.evidence import Evidence, Side
from harness.parity.subjects.native_sampler.observed import NativeResult, Statistic, Tests
from harness.parity.subjects.native_sampler.observed_samples import Samples, Tokens, tables
from reports.model import Place

SLACK = 1e-3  # nats, at least: a token this near to the boundary of the support may have been let in by rounding
NEEDED = ("entropy", "varentropy", "mass_before", "outside")


@dataclass(frozen=True)
class _Reading:
    """What the learner says of all tokens of a side. `off`: how many standard errors their surprisal is off its mean;
    `mass`: before each token, with a random share of its own; `outside`: tokens that could not have been drawn."""

    tokens: int
    off: float
    mass: np.ndarray
    outside: np.ndarray


def sampler(e: Evidence, side: Side, samples: Samples, result: NativeResult) -> None:
    """Note what the learner says of this side's sampler, and tokens that it could not have drawn."""
    parts = _parts(samples)
    if not parts:
        if samples.tokens:
            result.not_compared.append(f"{side.name}: the learner did not say what the sampler should have drawn")
        return
    reading = _reading(e, parts)
    result.sampler[side.name] = {
        "tokens": reading.tokens, "surprisal_off": reading.off, "outside": len(reading.outside), "fits": samples.fits,
    }  # fmt: skip
    if len(reading.outside):
        _outside(e, side, parts, reading)


def sampler_tests(e: Evidence, side: Side, samples: Samples) -> Tests:
    """This side's tests of the family: its surprisal and its mass against the learner's."""
    parts = _parts(samples)
    reading = _reading(e, parts) if parts else None
    if reading is None or not len(reading.mass):
        return {}
    uniform = stats.kstest(np.clip(reading.mass, 0.0, 1.0), "uniform")
    surprisal = reading.off, 2 * float(stats.norm.sf(abs(reading.off)))
    return {
        Statistic.of_sampler(side.name, name): {"statistic": float(statistic), "p": float(p)}
        for name, (statistic, p) in {"surprisal": surprisal, "mass": (uniform.statistic, uniform.pvalue)}.items()
    }


def _parts(samples: Samples) -> list[Tokens]:
    return [
        tokens
        for tokens in samples.tokens
        if "processed_logprob" in tokens.views and set(NEEDED) <= set(tokens.readings)
    ]


def _reading(e: Evidence, parts: list[Tokens]) -> _Reading:
    slack = max(SLACK, e.tolerance.cap)
    column = {name: np.concatenate([part.readings[name] for part in parts]) for name in NEEDED}
    chosen = np.concatenate([part.views["processed_logprob"] for part in parts])
    inside = np.isfinite(chosen)
    surplus = -(chosen + column["entropy"])[inside]
    variance = float(column["varentropy"][inside].sum())
    # Noise of e nats in an engine's logits shifts the mean by some e²/2: of bfloat16, not of float32.
    excess = max(0.0, abs(float(surplus.sum())) - len(surplus) * e.tolerance.value**2 / 2)
    off = float(np.copysign(excess, surplus.sum())) / float(np.sqrt(variance)) if variance > 0 else 0.0
    share = np.random.default_rng(0).random(len(chosen))  # a verdict must be the same twice
    mass = (column["mass_before"] + share * np.exp(chosen))[inside]
    return _Reading(len(chosen), off, mass, np.flatnonzero(column["outside"] > slack))


def unread(side: Side, samples: Samples) -> list[str]:
    """What the engine and the learner did not say of a side's native samples, by the names of the format; [] where they
    said all.
    """
    stage, scores = (tables(side, kind, samples.draws) for kind in ("native", "native_score"))
    if len(samples.tokens) < len(stage):
        return ["`learner_logprob` of every sample"]
    recorded_names = [_numbers(tokens) for tokens in samples.tokens]
    wanted = ("logprob", "processed_logprob", *NEEDED)
    lacking = [f"`{name}` of every token" for name in wanted if any(name not in names for names in recorded_names)]
    return lacking + ["`fits`"] * any(score.header.fits is None for score in scores)


def _numbers(tokens: Tokens) -> set[str]:
    """Names of what is a number for every token, for NaN rejects no test; -inf is one, outside of the support."""
    columns: dict[str, Any] = {**tokens.views, **tokens.readings}
    complete_names = {name for name, values in columns.items() if not np.isnan(values).any()}
    return complete_names | ({"logprob"} if tokens.reported is not None else set())


def _outside(e: Evidence, side: Side, parts: list[Tokens], reading: _Reading) -> None:
    first, at = parts[0], int(reading.outside[0])
    for part in parts:
        first = part
        if at < part.grid.size:
            break
        at -= part.grid.size
    row = first.rows[int(first.grid.row[at])]
    place = Place(
        step=first.table.step,
        phase="native",
        rank=int(first.table.rank[row]),
        sample=int(first.table.sample[row]),
        position=int(first.grid.position[at]),
        field="a token outside of the support",
        **side.paired(int(first.output[at]), None),
        context=f"{len(reading.outside)} of {reading.tokens:,} tokens that the sampler could not have drawn as asked",
    )
    e.diverges(Kind.NATIVE_SAMPLER.of(side.name), [], place)
