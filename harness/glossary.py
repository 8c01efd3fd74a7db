"""What the names in a report mean: causes, checks, hangs, verdicts and exit codes, from their registries."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from harness.doctor import checks as doctor
from harness.errors import BadInput, closest
from harness.exit_codes import EXITS
from harness.extras import need
from probes.plugins import PluginError
from reports.model import AUDIT_VERDICTS, HANGS, TRIAGE_VERDICTS, VERDICTS, Answer, HangKind
from scenarios.engines.canonical import BY_NAME

if TYPE_CHECKING:
    from harness.parity.causes.family import CauseFamily

Kind = Literal["verdict", "audit verdict", "triage verdict", "cause", "check", "doctor check", "hang", "exit code"]


@dataclass(frozen=True)
class Entry:
    """The meaning of one name. `fix`: what to do about a cause, a hang or a verdict. `rivals`: the causes that would
    look the same, and what excludes each. `details`: of a cause, what is known of each detail that was asked for.
    """

    name: str
    kind: Kind
    meaning: str
    fix: str = ""
    rivals: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    details: Mapping[str, str] = field(default_factory=dict)


def entries() -> list[Entry]:
    """Every name that this installation knows, plug-ins' too, by kind."""
    return [
        *_verdicts("verdict", VERDICTS),
        *_verdicts("audit verdict", AUDIT_VERDICTS),
        *_verdicts("triage verdict", TRIAGE_VERDICTS),
        *_of_comparisons(),
        *(Entry(check.name, "doctor check", check.rule) for check in doctor.CHECKS),
        *(Entry(comparison.name, "doctor check", comparison.rule) for comparison in doctor.COMPARISONS),
        *(Entry(name, "hang", _hang(hang), hang.fix) for name, hang in HANGS.items()),
        *(_exit_code(code) for code in dict.fromkeys(row.code for row in EXITS) if code.isdigit()),
    ]


def _of_comparisons() -> Iterator[Entry]:
    """The causes and checks of two runs, whose modules need NumPy; none in an installation of the core alone."""
    if lacking() is not None:
        return
    from harness.parity.causes.registry import families
    from harness.parity.checks.registry import checks

    for name, family in sorted(families().items()):
        rivals = {rival.cause: rival.excluded_by for rival in family.rivals}
        yield Entry(name, "cause", family.meaning, family.fix, rivals)
    for check in checks():
        yield Entry(check.name, "check", check.meaning)


def lacking() -> ModuleNotFoundError | None:
    """Why the causes and checks of two runs are not listed; None where they are."""
    try:
        for module in ("numpy", "scipy"):
            need(module)
    except ModuleNotFoundError as error:
        return error
    return None


def _verdicts(kind: Kind, answers: Mapping[str, Answer]) -> Iterator[Entry]:
    for name, answer in answers.items():
        yield Entry(name, kind, f"{answer.meaning} Exit code {answer.exit_code}.", answer.fix)


def _hang(hang: HangKind) -> str:
    return f"{hang.name}: {hang.shows}. Who is named as the culprit: {hang.named}."


def _exit_code(code: str) -> Entry:
    meanings: dict[str, list[str]] = {}
    for row in EXITS:
        if row.code == code:
            meanings.setdefault(row.commands, []).append(row.meaning)
    return Entry(code, "exit code", "; ".join(f"{who}: {' or '.join(what)}" for who, what in meanings.items()))


def refused() -> tuple[PluginError, ...]:
    """The plug-ins that bring nothing, and why."""
    if lacking() is not None:
        return ()
    from harness.parity.causes import registry as causes
    from harness.parity.checks import registry as checks

    return (*causes.refused(), *checks.refused())


def find(query: str) -> list[Entry]:
    """The entries of that name. Raises BadInput if there are none, and ModuleNotFoundError if it may be that of a cause
    or a check that this installation cannot list.

    A cause may have its details appended (STALE_WEIGHTS(lm_head.weight)), a verdict its reservations (EQUIVALENT, but
    2 warnings), and a hang its title (K10 rank-conditional collective). A check of an audit has the run in its name
    (run-itself). Both "3" and "exit code 3" find an exit code.
    """
    all_entries, name = (
        entries(),
        query.partition("(")[0].partition(",")[0].strip().casefold().removeprefix("exit code "),
    )
    name = re.sub("^run-", "baseline-", name)  # the checks of an audit are those of a baseline
    hang = name.partition(" ")[0]
    matches = [entry for entry in all_entries if entry.name.casefold() == (hang if entry.kind == "hang" else name)]
    if not matches:
        near = closest(query.upper(), [entry.name for entry in all_entries]) or closest(
            query, [entry.name for entry in all_entries]
        )
        if not near and (error := lacking()):
            raise error
        what = f"there is no verdict, cause, check, hang or exit code {query!r}{near}"
        raise BadInput(what, fix="harness explain   # lists them")
    return _with_details(matches, query)


_NAMES = re.compile(r"EXIT CODE \d+", re.IGNORECASE)  # what a report prints in brackets behind a verdict


def _with_details(matches: list[Entry], query: str) -> list[Entry]:
    """The entries with what is known of the details in brackets. Raises BadInput where the name has none."""
    text = query.partition("(")[2].rpartition(")")[0].strip()
    if not text or _NAMES.fullmatch(text):
        return matches
    causes = [entry for entry in matches if entry.kind == "cause"]
    if not causes:
        what = f"{matches[0].name} is a {matches[0].kind}, which has no details: there is no {text!r} of it"
        raise BadInput(what, fix=matches[0].name, instead=query)
    from harness.parity.causes.registry import families

    parts = [part.strip() for part in text.split(",")]
    return [_detailed(entry, families()[entry.name], parts, query) for entry in causes]


def _detailed(entry: Entry, family: CauseFamily, parts: list[str], query: str) -> Entry:
    """The entry of a cause with these parts of its key. Raises BadInput where it can have none of that name."""
    details = {}
    for part in parts:
        meaning = detail(family, part)
        if not meaning and family.details:
            near = closest(part, family.details)
            what = f"{family.name} has no detail {part!r}{near}"
            raise BadInput(what, fix=f"{entry.name}   # it has {', '.join(family.details)}", instead=query)
        details[part] = meaning or "nothing is known of it"
    return replace(entry, details=details, fix=family.fix_of(family.key(*parts)))


def detail(family: CauseFamily, part: str) -> str:
    """What a part of the key of a cause says; "" where no cause of the family has it."""
    if part in family.details:
        return family.details[part]
    if family.named and (parameter := BY_NAME.get(part)) is not None:
        return f"the setting {parameter.part}.{part}, {parameter.concept}: {parameter.trap}".rstrip(": ")
    return family.named and f"names {family.named}"
