"""Faults of one of several engines of a run, while the others are sound."""

from __future__ import annotations

from typing import Any

from scenarios.planted.differences.catalog.weights import DOWN, GATE, UP
from scenarios.planted.differences.fault import Fault

ASLEEP = ("engine.sleep_level=1",)
TWO = ("engine.engines=2",)
NAMED = "one engine of several"
ROUTED: dict[str, Any] = {"scenario": TWO, "settings": ("engine.router=round_robin",), "pair": ("vllm", "sglang")}


def _second(**plants: Any) -> dict[str, Any]:
    return {"only": 1, **plants}


FAULTS = (
    Fault("two-engines", "two sound engines", scenario=TWO, expected="EQUIVALENT"),
    Fault(
        "second-engine-in-reverse",
        "one of two engines takes its requests in reverse order, and each answer goes with its request",
        scenario=TWO,
        engine=_second(reorder=True),
        expected="EQUIVALENT",
    ),
    Fault(
        "answers-joined-by-engine",
        "the answers of two engines are joined engine by engine and numbered by place, though prompts go round them",
        scenario=TWO,
        trainer={"joined_engines": 2},
        causes=("ORDER",),
        party="candidate",
        told={"ORDER": "one engine after the other"},
    ),
    Fault(
        "second-engine-frozen",
        "from the fourth sync on one of two engines that sleep puts its weights of before the sync back as it wakes",
        scenario=(*TWO, *ASLEEP),
        pair=("hf", "hf"),
        engine=_second(put_back=3),
        causes=("STALE_WEIGHTS(frozen at version 2)",),
        party="candidate",
        findings=(NAMED,),
        told={NAMED: "only samples of engine 1 of 2 differ"},
        half={"causes": ("STALE_WEIGHTS",)},  # on live engines: proofs in half precision do not separate two versions
    ),
    Fault(
        "second-engine-misses-a-tensor",
        "one of two engines refuses a tensor from the second sync on and reports its digest all the same",
        scenario=TWO,
        engine=_second(misloaded={"names": [DOWN], "how": "refused", "from": 1}),
        causes=(f"STALE_WEIGHTS({DOWN})",),
        party="candidate",
        findings=(NAMED,),
        told={NAMED: "only samples of engine 1 of 2 differ"},
    ),
    Fault(
        "second-engine-exchanges-tensors",
        "one of two engines loads two tensors into each other's place",
        scenario=TWO,
        engine=_second(names_exchanged={"names": [GATE, UP], "from": 0}),
        causes=("WEIGHTS",),
        party="candidate",
        findings=(NAMED,),
        told={NAMED: "only samples of engine 1 of 2 differ"},
    ),
    Fault(
        "second-engine-draws-with-another-seed",
        "one of two engines draws with the seed that an engine of its own would have",
        scenario=TWO,
        engine=_second(seed_offset=1),
        causes=("RNG(seed ignored)",),
        party="candidate",
        findings=(NAMED,),
        told={NAMED: "only samples of engine 1 of 2 differ"},
    ),
    Fault(
        "second-engine-draws-as-the-first",
        "one of two engines draws its samples with the random numbers of those of the other",
        scenario=TWO,
        engine=_second(stream=1),
        causes=("RNG_COLLISION(engines)",),
        party="candidate",
        findings=(NAMED,),
        told={NAMED: "only samples of engine 1 of 2 differ", "RNG_COLLISION(engines)": "engine 1"},
    ),
    Fault(
        "second-engine-keeps-its-cache",
        "the prefix cache of one of two engines survives weight syncs",
        scenario=TWO,
        engine=_second(keep_cache=True),
        causes=("STALE_KV",),
        party="candidate",
        findings=(NAMED,),
        told={NAMED: "only samples of engine 1 of 2 differ"},
    ),
    Fault(
        "second-engine-answers-for-others",
        "one of two engines answers its requests in another order",
        scenario=TWO,
        engine=_second(permute="responses"),
        causes=("ORDER",),
        party="candidate",
        findings=(NAMED,),
        told={NAMED: "only samples of engine 1 of 2 differ"},
    ),
    Fault("engines-behind-a-router", "two sound engines behind a router", **ROUTED, expected="EQUIVALENT"),
    Fault(
        "router-knows-one-engine",
        "the router before two engines sends every request to the first",
        **ROUTED,
        engine={"only": 0, "first_engine_only": True},
        expected="EQUIVALENT",
        findings=("idle engine",),
        told={"idle engine": "engine 1 of 2"},
    ),
    Fault(
        "router-asked-again",
        "one request of each batch goes through the router twice, as after an answer that was lost",
        **ROUTED,
        engine={"asked_again": True},
    ),
    Fault(
        "routed-engine-misses-a-tensor",
        "one of two engines behind a router refuses a tensor from the second sync on and reports its digest",
        **ROUTED,
        engine=_second(misloaded={"names": [DOWN], "how": "refused", "from": 1}),
        causes=(f"STALE_WEIGHTS({DOWN})",),
        party="candidate",
        findings=(NAMED,),
        told={NAMED: "only samples of engine 1 of 2 differ"},
        half={"findings": (), "told": {}},  # what the one update changed is less than the samples round by
    ),
)
