"""What a check is: a name, a function of the evidence, and for which runs EQUIVALENT needs it.

A check rules a difference out, confirms it, or says that it was not tested; one that finds no evidence is *not tested*,
never a pass. Every module of this folder is read, and so is each entry point of the group `rlhf_harness.checks`: a
module of another package that registers its checks in the same way.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from harness.parity.facts.divergence import DivergenceKey
from harness.parity.facts.evidence import Evidence
from reports.model import Check, CheckState, Finding


@dataclass(frozen=True)
class Outcome:
    """A check's result. `decides`: confirmed makes the verdict DIVERGENT. `kinds`: the divergences of `Evidence` that
    it stands for.
    """

    check: Check
    decides: bool = False
    kinds: tuple[DivergenceKey, ...] = ()
    findings: list[Finding] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    settled_by: str = ""  # a check which, where it rules out, decides what this one could not test


@dataclass(frozen=True)
class Registered:
    name: str
    number: int
    run: Callable[[Evidence], Outcome]
    required: Callable[[Evidence], bool]
    applies: Callable[[Evidence], bool] = lambda e: True  # to these runs at all; else it is not listed
    package: str = ""  # the entry point that brought it; empty for our own


GROUP = "rlhf_harness.checks"
_REGISTERED: list[Registered] = []


def check(
    name: str,
    number: int = 0,
    required: Callable[[Evidence], bool] = lambda e: False,
    applies: Callable[[Evidence], bool] = lambda e: True,
) -> Callable[[Callable[[Evidence], Outcome]], Callable[[Evidence], Outcome]]:
    """Register a check under a name; the number is its place among the eleven suspicions, 0 for others."""

    def register(function: Callable[[Evidence], Outcome]) -> Callable[[Evidence], Outcome]:
        _REGISTERED.append(Registered(name, number, function, required, applies))
        return function

    return register


@functools.cache
def checks() -> tuple[Registered, ...]:
    """Every check, in the order in which they are listed: the numbered suspicions first."""
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        importlib.import_module(f"{__package__}.{module.name}")
    for entry in entry_points(group=GROUP):
        known = len(_REGISTERED)
        try:
            entry.load()
        except Exception as error:  # another package's code: our own checks go on
            warnings.warn(f"the checks of {entry.name!r} cannot be loaded: {error}", stacklevel=2)
        _REGISTERED[known:] = [_guarded(one, entry.name) for one in _REGISTERED[known:]]
    last = max(one.number for one in _REGISTERED) + 1
    return tuple(sorted(_REGISTERED, key=lambda one: one.number or last))


def _guarded(one: Registered, package: str) -> Registered:
    """A check of another package. What it raises ends no verdict: the check is *not tested* then."""

    def run(e: Evidence) -> Outcome:
        try:
            return one.run(e)
        except Exception as error:  # another package's code
            raised = f"the check of {package!r} raised {type(error).__name__}: {error}"
            return outcome(one.name, "not tested", raised, number=one.number)

    return replace(one, run=functools.wraps(one.run)(run), package=package)


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
    if state == "not tested" and not missing:
        missing = [f"{name}: {evidence}"]
    made = Check(name, state, evidence, number, details)
    return Outcome(made, decides, kinds, findings or [], missing or [], settled_by)


def coupled(e: Evidence) -> bool:
    """Do both runs draw the same samples, so that tokens compare one by one?"""
    return e.mode in ("coupled", "greedy") or seeded(e)


def seeded(e: Evidence) -> bool:
    """Runs of one framework with one engine and equal seeds, whose own sampler should repeat itself."""
    return e.seeded


def unless_native(e: Evidence) -> bool:
    return e.mode != "native" or seeded(e)


def always(e: Evidence) -> bool:
    return True


def trains(e: Evidence) -> bool:
    return e.train and unless_native(e)
