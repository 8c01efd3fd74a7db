"""Causes that a record of the fault itself names: a digest, a parameter, ids that the engine saw, a NaN."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from harness.parity.evidence import Evidence, Side
from harness.parity.explanation import NATIVE, ROLLOUT, Explanation, among, kinds_of
from harness.parity.floor import HEADROOM
from harness.parity.rereadings import decode_only
from harness.parity.weightsync import SyncRecord
from harness.tables import mapping
from reports.model import Cause
from reports.text import figure


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
            evidence += ("; " if evidence else "") + f"the proof jumps to {figure(jump)} nats" if jump else ""
            yield Explanation(
                Cause(
                    f"STALE_WEIGHTS({name})",
                    side.name,
                    f"the sync of weight version {version} left {name} out, and the engine kept its old value",
                    evidence,
                    {"tensor": name, "version": version, "proof": jump},
                ),
                (f"sync:{side.name}", *kinds_of((*ROLLOUT, *NATIVE), side.name)),
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
                (f"sync:{side.name}", *kinds_of((*ROLLOUT, *NATIVE), side.name)),
                _from(_step_of(e, side, version)),
            )


def _step_of(e: Evidence, side: Side, version: int) -> int:
    used = {v: step for v, step in e.notes.get(f"versions:{side.name}", {}).items() if isinstance(v, int)}
    later = [step for v, step in used.items() if v >= version]
    return min(later) if later else (max(used.values()) + 1 if used else 0)


def _from(step: int) -> Callable[[np.ndarray], np.ndarray]:
    return lambda items: (items[:, 0] >= step) | (items[:, 0] < 0)


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
            ("flip", "length", "finish", f"choice:{party}", *kinds_of(NATIVE, party)),
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
                (f"prompt:{side.name}", *kinds_of(ROLLOUT, side.name)),
                among(affected),
            )


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
                kinds_of(ROLLOUT, side.name),
                among(items),
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
                    f"{found['equal pairs']} equal pairs where {figure(found['expected'])} are expected",
                ),
                ("native", f"collision:{side.name}"),
            )


def noisy(e: Evidence) -> Iterator[Explanation]:
    """An engine whose own floor exceeds the cap explains differences of that size."""
    for side in e.sides:
        if f"floor:{side.name}" in e.first and not decode_only(e, side):
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
                    f"max |Δ| {figure(side.floor.largest)} nats of the engine against "
                    f"itself at equal weights and randomness, cap {figure(e.tolerance.cap)}",
                    {"variants": side.floor.variants},
                ),
                kinds,
            )
