"""A prefix cache with keys and values of earlier weights."""

from __future__ import annotations

from harness.parity.causes.family import CauseFamily, Rival, Seen

STALE_KV = CauseFamily(
    "STALE_KV",
    fix="flush the prefix cache after every weight sync",
    rivals=(
        Rival("a fault of the place in the group", (Seen.PAST_CACHE_AGREES, Seen.CACHE_CROSSED)),
        Rival("a fault of long prompts", (Seen.PAST_CACHE_AGREES, Seen.AS_LONG_AGREE)),
    ),
    suspicion=8,
    premise=True,
)

FAMILIES = (STALE_KV,)
