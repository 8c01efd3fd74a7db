"""The cause STALE_DERIVED: the engine keeps a value that it computed from earlier weights."""

from __future__ import annotations

from harness.parity.causes.family import CauseFamily, Rival, Seen
from harness.parity.causes.proof import live

STALE_DERIVED = CauseFamily(
    "STALE_DERIVED",
    meaning="what the engine derives from its weights, such as a fused matrix, is still that of earlier weights",
    fix="derive what the engine computes from its weights again after every weight sync",
    rivals=(
        Rival("STALE_WEIGHTS", (Seen.HELD_EQUAL,)),
        Rival("WEIGHTS", (Seen.HELD_EQUAL,)),
        Rival("STALE_KV", (Seen.PAST_CACHE_DIFFERS, Seen.BUFFER_WRITTEN)),
        Rival("a wrong kernel", (Seen.FRESH_AGREES, Seen.BUFFER_WRITTEN)),
    ),
    premise=True,
    proof=live("a fresh engine agrees, or one with its buffer written anew", history=(Seen.RIGHT_BEFORE,)),
)

FAMILIES = (STALE_DERIVED,)
