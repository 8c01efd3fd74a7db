"""Each engine's sampler against the learner, the third opinion: does it draw what it was asked to draw?

Under the right sampler a token's surprisal less the entropy of its position has mean zero and a known variance, and the
mass before the token in the order of probability, plus a random share of its own, is uniform (Rosenblatt 1952). Two
tests a side, in the family of `distributions`; one engine's samples are enough, so they say which engine it is. A token
outside of the support is no matter of chance.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import stats

from harness.parity.facts.divergence import Kind
from harness.parity.facts.evidence import Evidence, Side
from harness.parity.facts.native_result import NativeResult, Statistic
from harness.parity.native.samples import FIRST, Samples, Tokens, tables
from reports.model import Place

SLACK = 1e-3  # nats, at least: a token this near to the boundary of the support may have been let in by rounding
NEEDED = ("entropy", "varentropy", "mass_before", "outside")


def sampler(e: Evidence, side: Side, samples: Samples, result: NativeResult) -> None:
    """Add this side's tests to the family, and note tokens that it could not have drawn."""
    parts = [one for one in samples.tokens if "processed_logprob" in one.views and set(NEEDED) <= set(one.readings)]
    if not parts:
        if samples.tokens:
            result.not_compared.append(f"{side.name}: the learner did not say what the sampler should have drawn")
        return
    slack = max(SLACK, e.tolerance.cap)
    column = {name: np.concatenate([one.readings[name] for one in parts]) for name in NEEDED}
    chosen = np.concatenate([one.views["processed_logprob"] for one in parts])
    inside = np.isfinite(chosen)
    surplus = -(chosen + column["entropy"])[inside]
    variance = float(column["varentropy"][inside].sum())
    # Noise of e nats in an engine's logits shifts the mean by some e²/2: of bfloat16, not of float32.
    excess = max(0.0, abs(float(surplus.sum())) - len(surplus) * e.tolerance.value**2 / 2)
    off = float(np.copysign(excess, surplus.sum())) / float(np.sqrt(variance)) if variance > 0 else 0.0
    share = np.random.default_rng(0).random(len(chosen))  # a verdict must be the same twice
    mass = (column["mass_before"] + share * np.exp(chosen))[inside]
    outside = np.flatnonzero(column["outside"] > slack)
    found: dict[str, Any] = {"tokens": len(chosen), "surprisal_off": off, "outside": len(outside), "fits": samples.fits}
    result.sampler[side.name] = found
    if inside.any():
        uniform = stats.kstest(np.clip(mass, 0.0, 1.0), "uniform")
        tests = {"surprisal": (off, 2 * float(stats.norm.sf(abs(off)))), "mass": (uniform.statistic, uniform.pvalue)}
        for name, (statistic, p) in tests.items():
            result.tests[Statistic.of_sampler(side.name, name)] = {"statistic": float(statistic), "p": float(p)}
    if len(outside):
        _outside(e, side, parts, outside, len(chosen))


def unread(side: Side, samples: Samples) -> list[str]:
    """What the engine and the learner did not say of a side's native samples, by the names of the format; [] where they
    said all.
    """
    stage, scores = tables(side, "native", FIRST), tables(side, "native_score", FIRST)
    if len(samples.tokens) < len(stage):
        return ["`learner_logprob` of every sample"]
    known = [_numbers(one) for one in samples.tokens]
    wanted = ("logprob", "processed_logprob", *NEEDED)
    found = [f"`{name}` of every token" for name in wanted if any(name not in one for one in known)]
    return found + ["`fits`"] * any(not isinstance(one.fields.get("fits"), list) for one in scores)


def _numbers(tokens: Tokens) -> set[str]:
    """Names of what is a number for every token, for NaN rejects no test; -inf is one, outside of the support."""
    found: dict[str, Any] = {**tokens.views, **tokens.readings}
    whole = {name for name, values in found.items() if not np.isnan(values).any()}
    return whole | ({"logprob"} if tokens.reported is not None else set())


def _outside(e: Evidence, side: Side, parts: list[Tokens], outside: np.ndarray, tokens: int) -> None:
    first, at = parts[0], int(outside[0])
    for part in parts:
        first = part
        if at < part.grid.size:
            break
        at -= part.grid.size
    row = first.rows[int(first.grid.row[at])]
    place = Place(
        first.table.step,
        "native",
        int(first.table.rank[row]),
        int(first.table.sample[row]),
        int(first.grid.position[at]),
        "a token outside of the support",
        *side.paired(int(first.output[at]), None),
        context=f"{len(outside)} of {tokens:,} tokens that the sampler could not have drawn as asked",
    )
    e.diverges(Kind.NATIVE_SAMPLER.of(side.name), [], place)
