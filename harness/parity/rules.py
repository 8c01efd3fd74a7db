"""Rules that name a cause from recordings alone, each with the divergences that it explains.

A rule needs evidence of the fault itself (a digest, a parameter, ids that the engine saw) or a re-reading of the
numbers that removes the difference. Interventions that need a live engine are not made here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from harness.parity.evidence import Evidence, Side
from harness.parity.floor import HEADROOM
from harness.parity.surroundings import only_cached
from harness.parity.weightsync import SyncRecord
from harness.store import mapping
from reports.model import Cause

# Kinds of divergence that an engine can show in its rollouts; `{side}` is the side at fault.
_ROLLOUT = ("flip", "logprob", "length", "finish", "learner:{side}", "choice:{side}", "not finite:{side}")
_NATIVE = ("native", "native learner:{side}", "collision:{side}")
_RESIDUE = 0.02  # a re-reading may leave this share: next to a flip, numbers of other tokens stand


@dataclass(frozen=True)
class Explanation:
    """`covers(kind, items)`: which of these (step, sample) divergences the cause explains."""

    cause: Cause
    kinds: tuple[str, ...]
    where: Callable[[np.ndarray], np.ndarray] = field(default=lambda items: np.ones(len(items), bool))

    def covers(self, kind: str, items: np.ndarray) -> np.ndarray:
        return self.where(items) if kind in self.kinds else np.zeros(len(items), bool)


def _kinds(patterns: tuple[str, ...], side: str) -> tuple[str, ...]:
    return tuple(pattern.format(side=side) for pattern in patterns)


def stale_weights(e: Evidence) -> Iterator[Explanation]:
    """A tensor that a sync left out, and a digest or the proof that says the engine kept an older one."""
    for side in e.sides:
        record: SyncRecord = e.notes[f"sync:{side.name}"]
        proven = {
            name: version
            for name, version in record.absent.items()
            if name in record.stale or any(v >= version for v in record.proof_beyond)
        }
        proven |= record.stale
        for name, version in list(proven.items())[:8]:
            jump = max((proof for v, proof in record.proof_beyond.items() if v >= version), default=None)
            evidence = (
                f"the digest that the engine holds is older than the learner's at version {version}"
                if name in record.stale
                else ""
            )
            evidence += ("; " if evidence else "") + f"the proof jumps to {jump:.3g} nats" if jump else ""
            yield Explanation(
                Cause(
                    f"STALE_WEIGHTS({name})",
                    side.name,
                    f"the sync of weight version {version} left {name} out, and the engine kept its old value",
                    evidence,
                    {"tensor": name, "version": version, "proof": jump},
                ),
                (f"sync:{side.name}", *_kinds((*_ROLLOUT, *_NATIVE), side.name)),
                _from(_step_of(e, side, version)),
            )
        for name, version in list(record.altered.items())[:8]:
            yield Explanation(
                Cause(
                    f"WEIGHTS({name})",
                    side.name,
                    f"at weight version {version} the engine received another {name} than the learner sent",
                    "the digests of what was sent and of what was received differ",
                    {"tensor": name, "version": version},
                ),
                (f"sync:{side.name}", *_kinds((*_ROLLOUT, *_NATIVE), side.name)),
                _from(_step_of(e, side, version)),
            )


def _step_of(e: Evidence, side: Side, version: int) -> int:
    used = {v: step for v, step in e.notes.get(f"versions:{side.name}", {}).items() if isinstance(v, int)}
    later = [step for v, step in used.items() if v >= version]
    return min(later) if later else (max(used.values()) + 1 if used else 0)


def _from(step: int) -> Callable[[np.ndarray], np.ndarray]:
    return lambda items: (items[:, 0] >= step) | (items[:, 0] < 0)


def _among(affected: set[Any]) -> Callable[[np.ndarray], np.ndarray]:
    return lambda items: np.array([tuple(item) in affected for item in items.tolist()], bool)


def sampling_parameters(e: Evidence) -> Iterator[Explanation]:
    """The engines sampled with other parameters; raw log-probabilities do not see that, tokens do."""
    for key, (one, two) in e.notes.get("sampling differs", {}).items():
        asked = mapping(e.baseline.recording.scenario.get("sampling")).get(key)
        party = "baseline" if asked == two and asked != one else "candidate"
        left = e.beyond("logprob") if "logprob" in e.first else 0
        evidence = f"{key} is {one!r} in the baseline and {two!r} in the candidate; "
        evidence += (
            "raw log-probabilities of equal tokens agree"
            if not left
            else f"{left} raw log-probabilities of equal tokens differ as well"
        )
        yield Explanation(
            Cause(
                f"SAMPLING_PARAM({key})",
                party,
                f"the {party} samples with another {key}",
                evidence,
                {"baseline": one, "candidate": two},
            ),
            ("flip", "length", "finish", f"choice:{party}", *_kinds(_NATIVE, party)),
        )


def prompts(e: Evidence) -> Iterator[Explanation]:
    """The engine saw other prompt ids than it was sent."""
    names = {
        "double BOS": "TOKENIZATION(double BOS)",
        "truncated left": "TRUNCATION(left)",
        "truncated right": "TRUNCATION(right)",
    }
    for side in e.sides:
        for kind, where in e.notes.get(f"prompt kinds:{side.name}", {}).items():
            affected = {tuple(one) for one in where}
            yield Explanation(
                Cause(
                    names.get(kind, f"TOKENIZATION({kind})"),
                    side.name,
                    f"the engine saw other prompt ids than it was sent: {kind}",
                    f"{len(affected)} samples, first step {where[0][0]}, sample {where[0][1]}",
                    {"samples": [list(one) for one in where[:50]]},
                ),
                (f"prompt:{side.name}", *_kinds(_ROLLOUT, side.name)),
                _among(affected),
            )


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
                ("logprob", f"learner:{side.name}", *([f"floor:{side.name}"] if _decode_only(e, side) else [])),
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


def _decode_only(e: Evidence, side: Side) -> bool:
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
        if compared >= 10 and left <= _RESIDUE * compared:
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
        if found["scale left"] <= _RESIDUE * found["beyond"]:
            trainer = "logprob" not in e.first  # the engines agree with each other, so it is the learner that is scaled
            party = "trainer" if trainer else side.name
            yield Explanation(
                Cause(
                    "TRAINER" if trainer else "LOGPROB_SEMANTICS",
                    party,
                    f"log-probabilities are scaled by {float(np.median(scales)):.4g}",
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
                _kinds(_ROLLOUT, side.name),
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


def numeric(e: Evidence) -> Iterator[Explanation]:
    for side in e.sides:
        items = {tuple(item) for item in e.found(f"not finite:{side.name}").tolist()}
        if items:
            yield Explanation(
                Cause(
                    "NUMERIC_FATAL",
                    side.name,
                    "the engine reports log-probabilities that are not finite",
                    f"{len(items)} samples",
                ),
                _kinds(_ROLLOUT, side.name),
                _among(items),
            )


def collisions(e: Evidence) -> Iterator[Explanation]:
    for side in e.sides:
        if f"collision:{side.name}" in e.first:
            found = e.notes[f"collisions:{side.name}"]
            yield Explanation(
                Cause(
                    "RNG_COLLISION",
                    side.name,
                    "samples of one prompt are clones of each other: their advantages are zero",
                    f"{found['equal pairs']} equal pairs where {found['expected']:.2g} are expected",
                ),
                ("native", f"collision:{side.name}"),
            )


def noisy(e: Evidence) -> Iterator[Explanation]:
    """An engine whose own floor exceeds the cap explains differences of that size."""
    for side in e.sides:
        if f"floor:{side.name}" in e.first and not _decode_only(e, side):
            within = not np.isfinite(e.engines.largest[0]) or e.engines.largest[0] <= HEADROOM * max(
                side.floor.largest, e.tolerance.cap
            )
            kinds: tuple[Any, ...] = (f"floor:{side.name}",)
            if within:
                kinds += (
                    "logprob",
                    "flip",
                    f"learner:{side.name}",
                    f"choice:{side.name}",
                    f"sync:{side.name}",
                    f"native learner:{side.name}",
                )
            place = e.first[f"floor:{side.name}"][1]
            yield Explanation(
                Cause(
                    f"{side.name}-itself",
                    side.name,
                    place.context,
                    f"max |Δ| {side.floor.largest:.3g} nats of the engine against "
                    f"itself at equal weights and randomness, cap {e.tolerance.cap:.3g}",
                    {"variants": side.floor.variants},
                ),
                kinds,
            )


RULES = (
    stale_weights,
    prompts,
    sampling_parameters,
    alignment,
    scaled,
    stale_cache,
    permuted,
    ends,
    numeric,
    collisions,
    noisy,
)
