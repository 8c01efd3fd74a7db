"""Faults of what the engine computes with: stale, exchanged or altered tensors, a stale cache, tokens of two
versions.
"""

from __future__ import annotations

from typing import Any

from scenarios.planted.differences.fault import Fault

LAYERS = 4  # of the built-in policy
DOWN = "model.layers.0.mlp.down_proj.weight"
VALUE = "model.layers.2.self_attn.v_proj.weight"
QUERY = "model.layers.0.self_attn.q_proj.weight"
UP, GATE = "model.layers.1.mlp.up_proj.weight", "model.layers.1.mlp.gate_proj.weight"
PROJECTIONS = (
    *(f"self_attn.{part}_proj.{kind}" for part in "qkv" for kind in ("weight", "bias")),
    "self_attn.o_proj.weight",
    *(f"mlp.{part}_proj.weight" for part in ("gate", "up", "down")),
)
BF16 = ("model.dtype=bfloat16",)
# Every sync sends what the previous one should have sent, and every reported digest is right.
BEHIND: dict[str, Any] = {"trainer": {"behind_from": 0}, "engine": {"digests_repeated": True}}
EVERY_LAYER = tuple(f"model.layers.{layer}.{name}" for layer in range(LAYERS) for name in PROJECTIONS)
# Too small to show in bfloat16; the lifted stage shows it.
IN_FLOAT32: dict[str, Any] = {"stage": "lifted", "scenario": ("model.dtype=bfloat16", "steps=2")}

FAULTS = (
    Fault(
        "stale-tensor",
        "one tensor is left out of the third weight sync and of none other",
        trainer={"omit_tensors": {3: (DOWN,)}},
        causes=(f"STALE_WEIGHTS({DOWN})",),
        party="candidate",
    ),
    Fault(
        "stale-tensors",
        "two tensors are left out of the second weight sync",
        trainer={"omit_tensors": {2: (DOWN, VALUE)}},
        causes=(f"STALE_WEIGHTS({DOWN})", f"STALE_WEIGHTS({VALUE})"),
        party="candidate",
    ),
    Fault(
        "stale-tensor-baseline",
        "one tensor is left out of every sync of the baseline from the second on",
        side="baseline",
        trainer={"omit_from": 2, "omit_names": (VALUE,)},
        causes=(f"STALE_WEIGHTS({VALUE})",),
        party="baseline",
    ),
    Fault(
        "stale-weights",
        "from the third sync on no tensor of a layer is sent",
        trainer={"omit_from": 3, "omit_names": EVERY_LAYER},
        causes=("STALE_WEIGHTS",),
        party="candidate",
    ),
    Fault(
        "one-update-behind",
        "in bfloat16 the engine computes with the weights before the last update, while the digests of all are right",
        scenario=BF16,
        causes=("STALE_WEIGHTS(one update behind)",),
        party="candidate",
        **BEHIND,
    ),
    Fault(
        "one-small-update-behind",
        "the same at a learning rate of 1e-5, which the updates of a run may be too few to show: then it is not tested",
        scenario=(*BF16, "ppo.actor_lr=1e-5"),
        or_untested=True,
        causes=("STALE_WEIGHTS(one update behind)",),
        party="candidate",
        **BEHIND,
    ),
    Fault(
        "one-tiny-update-behind",
        "the same at a learning rate of 1e-6, which what is recorded seldom shows: it must not be ruled out",
        scenario=(*BF16, "ppo.actor_lr=1e-6"),
        or_untested=True,
        causes=("STALE_WEIGHTS(one update behind)",),
        party="candidate",
        **BEHIND,
    ),
    Fault(
        "one-tiny-update-behind-in-float32",
        "the same in float32",
        scenario=("model.dtype=float32", "ppo.actor_lr=1e-6"),
        causes=("STALE_WEIGHTS(one update behind)",),
        party="candidate",
        **BEHIND,
    ),
    Fault(
        "other-revision",
        "one tensor arrives as another revision of equal shape",
        trainer={"alter": {UP: "revision"}},
        causes=(f"WEIGHTS({UP})",),
        party="candidate",
    ),
    Fault(
        "other-revision-unsaid",
        "from the second sync on one tensor is loaded as another revision, while the digests of all are right",
        trainer={"alter": {UP: "revision"}, "alter_from": 2},
        engine={"digests_repeated": True},
        causes=(f"WEIGHTS({UP})",),
        party="candidate",
        half={
            "summary": "from the second sync on halves of a tensor change places while all digests are right",
            "trainer": {"alter": {UP: "halves"}, "alter_from": 2},
        },
    ),
    Fault(
        "rows-swapped",
        "halves of the rows of a query projection change places: its norm is equal, the digests are right",
        trainer={"alter": {QUERY: "halves"}},
        engine={"digests_repeated": True},
        causes=(f"WEIGHTS({QUERY})",),
        party="candidate",
    ),
    Fault(
        "names-exchanged",
        "two tensors of one shape are loaded into each other's place",
        engine={"names_exchanged": {"names": [GATE, UP], "from": 0}},
        causes=("WEIGHTS",),
        party="candidate",
    ),
    Fault(
        "permuted-on-load",
        "the rows of one tensor change places while it is loaded: what arrived was right, its norm still is",
        engine={"misloaded": {"names": [QUERY], "how": "permuted"}},
        causes=(f"WEIGHTS({QUERY})",),
        party="candidate",
        told={f"WEIGHTS({QUERY})": "neither what arrived nor what it had been before"},
    ),
    Fault(
        "scaled-on-load",
        "from the second sync on one tensor is loaded 2 % too large: what arrived was right",
        engine={"misloaded": {"names": [DOWN], "how": "scaled", "from": 1}},
        causes=(f"WEIGHTS({DOWN})",),
        party="candidate",
        half=IN_FLOAT32 | {"engine": {"misloaded": {"names": [DOWN], "how": "scaled", "from": 0}}},
    ),
    Fault(
        "refused-tensor",
        "from the second sync on the engine keeps one tensor as it is and reports the digest of what arrived",
        engine={"misloaded": {"names": [DOWN], "how": "refused", "from": 1}},
        causes=(f"STALE_WEIGHTS({DOWN})",),
        party="candidate",
        told={f"STALE_WEIGHTS({DOWN})": "it was still what it had been before"},
    ),
    Fault(
        "spoilt-rotary",
        "after every sync from the second on the rotary cache is 1 % too large",
        engine={"rotary": {"by": 1.01, "from": 1}},
        causes=("STALE_DERIVED",),
        party="candidate",
        half=IN_FLOAT32 | {"engine": {"rotary": {"by": 1.01, "from": 0}}, "causes": ("BUFFER",)},  # before any draw
    ),
    Fault(
        "wrong-rotary",
        "from the first sync on, before anything is drawn, the rotary cache is 1 % too large",
        engine={"rotary": {"by": 1.01, "from": 0}},
        causes=("BUFFER",),
        party="candidate",
        half=None,  # smaller than the rounding
    ),
    Fault(
        "flush-ignored",
        "the prefix cache is never flushed, and every order to flush it is answered with success",
        pair=("vllm", "sglang"),
        engine={"keep_cache": "always"},
        causes=("STALE_KV",),
        party="candidate",
    ),
    Fault(
        "flush-ignored-vllm",
        "vLLM's prefix cache is never flushed, and every order to flush it is answered with success",
        pair=("sglang", "vllm"),
        engine={"keep_cache": "always"},
        causes=("STALE_KV",),
        party="candidate",
    ),
    Fault(
        "siblings-off",
        "log-probabilities of all samples of a prompt but the first are off: those that have cached tokens, by chance",
        engine={"moved": {"by": 0.02, "spared": 4}},
        causes=("candidate-itself",),
        party="candidate",
        half={"engine": {"moved": {"by": 0.2, "spared": 4}}},
    ),
    Fault(
        "late-decode",
        "a kernel is wrong from the tenth token of each response on",
        engine={"moved": {"by": 0.02, "position": 9}},
        causes=("candidate-itself",),
        party="candidate",
        half={"engine": {"moved": {"by": 0.2, "position": 9}}},
    ),
    Fault(
        "stale-cache",
        "the prefix cache is not flushed after a weight sync",
        pair=("vllm", "sglang"),
        engine={"keep_cache": True},
        causes=("STALE_KV",),
        party="candidate",
    ),
    Fault(
        "stale-cache-vllm",
        "vLLM's prefix cache is not flushed after a weight sync",
        pair=("sglang", "vllm"),
        engine={"keep_cache": True},
        causes=("STALE_KV",),
        party="candidate",
    ),
    Fault(
        "stale-cache-baseline",
        "the baseline's prefix cache is not flushed after a weight sync",
        side="baseline",
        pair=("vllm", "sglang"),
        engine={"keep_cache": True},
        causes=("STALE_KV",),
        party="baseline",
    ),
    Fault(
        "stale-derived",
        "from the second sync on the last norm computes with a copy of its old weights; every parameter is right",
        engine={"kept_copy": {"modules": ["model.norm"], "from": 2}},
        causes=("STALE_DERIVED",),
        party="candidate",
        half=None,  # at this learning rate a norm hardly changes in bfloat16, and at a larger one the sync differs
    ),
    Fault(
        "stale-derived-baseline",
        "in the baseline two norms compute with copies of their first weights; every parameter is right",
        side="baseline",
        engine={"kept_copy": {"modules": ["model.norm", "model.layers.3.post_attention_layernorm"], "from": 1}},
        causes=("STALE_DERIVED",),
        party="baseline",
        half={
            "summary": "in the baseline a projection computes with a copy of its first weights; parameters are right",
            "engine": {"kept_copy": {"modules": [DOWN.removesuffix(".weight")], "from": 1}},
        },
    ),
    Fault(
        "wrong-kernel",
        "one layer's down projection computes 2 % too much; nothing that can be put back removes it",
        engine={"bent": {"modules": ["model.layers.2.mlp.down_proj"], "by": 1.02}},
        causes=("COMPUTATION(layer 2)",),
        party="candidate",
        half=IN_FLOAT32,
    ),
    Fault(
        "mixed-version",
        "the first six tokens of each response are drawn before the weight sync, the rest after it",
        engine={"drawn_before_sync": {"tokens": 6, "from": 1}},
        causes=("MIXED_VERSION",),
        party="candidate",
    ),
    Fault(
        "mixed-version-from-step-3",
        "from step 3 on the first twelve tokens of each response are drawn before the weight sync",
        engine={"drawn_before_sync": {"tokens": 12, "from": 3}},
        causes=("MIXED_VERSION",),
        party="candidate",
        half=None,  # the update is smaller than the rounding
    ),
)
