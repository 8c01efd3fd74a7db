"""`harness doctor --against "COMMAND B" -- COMMAND A`: compares two jobs by their commands, before anything runs.

Every setting that differs is named, with its place and its effect. Two commands of one framework are compared setting
by setting; commands of two frameworks are compared in the terms of `shared_meanings`. Settings that the two engines
interpret differently are named too. What cannot be read is reported as not checked, never as equal.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from harness.doctor.outcome import Fine, Item, Outcome, Problem, Unseen
from harness.errors import BadInput
from harness.frameworks import launcher, plain_commands, servers
from harness.frameworks.argv import Start, option, taken_apart
from harness.frameworks.detection import AUTO, Job, detect, of, recognised, started_script
from harness.frameworks.engine_arguments import drawing_engine, other_defaults, passed_on
from harness.frameworks.examine import OPTIONS, items, trapped
from harness.frameworks.examine import read as examined_by
from harness.frameworks.plain_commands import SHOWN, PlainCommand, number
from harness.frameworks.settings import Settings
from harness.frameworks.shared_meanings import (
    CONCEPTS,
    ENGINE,
    NOTHING,
    PARAMETERS,
    UNKNOWN,
    Concept,
    Meaning,
    of_parameter,
)
from harness.frameworks.shell_text import NotPlain, commands
from harness.frameworks.spec import Framework
from harness.frameworks.spec import names as framework_names
from harness.frameworks.wrapping import Wrapped, changed_variables, unwrapped
from probes import redaction
from reports.doctor_model import Hazard
from scenarios.engines import native_arguments, registry
from scenarios.engines.canonical import BY_NAME

CHECK = "same-settings"
MEANT = "same-meaning"
RULES = {
    CHECK: "Settings that differ between two commands, and what each changes in the run.",
    MEANT: "Settings that are equal in two commands, and that their engines or frameworks read differently.",
}
# Sampling parameters whose combinations engines interpret differently.
_READ_TOGETHER = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


@dataclass(frozen=True)
class JobCommand:
    """One command with its settings. `name`: A or B."""

    name: Literal["A", "B"]
    framework: Framework
    wrapped: Wrapped
    start: Start
    settings: Settings
    version: str
    options: tuple[Outcome, ...]

    @property
    def engine(self) -> str:
        """The engine that draws; empty if it is not known."""
        return drawing_engine(self.framework, self.settings)

    @property
    def variables(self) -> dict[str, str]:
        """The job's variables that differ from the shell's: those set in the command, and those of Ray's runtime
        environment."""
        mine = changed_variables(self.wrapped, self.start.variables)
        try:
            runtime = json.loads(option(self.start.before, "--runtime-env-json") or "{}")
            return {**mine, **{str(name): str(value) for name, value in (runtime.get("env_vars") or {}).items()}}
        except (ValueError, AttributeError):
            return mine

    def stated(self, name: str) -> str:
        """A setting with its value and where it is set, in words."""
        if name in self.settings.values:
            value = _scrubbed(self.settings.values[name])
            return f"{self.name}: {name}={value} ({self._where(name)})"
        meaning = _meaning(self.framework, name)
        default = "" if meaning is None or meaning.default is None else f", by default {_scrubbed(meaning.default)}"
        return f"{self.name}: no {name}{default}"

    def _where(self, name: str) -> str:
        if name in self.settings.places:
            return self.settings.places[name]
        plain = re.sub(r"[-_]", "_", name)
        words = [re.sub(r"[-_]", "_", re.sub(r"^(?:--|\+{1,2}|~)", "", word)) for word in self.start.arguments]
        written = any(word == plain or word.startswith(f"{plain}=") for word in words)
        return "in the command" if written else "in its configuration, a file or a default"


def compare(
    command_a: Sequence[str],
    command_b: Sequence[str],
    framework: str = AUTO,
    *,
    served: Callable[[str], tuple[str, Sequence[str]]] = lambda engine: ("", ()),
) -> list[Item]:
    """What differs between two commands: jobs of frameworks, or servers of engines.

    `served`: returns the installed version of an engine and all options of its server; none where that is not known.
    Raises BadInput where only one is a job of a framework or a server, and where the settings are in a shell script.
    """
    wrapped_a, wrapped_b = unwrapped("A", command_a), unwrapped("B", command_b)
    surroundings = list(_surroundings(wrapped_a, wrapped_b))
    if framework == AUTO:
        server_a, server_b = servers.read("A", wrapped_a, served), servers.read("B", wrapped_b, served)
        if server_a and server_b:
            # A server that does not start comes first: what is compared of its other words is a guess.
            report_items: list[Item] = []
            for server in (server_a, server_b):
                unknown = servers.unknown_options(server, served(server.engine)[1])
                report_items += items(OPTIONS, unknown, f"command {server.name}")
            outcomes = [*servers.compare(server_a, server_b), *surroundings]
            return [*report_items, *items(CHECK, outcomes, "the commands")]
        if not (server_a or server_b or recognised(wrapped_a.command) or recognised(wrapped_b.command)):
            _refuse_script_elsewhere("A", wrapped_a)
            _refuse_script_elsewhere("B", wrapped_b)
            plain_a, plain_b = plain_commands.split("A", wrapped_a), plain_commands.split("B", wrapped_b)
            outcomes = [*_of_words(plain_a, plain_b), *_variables(plain_a, plain_b), *surroundings]
            return items(CHECK, outcomes, "the commands")
    jobs = read("A", wrapped_a, framework), read("B", wrapped_b, framework)
    outcomes = [*_settings(*jobs), *_variables(*jobs)]
    if all(isinstance(outcome, Fine) for outcome in outcomes):
        outcomes += _other_words(*jobs)
    report_items = [*items(CHECK, [*outcomes, *surroundings], "the commands")]
    report_items += items(MEANT, _meant(*jobs), "the commands")
    for side in jobs:
        report_items += items(OPTIONS, [item for item in side.options if isinstance(item, Problem)],
                       f"command {side.name}")  # fmt: skip
    return [*report_items, *_trapped(*jobs)]


def words(command: str) -> list[str]:
    """Split a command as a shell does, without redirections; several commands are the text of a shell. Raises
    BadInput."""
    try:
        lines = commands(command)
    except NotPlain as error:
        raise BadInput(f"--against is no command: {error}", fix="--against 'PROGRAM WORD ...'   # in quotes") from error
    return lines[0] if len(lines) == 1 else ["bash", "-c", command]


def read(name: Literal["A", "B"], wrapped: Wrapped, framework: str = AUTO) -> JobCommand:
    """Read one command. Nothing of it is run."""
    command = wrapped.command
    _refuse_script_elsewhere(name, wrapped)
    if framework == AUTO and not recognised(command):
        raise BadInput(
            f"command {name} is no job of {framework_names(between=' or ')}, and the other one is, or an engine's "
            "server: settings cannot be compared",
            fix="harness doctor   # what breaks a run on this machine, whatever its command",
        )
    # What is installed in an image, or in an environment of conda's or uv's, is not looked up.
    job = Job(of(command, framework), "", None, ()) if wrapped.places else detect(command, framework)
    start = taken_apart(command, job.framework.starts, wrapped.environ)
    if not start.entry:
        inside = (
            f"its settings stand in {start.script}" if start.script else f"it starts no {job.framework.name} itself"
        )
        raise BadInput(
            f"command {name} cannot be compared: {inside}",
            fix="give the command that the script runs, with its options   # bash -x SCRIPT prints it",
        )
    examined = examined_by(job, start)
    version = job.installed.version if job.installed else ""
    return JobCommand(
        name=name,
        framework=job.framework,
        wrapped=wrapped,
        start=start,
        settings=examined.settings,
        version=version,
        options=examined.options,
    )


def _refuse_script_elsewhere(name: str, wrapped: Wrapped) -> None:
    """Raise BadInput for a script in a container or another folder: it may hold the settings, and is not read."""
    if wrapped.moved and (script := started_script(wrapped.command)):
        raise BadInput(
            f"command {name} cannot be compared: its settings stand in {script}, in {wrapped.place}, which is not read",
            fix="give the command as it is started where that script is",
        )


def _surroundings(wrapped_a: Wrapped, wrapped_b: Wrapped) -> Iterator[Outcome]:
    """Report what is around the two programs and is not compared, where it is not the same."""
    if wrapped_a.places != wrapped_b.places:
        yield Problem(
            UNKNOWN.severity, "the place where the programs run differs",
            f"A: {wrapped_a.place}; B: {wrapped_b.place}", "what is installed there, and in its files, is not known",
            "start both in one place",
        )  # fmt: skip
    elif wrapped_a.options != wrapped_b.options:
        sides = (("A", wrapped_a.options, wrapped_b.options), ("B", wrapped_b.options, wrapped_a.options))
        only = [
            f"{name}: {_scrubbed(' '.join(option for option in options if option not in others)) or 'none'}"
            for name, options, others in sides
        ]
        yield Unseen(f"options of what is around the programs: {'; '.join(only)}")
    for name, reasons, others in (
        ("A", wrapped_a.unread, wrapped_b.unread),
        ("B", wrapped_b.unread, wrapped_a.unread),
    ):
        yield from (Unseen(f"command {name}: {reason}") for reason in reasons if reason not in others)


def _settings(command_a: JobCommand, command_b: JobCommand) -> Iterator[Outcome]:
    if command_a.framework is not command_b.framework:
        yield from _concepts(command_a, command_b)
        return
    engine_kwargs = command_a.framework.engine_kwargs
    apart = (f"{engine_kwargs}.",) if engine_kwargs else ()  # compared below by what they mean in each engine
    a, b = command_a.settings, command_b.settings
    names = sorted({*a.values, *b.values, *a.unknown, *b.unknown})
    equal_count = 0
    for name in names:
        concept = _concept(command_a.framework, name)
        why_a, why_b = a.why_unknown(name), b.why_unknown(name)
        if why_a or why_b:
            if why_a == why_b:  # such as one shell word, which has one value in both commands
                equal_count += 1
            elif concept is not NOTHING:
                yield Unseen(why_a or why_b)
        elif _has_equal_value(command_a, command_b, name):
            equal_count += 1
        elif not name.startswith(apart):
            yield _differs(concept, name, command_a.stated(name), command_b.stated(name), engine=command_b.engine)
    yield from _unread(command_a, command_b)
    yield from _kwargs(command_a, command_b)
    yield Fine(f"{equal_count} settings are alike")


def _of_words(command_a: PlainCommand, command_b: PlainCommand) -> Iterator[Outcome]:
    """Compare commands of no known framework by their words, of which it is not known what they change."""
    unequal = plain_commands.differences(command_a, command_b)
    for name, stated in unequal.items():
        yield _differs(UNKNOWN, name, *stated)
    equal_count = len({*command_a.options, *command_b.options} - unequal.keys())
    yield Fine(f"{equal_count} options are alike")
    yield Unseen("what a program reads beside its command line, such as a configuration file or its own defaults")


def _has_equal_value(command_a: JobCommand, command_b: JobCommand, name: str) -> bool:
    meaning = _meaning(command_a.framework, name)
    default = None if meaning is None else meaning.default
    first, second = (side.settings.values.get(name, default) for side in (command_a, command_b))
    return bool(_plain(first) == _plain(second))


def _concept(framework: Framework, name: str) -> Concept:
    meaning = _meaning(framework, name)
    if meaning is not None:
        return CONCEPTS[meaning.concept]
    return NOTHING if name.startswith((*framework.aside, *launcher.ASIDE)) else UNKNOWN


def _meaning(framework: Framework, name: str) -> Meaning | None:
    """The meaning of a setting of the framework, or of what starts it."""
    return framework.meanings.get(name, launcher.MEANINGS.get(name))


def _differs(concept: Concept, title: str, *stated: str, engine: str = "") -> Problem:
    """The Problem for a difference. `engine`: that of the second command, to which a file of the user's may map
    settings."""
    fix = "" if concept.severity == "info" else "write it alike in both commands, or expect what it does"
    if concept is CONCEPTS[ENGINE] and engine in registry.names(embedded=False):
        fix = f"harness mapping FILE.py --engine {engine}   # where a file of yours maps the settings"
    return Problem(concept.severity, f"{title} differs", "; ".join(stated), concept.does, fix)


def _concepts(command_a: JobCommand, command_b: JobCommand) -> Iterator[Outcome]:
    """Compare commands of two frameworks, in the terms that both have."""
    yield Problem(
        "info", "the frameworks differ", f"A: {command_a.framework.name}; B: {command_b.framework.name}",
        "settings are compared by what they mean: those that only one of the two has are not",
        "compare two commands of one framework, if you can",
    )  # fmt: skip
    concepts_a, concepts_b = _by_concept(command_a), _by_concept(command_b)
    equal_count, lacking = 0, []
    for title, concept in CONCEPTS.items():
        entry_a, entry_b = concepts_a.get(title, _ABSENT), concepts_b.get(title, _ABSENT)
        if entry_a is _ABSENT and entry_b is _ABSENT:
            continue
        stated = [f"{side.name}: {entry.stated(title)}" for side, entry in ((command_a, entry_a), (command_b, entry_b))]
        if entry_a.value is not None and entry_b.value is not None:
            if _plain(entry_a.value) == _plain(entry_b.value):
                equal_count += 1
            else:
                yield _differs(concept, title, *stated, engine=command_b.engine)
        elif entry_a.is_set or entry_b.is_set:
            yield Unseen(f"{title}: {'; '.join(stated)}: one of the two is not known")
        else:
            lacking.append(title)
    if lacking:
        yield Unseen(f"{', '.join(lacking)}: neither command gives it, and what one of the two has is not known")
    yield from _of_one_framework(command_a, command_b)
    yield from _unread(command_a, command_b)
    yield Fine(f"{equal_count} settings mean the same")


def _of_one_framework(*commands: JobCommand) -> Iterator[Outcome]:
    """Report what commands of two frameworks say that only one of the frameworks knows: the ranks, and other words."""
    names = {name for side in commands for name in (*side.settings.values, *side.settings.unknown)}
    if names & launcher.MEANINGS.keys():
        stated = [side.stated(name) for side in commands for name in launcher.MEANINGS]
        yield Unseen(f"ranks: {'; '.join(stated)}: a framework may start others itself, so they are not compared")
    for side in commands:
        framework = side.framework
        without_effect = [word for word in _set_in_command(side) if word.startswith(framework.aside)]
        own_words = [word for word in _set_in_command(side) if word not in (*framework.meanings, *without_effect)]
        if own_words:
            yield Unseen(f"{', '.join(own_words)} of {side.name}: what it is in the other framework is not known here")


@dataclass(frozen=True)
class _Entry:
    """What a command has of a concept. `setting`: in words; empty without one. `value`: in the concept's unit; None if
    it is not known. `is_set`: whether the command or one of its files sets it."""

    setting: str = ""
    value: Any = None
    is_set: bool = False

    def stated(self, title: str) -> str:
        return f"{self.setting}, {title} {_scrubbed(self.value)}" if self.setting else f"no {title}"


_ABSENT = _Entry()


def _by_concept(side: JobCommand) -> dict[str, _Entry]:
    settings = side.settings
    entries: dict[str, _Entry] = {}
    for name, meaning in side.framework.meanings.items():
        if name in settings.unknown:
            entries[meaning.concept] = _Entry(name, None, is_set=True)
        elif name in settings.values:
            setting = side.stated(name).removeprefix(f"{side.name}: ")
            entries[meaning.concept] = _Entry(setting, meaning.read(settings.values[name], settings), is_set=True)
        elif meaning.default is not None and meaning.concept not in entries:
            value = None if settings.unread else meaning.read(meaning.default, settings)
            entries[meaning.concept] = _Entry(f"{name} by default", value)
    return entries


def _set_in_command(side: JobCommand) -> list[str]:
    """Settings that the command itself sets."""
    return [name for name in side.settings.values if side._where(name) == "in the command"]


def _unread(command_a: JobCommand, command_b: JobCommand) -> Iterator[Outcome]:
    """Report settings that may be in places that were not read."""
    for side in (command_a, command_b):
        if side.settings.unread and command_a.settings.unread != command_b.settings.unread:
            yield Unseen(f"command {side.name}: {side.settings.unread}")


def _other_words(command_a: JobCommand, command_b: JobCommand) -> Iterator[Outcome]:
    """Report words of the commands that differ where no setting does: what reads them was not seen."""
    # Options of a script that a setting is read from: "--batch 64 in the command, by train.py:8".
    places = [place for side in (command_a, command_b) for place in side.settings.places.values()]
    followed = {place.split()[0] for place in places if place.startswith("-")}
    first, second = _unnamed(command_a, followed), _unnamed(command_b, followed)
    if command_a.framework is command_b.framework and first != second:
        only = {
            "A": _scrubbed(" ".join((first - second).elements())) or "none",
            "B": _scrubbed(" ".join((second - first).elements())) or "none",
        }
        yield Problem(
            UNKNOWN.severity, "words of the commands differ, and no setting was read from them",
            "; ".join(f"{name}: {text}" for name, text in only.items()), UNKNOWN.does,
            "write them alike in both commands",
        )  # fmt: skip


def _unnamed(side: JobCommand, followed: set[str]) -> Counter[str]:
    """The words of a command that are no setting's own `name=value`, nor a followed option with its value; numbers as
    they are, however they are written."""
    words: Counter[str] = Counter()
    before = ""
    for word in side.start.arguments:
        is_read = word.lstrip("-+~").partition("=")[0] in side.settings.values
        if not is_read and not followed & {word.partition("=")[0], before}:
            words[str(number(word))] += 1
        before = word
    return words


def _kwargs(command_a: JobCommand, command_b: JobCommand) -> Iterator[Outcome]:
    """Compare arguments that are passed directly to the engines, by what they mean in each."""
    if not command_a.framework.engine_kwargs:
        return
    sides = [_engine_arguments(command, command.framework.engine_kwargs) for command in (command_a, command_b)]
    for name, parameter in BY_NAME.items():
        if not any(side.gives(name) for side in sides):
            continue
        if len({_plain(side.value(name)) for side in sides}) > 1:
            concept = of_parameter(parameter)
            concept = replace(concept, does=parameter.trap or concept.does)
            yield _differs(concept, f"{name} of the engine", *(_stated(side, name) for side in sides))
    if command_a.engine == command_b.engine and sides[0].values == sides[1].values:
        return
    for side in sides:
        if unnamed := side.unnamed():
            yield side.unseen(unnamed)


def _engine_arguments(command: JobCommand, prefix: str) -> servers.EngineArguments:
    """The arguments that a command passes directly to its engine."""
    settings = passed_on(command.framework, command.settings.values, command.engine)
    values = {name.removeprefix(f"{prefix}.{command.engine}."): value for name, value in settings.items()}
    table = native_arguments.table("engine", command.engine)
    return servers.EngineArguments(command.name, command.engine, values, table)


def _stated(side: servers.EngineArguments, name: str) -> str:
    argument = side.table[name].name if name in side.table else "no argument"
    return f"{side.name}: {argument}, which is {name} {_scrubbed(side.value(name))}"


def _variables(command_a: JobCommand | PlainCommand, command_b: JobCommand | PlainCommand) -> Iterator[Outcome]:
    first, second = command_a.variables, command_b.variables
    for name in sorted({*first, *second}):
        if first.get(name) != second.get(name):
            stated = f"A: {_variable(name, first)}; B: {_variable(name, second)}"
            yield Problem(UNKNOWN.severity, f"the variable {name} differs", stated, UNKNOWN.does,
                          f"set {name} alike for both commands")  # fmt: skip


def _variable(name: str, variables: Mapping[str, str]) -> str:
    return redaction.arguments([f"{name}={variables[name]}"])[0] if name in variables else "not set"


def _meant(command_a: JobCommand, command_b: JobCommand) -> Iterator[Outcome]:
    """Report settings that are equal in both commands, but that the two engines interpret differently."""
    if not (command_a.engine and command_b.engine):
        yield Unseen("which engine draws in each is not known: what they take another way is not compared")
        return
    if command_a.engine == command_b.engine:
        yield Fine(f"both draw with {command_a.engine}")
        return
    yield from _read_differently(command_a, command_b.engine)
    yield from _read_differently(command_b, command_a.engine)
    yield from _context(command_a, command_b)
    yield from _left_out(command_a, command_b)


def _context(command_a: JobCommand, command_b: JobCommand) -> Iterator[Outcome]:
    """Report that the engines count their context another way, unless both have room for the longest sample."""
    problem = servers.context(command_a.engine, command_b.engine)
    if problem is not None and _has_room(command_a) and _has_room(command_b):
        yield Fine("the contexts of both engines have room for the longest prompt and response")
    elif problem is not None:
        yield problem


def _has_room(side: JobCommand) -> bool:
    """Whether the longest prompt and response that a command names leave an engine what it keeps for itself."""
    entries, argument = _by_concept(side), native_arguments.table("engine", side.engine)["max_model_len"]
    context, prompt, response = (
        entries.get(concept, _ABSENT).value for concept in ("context", "prompt length", "response length")
    )
    return all(isinstance(number, int) for number in (context, prompt, response)) and bool(
        argument.write(prompt + response) <= context
    )


def _read_differently(side: JobCommand, other_engine: str) -> Iterator[Problem]:
    """Yield sampling parameters that mean another thing in this side's engine than in the other's.

    The side's own values are judged in both engines: equal values differ only if the engines interpret them
    differently.
    """
    entries = _by_concept(side)
    asked_sampling = {name: BY_NAME[name].default for name in _READ_TOGETHER}
    for name in _READ_TOGETHER:
        value = entries.get(PARAMETERS[name][0], _ABSENT).value
        if value is not None:
            asked_sampling[name] = value
    try:
        unlike = native_arguments.unlike(side.engine, asked_sampling)
        elsewhere = native_arguments.unlike(other_engine, asked_sampling)
    except TypeError:  # a value that is not a number
        return
    for name, meaning in unlike.items():
        if elsewhere.get(name) != meaning:
            yield Problem(
                "warning", f"{name} means another thing in {_title(side.engine)}",
                f"{side.name}: {_title(side.engine)} takes it as {meaning}",
                f"equal settings draw from another distribution than {_title(other_engine)}'s",
                "use only one of the filters, or harness parity --mode coupled",
            )  # fmt: skip


def _left_out(command_a: JobCommand, command_b: JobCommand) -> Iterator[Outcome]:
    """Report what engines do without an argument, if they do different things and not both commands give it.

    A framework may give it by itself, which is not known here.
    """
    for parameter, stated in other_defaults(command_a.engine, command_b.engine):
        if _gives(command_a, parameter.name) and _gives(command_b, parameter.name):
            continue
        yield Problem(
            UNKNOWN.severity, f"the engines have another {parameter.concept} where none is given", stated,
            parameter.trap or of_parameter(parameter).does, f"set {parameter.concept} in both commands",
        )  # fmt: skip


def _gives(side: JobCommand, parameter: str) -> bool:
    """Whether a command, or its framework by a default that is known here, gives its engine this parameter."""
    prefix = side.framework.engine_kwargs
    if prefix and _engine_arguments(side, prefix).gives(parameter):
        return True
    terms = {meaning.concept for meaning in side.framework.meanings.values()}
    term = next((term for term in PARAMETERS.get(parameter, ()) if term in terms), "")
    return _by_concept(side).get(term, _ABSENT).value is not None


def _trapped(command_a: JobCommand, command_b: JobCommand) -> list[Item]:
    """Traps that only one of the commands has: they make a difference although no setting differs."""
    hazards_a, hazards_b = _hazards(command_a), _hazards(command_b)
    return [*_only_in(command_a, hazards_a, hazards_b), *_only_in(command_b, hazards_b, hazards_a)]


def _hazards(side: JobCommand) -> list[Hazard]:
    return [item for item in trapped(side.framework, side.settings, side.version) if isinstance(item, Hazard)]


def _only_in(side: JobCommand, hazards: list[Hazard], others: list[Hazard]) -> list[Hazard]:
    elsewhere = {(item.check, item.what) for item in others}
    where = (f"command {side.name}",)
    return [replace(item, where=where) for item in hazards if (item.check, item.what) not in elsewhere]


def _title(engine: str) -> str:
    spec = registry.find(engine)
    return spec.title if spec is not None else engine


def _scrubbed(value: Any) -> str:
    text = redaction.arguments([str(value)])[0]
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def _plain(value: Any) -> Any:
    """A value in the form in which two commands are compared: 5e-7 is text in YAML."""
    if isinstance(value, bool) or value is None:
        return value
    try:
        return float(value)
    except (TypeError, ValueError):
        text = str(value)
        return {"true": True, "false": False}.get(text.lower(), text)


def reproduce(command: Sequence[str], against: str) -> str:
    """The command line that compares again."""
    words_of = shlex.join(redaction.arguments(list(command)))
    return f"harness doctor --against {shlex.quote(against)} -- {words_of}"
