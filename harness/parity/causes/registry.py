"""Every family of causes: those of the subjects, and those of other packages by their entry points.

`FAMILIES` of each module of causes in `harness.parity.subjects` is read, and each entry point of the group
`rlhf_harness.causes`, which is a `CauseFamily` of another package. A function of one that raises explains nothing, and
the error is reported.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

from harness.parity import subjects
from harness.parity.causes import unexplained
from harness.parity.causes.family import CauseFamily
from harness.parity.causes.turns import Intervention, Turn, in_order
from harness.parity.facts.evidence import Evidence
from harness.parity.facts.explanation import Explained, Explanation
from harness.parity.interventions.situation import Situation
from harness.parity.interventions.trial import Trial
from probes import plugins
from probes.plugins import Plugin, PluginError
from reports import codec
from reports.model import Cause, CauseKey

T = TypeVar("T", bound=Turn)
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


def rules(ours: Iterable[Turn]) -> tuple[Turn, ...]:
    """Return the rules by which recordings show causes, in order: `ours`, and those of every family."""
    return _listed(ours, lambda family: family.rules)


def trials(ours: Iterable[Turn]) -> tuple[Turn, ...]:
    """Return the mistakes that the reference makes on purpose, in order."""
    return _listed(ours, lambda family: family.trials)


def interventions(ours: Iterable[Intervention]) -> tuple[Intervention, ...]:
    """Return what is undone on an engine, in order."""
    return _listed(ours, lambda family: family.interventions)


def _listed(ours: Iterable[T], of: Callable[[CauseFamily], tuple[T, ...]]) -> tuple[T, ...]:
    families_by_name, homes, _ = _loaded()
    listed = [
        *ours,
        *(turn for name, cause_family in families_by_name.items() if name not in homes for turn in of(cause_family)),
    ]
    # A plug-in whose functions have no place in the order must not disturb the others: it is replaced by its error.
    for name, plugin in homes.items():
        with_theirs = [*listed, *of(families_by_name[name])]
        try:
            in_order(with_theirs)
        except ValueError as error:
            lost = plugin.error(f"has no place among the others: {error}")
            listed.append(replace(of(families_by_name[name])[0], run=_lost(lost), after=in_order(listed)[-1].name))
        else:
            listed = with_theirs
    return in_order(listed)


def _lost(error: PluginError) -> Callable[..., list[Any]]:
    """Return a function that reports the error in place of functions without a place in the order."""

    def run(*arguments: Any) -> list[Any]:
        _tell(error, *arguments)
        return []

    run.__name__ = str(error)
    return run


def _guarded(family: CauseFamily, plugin: Plugin) -> CauseFamily:
    """Return a family of another package whose errors are reported and explain nothing."""

    # Each validator consumes what the plug-in yields, so that its errors are raised within the guard.
    def explanations(yielded: Iterable[Any] | None, e: Evidence, so_far: Explained) -> list[Any]:
        listed = list(yielded or ())
        for explanation in listed:
            if not isinstance(explanation, Explanation):
                raise TypeError(f"it yields {type(explanation).__name__}, which is no Explanation")
            codec.convert(codec.builtins(explanation.cause), Cause)
            for kind in e.first:
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

    def guarded(turn: T, valid: Callable[..., list[Any]]) -> T:
        @functools.wraps(turn.run)
        def run(*arguments: Any) -> list[Any]:
            try:
                with plugin.guarded():
                    return valid(turn.run(*arguments), *arguments)
            except PluginError as error:
                _tell(error, *arguments)
                return []

        return replace(turn, run=run)

    for turn in (*family.rules, *family.trials, *family.interventions):
        if not isinstance(turn, Turn) or not isinstance(getattr(turn.run, "__name__", None), str):
            raise plugins.Unfit(f"{turn!r} is no Turn of a function with a name")
    return replace(
        family,
        rules=tuple(guarded(turn, explanations) for turn in family.rules),
        trials=tuple(guarded(turn, trials) for turn in family.trials),
        interventions=tuple(guarded(turn, nothing) for turn in family.interventions),
        contradicted=plugin.guard(family.contradicted),
        confirmed=plugin.guard(family.confirmed),
        in_words=plugin.guard(family.in_words),
        covers=plugin.guard(family.covers),
    )


def _tell(error: PluginError, *arguments: Any) -> None:
    """Report an error to whom the turn was given: (evidence, what is explained so far), or a situation on a bench."""
    recipient = arguments[-1]
    messages: list[Any] = recipient.failed if isinstance(recipient, Explained) else recipient.notes
    if str(error) not in map(str, messages):
        messages.append(error if isinstance(recipient, Explained) else str(error))


def _ours() -> Iterator[CauseFamily]:
    for module in [*subjects.modules("causes"), *subjects.modules("explain"), unexplained]:
        yield from getattr(module, "FAMILIES", ())
