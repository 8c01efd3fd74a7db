"""The registry of checks: each has a name, a function of the evidence, and a rule for which runs EQUIVALENT needs it.

A check rules a difference out, confirms it, or says that it was not tested. A check without evidence is *not tested*,
never a pass. Checks are read from every module of this folder, every module of checks in `harness.parity.subjects`, and
each entry point of the group `rlhf_harness.checks`: a module of another package that registers its checks in the same
way. An error in one of those makes a check that was not tested, and disturbs no other.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

from harness.parity import subjects
from harness.parity.facts.divergence import DivergenceKey
from harness.parity.facts.evidence import Evidence
from harness.parity.facts.plain import plain
from probes import plugins
from probes.plugins import Plugin, PluginError
from reports import codec
from reports.model import OPEN, Check, CheckState, Finding


@dataclass(frozen=True)
class Outcome:
    """A check's result.

    `decides`: when confirmed it makes the verdict DIVERGENT. `kinds`: the divergences of `Evidence` that it stands for.
    """

    check: Check
    decides: bool = False
    kinds: tuple[DivergenceKey, ...] = ()
    findings: list[Finding] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    settled_by: str = ""  # name of a check that, where it rules out, also settles what this one could not test


@dataclass(frozen=True)
class Registered:
    name: str
    number: int
    run: Callable[[Evidence], Outcome]
    required: Callable[[Evidence], bool]
    applies: Callable[[Evidence], bool] = lambda e: True  # whether it is listed for these runs
    home: str = __name__  # the module that registered it
    alone: bool = False  # it also judges one run by itself, since it compares no two sides
    draws: bool = False  # it needs what the candidate draws, so that a replay cannot show it

    @property
    def meaning(self) -> str:
        """Return the first sentence of the check's docstring."""
        paragraph = " ".join((self.run.__doc__ or "").split("\n\n")[0].split())
        return paragraph.partition(". ")[0].rstrip(".")


GROUP = "rlhf_harness.checks"
_REGISTERED: list[Registered] = []


def check(
    name: str,
    number: int = 0,
    required: Callable[[Evidence], bool] = lambda e: False,
    applies: Callable[[Evidence], bool] = lambda e: True,
    alone: bool = False,
    draws: bool = False,
) -> Callable[[Callable[[Evidence], Outcome]], Callable[[Evidence], Outcome]]:
    """Register a check under a name. `number`: its place among the eleven suspicions, 0 for others.

    `alone`: the check compares no two sides, so it can also judge the only side of an audit. `draws`: it needs what the
    candidate draws, so a replay that leaves it open is not short of a test. Raises TypeError for a check without a
    name.
    """
    if not (isinstance(name, str) and name):
        raise TypeError("a check is registered with its name: @check('name')")
    home = str(sys._getframe(1).f_globals.get("__name__"))  # a wrapped function may name another module as its own

    def register(function: Callable[[Evidence], Outcome]) -> Callable[[Evidence], Outcome]:
        _REGISTERED.append(
            Registered(
                name=name,
                number=number,
                run=function,
                required=required,
                applies=applies,
                home=home,
                alone=alone,
                draws=draws,
            )
        )
        return function

    return register


@functools.cache
def _loaded() -> tuple[tuple[Registered, ...], tuple[PluginError, ...]]:
    # Checks without a number are listed as they register: this folder by the names of its files, then the subjects.
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        importlib.import_module(f"{__package__}.{module.name}")
    tuple(subjects.modules("checks"))
    silent: list[Plugin] = []
    wrong = [*plugins.load(GROUP, lambda plugin, module: silent.append(plugin))]
    # Checks of the harness come first, so that a plug-in cannot take the name of one.
    checks_by_name = {registered.name: registered for registered in _REGISTERED if _is_ours(registered)}
    # Checks without a number come after the numbered ones, in the order in which they registered: the sort is stable.
    last = max(registered.number for registered in checks_by_name.values()) + 1
    for registered in _REGISTERED:
        if _is_ours(registered):
            continue
        plugin = _bringing(registered.home)
        silent = [silent_plugin for silent_plugin in silent if silent_plugin != plugin]
        if registered.name in checks_by_name:
            what = plugins.name_taken(registered.name, checks_by_name[registered.name].home)
            wrong.append(
                plugin.error(f"registers a check in {registered.home} that cannot be used: {what}", registered.name)
            )
        else:
            checks_by_name[registered.name] = _guarded(registered, plugin)
    wrong += [plugin.error("registers no check") for plugin in silent]
    return tuple(sorted(checks_by_name.values(), key=lambda registered: registered.number or last)), tuple(wrong)


def checks() -> tuple[Registered, ...]:
    """Return every check in the order of lists: the numbered suspicions first, those of plug-ins last."""
    return _loaded()[0]


def refused() -> tuple[PluginError, ...]:
    """Return the errors of plug-ins that could not be loaded."""
    return _loaded()[1]


def not_brought(error: PluginError) -> Registered:
    """Return a check that reports in place of a check that a plug-in should have brought."""
    return Registered(
        error.title, 0, lambda e: outcome(error.title, "not tested", str(error)), lambda e: False, alone=True
    )


def _is_ours(registered: Registered) -> bool:
    return registered.home.startswith("harness.parity.")


def _bringing(module: str) -> Plugin:
    """Return the plug-in whose package a module belongs to: the one that shares most of its path."""
    path = module.split(".")

    def common(plugin: Plugin) -> int:
        pairs = zip(path, plugin.entry.module.split("."), strict=False)
        return next((at for at, (part, plugin_part) in enumerate(pairs) if part != plugin_part), len(path))

    unknown = Plugin(EntryPoint(module, module, GROUP))  # a check that was registered without an entry point
    return max((plugin for plugin in plugins.installed(GROUP) if common(plugin)), key=common, default=unknown)


def _guarded(registered: Registered, plugin: Plugin) -> Registered:
    """Return a check of another package that is *not tested* when it raises, and so disturbs no other check."""

    @functools.wraps(registered.run)
    def run(e: Evidence) -> Outcome:
        # Both questions are asked here too: an error in one of them must reach the report, and `answered` swallows it.
        try:
            with plugin.guarded():
                for question in (registered.applies, registered.required):
                    bool(question(e))
                return _valid(e, registered.run(e), registered.name)
        except PluginError as error:
            return outcome(registered.name, "not tested", str(error))

    def answered(question: Callable[[Evidence], bool], otherwise: bool) -> Callable[[Evidence], bool]:
        def ask(e: Evidence) -> bool:
            try:
                return bool(plugin.guard(question)(e))
            except PluginError:  # `run` reports it
                return otherwise

        return ask

    return Registered(
        name=registered.name,
        number=0,
        run=run,
        required=answered(registered.required, False),
        applies=answered(registered.applies, True),
        home=registered.home,
        alone=registered.alone,
    )


def _valid(e: Evidence, returned: Any, name: str) -> Outcome:
    """Return what a check of another package returned, under its own name. Raises TypeError and ValueError."""
    if not isinstance(returned, Outcome):
        raise TypeError(f"it returned {type(returned).__name__}, which is no Outcome")
    if unknown := [kind for kind in returned.kinds if kind not in e.first]:
        raise ValueError(f"these runs do not diverge in {unknown[0]}")
    made = codec.convert(codec.builtins(returned.check), Check)
    findings = [codec.convert(codec.builtins(finding), Finding) for finding in returned.findings]
    return replace(
        returned,
        check=replace(made, name=name, number=0),
        findings=findings,
        missing=[str(gap) for gap in returned.missing],
    )


def outcome(
    name: str,
    state: CheckState,
    evidence: str,
    *,
    number: int = 0,
    decides: bool = True,
    kinds: tuple[DivergenceKey, ...] = (),
    missing: list[str] | None = None,
    findings: list[Finding] | None = None,
    settled_by: str = "",
    **details: Any,
) -> Outcome:
    if state in OPEN and not missing:
        missing = [f"{name}: {evidence}"]
    made = Check(name, state, evidence, number, plain(details))
    return Outcome(made, decides, kinds, findings or [], missing or [], settled_by)


def by_findings(name: str, findings: list[Finding], untested: list[str], holding: list[str]) -> Outcome:
    """Return the outcome of a check of each side: its findings, else what it could not test, else what holds."""
    if findings:
        text = "; ".join(f"{finding.where}: {finding.summary}" for finding in findings)
        return outcome(name, "confirmed", text, decides=False, findings=findings)
    if untested:
        return outcome(name, "not tested", "; ".join([*untested, *holding]))
    return outcome(name, "ruled out", "; ".join(holding))


def coupled(e: Evidence) -> bool:
    """Whether both runs draw the same samples, so that tokens can be compared one by one."""
    return e.mode in ("coupled", "greedy") or seeded(e)


def seeded(e: Evidence) -> bool:
    """Whether the runs are of one framework with one engine and equal seeds, so that its own sampler should repeat
    itself.
    """
    return e.seeded


def unless_native(e: Evidence) -> bool:
    return e.mode != "native" or seeded(e)


def always(e: Evidence) -> bool:
    return True


def trains(e: Evidence) -> bool:
    return e.train and unless_native(e)
