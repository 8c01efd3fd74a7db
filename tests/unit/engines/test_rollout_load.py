"""Engine statistics of a step: peaks while it generated, and the cache's share in that step alone."""

from __future__ import annotations

from scenarios.engines.engine_interface import Completion
from scenarios.engines.load import Load


def completion(prompt: int, cached: int, drawn: int = 2) -> Completion:
    return Completion(0, (1,) * prompt, (2,) * drawn, (-1.0,) * drawn, "stop", cached)


def test_the_peak_of_a_step_is_kept_and_forgotten_with_it() -> None:
    load = Load()
    with load.generating():
        for running, waiting, kv in ((2, 6, 0.1), (8, 0, 0.4), (0, 0, 0.0)):
            load.sample(running=running, waiting=waiting, kv=kv)
    found = load.take()
    assert (found["running"], found["waiting"], found["kv_usage"]) == (8.0, 6.0, 0.4)
    assert "running" not in load.take()


def test_what_an_engine_does_not_say_is_left_out() -> None:
    load = Load()
    with load.generating():
        load.sample(running=3)
    load.sample(running=64, kv=1.0)  # of a rescoring: nothing generates
    assert load.take(cache=False) == {"prompt_tokens": 0.0, "generated_tokens": 0.0, "running": 3.0}


def test_the_hit_rate_is_of_the_step_alone() -> None:
    load = Load()
    load.add([completion(10, 0), completion(10, 0)])
    assert load.take()["cache_hit_rate"] == 0.0
    load.add([completion(10, 8), completion(10, 8, drawn=5)])
    found = load.take()
    assert found["cache_hit_rate"] == 0.8 and found["generated_tokens"] == 7.0
    assert "cache_hit_rate" not in load.take()
