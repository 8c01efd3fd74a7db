"""The order of causes: each rule, trial and intervention has one place and a reason, and plug-ins have a slot."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest

from harness.parity import subjects, suspected
from harness.parity.attribution import guesses, live, put_back, reference
from harness.parity.causes import registry, unexplained
from harness.parity.causes.family import CauseFamily, Contest, Intervention, Rule
from harness.parity.causes.registry import Slot
from harness.parity.explain import RULES
from harness.parity.interventions.situation import Situation
from harness.parity.interventions.trial import Trial


def public_functions(modules: list[ModuleType]) -> Iterator[Callable[..., object]]:
    """The functions that these modules define for others."""
    for module in modules:
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if function.__module__ == module.__name__ and not name.startswith("_"):
                yield function


def ours(order: tuple[object, ...]) -> list[object]:
    """An order without the slot of plug-ins."""
    return [step for step in order if not isinstance(step, Slot)]


def test_each_rule_has_one_place() -> None:
    modules = [*subjects.modules("causes"), *subjects.modules("explain"), suspected, unexplained]
    written = {
        function
        for function in public_functions(modules)
        if list(inspect.signature(function, follow_wrapped=False).parameters) == ["e", "so_far"]
    }
    listed = [rule.run for rule in ours(RULES) if isinstance(rule, Rule)]
    assert len(listed) == len(set(listed)) and set(listed) == written


def test_each_family_of_trials_has_one_place() -> None:
    written = {
        function
        for function in public_functions([*subjects.modules("causes"), guesses])
        if inspect.signature(function).return_annotation == "Iterator[Trial]"
    }
    listed = [
        trials for contest in ours(reference.CONTESTS) if isinstance(contest, Contest) for trials in contest.rivals
    ]
    assert len(listed) == len(set(listed)) and set(listed) == written


def test_each_intervention_has_one_place() -> None:
    written = {
        function
        for function in public_functions([*subjects.modules("causes"), *subjects.modules("live"), live, put_back])
        if list(inspect.signature(function).parameters) == ["s"]
        and inspect.signature(function).return_annotation == "None"
    } - {live.regroup}  # a control, once nothing is left
    listed = [step.run for step in ours(live.INTERVENTIONS) if isinstance(step, Intervention)]
    assert len(listed) == len(set(listed)) and set(listed) == written


@pytest.mark.parametrize("order", [RULES, reference.CONTESTS, live.INTERVENTIONS], ids=["rules", "trials", "live"])
def test_each_place_has_a_reason_and_plugins_have_one_slot(order: tuple[Rule | Contest | Intervention | Slot]) -> None:
    assert order.count(Slot.PLUGINS) == 1
    assert all(step.because for step in order if not isinstance(step, Slot))


def test_causes_of_the_harness_have_their_places_in_the_orders_alone() -> None:
    assert not any(family.rules or family.trials or family.interventions for family in registry._ours())


def test_what_other_packages_bring_takes_the_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    def rule(e: object, so_far: object) -> list[object]:
        return []

    def trials(s: Situation) -> list[Trial]:
        return []

    theirs = Rule(rule, "known"), Intervention(trials, "theirs", "cheap")  # type: ignore[arg-type]
    family = CauseFamily("THEIRS", rules=theirs[:1], trials=(trials,), interventions=theirs[1:])
    monkeypatch.setattr(registry, "_of_plugins", lambda: [family])
    at = RULES.index(Slot.PLUGINS)
    assert registry.rules(RULES) == (*RULES[:at], theirs[0], *RULES[at + 1 :])
    assert [contest.rivals for contest in registry.contests((Slot.PLUGINS,))] == [(trials,)]
    assert registry.interventions(live.INTERVENTIONS)[-2:] == (theirs[1], live.INTERVENTIONS[-1])
    monkeypatch.setattr(registry, "_of_plugins", lambda: [])
    assert registry.rules(RULES) == (*RULES[:at], *RULES[at + 1 :])
