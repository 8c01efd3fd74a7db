"""Every family of causes: those of the subjects, and those of other packages by their entry points.

`FAMILIES` of each module of causes in `harness.parity.subjects` is read, and each entry point of the group
`rlhf_harness.causes`, which is a `CauseFamily` of another package. A function of one that raises explains nothing, and
the error is reported.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from enum import Enum
from typing import Any, TypeVar

from harness.parity import subjects
from harness.parity.causes import unexplained
from harness.parity.causes.family import CauseFamily, Contest, Intervention, Rule
from harness.parity.facts.evidence import Evidence
from harness.parity.facts.explanation import Explained, Explanation
from harness.parity.interventions.situation import Situation
from harness.parity.interventions.trial import Trial
from probes import plugins
from probes.plugins import Plugin, PluginError
from reports import codec
from reports.model import Cause, CauseKey

T = TypeVar("T")
GROUP = "rlhf_harness.causes"


@functools.cache
def _loaded() -> tuple[dict[str, CauseFamily], dict[str, Plugin], tuple[PluginError, ...]]:
    """Return every family by its name, the plug-in of each one that is not ours, and why other plug-ins bring none."""
    families_by_name = {cause_family.name: cause_family for cause_family in _ours()}
    homes: dict[str, Plugin] = {}

    def take(plugin: Plugin, family: Any) -> None:
        if not isinstance(family, CauseFamily):
            raise plugins.Unfit("it is no harness.parity.causes.family.CauseFamily")
        if family.name in families_by_name:
            raise plugins.name_taken(family.name, homes.get(family.name, "the harness (harness.parity.causes)"))
        families_by_name[family.name], homes[family.name] = _guarded(family, plugin), plugin

    return families_by_name, homes, plugins.load(GROUP, take)


def families() -> dict[str, CauseFamily]:
    """Return name -> family."""
    return _loaded()[0]


def refused() -> tuple[PluginError, ...]:
    """Return the errors of plug-ins that bring no family."""
    return _loaded()[2]


def family(key: CauseKey) -> CauseFamily:
    """Return the family of a cause; an empty one where it is unknown."""
    return families().get(key.family) or CauseFamily(key.family)


class Slot(Enum):
    """A place in an order that is kept for other packages."""

    PLUGINS = "the causes of other packages"


def rules(order: Sequence[Rule | Slot]) -> tuple[Rule, ...]:
    """Return an order of rules, with those of other packages in their slot."""
    return _filled(order, [rule for family in _of_plugins() for rule in family.rules])


def contests(order: Sequence[Contest | Slot]) -> tuple[Contest, ...]:
    """Return an order of contests, with the trials of other packages in their slot."""
    because = "another package's: what was recorded comes before it, and what is fitted after it"
    return _filled(order, [Contest((trial,), because) for family in _of_plugins() for trial in family.trials])


def interventions(order: Sequence[Intervention | Slot]) -> tuple[Intervention, ...]:
    """Return an order of interventions, with those of other packages in their slot."""
    return _filled(order, [intervention for family in _of_plugins() for intervention in family.interventions])


def _of_plugins() -> list[CauseFamily]:
    families_by_name, homes, _ = _loaded()
    return [families_by_name[name] for name in homes]


def _filled(order: Sequence[T | Slot], theirs: list[T]) -> tuple[T, ...]:
    places = [theirs if place is Slot.PLUGINS else [place] for place in order]
    return tuple(step for steps in places for step in steps if not isinstance(step, Slot))


def _guarded(family: CauseFamily, plugin: Plugin) -> CauseFamily:
    """Return a family of another package whose errors are reported and explain nothing."""

    # Each validator consumes what the plug-in yields, so that its errors are raised within the guard.
    def explanations(yielded: Iterable[Any] | None, e: Evidence, so_far: Explained) -> list[Any]:
        listed = list(yielded or ())
        for explanation in listed:
            if not isinstance(explanation, Explanation):
                raise TypeError(f"it yields {type(explanation).__name__}, which is no Explanation")
            codec.convert(codec.builtins(explanation.cause), Cause)
            for kind in e.first:  # the plug-in's own functions select what is covered: called here, they fail here
                explanation.covers(kind, e.found(kind))
        return listed

    def trials(yielded: Iterable[Any] | None, s: Situation) -> list[Any]:
        listed = list(yielded or ())
        for trial in listed:
            if not isinstance(trial, Trial):
                raise TypeError(f"it yields {type(trial).__name__}, which is no Trial")
            s.alteration.with_(**trial.change)
        return listed

    def nothing(yielded: Any, s: Situation) -> list[Any]:
        return []

    def guarded(function: Callable[..., Any], valid: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        @functools.wraps(function)
        def run(*arguments: Any) -> list[Any]:
            try:
                with plugin.guarded():
                    return valid(function(*arguments), *arguments)
            except PluginError as error:
                _tell(error, *arguments)
                return []

        return run

    _check_types(family)
    return replace(
        family,
        rules=tuple(replace(rule, run=guarded(rule.run, explanations)) for rule in family.rules),
        trials=tuple(guarded(trial, trials) for trial in family.trials),
        interventions=tuple(replace(step, run=guarded(step.run, nothing)) for step in family.interventions),
        contradicted=plugin.guard(family.contradicted),
        confirmed=plugin.guard(family.confirmed),
        in_words=plugin.guard(family.in_words),
        covers=plugin.guard(family.covers),
    )


def _check_types(family: CauseFamily) -> None:
    """Check the rules, trials and interventions of a plug-in. Raises Unfit for one of the wrong type."""
    if not all(isinstance(rule, Rule) and callable(rule.run) for rule in family.rules):
        raise plugins.Unfit("each of its rules must be a Rule of a function")
    if not all(callable(trial) for trial in family.trials):
        raise plugins.Unfit("each of its trials must be a function")
    if not all(isinstance(step, Intervention) and callable(step.run) for step in family.interventions):
        raise plugins.Unfit("each of its interventions must be an Intervention of a function")


def _tell(error: PluginError, *arguments: Any) -> None:
    """Report an error to whom the function was given: (evidence, what is explained so far), or a situation on a
    bench.
    """
    recipient = arguments[-1]
    messages: list[Any] = recipient.failed if isinstance(recipient, Explained) else recipient.notes
    if str(error) not in map(str, messages):
        messages.append(error if isinstance(recipient, Explained) else str(error))


def _ours() -> Iterator[CauseFamily]:
    for module in [*subjects.modules("causes"), *subjects.modules("explain"), unexplained]:
        yield from getattr(module, "FAMILIES", ())
