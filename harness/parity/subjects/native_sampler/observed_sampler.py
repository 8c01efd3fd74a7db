"""Each engine's sampler against the learner, to see which engine does not draw what it was asked to draw.

Under the right sampler a token's surprisal minus the entropy of its position has mean zero and a known variance. The
probability mass of all likelier tokens, plus a random share of the token's own, is uniform (Rosenblatt 1952). Each side
has these two tests, in one family with those of `observed_distributions`. They need one engine's samples only, so they
tell the engines apart. A token outside of the support needs no test, since chance cannot draw it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.parity.facts.comparison import RecordedSide
from harness.parity.facts.divergence import Kind
from harness.parity.facts.evidence_builder import EvidenceBuilder
from harness.parity.facts.probabilities import normal_above, uniformity
from harness.parity.subjects.native_sampler.observed import NativeStage, Statistic, Tests
from harness.parity.subjects.native_sampler.observed_samples import Samples, Tokens, tables
from reports.model import Place
from reports.text import part_of

SLACK = 1e-3  # nats, at least: rounding may let in a token this near to the boundary of the support
NEEDED = ("entropy", "varentropy", "mass_before", "outside")


@dataclass(frozen=True)
class _Reading:
    """What the learner says about all tokens of a side.

    `off`: distance of their surprisal from its mean, in standard errors. `mass`: mass before each token, plus a random
    share of its own. `outside`: indices of tokens that could not have been drawn.
    """

    tokens: int
    off: float
    mass: np.ndarray
    outside: np.ndarray


def sampler(e: EvidenceBuilder, side: RecordedSide, samples: Samples, stage: NativeStage) -> None:
    """Note how this side's sampler compares with the learner, and tokens that it could not have drawn."""
    parts = _parts(samples)
    if not parts:
        if samples.tokens:
            stage.add("not_compared", f"{side.name}: the learner did not say what the sampler should have drawn")
        return
    reading = _reading(e, parts)
    facts = {
        "tokens": reading.tokens, "surprisal_off": reading.off, "outside": len(reading.outside), "fits": samples.fits,
    }  # fmt: skip
    stage.note("sampler", side.name, facts)
    if len(reading.outside):
        _outside(e, side, parts, reading)


def sampler_tests(e: EvidenceBuilder, side: RecordedSide, samples: Samples) -> Tests:
    """Return this side's tests of the family: surprisal and mass against the learner's."""
    parts = _parts(samples)
    reading = _reading(e, parts) if parts else None
    if reading is None or not len(reading.mass):
        return {}
    mass = uniformity(np.clip(reading.mass, 0.0, 1.0))
    surprisal = reading.off, 2 * float(normal_above(abs(reading.off)))
    return {
        Statistic.of_sampler(side.name, name): {"statistic": float(statistic), "p": float(p)}
        for name, (statistic, p) in {"surprisal": surprisal, "mass": mass}.items()
    }


def _parts(samples: Samples) -> list[Tokens]:
    return [
        tokens
        for tokens in samples.tokens
        if "processed_logprob" in tokens.views and set(NEEDED) <= set(tokens.readings)
    ]


def _reading(e: EvidenceBuilder, parts: list[Tokens]) -> _Reading:
    slack = max(SLACK, e.tolerance.cap)
    column = {name: np.concatenate([part.readings[name] for part in parts]) for name in NEEDED}
    chosen = np.concatenate([part.views["processed_logprob"] for part in parts])
    inside = np.isfinite(chosen)
    surplus = -(chosen + column["entropy"])[inside]
    variance = float(column["varentropy"][inside].sum())
    # Noise of e nats in an engine's logits shifts the mean by some e²/2. That matters for bfloat16 only.
    excess = max(0.0, abs(float(surplus.sum())) - len(surplus) * e.tolerance.value**2 / 2)
    off = float(np.copysign(excess, surplus.sum())) / float(np.sqrt(variance)) if variance > 0 else 0.0
    share = np.random.default_rng(0).random(len(chosen))  # fixed seed: the verdict must be reproducible
    mass = (column["mass_before"] + share * np.exp(chosen))[inside]
    return _Reading(len(chosen), off, mass, np.flatnonzero(column["outside"] > slack))


def unread(side: RecordedSide, samples: Samples) -> list[str]:
    """Return what the engine and the learner did not record of a side's native samples, by its name in the format."""
    stage, scores = (tables(side, kind, samples.draws) for kind in ("native", "native_score"))
    if len(samples.tokens) < len(stage):
        return ["`learner_logprob` of every sample"]
    recorded_names = [_numbers(tokens) for tokens in samples.tokens]
    wanted = ("logprob", "processed_logprob", *NEEDED)
    lacking = [f"`{name}` of every token" for name in wanted if any(name not in names for names in recorded_names)]
    return lacking + ["`fits`"] * any(score.header.fits is None for score in scores)


def _numbers(tokens: Tokens) -> set[str]:
    """Return the names of columns that have a number for every token. NaN would reject no test; -inf means outside of
    the support.
    """
    columns: dict[str, Any] = {**tokens.views, **tokens.readings}
    complete_names = {name for name, values in columns.items() if not np.isnan(values).any()}
    return complete_names | ({"logprob"} if tokens.reported is not None else set())


def _outside(e: EvidenceBuilder, side: RecordedSide, parts: list[Tokens], reading: _Reading) -> None:
    first, at = parts[0], int(reading.outside[0])
    for part in parts:
        first = part
        if at < part.grid.size:
            break
        at -= part.grid.size
    row = first.rows[int(first.grid.row[at])]
    place = Place(
        **first.table.at(row),
        phase="native",
        position=int(first.grid.position[at]),
        field="a token outside of the support",
        **side.paired(int(first.output[at]), None),
        context=f"{part_of(len(reading.outside), reading.tokens, 'token')} that the sampler could not draw as asked",
    )
    e.note_divergence(Kind.NATIVE_SAMPLER.of(side.name), [], place)
