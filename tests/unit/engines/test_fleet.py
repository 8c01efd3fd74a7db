"""Several engines behind one handle: who draws what, in which order answers come back, and what ends a wait."""

from __future__ import annotations

import dataclasses
import re
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import scenarios
from scenarios.engines.engine_interface import Completion, Request, SyncGroup, SyncReport
from scenarios.fleet import Fleet, Gathered, engine_of, members
from scenarios.session import RolloutResult


class Answering:
    """A member that keeps what it was asked and answers at once, with the number of each sample as its only token."""

    def __init__(self, report: SyncReport | None = None, lost: int = 0) -> None:
        self.asked: list[tuple[str, tuple[Any, ...]]] = []
        self._report, self._lost = report, lost

    def submit(self, method: str, *args: Any, **kwargs: Any) -> Future[Any]:
        self.asked.append((method, args))
        future: Future[Any] = Future()
        future.set_result(self._answer(method, *args))
        return future

    def stop(self) -> None: ...

    def _answer(self, method: str, *args: Any) -> Any:
        if method == "rollout":
            numbers = [request.sample for request in args[0]][self._lost :]
            drawn = [Completion(number, (), (number,), (0.0,), "stop") for number in numbers]
            return RolloutResult(drawn, [(number, (number,), "stop") for number in numbers], rounds=len(numbers))
        return {"sync": self._report, "pids": (id(self),), "starts": (1, 2.0)}.get(method)


@pytest.mark.slow
@given(st.lists(st.integers(0, 200), unique=True, min_size=1), st.integers(1, 5), st.integers(1, 5))
def test_answers_come_in_the_order_of_the_requests(samples: list[int], engines: int, per_prompt: int) -> None:
    several = [Answering() for _ in range(engines)]
    result = Fleet(list(several), per_prompt).submit("rollout", [Request(one, ()) for one in samples], step=0).result()
    assert [one.sample for one in result.completions] == [number for number, _, _ in result.used] == samples
    for number, one in enumerate(several):
        drew = [request.sample for _, (requests,) in one.asked for request in requests]
        assert all(engine_of(sample, per_prompt, engines) == number for sample in drew)
    assert sum(len(one.asked) for one in several) <= engines  # nobody is asked for nothing


@pytest.mark.slow
@given(st.integers(0, 999), st.integers(1, 8), st.integers(1, 8))
def test_samples_of_one_prompt_go_to_one_engine(prompt: int, per_prompt: int, engines: int) -> None:
    drawn_by = {engine_of(prompt * per_prompt + copy, per_prompt, engines) for copy in range(per_prompt)}
    assert len(drawn_by) == 1 and drawn_by < set(range(engines + 1))


def test_samples_that_an_engine_lost_are_missing_from_the_answer() -> None:
    fleet = Fleet([Answering(), Answering(lost=1)], 1)
    used = fleet.submit("rollout", [Request(one, ()) for one in range(4)], step=0).result().used
    assert sorted(number for number, _, _ in used) == [0, 2, 3]


def test_every_engine_joins_at_a_place_of_its_own() -> None:
    several = [Answering(), Answering()]
    group = SyncGroup("127.0.0.1", 1, 5, 1, "sync", "gloo")  # two workers each
    Fleet(list(several), 1).submit("join", group).result()
    assert [one.asked[0][1][0] for one in several] == [group, dataclasses.replace(group, rank_offset=3)]


def test_what_one_engine_received_otherwise_stands() -> None:
    one = SyncReport(True, "", 1.0, {"a": "1", "b": "2", "c": "3"})
    two = SyncReport(True, "", 2.0, {"a": "1", "b": "other"})
    merged = Fleet([Answering(one), Answering(two)], 1).submit("sync").result()
    assert merged == SyncReport(True, "", 2.0, {"a": "1", "b": "other"})
    refused = dataclasses.replace(two, ok=False, message="no")
    assert not Fleet([Answering(one), Answering(refused)], 1).submit("sync").result().ok


def test_one_that_failed_is_told_while_another_never_answers() -> None:
    failed: Future[Any] = Future()
    failed.set_exception(RuntimeError("gone"))
    for futures in ([failed, Future()], [Future(), failed]):
        both = Gathered(futures, lambda answers: answers[0])
        assert both.done()
        with pytest.raises(RuntimeError, match="gone"):
            both.result()
    assert not Gathered([Future(), Future()], lambda answers: answers[0]).done()


def test_what_only_one_engine_can_answer_is_asked_of_its_members() -> None:
    several = [Answering(), Answering()]
    fleet = Fleet(list(several), 1)
    with pytest.raises(ValueError, match="ask one engine"):
        fleet.submit("rescore", [])
    assert members(fleet) == several and members(several[0]) == several[:1]
    assert fleet.submit("pids").result() == (id(several[0]), id(several[1]))
    assert fleet.submit("starts").result() == (2, 4.0)


def asked_of_a_session() -> set[str]:
    """The methods that the steps of a run ask of its engines, one or several."""
    root = Path(scenarios.__path__[0])
    texts = [path.read_text() for path in (root / "stage.py", *(root / "ppo").glob("*.py"))]
    return {name for text in texts for name in re.findall(r'\b_?session(?:\.submit\(|, )"(\w+)"', text)}


def test_a_fleet_answers_all_that_a_run_asks_of_its_engines() -> None:
    """A stage that asks for what a fleet has no answer to ends each run with several engines."""
    methods = asked_of_a_session()
    assert {"end_native", "native", "sync"} <= methods
    group = SyncGroup("127.0.0.1", 1, 5, 1, "sync", "gloo")
    report = SyncReport(True, "", 1.0, {})
    for method in methods:
        fleet = Fleet([Answering(report), Answering(report)], 1)
        fleet.submit(method, *({"join": [group]}.get(method, [[]])))
