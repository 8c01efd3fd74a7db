"""Outcomes of checks, and the register of checks: facts in, outcomes out, nothing is measured here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from harness.doctor.facts import Facts
from reports.doctor_model import Hazard, Passed, Severity, Unchecked


@dataclass(frozen=True)
class Problem:
    """A hazard, before the check's name and the place are added. `what` contains no measured value; every hazard has
    a fix."""

    severity: Severity
    what: str
    measured: str
    why: str
    fix: str


@dataclass(frozen=True)
class Fine:
    measured: str


@dataclass(frozen=True)
class Unseen:
    reason: str
    fix: str = ""


Outcome = Problem | Fine | Unseen
Item = Hazard | Passed | Unchecked  # an outcome with the check's name and the place, as the report has it


def item(check: str, where: str, outcome: Outcome) -> Item:
    """The outcome of a check at a place, for the report."""
    match outcome:
        case Problem(severity, what, measured, why, fix):
            return Hazard(
                check=check, severity=severity, what=what, where=(where,), measured=measured, why=why, fix=fix
            )
        case Fine(measured):
            return Passed(check, (where,), measured)
        case Unseen(reason, fix):
            return Unchecked(check, (where,), reason, fix)


Look = Callable[[Facts, "Asked"], Iterable[Outcome]]
Compare = Callable[[Sequence[Facts], "Asked"], Iterable[tuple[str, Outcome]]]  # (place, outcome)


@dataclass(frozen=True)
class Asked:
    """What the user wants to run: thresholds, and the shape of the cluster."""

    stall_s: float = 60.0  # seconds after which `harness watch` calls a run stalled
    joined: bool = False  # the facts come from workers of a Ray cluster, not only from this shell
    nodes: int = 1
    dead: tuple[str, ...] = ()  # nodes that Ray knows and that are dead


class Documented:
    """What a check or a trap judges, from the docstring of its function."""

    look: Callable[..., Any]

    @property
    def rule(self) -> str:
        """The docstring of the check: what it reads, and when it confirms the problem. `harness explain` prints it."""
        return " ".join((getattr(self.look, "func", self.look).__doc__ or "").split())


@dataclass(frozen=True)
class Check(Documented):
    """One named check of one place.

    `needs`: sections of `Facts` without which it cannot run. `host`: it is about the machine, so that a worker on the
    shell's own machine adds nothing to the shell's outcome.
    """

    name: str
    needs: tuple[str, ...]
    look: Look
    host: bool = False

    @property
    def module(self) -> str:
        return self.look.__module__


@dataclass(frozen=True)
class Comparison(Documented):
    """One named check of all places together, the shell first."""

    name: str
    needs: tuple[str, ...]
    look: Compare


REGISTERED: list[Check | Comparison] = []


def check(name: str, *needs: str, host: bool = False) -> Callable[[Look], Look]:
    """Register a check of one place; see `Check`."""

    def register(look: Look) -> Look:
        REGISTERED.append(Check(name, needs, look, host))
        return look

    return register


def comparison(name: str, *needs: str) -> Callable[[Compare], Compare]:
    """Register a comparison of all places; see `Comparison`."""

    def register(look: Compare) -> Compare:
        REGISTERED.append(Comparison(name, needs, look))
        return look

    return register


GIB = 1 << 30  # bytes


def bytes_(size: float) -> str:
    """Format bytes with three digits and a binary unit: 64.0 MiB, 12 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.3g} {unit}" if size < 1000 else f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.3g} TiB"


def duration(seconds: float) -> str:
    """Format seconds: 45 s, 12 min, 3.5 h, 2.1 days."""
    for limit, unit, by in ((120, "s", 1), (7200, "min", 60), (172_800, "h", 3600)):
        if abs(seconds) < limit:
            return f"{seconds / by:.3g} {unit}"
    return f"{seconds / 86_400:.3g} days"


def new_container(option: str, elsewhere: str) -> str:
    """The command of a container that has what this one lacks, which no container gets later. `elsewhere`: where it is
    set for one that Docker does not start."""
    return f"docker run {option} IMAGE   # a new container, of this one's image; {elsewhere}"
