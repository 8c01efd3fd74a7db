"""What the names in a report mean: verdicts and statuses, causes, checks, hangs, exit codes, terms, commands and the
titles of its sections, from their registries."""

from __future__ import annotations

import contextlib
import difflib
import re
import shlex
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from harness.doctor import checks as doctor
from harness.doctor import environments, plugins
from harness.doctor import examine as doctor_examine
from harness.errors import BadInput, closest, did_you_mean
from harness.exit_codes import EXITS
from harness.extras import need
from harness.frameworks import against, examine
from harness.frameworks.shared_traps import shared_traps
from harness.frameworks.spec import frameworks
from harness.mapping import judge as mapping
from harness.terms import ALSO, TERMS
from probes.plugins import PluginError
from probes.signal_codes import exit_code_of, signal_of
from reports import bisect_model, doctor_model, nightly_model
from reports.model import (
    AUDIT_VERDICTS,
    CHECK_STATES,
    HANGS,
    RESERVATION,
    RESERVED,
    TRIAGE_VERDICTS,
    VERDICTS,
    Answer,
    HangKind,
)
from reports.sections import titles
from scenarios.engines import registry
from scenarios.engines.canonical import BY_NAME, CARRIED

if TYPE_CHECKING:
    from harness.parity.causes.family import CauseFamily

Kind = Literal[
    "verdict", "audit verdict", "triage verdict", "doctor verdict", "mapping verdict", "suite verdict",
    "nightly status", "bisect status", "reservation", "state of a check", "call of a bisection",
    "state of a setting", "setting", "line", "cause", "check", "doctor check", "hang", "exit code", "term", "section",
    "command",
]  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """The meaning of one name. `fix`: what to do about a cause, a hang or a verdict. `rivals`: the causes that would
    look the same, and what excludes each. `details`: of a cause, what is known of each detail that was asked for.
    `also`: other words that a report prints for it.
    """

    name: str
    kind: Kind
    meaning: str
    fix: str = ""
    rivals: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    details: Mapping[str, str] = field(default_factory=dict)
    also: tuple[str, ...] = ()


def entries() -> list[Entry]:
    """Every name that this installation knows, plug-ins' too, by kind."""
    plain: tuple[tuple[Kind, Mapping[Any, str]], ...] = (
        ("doctor verdict", doctor_model.VERDICTS),
        ("mapping verdict", mapping.VERDICTS),
        ("suite verdict", nightly_model.SUITE_VERDICTS),
        ("nightly status", nightly_model.STATUSES),
        ("bisect status", bisect_model.STATUSES),
        ("state of a check", CHECK_STATES),
        ("call of a bisection", bisect_model.CALLS),
        ("state of a setting", mapping.KINDS),
        ("section", titles.MEANINGS),
        ("line", titles.LINES),
    )
    return [
        *_verdicts("verdict", VERDICTS),
        *_verdicts("audit verdict", AUDIT_VERDICTS),
        *_verdicts("triage verdict", TRIAGE_VERDICTS),
        *(Entry(name, kind, meaning) for kind, meanings in plain for name, meaning in meanings.items()),
        Entry("but", "reservation", RESERVATION),
        *(Entry(words.singular, "reservation", words.meaning, also=(words.plural,)) for words in RESERVED.values()),
        *_of_comparisons(),
        *(Entry(name, "doctor check", rule) for name, rule in _rules_of_the_doctor()),
        *(Entry(name, "hang", _hang(hang), hang.fix, also=(hang.name,)) for name, hang in HANGS.items()),
        *(_exit_code(code) for code in dict.fromkeys(row.code for row in EXITS) if code.isdigit()),
        *(
            Entry(name, "term", meaning, also=(f"{name}s", *ALSO.get(name, ())))
            for terms in TERMS.values()
            for name, meaning in terms.items()
        ),
        *_settings(),
        *_of_the_command_line(),
    ]


def _settings() -> Iterator[Entry]:
    """The settings of an engine and of sampling, also by each engine's own names."""
    for parameter in {**BY_NAME, **{parameter.name: parameter for parameter in CARRIED}}.values():
        natives = {spec.title: parameter.native(spec.name) for spec in registry.specs().values()}
        own = ", ".join(f"{name} in {title}" for title, name in natives.items() if name)
        concept = f"{parameter.concept} ({own})" if own else parameter.concept
        meaning = f"{concept}: {parameter.trap}" if parameter.trap else concept
        yield Entry(parameter.name, "setting", f"{meaning}.", also=tuple({*natives.values()} - {"", parameter.name}))


def _of_the_command_line() -> Iterator[Entry]:
    """The commands, with the first paragraph of their help."""
    from harness.cli import commands  # the parsers of all commands

    for name, command in commands().commands.items():
        meaning = " ".join(command.help.split("\n\n")[0].split())
        yield Entry(name, "command", meaning, f"harness help {name}", also=(f"harness {name}",))


def _of_comparisons() -> Iterator[Entry]:
    """The causes and checks of two runs, whose modules need NumPy; none in an installation of the core alone."""
    if lacking() is not None:
        return
    from harness.parity.causes.registry import families
    from harness.parity.checks.registry import checks

    for name, family in sorted(families().items()):
        rivals = {rival.cause: rival.excluded_by for rival in family.rivals}
        yield Entry(name, "cause", family.meaning, family.fix, rivals, also=_of_a_run(name))
    for check in checks():
        yield Entry(check.name, "check", check.meaning, also=_of_a_run(check.name))


def _rules_of_the_doctor() -> Iterator[tuple[str, str]]:
    """Yield (check, what it finds): of machines, of a framework's job, of environments and plug-ins."""
    yield from ((check.name, check.rule) for check in doctor.CHECKS)
    yield from ((comparison.name, comparison.rule) for comparison in doctor.COMPARISONS)
    traps = (trap for framework in frameworks().values() for trap in (*framework.traps, *shared_traps(framework)))
    # Frameworks share traps of one name.
    yield from {**examine.RULES, **against.RULES, **{trap.check: trap.rule for trap in traps}}.items()
    for rules in (environments.RULES, plugins.RULES, doctor_examine.RULES):
        yield from rules.items()


def _of_a_run(name: str) -> tuple[str, ...]:
    """How an audit, which has one run, prints a name that is about the baseline."""
    return (f"run-{name.removeprefix('baseline-')}",) if name.startswith("baseline-") else ()


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
    meaning = "; ".join(f"{who}: {' or '.join(what)}" for who, what in meanings.items())
    return Entry(code, "exit code", meaning, also=(f"exit code {code}",))


def refused() -> tuple[PluginError, ...]:
    """The plug-ins that bring nothing, and why."""
    if lacking() is not None:
        return ()
    from harness.parity.causes import registry as causes
    from harness.parity.checks import registry as checks

    return (*causes.refused(), *checks.refused())


def find_words(words: Sequence[str]) -> list[Entry]:
    """The entries that words of a command line name: each by itself, or as many as make one name together, where a name
    of several words was typed without quotes. Raises as `find` does."""
    all_entries = entries()
    matches: list[Entry] = []
    at = 0
    while at < len(words):
        try:
            taken, of_words = _longest(words[at:], all_entries)
        except BadInput as error:
            raise _meant([*words], at, all_entries, error) from error
        matches += [entry for entry in of_words if entry not in matches]
        at += taken
    return matches


def _meant(words: list[str], at: int, among: Sequence[Entry], error: BadInput) -> BadInput:
    """The error about the words from this place on, as names that they are near to together; else that about the first
    of them alone."""
    spans = [(begin, end) for begin in range(at + 1) for end in range(at + 1, min(len(words), begin + LONGEST_NAME) + 1)
             if end - begin > 1]  # fmt: skip
    phrases = {(begin, end): " ".join(words[begin:end]) for begin, end in spans}
    near_spans = {span: names for span, phrase in phrases.items() if (names := near_entries(phrase, among, MOST_ALIKE))}
    if not near_spans:
        return error
    begin, end = max(near_spans, key=lambda span: _likeness(phrases[span], near_spans[span][0]))
    near = near_spans[begin, end]
    fix = shlex.join(["harness", "explain", *words[:begin], near[0], *words[end:]])
    return BadInput(f"{_NOTHING_CALLED} {phrases[begin, end]!r}{did_you_mean(near)}", fix=fix)


def _likeness(query: str, name: str) -> float:
    return difflib.SequenceMatcher(None, _letters(name), _letters(query)).ratio()


# Shares of the letters of two names, by difflib: its own default, chosen for several words, and chosen for what is far
# behind the nearest.
ALIKE, MOST_ALIKE, MUCH_LESS_ALIKE = 0.6, 0.8, 0.15
_NOTHING_CALLED = "there is no verdict, cause, check, hang or exit code"


def near_entries(query: str, among: Sequence[Entry], alike: float = ALIKE) -> list[str]:
    """The names that a text may mean, the nearest first: blanks, hyphens and capital letters do not count."""
    names = {_letters(name): name for entry in among for name in (*entry.also, entry.name)}
    names |= {_letters(whole): whole for entry in among if entry.kind == "hang"
              for whole in (f"{entry.name} {name}" for name in entry.also)}  # fmt: skip
    names |= {_letters(part): key for key, part in _details()}
    near = [names[letters] for letters in difflib.get_close_matches(_letters(query), names, n=3, cutoff=alike)]
    return [name for name in near if _likeness(query, name) >= _likeness(query, near[0]) - MUCH_LESS_ALIKE]


def _letters(name: str) -> str:
    return re.sub(r"[\W_]", "", name.casefold())


def _details() -> Iterator[tuple[str, str]]:
    """Yield (key of a cause with a detail, the detail) of those whose details are listed."""
    if lacking() is not None:
        return
    from harness.parity.causes.registry import families

    for family in families().values():
        yield from ((f"{family.name}({part})", part) for part in family.details)


def _longest(words: Sequence[str], among: Sequence[Entry]) -> tuple[int, list[Entry]]:
    """How many of the first words make one name, and what they name."""
    for count in range(min(len(words), LONGEST_NAME), 1, -1):
        with contextlib.suppress(BadInput, ModuleNotFoundError):
            return count, find(" ".join(words[:count]), among)
    return 1, find(words[0], among)


def find(query: str, among: Sequence[Entry] = ()) -> list[Entry]:
    """The entries that a text names. Raises BadInput if it names none, and ModuleNotFoundError if it may name a cause
    or a check that this installation cannot list.

    The text is a name, or several one after the other as a first line has them: "HUNG K2 order inversion",
    "EQUIVALENT, but 2 warnings", "5 collective-backend". What follows a bracket, a colon or two spaces is left out:
    the details of a cause (STALE_WEIGHTS(lm_head.weight)), an exit code, the reason of a verdict.
    `among`: the entries, where the caller has them already.
    """
    all_entries = among or entries()
    names: dict[str, list[Entry]] = {}
    for entry in all_entries:
        for name in (entry.name, *entry.also):
            names.setdefault(_plain(name), []).append(entry)
    if ended := _of_exit_code(query.strip()):
        return [ended]
    line = _REASON.split(query.strip(_MARKS), maxsplit=1)[0]
    matches = _named(_plain(line), names) or _named(_plain(_CLAUSE.split(line, maxsplit=1)[0]), names)
    if not matches:
        error = lacking()  # what is missing may be the very name: then only one that is nearly the same is proposed
        alike = near_entries(query, all_entries, MOST_ALIKE if error else ALIKE)
        if not alike and error:
            raise error
        what = f"{_NOTHING_CALLED} {query!r}{did_you_mean(alike)}"
        if alike:
            raise BadInput(what, fix=shlex.quote(alike[0]), instead=query)
        raise BadInput(what, fix="harness explain   # lists them")
    return _with_details(matches, query)


_EXIT_CODE = re.compile(r"(?:exit )?(?:code )?(-?\d{1,4})")
LARGEST_CODE = 255  # a parent process gets eight bits of an exit code


def _of_exit_code(query: str) -> Entry | None:
    """The exit code that a signal's number or name, or a number that none of our commands has, stands for; None for any
    other text, and for a number that is the name of a hang without its letter. Raises BadInput for a number that is no
    exit code."""
    match = _EXIT_CODE.fullmatch(query)
    by_name = signal.Signals.__members__.get(query.upper())
    if match is None and by_name is None:
        return None
    code = exit_code_of(by_name) if by_name else int(match[1]) if match else 0
    if code < 0:  # as Python's subprocess has it
        code = exit_code_of(-code)
    if code in (int(row.code) for row in EXITS if row.code.isdigit()):
        return _exit_code(str(code))
    if code > LARGEST_CODE:
        what = f"{query} is no exit code: they go to {LARGEST_CODE}, and a shell takes {LARGEST_CODE + 1} off"
        raise BadInput(what, fix=str(code % (LARGEST_CODE + 1)), instead=query)
    if f"K{code}" in HANGS and query.isdigit():
        return None
    return _of_a_command(code)


def _of_a_command(code: int) -> Entry:
    """An exit code that is not our own: of a command that a signal ended, as shells have it, or of its own program."""
    with contextlib.suppress(ValueError):
        name = signal.Signals(number := signal_of(code)).name
        meaning = f"the command was ended by {name}: {exit_code_of(0)} + {number}"
        return Entry(str(code), "exit code", f"harness watch and record, and every shell: {meaning}.")
    meaning = "the command ended by itself with this code, which its own program chose"
    return Entry(str(code), "exit code", f"harness watch and record: {meaning}.", "read the end of its log")


LONGEST_NAME = 8  # words of one name, typed without quotes: EQUIVALENT, but 2 warnings
_REASON = re.compile(r"\(|: |  ")  # what ends the names in a line
_CLAUSE = re.compile(r",(?! but\b)")  # behind a cause its party, behind a status the next one
_MARKS = " \t✓✗○?≠·!"  # in front of a check, or behind a word


def _plain(text: str) -> str:
    return " ".join(text.casefold().replace(",", " ").split())


def _named(text: str, names: Mapping[str, list[Entry]]) -> list[Entry]:
    """The entries of the names of which the text consists, the longest name first; empty where a word is no name.

    Counts in front of a name are passed over.
    """
    words, matches, start = text.split(), dict[int, Entry](), 0
    while start < len(words):
        ends = (end for end in range(len(words), start, -1) if " ".join(words[start:end]) in names)
        is_count = len(words) > 1 and words[start].isdigit()
        end = start + 1 if is_count else next(ends, 0)
        if not end:
            return []
        if not is_count:
            matches.update((id(entry), entry) for entry in names[" ".join(words[start:end])])
        start = end
    return [*matches.values()]


# What a report prints in brackets behind a verdict.
_BEHIND = re.compile(r"exit code \d+|and \d+ more reservations?", re.IGNORECASE)


def _with_details(matches: list[Entry], query: str) -> list[Entry]:
    """The entries with what is known of the details in brackets. Raises BadInput where the name has none."""
    end = _REASON.search(query)
    text = query.partition("(")[2].partition(")")[0].strip()
    if not text or _BEHIND.fullmatch(text) or (end is not None and end[0] != "("):
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
