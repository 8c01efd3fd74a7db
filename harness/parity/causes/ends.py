"""How samples end: at which token, at which length, or where memory ran out."""

from __future__ import annotations

from harness.parity.causes.family import CauseFamily

STOP = CauseFamily(
    "STOP",
    fix="set the same stop tokens on both engines, and keep the one that ends a sample",
    alone="its proof finds the end at the same token in every sample; a limit ends samples at any token",
    suspicion=7,
    suspicions={"end token dropped": 2},
)
LENGTH = CauseFamily(
    "LENGTH",
    fix="set the same max_tokens and max_model_len on both engines",
    alone="its proof ends every sample at one length; a pool that runs full ends them at any",
)
CAPACITY = CauseFamily(
    "CAPACITY",
    fix="give the engine a larger KV pool, or fewer sequences at a time",
    alone="the engine's own figures say that the pool ran full, or is as large as the samples are long",
    suspicion=6,
)

FAMILIES = (STOP, LENGTH, CAPACITY)
