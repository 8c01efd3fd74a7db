"""The catalogue of tamperings: what the mutation trial does to a sound pair of recordings, and what must come of it.

A tampering is one field and one operation on it. `place` says in which run it is done: in one, in both alike, or the
field is exchanged between the runs. Each ends in one of three ways, by its `ends`:

- STOPPED: it changes what the recording says, and the verdict must not be EQUIVALENT.
- TOLD: the field belongs to a suspicion that never decides; EQUIVALENT may stay, and the suspicion is not ruled out.
- KEPT: a control. It changes nothing that a verdict rests on, and the verdict must stay EQUIVALENT.
"""

from __future__ import annotations

import pickle

import numpy as np
from tampered_runs import BOTH, KEPT, ONE, PAIRS, STOPPED, SWAPPED, TOLD, Runs, fingerprint, judged, sound
from tampering_catalogue import CATALOGUE
from tampering_operations import Tampering

from reports.model import Verdict


def tamper(runs: Runs, tampering: Tampering, place: str, seed: int = 0) -> bool:
    """Do it; returns whether anything changed at all: equal columns that are exchanged are no tampering."""
    before = fingerprint(runs)
    if place == SWAPPED:
        assert tampering.exchange is not None
        tampering.exchange(runs.baseline, runs.candidate)
    else:
        pristine: Runs = pickle.loads(pickle.dumps(runs))
        for side in ONE:
            if place in (side, BOTH):
                other = pristine.candidate if side == "baseline" else pristine.baseline
                tampering.change(runs.of(side), other, np.random.default_rng(seed))
        if runs.again is not None and place == BOTH:  # a job that does it does it again
            tampering.change(runs.again, pristine.candidate, np.random.default_rng(seed))
    return fingerprint(runs) != before


def verdict(kind: str, name: str, place: str, seed: int = 0) -> Verdict | None:
    """That on a tampered pair; None where the tampering changed nothing."""
    tampering = CATALOGUE[name]
    runs = sound(kind, native=tampering.native)
    return judged(runs) if tamper(runs, tampering, place, seed) else None


PLACES = ("candidate", BOTH, SWAPPED)  # of the table; what is done to a baseline is tried as well
HEAD = "| tampering | must be | " + " | ".join(f"{kind}, {place}" for kind in PAIRS for place in PLACES) + " |"
NOTHING = "–"


def cell(verdict: Verdict) -> str:
    return verdict.verdict


def row(name: str, found: dict[tuple[str, str], str]) -> str:
    """One line of the table; `found`: (kind, place) -> what it ended as."""
    one = CATALOGUE[name]
    cells = [found.get((kind, place), NOTHING) for kind in PAIRS for place in PLACES]
    wanted = {STOPPED: "stopped", KEPT: "EQUIVALENT", TOLD: f"told by {one.check}"}[one.ends]
    if one.alike:
        wanted += f"; in both runs of {' or '.join(pair for pair in PAIRS if pair in one.alike)} pairs EQUIVALENT"
    return f"| {name} | {wanted} | {' | '.join(cells)} |"


def read_table(text: str) -> dict[str, dict[tuple[str, str], str]]:
    """Tampering -> (kind, place) -> what it ends as, from the page."""
    found: dict[str, dict[tuple[str, str], str]] = {}
    for line in text.partition(HEAD)[2].splitlines()[2:]:
        if not line.startswith("| "):
            break
        name, _, *cells = (part.strip() for part in line.strip("|").split(" | "))
        places = [(kind, place) for kind in PAIRS for place in PLACES]
        found[name] = dict(zip(places, cells, strict=True))
    return found
