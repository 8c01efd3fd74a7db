"""Causes that show when the recorded numbers are read in another way.

Shifted by one, scaled, without cached samples, under other sample numbers: what removes the difference names the cause.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from harness.parity.evidence import Evidence, Side
from harness.parity.explanation import ROLLOUT, Explanation, kinds_of
from harness.parity.surroundings import only_cached
from reports.model import Cause
from reports.text import figure

RESIDUE = 0.02  # a re-reading may leave this share: next to a flip, numbers of other tokens stand


def alignment(e: Evidence) -> Iterator[Explanation]:
    """Read one position further, the difference vanishes."""
    for side in e.sides:
        shift = _vanishing_shift(e, f"learner:{side.name}")
        if shift is not None:
            yield Explanation(
                Cause(
                    "ALIGNMENT",
                    side.name,
                    f"log-probabilities are shifted by one: each stands {'after' if shift > 0 else 'before'} its token",
                    f"read {shift:+d} position, {_left(e, f'learner:{side.name}', shift)} against the learner",
                    {"shift": shift},
                ),
                ("logprob", f"learner:{side.name}", *([f"floor:{side.name}"] if decode_only(e, side) else [])),
            )
        shift = _vanishing_shift(e, f"trained:{side.name}")
        if shift is not None:
            yield Explanation(
                Cause(
                    "ALIGNMENT",
                    "trainer",
                    "the tokens trained on are those rolled out, shifted by one position (a mask off by one)",
                    f"read {shift:+d} position, {_left(e, f'trained:{side.name}', shift)}",
                    {"shift": shift},
                ),
                (
                    f"trained:{side.name}",
                    f"learner:{side.name}",
                    f"choice:{side.name}",
                    "experience",
                    "reward",
                    "learner",
                ),
            )


def decode_only(e: Evidence, side: Side) -> bool:
    """Is the engine's floor beyond the cap only between decoding, where its numbers are shifted, and scoring?"""
    beyond = {name for name, one in side.floor.variants.items() if one["max"] > e.tolerance.cap}
    shifted = _vanishing_shift(e, f"learner:{side.name}") is not None
    return shifted and beyond == {"prefill"} and not side.floor.not_finite


def _vanishing_shift(e: Evidence, kind: str) -> int | None:
    found = e.interventions.get(kind)
    if not found or not found.get("beyond"):
        return None
    for shift in (1, -1):
        compared, left = found.get(f"shift {shift:+d} compared", 0), found.get(f"shift {shift:+d} left", 0)
        if compared >= 10 and left <= RESIDUE * compared:
            return shift
    return None


def _left(e: Evidence, kind: str, shift: int) -> str:
    found = e.interventions[kind]
    return (
        f"{found[f'shift {shift:+d} left']} of {found[f'shift {shift:+d} compared']} differing positions still differ"
    )


def scaled(e: Evidence) -> Iterator[Explanation]:
    """One factor turns the engine's numbers into the learner's: log-probabilities divided by T."""
    for side in e.sides:
        kind = f"learner:{side.name}"
        found, scales = e.interventions.get(kind), e.notes.get(f"scale:{kind}", [])
        if (
            not found
            or found["beyond"] < 10
            or not scales
            or abs(np.median(scales) - 1) < 0.01
            or _vanishing_shift(e, kind) is not None
        ):
            continue
        if found["scale left"] <= RESIDUE * found["beyond"]:
            trainer = "logprob" not in e.first  # the engines agree with each other, so it is the learner that is scaled
            party = "trainer" if trainer else side.name
            yield Explanation(
                Cause(
                    "TRAINER" if trainer else "LOGPROB_SEMANTICS",
                    party,
                    f"log-probabilities are scaled by {figure(float(np.median(scales)))}",
                    f"after an exact linear fit {found['scale left']} of {found['beyond']} still differ",
                    {"scale": float(np.median(scales))},
                ),
                (kind, "experience", "learner") if trainer else (kind, "logprob"),
            )


def stale_cache(e: Evidence) -> Iterator[Explanation]:
    """Only samples with cached tokens differ from the learner."""
    for side in e.sides:
        if only_cached(e, side):
            found = e.interventions[f"learner:{side.name}"]
            yield Explanation(
                Cause(
                    "STALE_KV",
                    side.name,
                    "the engine differs from its learner on samples with cached tokens only",
                    f"{found['cached samples beyond']} of {found['cached samples']} samples with cached tokens, "
                    f"0 of {found['uncached samples']} others",
                ),
                kinds_of(ROLLOUT, side.name),
            )


def permuted(e: Evidence) -> Iterator[Explanation]:
    found = e.interventions.get("order")
    if found and found["samples"] >= 2 and found["left"] == 0:
        yield Explanation(
            Cause(
                "ORDER",
                "candidate",
                "responses are permuted: the same ones, under other sample numbers",
                f"all {found['samples']} differing responses are the baseline's of the same step",
            ),
            ("flip", "logprob", "length", "finish", "learner:candidate", "choice:candidate", "trained:candidate"),
        )


def ends(e: Evidence) -> Iterator[Explanation]:
    """Every length differs by the same number of tokens, and the finish reason says how."""
    found: dict[tuple[int, str], int] = e.notes.get("lengths", {})
    deltas = {delta for delta, _ in found}
    if len(deltas) != 1:
        return
    delta, reasons = deltas.pop(), sorted({reason for _, reason in found})
    shorter = "candidate" if delta < 0 else "baseline"
    if all(reason == "length/length" for reason in reasons):
        cause = Cause(
            "LENGTH",
            shorter,
            f"the {shorter} stops {abs(delta)} tokens before the limit",
            f"{sum(found.values())} samples, all of them cut by a limit",
        )
    elif delta in (-1, 1) and all(reason == "stop/stop" for reason in reasons):
        cause = Cause(
            "STOP(end token dropped)",
            shorter,
            f"the {shorter} leaves the end token out of its output",
            f"{sum(found.values())} samples that stopped, one token shorter",
        )
    else:
        return
    yield Explanation(cause, ("length", "finish"))
