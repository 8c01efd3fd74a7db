"""The judge of nights: a fortnight with planted changes, each told on its day as what it is, and no other alarm."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

import pytest

from harness.nightly.judge import Past, judge, settle
from harness.nightly.observation import Facts, Observation, failed

CHECKS = {f"check {index}": "ruled out" for index in range(20)}
VERSIONS = {"candidate engine: vllm": "0.31.0", "learner: torch": "2.13.0"}
SETTINGS = {"sampling.temperature": "1.0", "ppo.epochs": "1"}


def night(day: int, noise: float = 0.1) -> Observation:
    """A night of a healthy cell on a machine whose speed changes by half from day to day."""
    draw = random.Random(day)
    speed = draw.uniform(0.7, 1.5)
    vary = lambda value: value * draw.uniform(1 - noise, 1 + noise)  # noqa: E731
    usual = {"rollout": 0.4, "experience": 0.3, "train": 0.35, "sync": 0.05}
    phases = {f"{side} {name}": vary(s) * speed for side in ("baseline", "candidate") for name, s in usual.items()}
    return Observation(
        "EQUIVALENT", 0, "every check lies within the floor", phases=phases, seconds=vary(96),
        metrics={
            "cap": 1e-4, "steps": 8, "samples": 256, "native_samples": 512,
            "compared_tokens": 6000 + draw.randrange(-9, 9),
            "max_delta_logprob": vary(4e-6), "k1": draw.uniform(-1e-9, 1e-9), "k3": 1e-13, "tokens": 6000,
        },
        facts=Facts(checks=CHECKS, findings={"cache hit rate": "info"}, versions=VERSIONS, settings=SETTINGS),
    )  # fmt: skip


def changed(one: Observation, **facts: dict[str, str]) -> Observation:
    return dataclasses.replace(one, facts=dataclasses.replace(one.facts, **facts))


def version(one: Observation) -> Observation:
    return changed(one, versions=VERSIONS | {"candidate engine: vllm": "0.32.0"})


def parameter(one: Observation) -> Observation:
    return changed(one, settings=SETTINGS | {"sampling.temperature": "0.9"})


def slow_phase(one: Observation) -> Observation:
    return dataclasses.replace(one, phases=one.phases | {"candidate sync": one.phases["candidate sync"] * 3})


def fewer_checks(one: Observation) -> Observation:
    return changed(one, checks=CHECKS | {"check 3": "not tested"})


PLANTED: dict[int, tuple[Callable[[Observation], Observation], tuple[str, str]]] = {
    4: (version, ("moved", "candidate engine: vllm")),
    7: (parameter, ("setting", "sampling.temperature")),
    9: (slow_phase, ("slower", "candidate sync")),
    12: (fewer_checks, ("fewer", "checks")),
}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_a_fortnight_with_planted_changes(seed: int) -> None:
    history: list[Past] = []
    plants: list[Callable[[Observation], Observation]] = []
    for day in range(1, 15):
        one = night(100 * seed + day)
        if day in PLANTED:
            plants.append(PLANTED[day][0])
        for plant in plants:
            one = plant(one)
        judgement = judge(one, history)
        told = {change.key for change in (*judgement.new, *judgement.fixed, *judgement.explains)}
        assert told == ({PLANTED[day][1]} if day in PLANTED else set()), f"day {day}"
        standing = {change.key for change in judgement.standing}
        assert standing == {key for at, (_, key) in PLANTED.items() if at < day and key[0] in ("slower", "fewer")}
        status = settle(judgement).status
        assert status == (
            "NEW" if day == 1 else "REGRESSED" if day in (9, 12) else "STILL FAILING" if day > 9 else "OK"
        )
        history.append(Past(one, frozenset(change.key for change in judgement.problems)))


def passed(count: int = 8) -> list[Past]:
    return [Past(night(day)) for day in range(count)]


def keys(one: Observation, history: list[Past]) -> set[tuple[str, str]]:
    return {change.key for change in judge(one, history).new}


def with_metrics(one: Observation, **metrics: float) -> Observation:
    return dataclasses.replace(one, metrics=one.metrics | metrics)


@pytest.mark.parametrize("nights", [1, 3, 8])
@pytest.mark.parametrize(
    ("metrics", "told"),
    [
        ({"max_delta_logprob": 3e-5}, {("metric", "max_delta_logprob")}),
        ({"max_delta_logprob": 9e-6}, set()),  # twice as large as ever, and below the ceiling
        ({"k1": 5e-6}, {("metric", "k1")}),
        ({"k1": -5e-6}, {("metric", "k1")}),
        ({"k1": 5e-6, "k3": 1e-7}, set()),  # its own interval is as wide
        ({"k1": 5e-7}, set()),
        ({"compared_tokens": 5000}, {("fewer", "compared_tokens")}),
        ({"compared_tokens": 7000}, set()),
        ({"samples": 255}, {("fewer", "samples")}),
        ({"native_samples": 511}, {("fewer", "native_samples")}),
        ({"native_samples": 1024}, set()),  # a second draw
        ({"max_delta_logprob": float("nan")}, {("fewer", "max_delta_logprob")}),
        ({"k1": float("inf")}, {("fewer", "k1")}),
        ({"samples": float("nan")}, {("fewer", "samples")}),
        ({"tokens": float("nan")}, set()),  # no number that is judged
    ],
)
def test_numbers_against_ceiling_and_band(metrics: dict[str, float], told: set[object], nights: int) -> None:
    assert keys(with_metrics(night(50), **metrics), passed(nights)) == told


LEARNER = "baseline against its learner: max_delta_logprob"


def without(one: Observation, *names: str) -> Observation:
    return dataclasses.replace(one, metrics={name: value for name, value in one.metrics.items() if name not in names})


@pytest.mark.parametrize("nights", [1, 3, 8])
def test_a_number_that_is_no_longer_there_is_a_regression_until_it_is_back(nights: int) -> None:
    history = [Past(with_metrics(one.observation, **{LEARNER: 2e-6})) for one in passed(nights)]
    first = judge(night(50), history)
    assert [one.text for one in first.new] == ["baseline against its learner: max |Δ logprob| absent, 2e-6 before"]
    assert settle(first).status == "REGRESSED"
    history.append(past(night(50), history))
    assert settle(judge(night(51), history)).status == "STILL FAILING"
    more = judge(without(night(51), "native_samples"), history)
    assert [one.key for one in more.new] == [("fewer", "native_samples")]
    assert settle(judge(with_metrics(night(52), **{LEARNER: 2e-6}), history)).status == "FIXED"


def test_a_number_that_never_was_or_comes_and_goes_is_not_missed() -> None:
    history = [Past(with_metrics(night(day), **({LEARNER: 2e-6} if day % 3 else {}))) for day in range(20)]
    assert not keys(night(50), history)
    assert not keys(night(50), passed())
    unseen = with_metrics(night(50), **{LEARNER: float("nan")})
    assert not keys(unseen, passed())
    assert not keys(night(50), [past(unseen, passed())])


def test_a_number_that_is_new_is_missed_as_soon_as_it_has_been_there_for_some_nights() -> None:
    history = passed(20) + [Past(with_metrics(night(day), **{LEARNER: 2e-6})) for day in range(20, 25)]
    assert keys(night(50), history) == {("fewer", LEARNER)}
    assert not keys(night(50), history[:-1])


def test_a_night_without_a_verdict_lacks_no_numbers() -> None:
    dead = judge(failed("ended by signal 9"), passed())
    assert [one.key for one in dead.new] == [("verdict", "ERROR")]


def test_a_cell_that_always_varied_has_a_wider_band() -> None:
    history = [Past(with_metrics(night(day), max_delta_logprob=2e-5 * (1 + day % 3))) for day in range(9)]
    assert not keys(with_metrics(night(50), max_delta_logprob=9e-5), history)
    assert keys(with_metrics(night(50), max_delta_logprob=9e-4), history)


def test_a_faster_phase_makes_no_other_slower() -> None:
    one = night(50)
    faster = {name: seconds / 4 if "rollout" in name else seconds for name, seconds in one.phases.items()}
    assert not keys(dataclasses.replace(one, phases=faster), passed())


@pytest.mark.parametrize(("nights", "factor", "told"), [(1, 3, False), (1, 9, True), (8, 3, True)])
def test_a_phase_needs_more_to_be_slow_against_a_single_night(nights: int, factor: float, told: bool) -> None:
    one = night(50)
    slow = dataclasses.replace(one, phases=one.phases | {"candidate train": one.phases["candidate train"] * factor})
    assert keys(slow, passed(nights)) == ({("slower", "candidate train")} if told else set())


def test_a_slow_machine_is_no_slow_phase() -> None:
    one = night(50)
    slow = {name: seconds * 10 for name, seconds in one.phases.items()}
    assert not keys(dataclasses.replace(one, phases=slow), passed())


def failing(one: Observation, *causes: str) -> Observation:
    return dataclasses.replace(one, verdict="DIVERGENT", exit_code=1, reason="they differ", causes=causes)


def past(one: Observation, history: list[Past]) -> Past:
    return Past(one, frozenset(change.key for change in judge(one, history).problems))


def test_a_failing_cell_is_regressed_once_then_still_failing_then_fixed() -> None:
    history = passed()
    first = judge(failing(night(20), "STOP"), history)
    assert {one.key for one in first.new} == {("verdict", "DIVERGENT"), ("cause", "STOP")}
    assert settle(first).status == "REGRESSED"
    history.append(past(failing(night(20), "STOP"), history))
    assert settle(judge(failing(night(21), "STOP"), history)).status == "STILL FAILING"
    other = judge(failing(night(21), "LENGTH"), history)
    assert settle(other).status == "REGRESSED"
    assert [one.subject for one in other.new] == ["LENGTH"] and [one.subject for one in other.fixed] == ["STOP"]
    assert settle(judge(night(22), history)).status == "FIXED"


def test_a_night_without_a_verdict_forgets_nothing() -> None:
    history = passed()
    history.append(past(failing(night(20), "STOP"), history))
    dead = judge(failed("ended by signal 9"), history)
    assert settle(dead).status == "COULD NOT RUN"
    history.append(past(failed("ended by signal 9"), history))
    again = settle(judge(failing(night(22), "STOP"), history))
    assert again.status == "STILL FAILING" and not again.new


@pytest.mark.parametrize(
    ("second", "itself", "status", "words"),
    [
        (failing(night(31), "STOP"), night(32), "REGRESSED", "showed the same; the baseline against itself shows no"),
        (failing(night(31), "STOP"), failing(night(32)), "REGRESSED", "the candidate need not be at fault"),
        (night(31), night(32), "FLAKY", "did not show"),
        (failed("cut"), None, "REGRESSED", "gave no verdict"),
    ],
)
def test_a_second_run_decides(second: Observation, itself: Observation | None, status: str, words: str) -> None:
    history = passed()
    told = settle(judge(failing(night(30), "STOP"), history), judge(second, history), itself)
    assert told.status == status and words in told.confirmation


def test_a_fix_that_a_second_run_does_not_show_is_none() -> None:
    history = passed()
    history.append(past(failing(night(20), "STOP"), history))
    told = settle(judge(night(21), history), judge(failing(night(22), "STOP"), history))
    assert told.status == "FLAKY" and {one.subject for one in told.standing} == {"DIVERGENT", "STOP"}


def test_a_warning_is_a_problem_and_an_information_is_none() -> None:
    assert keys(changed(night(30), findings={"parameter dropped": "warning"}), passed()) == {
        ("finding", "parameter dropped")
    }
    assert not keys(changed(night(30), findings={"engine environment": "info"}), passed())


def test_a_level_that_holds_for_a_window_is_the_new_normal() -> None:
    history, statuses = passed(), []
    for day in range(60):
        one = with_metrics(night(100 + day), max_delta_logprob=5e-5)
        judgement = judge(one, history)
        statuses.append(settle(judgement).status)
        history.append(Past(one, frozenset(change.key for change in judgement.problems)))
    assert statuses[0] == "REGRESSED" and statuses[10] == "STILL FAILING" and statuses[-1] == "OK"
    assert statuses.count("REGRESSED") == statuses.count("FIXED") == 1
