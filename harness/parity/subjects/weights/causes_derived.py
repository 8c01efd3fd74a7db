"""The causes STALE_DERIVED (a value that was computed from earlier weights) and BUFFER (a table that is computed from
the configuration, and wrong from the first start on).
"""

from __future__ import annotations

from harness.parity.causes.family import CauseFamily, Rival, Seen
from harness.parity.causes.proof import live

STALE_DERIVED = CauseFamily(
    "STALE_DERIVED",
    meaning="what the engine derives from its weights, such as a fused matrix, is still that of earlier weights",
    fix="derive what the engine computes from its weights again after every weight sync",
    named="a buffer of the engine's model",
    rivals=(
        Rival("STALE_WEIGHTS", (Seen.HELD_EQUAL,)),
        Rival("WEIGHTS", (Seen.HELD_EQUAL,)),
        Rival("STALE_KV", (Seen.PAST_CACHE_DIFFERS, Seen.BUFFER_WRITTEN)),
        Rival("a wrong kernel", (Seen.FRESH_AGREES, Seen.BUFFER_WRITTEN)),
    ),
    premise=True,
    proof=live("a fresh engine agrees, or one with its buffer written anew", history=(Seen.RIGHT_BEFORE,)),
)
BUFFER = CauseFamily(
    "BUFFER",
    meaning="a table that the engine computes from the model's configuration, such as that of its rotary embedding, is "
    "wrong from the first start on",
    fix="see that the engine reads the named table's keys of the model's configuration, or take another version of it",
    named="a buffer of the engine's model",
    rivals=(Rival("STALE_DERIVED", (Seen.FROM_START,)), Rival("WEIGHTS", (Seen.HELD_EQUAL, Seen.BUFFER_WRITTEN))),
    premise=True,
    proof=live("the engine agrees once the table is written as the configuration says"),
)

FAMILIES = (STALE_DERIVED, BUFFER)
