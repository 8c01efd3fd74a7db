"""`harness doctor --against "COMMAND B" -- COMMAND A`: two jobs compared by their commands, before anything runs.

Every setting that is another one in the other command is named, with where it stands and what it does. Two commands of
one framework are compared setting by setting; two frameworks in the terms of `meanings`. What an engine takes another
way than the other engine is named too. What cannot be read is not checked, and never equal.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from harness.doctor.outcome import Fine, Outcome, Problem, Unseen
from harness.errors import BadInput
from harness.frameworks.argv import Start, option, taken_apart
from harness.frameworks.detection import AUTO, detect
from harness.frameworks.examine import Item, items, trapped
from harness.frameworks.meanings import CONCEPTS, ENGINE, Concept
from harness.frameworks.settings import Settings
from harness.frameworks.spec import Framework
from probes import redaction
from reports.doctor_model import Hazard, Severity
from scenarios.engines import given, registry
from scenarios.engines.canonical import BY_NAME

CHECK = "same-settings"
MEANT = "same-meaning"
SHOWN = 60  # characters of one value in a sentence
_ANY = Concept("warning", "what it changes is not known here: a comparison of the runs may show it")
_NOTHING = Concept("info", "it bears on no number that is compared")
_REDIRECTION = re.compile(r"(?:\d|&)?>{1,2}&?\d?|<")
# Canonical sampling parameter -> its concept, for what engines take another way together.
_SAMPLING = {
    "temperature": "temperature", "top_k": "top-k", "top_p": "top-p", "min_p": "min-p",
    "repetition_penalty": "repetition penalty",
}  # fmt: skip


@dataclass(frozen=True)
class Told:
    """One command, read. `name`: A or B."""

    name: Literal["A", "B"]
    framework: Framework
    start: Start
    settings: Settings
    version: str
    options: tuple[Outcome, ...]

    @property
    def engine(self) -> str:
        """That draws; empty where it is not known."""
        for name, meaning in self.framework.meanings.items():
            if meaning.concept == ENGINE and (name in self.settings.values or name in self.settings.unknown):
                value = self.settings.values.get(name)
                return "" if value is None else str(meaning.read(value, self.settings))
        return self.framework.engines[0] if self.framework.engines else ""

    @property
    def variables(self) -> dict[str, str]:
        """Of the job beside the shell's own: those before the command, and of Ray's runtime environment."""
        mine = {name: value for name, value in self.start.variables.items() if os.environ.get(name) != value}
        try:
            runtime = json.loads(option(self.start.before, "--runtime-env-json") or "{}")
            return {**mine, **{str(name): str(value) for name, value in (runtime.get("env_vars") or {}).items()}}
        except (ValueError, AttributeError):
            return mine

    def stated(self, name: str) -> str:
        """A setting as it stands, with where."""
        if name in self.settings.values:
            value = _shown(self.settings.values[name])
            return f"{self.name}: {name}={value} ({self._where(name)})"
        meaning = self.framework.meanings.get(name)
        default = "" if meaning is None or meaning.default is None else f", by default {_shown(meaning.default)}"
        return f"{self.name}: no {name}{default}"

    def _where(self, name: str) -> str:
        plain = re.sub(r"[-_]", "_", name)
        words = [re.sub(r"[-_]", "_", re.sub(r"^(?:--|\+{1,2}|~)", "", word)) for word in self.start.given]
        written = any(word == plain or word.startswith(f"{plain}=") for word in words)
        return "in the command" if written else "in its configuration, a file or a default"


def compare(one: Sequence[str], two: Sequence[str], framework: str = AUTO) -> list[Item]:
    """What differs between two commands. Raises BadInput for a command of no framework, and for one whose settings
    stand in a shell script."""
    told = read("A", one, framework), read("B", two, framework)
    found = [*items(CHECK, _settings(*told), "the commands")]
    found += items(CHECK, _variables(*told), "the commands")
    found += items(MEANT, _meant(*told), "the commands")
    for side in told:
        found += items("framework-options", [one for one in side.options if isinstance(one, Problem)],
                       f"command {side.name}")  # fmt: skip
    return [*found, *_trapped(*told)]


def words(command: str) -> list[str]:
    """A command as a shell reads it, without what only tells where its output goes. Raises BadInput."""
    try:
        parts = shlex.split(command.replace("\\\n", " "))
    except ValueError as error:
        raise BadInput(f"--against is no command: {error}", fix="--against 'PROGRAM WORD ...'   # in quotes") from error
    kept: list[str] = []
    skip = False
    for part in parts:
        if skip:
            skip = False
        elif _REDIRECTION.fullmatch(part):
            skip = not part.endswith(("&1", "&2"))
        else:
            kept.append(part)
    return kept


def read(name: Literal["A", "B"], command: Sequence[str], framework: str = AUTO) -> Told:
    """One command. Nothing of it is run."""
    job = detect(command, framework)
    start = taken_apart(command, job.framework.starts, os.environ)
    if not start.entry:
        inside = (
            f"its settings stand in {start.script}" if start.script else f"it starts no {job.framework.name} itself"
        )
        raise BadInput(
            f"command {name} cannot be compared: {inside}",
            fix="give the command that the script runs, with its options   # bash -x SCRIPT prints it",
        )
    examined = job.framework.examine(start, job.installed)
    version = job.installed.version if job.installed else ""
    return Told(name, job.framework, start, examined.settings, version, examined.options)


def _settings(one: Told, two: Told) -> Iterator[Outcome]:
    if one.framework is not two.framework:
        yield from _concepts(one, two)
        return
    alike, names = 0, sorted({*one.settings.values, *two.settings.values, *one.settings.unknown, *two.settings.unknown})
    for name in names:
        why = _why_unknown(one, two, name)
        if why is None:
            alike += 1
        elif why and _concept(one.framework, name) is not _NOTHING:
            yield Unseen(why)
        elif why:
            continue
        elif _same(one, two, name):
            alike += 1
        elif not (one.framework.engine_kwargs and name.startswith(f"{one.framework.engine_kwargs}.")):
            stated = (one.stated(name), two.stated(name))
            yield _differs(_concept(one.framework, name), name, *stated, engine=two.engine)
    yield from _unread(one, two)
    yield from _kwargs(one, two)
    yield Fine(f"{alike} settings are alike")


def _why_unknown(one: Told, two: Told, name: str) -> str | None:
    """Why a setting cannot be compared; empty where it can; None where both are one word of the same shell."""
    whys = [side.settings.why_unknown(name) for side in (one, two)]
    if all(whys) and whys[0] == whys[1]:
        return None
    return next(filter(None, whys), "")


def _same(one: Told, two: Told, name: str) -> bool:
    meaning = one.framework.meanings.get(name)
    default = None if meaning is None else meaning.default
    first, second = (side.settings.values.get(name, default) for side in (one, two))
    return bool(_plain(first) == _plain(second))


def _concept(framework: Framework, name: str) -> Concept:
    meaning = framework.meanings.get(name)
    if meaning is not None:
        return CONCEPTS[meaning.concept]
    return _NOTHING if name.startswith(framework.aside) and framework.aside else _ANY


def _differs(concept: Concept, title: str, *stated: str, engine: str = "") -> Problem:
    """`engine`: of the second command, to which a file of the user's may map the settings of the first."""
    fix = "" if concept.severity == "info" else "write it alike in both commands, or expect what it does"
    if concept is CONCEPTS[ENGINE] and engine in registry.names(embedded=False):
        fix = f"harness mapping FILE.py --engine {engine}   # where a file of yours maps the settings"
    return Problem(concept.severity, f"{title} differs", "; ".join(stated), concept.does, fix)


def _concepts(one: Told, two: Told) -> Iterator[Outcome]:
    """Two frameworks, in the terms that both have."""
    yield Problem(
        "info", "the frameworks differ", f"A: {one.framework.name}; B: {two.framework.name}",
        "settings are compared by what they mean: those that only one of the two has are not",
        "compare two commands of one framework, if you can",
    )  # fmt: skip
    sides = {side.name: _by_concept(side) for side in (one, two)}
    alike, lacking = 0, []
    for title, concept in CONCEPTS.items():
        pair = [sides[side.name].get(title) for side in (one, two)]
        if not any(pair):
            continue
        values = [None if entry is None else entry[1] for entry in pair]
        stated = [f"{side.name}: {'no ' + title if entry is None else entry[0] + f', {title} {_shown(entry[1])}'}"
                  for side, entry in zip((one, two), pair, strict=True)]  # fmt: skip
        if any(value is None for value in values) and not any(entry and entry[2] for entry in pair):
            lacking.append(title)
        elif any(value is None for value in values):
            yield Unseen(f"{title}: {'; '.join(stated)}: one of the two is not known")
        elif _plain(values[0]) == _plain(values[1]):
            alike += 1
        else:
            yield _differs(concept, title, *stated, engine=two.engine)
    if lacking:
        yield Unseen(f"{', '.join(lacking)}: neither command gives it, and what one of the two has is not known")
    for side in (one, two):
        rest = [word for word in _given(side) if word not in side.framework.meanings
                and not word.startswith(side.framework.aside)]  # fmt: skip
        if rest:
            yield Unseen(f"{', '.join(rest)} of {side.name}: what it is in the other framework is not known here")
    yield from _unread(one, two)
    yield Fine(f"{alike} settings mean the same")


def _by_concept(side: Told) -> dict[str, tuple[str, Any, bool]]:
    """Concept -> (the setting as it stands, its value in the concept's unit, None where it is not known; whether the
    command, or a file of it, gives it)."""
    found: dict[str, tuple[str, Any, bool]] = {}
    for name, meaning in side.framework.meanings.items():
        if name in side.settings.unknown:
            found[meaning.concept] = (name, None, True)
        elif name in side.settings.values:
            found[meaning.concept] = (side.stated(name).removeprefix(f"{side.name}: "),
                                      meaning.read(side.settings.values[name], side.settings), True)  # fmt: skip
        elif meaning.default is not None and meaning.concept not in found:
            value = None if side.settings.unread else meaning.read(meaning.default, side.settings)
            found[meaning.concept] = (f"{name} by default", value, False)
    return found


def _given(side: Told) -> list[str]:
    """Settings that the command itself gives."""
    return [name for name in side.settings.values if side._where(name) == "in the command"]


def _unread(one: Told, two: Told) -> Iterator[Outcome]:
    """Settings that may stand where nobody looked."""
    for side in (one, two):
        if side.settings.unread and side.settings.unread != (two if side is one else one).settings.unread:
            yield Unseen(f"command {side.name}: {side.settings.unread}")


def _kwargs(one: Told, two: Told) -> Iterator[Outcome]:
    """Arguments that go straight to the engines, by what they amount to in each."""
    prefix = one.framework.engine_kwargs
    if not prefix:
        return
    native = []
    for side in (one, two):
        begin = f"{prefix}.{side.engine}."
        native.append({name.removeprefix(begin): value for name, value in side.settings.values.items()
                       if name.startswith(begin) and value is not None})  # fmt: skip
    tables = [given.table("engine", side.engine) for side in (one, two)]
    for name in BY_NAME:
        pair = [(table.get(name), mine) for table, mine in zip(tables, native, strict=True)]
        if not any(argument is not None and argument.name in mine for argument, mine in pair):
            continue
        values = [None if argument is None else argument.given(mine) for argument, mine in pair]
        stated = [f"{side.name}: {argument.name if argument else 'no argument'}, which is {name} {_shown(value)}"
                  for side, (argument, _), value in zip((one, two), pair, values, strict=True)]  # fmt: skip
        if _plain(values[0]) != _plain(values[1]):
            severity: Severity = "error" if BY_NAME[name].results else "warning"
            yield _differs(Concept(severity, BY_NAME[name].trap or _ANY.does), f"{name} of the engine", *stated)
    known = [{argument.name for argument in table.values()} for table in tables]
    for side, mine, names in zip((one, two), native, known, strict=True):
        rest = {name: value for name, value in mine.items() if name not in names}
        if rest and (one.engine != two.engine or native[0] != native[1]):
            yield Unseen(f"{', '.join(rest)} of {side.engine} in {side.name}: what it is elsewhere is not known here")


def _variables(one: Told, two: Told) -> Iterator[Outcome]:
    first, second = one.variables, two.variables
    for name in sorted({*first, *second}):
        if first.get(name) != second.get(name):
            shown = [f"{side.name}: {redaction.arguments([f'{name}={mine[name]}'])[0] if name in mine else 'not set'}"
                     for side, mine in ((one, first), (two, second))]  # fmt: skip
            fix = f"set {name} alike for both commands"
            yield Problem("warning", f"the variable {name} differs", "; ".join(shown), _ANY.does, fix)


def _meant(one: Told, two: Told) -> Iterator[Outcome]:
    """What both ask for alike, and the two engines take another way."""
    if not (one.engine and two.engine):
        yield Unseen("which engine draws in each is not known: what they take another way is not compared")
        return
    if one.engine == two.engine:
        yield Fine(f"both draw with {one.engine}")
        return
    for side, other in ((one, two), (two, one)):
        asked = {name: BY_NAME[name].default for name in _SAMPLING}
        entries = _by_concept(side)
        for name, concept in _SAMPLING.items():
            entry = entries.get(concept)
            asked[name] = asked[name] if entry is None or entry[1] is None else entry[1]
        try:
            unlike, elsewhere = given.unlike(side.engine, asked), given.unlike(other.engine, asked)
        except TypeError:  # a value that is no number here
            continue
        for name, meaning in unlike.items():
            if elsewhere.get(name) != meaning:
                yield Problem(
                    "warning", f"{name} means another thing in {_title(side.engine)}",
                    f"{side.name}: {_title(side.engine)} takes it as {meaning}",
                    f"equal settings draw from another distribution than {_title(other.engine)}'s",
                    "use only one of the filters, or harness parity --mode coupled",
                )  # fmt: skip
    notes = [f"{_title(side.engine)}: {given.table('engine', side.engine)['max_model_len'].note}"
             for side in (one, two) if "max_model_len" in given.table("engine", side.engine)]  # fmt: skip
    if len(notes) > 1:
        yield Problem(
            "info",
            "the engines count the context another way",
            "; ".join(notes),
            BY_NAME["max_model_len"].trap,
            "set the longest prompt and the longest response alike, and leave room for one token more",
        )
    yield from _left_out(one, two)


def _left_out(one: Told, two: Told) -> Iterator[Outcome]:
    """What engines do without an argument, where they do not do the same."""
    for name, parameter in BY_NAME.items():
        arguments = [given.table(parameter.part, side.engine).get(name) for side in (one, two)]
        first, second = arguments
        if first is None or second is None or not parameter.results or first.default == second.default:
            continue
        if first.note == second.note:
            continue
        stated = [f"{_title(side.engine)}: {argument.name} {argument.note}"
                  for side, argument in zip((one, two), (first, second), strict=True)]  # fmt: skip
        yield Problem(
            "info", f"the engines have another {parameter.concept} where none is given", "; ".join(stated),
            parameter.trap or _ANY.does, f"set {parameter.concept} in both commands",
        )  # fmt: skip


def _trapped(one: Told, two: Told) -> list[Item]:
    """Traps that only one of the two has: they make a difference without any setting that differs."""
    found = {side.name: [item for item in trapped(side.framework, side.settings, side.version)
                         if isinstance(item, Hazard)] for side in (one, two)}  # fmt: skip
    only: list[Item] = []
    for side, other in ((one, two), (two, one)):
        elsewhere = {(item.check, item.what) for item in found[other.name]}
        only += [
            Hazard(item.check, item.severity, item.what, (f"command {side.name}",), item.measured, item.why, item.fix)
            for item in found[side.name]
            if (item.check, item.what) not in elsewhere
        ]
    return only


def _title(engine: str) -> str:
    spec = registry.find(engine)
    return spec.title if spec is not None else engine


def _shown(value: Any) -> str:
    text = redaction.arguments([str(value)])[0]
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def _plain(value: Any) -> Any:
    """A value as two commands can be compared in it: 5e-7 is text in YAML."""
    if isinstance(value, bool) or value is None:
        return value
    try:
        return float(value)
    except (TypeError, ValueError):
        text = str(value)
        return {"true": True, "false": False}.get(text.lower(), text)


def reproduce(one: Sequence[str], against: str) -> str:
    """The command line that compares again."""
    words_of = shlex.join(redaction.arguments(list(one)))
    return f"harness doctor --against {shlex.quote(against)} -- {words_of}"
