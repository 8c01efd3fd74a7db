"""What the names in a report mean: of causes, checks and the doctor's checks, from their registries, and of hangs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from harness.errors import BadInput, closest
from probes.plugins import PluginError

Kind = Literal["cause", "check", "doctor check", "hang"]


@dataclass(frozen=True)
class Entry:
    """`fix`: what to do about a cause. `rivals`: the causes that would look the same, and what excludes each."""

    name: str
    kind: Kind
    meaning: str
    fix: str = ""
    rivals: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def entries() -> list[Entry]:
    """Every name, plug-ins' too, by kind."""
    from harness.doctor import checks as doctor
    from harness.parity.causes.registry import families
    from harness.parity.checks.registry import checks
    from reports.model import HANGS

    return [
        *(
            Entry(name, "cause", one.meaning, one.fix, {rival.cause: rival.excluded_by for rival in one.rivals})
            for name, one in sorted(families().items())
        ),
        *(Entry(one.name, "check", one.meaning) for one in checks()),
        *(Entry(one.name, "doctor check", one.rule) for one in doctor.CHECKS),
        *(Entry(one.name, "doctor check", one.rule) for one in doctor.COMPARISONS),
        *(Entry(name, "hang", f"{one.name}: {one.shows}. Named: {one.named}") for name, one in HANGS.items()),
    ]


def refused() -> tuple[PluginError, ...]:
    """What plug-ins do not bring, and why."""
    from harness.parity.causes import registry as causes
    from harness.parity.checks import registry as checks

    return (*causes.refused(), *checks.refused())


def find(given: str) -> list[Entry]:
    """Those of that name, which may have a cause's details behind it, STALE_WEIGHTS(lm_head.weight), as a hang
    has its own: K10 rank-conditional collective. Raises BadInput."""
    every, name = entries(), given.partition("(")[0].strip().casefold()
    hang = name.partition(" ")[0]
    found = [one for one in every if one.name.casefold() == (hang if one.kind == "hang" else name)]
    if not found:
        near = closest(given.upper(), [one.name for one in every]) or closest(given, [one.name for one in every])
        raise BadInput(f"there is no cause, check or hang {given!r}{near}", fix="harness explain   # lists them")
    return found
