"""One rank of a parallel learner or engine is at fault, or the number of ranks changes what is learned."""

from __future__ import annotations

from scenarios.planted.differences.fault import Fault

TP = ("engine.tensor_parallel=2",)
WORLD = ("ppo.world_size=2",)
DOWN = "model.layers.0.mlp.down_proj.weight"
OUTPUT = "model.layers.2.self_attn.o_proj.weight"
UP = "model.layers.1.mlp.up_proj.weight"
QUERY = "model.layers.3.self_attn.q_proj.weight"
RANK = {"TRAINER": "rank 1"}

FAULTS = (
    Fault("two-shards", "two sound engines of two tensor-parallel ranks", scenario=TP, expected="EQUIVALENT"),
    Fault("two-shards-against-one", "a sound engine of two ranks against one", settings=TP, expected="EQUIVALENT"),
    Fault("two-ranks", "two sound learners of two ranks", scenario=WORLD, expected="EQUIVALENT"),
    Fault("two-ranks-against-one", "a sound learner of two ranks against one", settings=WORLD, expected="EQUIVALENT"),
    Fault(
        "shard-stale",
        "from the second sync on one of two tensor-parallel ranks keeps its old shard of one weight",
        scenario=TP,
        engine={"misloaded": {"names": [DOWN], "how": "refused", "from": 1, "rank": 1}},
        causes=(f"STALE_WEIGHTS({DOWN})",),
        party="candidate",
        told={f"STALE_WEIGHTS({DOWN})": "rank 1"},
    ),
    Fault(
        "shard-stale-vllm",
        "at the third sync alone one of vLLM's two ranks keeps its old shard of one weight",
        scenario=TP,
        pair=("sglang", "vllm"),
        engine={"misloaded": {"names": [OUTPUT], "how": "refused", "from": 2, "until": 3, "rank": 1}},
        causes=(f"STALE_WEIGHTS({OUTPUT})",),
        party="candidate",
        told={f"STALE_WEIGHTS({OUTPUT})": "rank 1"},
    ),
    Fault(
        "shard-of-another-rank",
        "one of two tensor-parallel ranks loads the other's shard of one weight",
        scenario=TP,
        engine={"misloaded": {"names": [UP], "how": "shard", "from": 0, "rank": 1}},
        causes=(f"WEIGHTS({UP})",),
        party="candidate",
        told={f"WEIGHTS({UP})": "rank 1"},
    ),
    Fault(
        "shard-of-another-rank-vllm",
        "from the third sync on the first of vLLM's two ranks loads the other's shard of one weight",
        scenario=TP,
        pair=("sglang", "vllm"),
        engine={"misloaded": {"names": [QUERY], "how": "shard", "from": 2, "rank": 0}},
        causes=(f"WEIGHTS({QUERY})",),
        party="candidate",
        told={f"WEIGHTS({QUERY})": "rank 0"},
    ),
    Fault(
        "rank-trains-on-anothers-samples",
        "from step 1 on the second of two learner ranks trains on the first one's samples, and its own are lost",
        scenario=WORLD,
        trainer={"dealing": "another's", "first_step": 1},
        causes=("TRAINER",),
        party="trainer",
        told=RANK,
    ),
    Fault(
        "rank-trains-on-a-sample-twice",
        "the second of two learner ranks trains on one sample of each mini-batch twice, and on another not",
        scenario=WORLD,
        trainer={"dealing": "twice"},
        causes=("TRAINER",),
        party="trainer",
        told=RANK,
    ),
    Fault(
        "loss-divided-by-ranks",
        "a learner of two ranks divides a loss by their number that is one of the whole batch already",
        settings=WORLD,
        trainer={"divisor": "times ranks"},
        causes=("TRAINER",),
        party="trainer",
    ),
    Fault(
        "gradients-summed",
        "gradients of two ranks are summed where each is one of the mean over its own tokens",
        scenario=WORLD,
        trainer={"divisor": "own"},
        causes=("TRAINER",),
        party="trainer",
    ),
    Fault(
        "rank-skips-an-update",
        "the second of two learner ranks does not apply its fourth update",
        scenario=WORLD,
        trainer={"update": {"skipped": 3}},
        causes=("TRAINER",),
        party="trainer",
        told=RANK,
    ),
    Fault(
        "rank-keeps-its-gradient",
        "the second of two learner ranks applies its own gradient of one parameter, not the sum",
        scenario=WORLD,
        trainer={"update": {"own": DOWN}},
        causes=("TRAINER",),
        party="trainer",
        told=RANK,
    ),
    Fault(
        "rank-lends-no-gradient",
        "the gradient of one parameter of the second of two learner ranks is missing in the sum, on both",
        scenario=WORLD,
        trainer={"update": {"lost": DOWN}},
        causes=("TRAINER",),
        party="trainer",
        told=RANK,
    ),
    Fault(
        "advantages-per-rank",
        "advantages are normalised over each rank's samples, not over the batch",
        scenario=WORLD,
        trainer={"advantages": "per rank"},
        causes=("TRAINER",),
        party="trainer",
    ),
    Fault(
        "reference-rank-of-another-revision",
        "the second of two ranks of the reference has another revision of one weight",
        scenario=WORLD,
        trainer={"revision": {"reference": UP}},
        causes=("TRAINER",),
        party="trainer",
        told=RANK,
    ),
    Fault(
        "rewards-gathered-in-another-order",
        "the rewards of two ranks are gathered in the other order, so that samples have those of others",
        scenario=WORLD,
        trainer={"exchanged": "reward"},
        causes=("TRAINER",),
        party="trainer",
    ),
    Fault(
        "second-engine-at-another-temperature",
        "one of two engines was started again with another temperature than the run's",
        scenario=("engine.engines=2",),
        engine={"only": 1, "sampling": {"temperature": 0.8}},
        causes=("SAMPLING_PARAM(temperature)",),
        party="candidate",
        findings=("one engine of several",),
        told={"one engine of several": "only samples of engine 1 of 2 differ"},
    ),
)
