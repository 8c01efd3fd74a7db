"""Faults of engines that sleep while the learner trains: orders that reach them asleep; and controls."""

from __future__ import annotations

from scenarios.planted.differences.fault import Fault

ASLEEP = ("engine.sleep_level=1", "steps=4")
GIVEN_UP = ("engine.sleep_level=2", "steps=4")

FAULTS = (
    Fault(
        "sleep-synced-asleep",
        "the third sync is sent before the engine's weights are woken",
        scenario=GIVEN_UP,
        trainer={"wakes": {3: ("sync", "weights", "cache")}},
        causes=("LIFECYCLE(synced asleep)",),
        party="candidate",
    ),
    Fault(
        "sleep-unsynced",
        "before the third step the engine is woken and not synced: it draws with the weights that it kept aside",
        scenario=ASLEEP,
        trainer={"wakes": {2: ("weights", "cache")}},
        causes=("LIFECYCLE(drawn unsynced)",),
        party="candidate",
    ),
    Fault(
        "sleep-unsynced-at-last",
        "the same before the last step: what the live engine holds is newer",
        scenario=ASLEEP,
        trainer={"wakes": {3: ("weights", "cache")}},
        causes=("LIFECYCLE(drawn unsynced)",),
        party="candidate",
    ),
    Fault(
        "sleep-unsynced-given-up",
        "the same, of an engine that gave its weights up",
        scenario=GIVEN_UP,
        trainer={"wakes": {2: ("weights", "cache")}},
        causes=("LIFECYCLE(drawn unsynced)",),
        party="candidate",
    ),
    Fault(
        "sleep-keeps-its-cache",
        "the prefix cache survives the sleep, and the weight sync after it",
        scenario=ASLEEP,
        engine={"keep_cache": True},
        causes=("STALE_KV",),
        party="candidate",
    ),
    Fault(
        "sleep-keeps-its-cache-vllm",
        "the same of vLLM",
        scenario=ASLEEP,
        pair=("sglang", "vllm"),
        engine={"keep_cache": True},
        causes=("STALE_KV",),
        party="candidate",
    ),
    Fault(
        "sleep-drawn-asleep",
        "after the second sleep nothing is woken: the engine is asked to draw in its sleep, and its session refuses",
        scenario=ASLEEP,
        trainer={"wakes": {2: ()}},
        expected="INCONCLUSIVE",
        causes=("LIFECYCLE(drawn asleep)",),
        party="candidate",
    ),
    Fault(
        "sleep-not",
        "the engine is not put to sleep after the second rollout",
        scenario=ASLEEP,
        trainer={"awake_in": (1,)},
        causes=("LIFECYCLE(stayed awake)",),
        party="candidate",
    ),
    Fault(
        "sleep-level-1",
        "a control: both engines sleep and keep their weights aside",
        scenario=ASLEEP,
        expected="EQUIVALENT",
    ),
    Fault(
        "sleep-level-2",
        "a control: both engines sleep and give their weights up",
        scenario=GIVEN_UP,
        expected="EQUIVALENT",
    ),
    Fault(
        "sleep-one-side",
        "a control: one engine sleeps, the other stays awake",
        settings=("engine.sleep_level=2",),
        scenario=("steps=4",),
        expected="EQUIVALENT",
    ),
)
