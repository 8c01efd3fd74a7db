"""An engine that sleeps while the learner trains: what it is asked in its sleep is found in its recorded calls."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recordings import Recording, causes, check, make, put, scenario
from test_parity_engines import TWO, split

from harness.parity.subjects.engines.observed_lifecycle import Misstep, What, _missteps
from harness.recordings.records.engine_activity import EngineCall
from scenarios.engines.engine_interface import EngineError
from scenarios.engines.make import EngineOptions
from scenarios.session import EngineSession
from scenarios.settings import Scenario

Calls = list[dict[str, Any]]


def missteps_of(calls: Calls, versions: dict[int, int | None]) -> list[Misstep]:
    return list(_missteps(0, [EngineCall.of(call) for call in calls], versions))


def sound(step: int) -> Calls:
    """What a step asks of an engine."""
    return [
        {"name": "generate", "step": step},
        {"name": "sleep", "step": step, "level": 2},
        {"name": "wake", "step": step, "part": "weights"},
        {"name": "sync", "step": step},
        {"name": "wake", "step": step, "part": "cache"},
        {"name": "rescore", "step": step},
    ]


def run(side: str, level: int, change: Any = None) -> Recording:
    base = scenario(steps=4)
    made = make(side, dataclasses.replace(base, engine=dataclasses.replace(base.engine, sleep_level=level)))
    for step in range(4) if level else ():
        calls = sound(step)
        for call in calls if change is None or step != 2 else change(calls):
            made.logs["rollout"].event("call", **call, ok=True, message="", seconds=0.1)
    return made


@pytest.mark.slow
@pytest.mark.parametrize(
    ("device", "freed", "said"),
    [
        ("cpu", None, "freed: nothing, on this device"),
        ("cuda", None, "freed: not recorded"),
        ("cuda", 0, "freed: nothing, on this device"),
        ("cuda", 3 << 20, "freed: 3 MiB at most"),
    ],
)
def test_sound_sleep_is_ruled_out_and_what_it_freed_is_said(
    tmp_path: Path, device: str, freed: int | None, said: str
) -> None:
    runs = [run(side, 2) for side in ("baseline", "candidate")]
    for one in runs:
        for event in one.events("engine_info"):
            event["resolved"] |= {"device": device, "tf32": False}
        for call in one.events("call"):
            if call["name"] == "sleep" and freed is not None:
                call["freed"] = freed
    verdict = put(tmp_path, *runs)
    assert verdict.verdict == "EQUIVALENT", verdict.reason
    shown = check(verdict, "lifecycle")
    assert shown.state == "ruled out" and "4 times" in shown.evidence
    assert said in shown.evidence


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda calls: [*calls[:2], calls[3], calls[2], *calls[4:]], "LIFECYCLE(synced asleep)"),
        (lambda calls: [*calls[:4], calls[5], calls[4]], "LIFECYCLE(drawn asleep)"),
        (lambda calls: [calls[0], *calls[3:]], "LIFECYCLE(stayed awake)"),
        (lambda calls: [*calls[:3], *calls[4:]], "LIFECYCLE(drawn unsynced)"),
    ],
)
def test_what_an_engine_is_asked_in_its_sleep_is_named(change: Any, named: str, tmp_path: Path) -> None:
    verdict = put(tmp_path, run("baseline", 2), run("candidate", 2, change))
    assert verdict.verdict == "DIVERGENT" and causes(verdict) == [named]
    assert verdict.causes[0].party == "candidate" and verdict.parity is not None
    assert verdict.parity.first_divergence is not None and verdict.parity.first_divergence.step == 2


@pytest.mark.slow
def test_sleep_that_nobody_recorded_is_not_tested(tmp_path: Path) -> None:
    candidate = run("candidate", 2)
    candidate.drop("call")
    verdict = put(tmp_path, run("baseline", 2), candidate)
    assert verdict.verdict == "INCONCLUSIVE" and check(verdict, "lifecycle").state == "not tested"


@pytest.mark.slow
@pytest.mark.parametrize("sleeps", [True, False])
def test_each_engine_of_several_has_to_sleep(tmp_path: Path, sleeps: bool) -> None:
    """The calls of the second of the candidate's engines were recorded, and none of them put it to sleep."""
    runs = []
    for side in ("baseline", "candidate"):
        base = dataclasses.replace(TWO, steps=4)
        made = split(make(side, dataclasses.replace(base, engine=dataclasses.replace(base.engine, sleep_level=2))))
        for name in ("rollout", "second"):
            awake = side == "candidate" and name == "second" and not sleeps
            for call in [call for step in range(4) for call in sound(step)]:
                if not awake or call["name"] not in ("sleep", "wake"):
                    made.logs[name].event("call", **call, ok=True, message="", seconds=0.1)
        runs.append(made)
    verdict = put(tmp_path, *runs)
    assert check(verdict, "lifecycle").state == ("ruled out" if sleeps else "not tested")
    assert verdict.verdict == ("EQUIVALENT" if sleeps else "INCONCLUSIVE"), verdict.reason


@pytest.mark.slow
def test_engines_that_stay_awake_have_no_such_check(tmp_path: Path) -> None:
    verdict = put(tmp_path, run("baseline", 0), run("candidate", 0))
    assert verdict.parity is not None and "lifecycle" not in {one.name for one in verdict.parity.checks}


@given(st.permutations(range(6)))
def test_only_the_order_of_a_sound_step_has_no_misstep(order: list[int]) -> None:
    calls = [sound(0)[place] for place in order]
    places = {name: order.index(place) for place, name in enumerate(["draw", "sleep", "w", "sync", "c", "score"])}
    asleep = {
        "weights": range(places["sleep"], max(places["w"], places["sleep"])) if places["w"] > places["sleep"] else
        range(places["sleep"], 6),
        "cache": range(places["sleep"], places["c"]) if places["c"] > places["sleep"] else range(places["sleep"], 6),
    }  # fmt: skip
    expected = [What.SYNCED] * (places["sync"] in asleep["weights"])
    drawn = [places[name] in asleep["weights"] or places[name] in asleep["cache"] for name in ("draw", "score")]
    unsynced = [
        not dreamt and places["sleep"] < places[name] and not places["sleep"] < places["sync"] < places[name]
        for name, dreamt in zip(("draw", "score"), drawn, strict=True)
    ]
    expected += [What.DRAWN] * sum(drawn) + [What.UNSYNCED] * sum(unsynced)
    assert sorted(one.what for one in missteps_of(calls, {0: 0})) == sorted(expected)


@pytest.mark.parametrize(
    ("versions", "unsynced"),
    [
        ({0: 0, 1: 1, 2: 2}, [1]),  # a sync is left out, and the step says that it drew with what it would have brought
        ({0: 0, 1: 0, 2: 1}, []),  # a step that says that it drew with older weights did
        ({0: None, 1: None, 2: None}, []),
    ],
)
def test_weights_that_were_kept_aside_need_a_sync_once_there_are_others(
    versions: dict[int, int | None], unsynced: list[int]
) -> None:
    calls = [call | {"level": 1} if call["name"] == "sleep" else call for step in versions for call in sound(step)]
    without = [call for call in calls if (call["name"], call["step"]) != ("sync", 0)]
    assert [(one.what, one.step) for one in missteps_of(without, versions)] == [(What.UNSYNCED, at) for at in unsynced]
    assert not missteps_of(calls, versions)
    nobodys = [call for call in calls if call["name"] != "sync"]  # whose syncs are not recorded
    assert not missteps_of(nobodys, versions)


@pytest.mark.slow
def test_a_session_refuses_what_a_sleeping_engine_cannot_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    class Engine:
        def info(self) -> Any:
            return type("Info", (), {"pids": ()})

        def sleep(self, level: int) -> None: ...

        def wake(self, part: str) -> None: ...

        def rescore(self, sequences: Any) -> Any:
            return [[0.0] * (len(one) - 1) for one in sequences]

    monkeypatch.setattr("scenarios.session.make_engine", lambda *_, **__: Engine())
    session = EngineSession("hf", "model", Scenario().to_json(), EngineOptions("cpu"))
    session.sleep(1, step=0)
    with pytest.raises(EngineError, match="asleep and was asked to rescore: its cache and weights must be woken"):
        session.rescore([(1, 2)])
    session.wake("weights", step=0)
    with pytest.raises(EngineError, match="its cache must be woken"):
        session.rescore([(1, 2)])
    session.wake("cache", step=0)
    assert session.rescore([(1, 2)]) == [[0.0]]
