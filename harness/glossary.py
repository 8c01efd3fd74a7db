"""What the names in a report mean: of causes, checks and the doctor's checks, from their registries, of hangs and
verdicts; and what an exit code means."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from harness.errors import BadInput, closest
from harness.exit_codes import EXITS
from probes.plugins import PluginError
from reports.model import AUDIT_VERDICTS, HANGS, TRIAGE_VERDICTS, VERDICTS, Answer

Kind = Literal["verdict", "audit verdict", "triage verdict", "cause", "check", "doctor check", "hang", "exit code"]


@dataclass(frozen=True)
class Entry:
    """`fix`: what to do about a cause or a verdict. `rivals`: the causes that would look the same, and what excludes
    each."""

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

    return [
        *_verdicts("verdict", VERDICTS),
        *_verdicts("audit verdict", AUDIT_VERDICTS),
        *_verdicts("triage verdict", TRIAGE_VERDICTS),
        *(
            Entry(name, "cause", one.meaning, one.fix, {rival.cause: rival.excluded_by for rival in one.rivals})
            for name, one in sorted(families().items())
        ),
        *(Entry(one.name, "check", one.meaning) for one in checks()),
        *(Entry(one.name, "doctor check", one.rule) for one in doctor.CHECKS),
        *(Entry(one.name, "doctor check", one.rule) for one in doctor.COMPARISONS),
        *(Entry(name, "hang", f"{one.name}: {one.shows}. Named: {one.named}") for name, one in HANGS.items()),
        *(_exit_code(code) for code in dict.fromkeys(one.code for one in EXITS) if code.isdigit()),
    ]


def _verdicts(kind: Kind, answers: Mapping[str, Answer]) -> Iterator[Entry]:
    for name, one in answers.items():
        yield Entry(name, kind, f"{one.meaning} Exit code {one.exit_code}.", one.fix)


def _exit_code(code: str) -> Entry:
    meanings: dict[str, list[str]] = {}
    for one in EXITS:
        if one.code == code:
            meanings.setdefault(one.commands, []).append(one.meaning)
    return Entry(code, "exit code", "; ".join(f"{who}: {' or '.join(what)}" for who, what in meanings.items()))


def refused() -> tuple[PluginError, ...]:
    """What plug-ins do not bring, and why."""
    from harness.parity.causes import registry as causes
    from harness.parity.checks import registry as checks

    return (*causes.refused(), *checks.refused())


def find(given: str) -> list[Entry]:
    """Those of that name, which may have a cause's details behind it, STALE_WEIGHTS(lm_head.weight), as a hang
    has its own: K10 rank-conditional collective; 3 and exit code 3. Raises BadInput."""
    every, name = entries(), given.partition("(")[0].strip().casefold().removeprefix("exit code ")
    hang = name.partition(" ")[0]
    found = [one for one in every if one.name.casefold() == (hang if one.kind == "hang" else name)]
    if not found:
        near = closest(given.upper(), [one.name for one in every]) or closest(given, [one.name for one in every])
        what = f"there is no verdict, cause, check, hang or exit code {given!r}{near}"
        raise BadInput(what, fix="harness explain   # lists them")
    return found
