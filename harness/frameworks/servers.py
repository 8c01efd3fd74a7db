"""Compares two commands that start an engine's server (`vllm serve MODEL`, `python -m sglang.launch_server`), argument
by argument and before either runs.

Two servers of one engine are compared by its own names; servers of two engines by the canonical parameters that their
arguments amount to. What has no canonical meaning is reported as not compared, never as equal.
"""

from __future__ import annotations

import json
import os
import re
from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.doctor.outcome import Fine, Outcome, Problem, Unseen
from harness.envs.environment import find_whole
from harness.errors import closest
from harness.frameworks.argv import taken_apart
from harness.frameworks.detection import without_prefixes
from harness.frameworks.engine_arguments import installed_version, other_defaults
from harness.frameworks.settings import SHELL
from harness.frameworks.shared_meanings import CONCEPTS, NOTHING, UNKNOWN, of_parameter
from harness.frameworks.wrapping import Wrapped, changed_variables
from probes import redaction
from probes.engines import ENGINES
from scenarios.engines import registry
from scenarios.engines.canonical import BY_NAME, CARRIED
from scenarios.engines.native import Native

# Where the server listens and what it prints: no number that is compared depends on them.
_ASIDE = {"host", "port", "served_model_name", "log_level", "api_key", "uvicorn_log_level", "disable_log_requests"}
_MODEL = ("model", "model_path")  # names of the model's argument, of which each engine takes one or both
_PATH = re.compile(r"[./~]")  # begins a model's folder; any other name is one of the hub
_PARAMETERS = BY_NAME | {parameter.name: parameter for parameter in CARRIED}
_SWITCH = re.compile(r"(?:enable|disable|no|skip|trust)_.+|.+_lb")  # arguments that need no value
_OPTION = re.compile(r"-[^\d.]")  # a word that is no value: -1 is one


@dataclass(frozen=True)
class Server:
    """One command that starts a server. `model`: empty if it names none. `arguments`: the others, by the engine's own
    names. `variables`: those that it sets. `version`: of the engine that it starts, empty where that is not known.
    `lacking`: options that the engine's server does not have; they are none of the arguments.
    """

    name: str
    engine: str
    model: str
    arguments: Mapping[str, Any]
    variables: Mapping[str, str]
    version: str = ""
    lacking: tuple[str, ...] = ()

    @property
    def build(self) -> str:
        return f"{self.name}: {self.engine} {self.version or 'of a version that is not known'}"

    def stated(self, argument: str) -> str:
        if argument not in self.arguments:
            return f"{self.name}: no {argument}"
        return f"{self.name}: {redaction.arguments([f'--{argument}={self.arguments[argument]}'])[0]}"


@dataclass(frozen=True)
class _Start:
    """The words of a command that start an engine's server: `program` (the engine's own, or an interpreter), and what
    the server is given."""

    engine: str
    program: str
    arguments: list[str]


def _server_start(words: list[str]) -> _Start | None:
    """`vllm serve …`, `python -m sglang.launch_server …`; None where the words start no server."""
    for at, word in enumerate(words):
        for engine, process in ENGINES.items():
            if os.path.basename(word) == engine and words[at + 1 : at + 2] == ["serve"]:
                return _Start(engine, word, words[at + 2 :])
            if process.modules and words[at - 1] == "-m" and word.startswith(process.modules):
                return _Start(engine, words[at - 2], words[at + 1 :])
    return None


def read(
    name: str, wrapped: Wrapped, served: Callable[[str], tuple[str, Sequence[str]]] = lambda engine: ("", ())
) -> Server | None:
    """Return the server that a command starts; None for any other command.

    `served`: returns the installed version of an engine and all options of its server; none where that is not known.
    """
    start = _server_start(without_prefixes(wrapped.command))
    if start is None:
        return None
    variables = taken_apart(wrapped.command, "$^", wrapped.environ).variables
    version = wrapped.release if wrapped.places else _version(start.engine, start.program)
    lacking = _lacking(start.arguments, version, *served(start.engine))
    arguments = _arguments(start.engine, start.arguments, lacking)
    models = [str(arguments.pop(title)) for title in _MODEL if title in arguments]
    return Server(
        name=name,
        engine=start.engine,
        model="".join(models[:1]),
        arguments=arguments,
        variables=changed_variables(wrapped, variables),
        version=version,
        lacking=lacking,
    )


def compare(server_a: Server, server_b: Server) -> Iterator[Outcome]:
    """Yield what differs between two servers, and how much is alike."""
    yield _models(server_a, server_b) or Fine("one model in both")
    yield _versions(server_a, server_b)
    pairs = [*_native(server_a, server_b)] if server_a.engine == server_b.engine else [*_canonical(server_a, server_b)]
    yield from (outcome for outcome in pairs if outcome is not None)
    for name in sorted({*server_a.variables, *server_b.variables}):
        values = [side.variables.get(name) for side in (server_a, server_b)]
        if values[0] != values[1]:
            stated = redaction.arguments([f"{name}={value}" if value is not None else f"no {name}" for value in values])
            yield Problem(
                UNKNOWN.severity, f"the variable {name} differs", f"A: {stated[0]}; B: {stated[1]}", UNKNOWN.does,
                f"set {name} alike for both commands",
            )  # fmt: skip
    yield Fine(f"{pairs.count(None)} arguments are alike")


def unknown_options(server: Server, names: Sequence[str]) -> Iterator[Outcome]:
    """Yield the options that an engine's server does not have. `names`: all that it has."""
    has = [f"--{name.replace('_', '-')}" for name in names]
    engine = f"{registry.get(server.engine).title} {server.version}"
    for option in server.lacking:
        yield Problem(
            "error", f"{engine} has no option {option}{closest(option, has)}",
            f"{server.name}: {option}", "its parser ends the server before it starts",
            f"harness env arguments {server.engine}   # lists what it takes",
        )  # fmt: skip


def _lacking(words: Sequence[str], version: str, installed: str, names: Sequence[str]) -> tuple[str, ...]:
    """The long options that the server does not have, if `names` are those of its version."""
    if not names or version != installed:
        return ()
    has = [_plain(f"--{name}") for name in names]
    options = dict.fromkeys(_plain(word) for word in words if word.startswith("--"))
    # Its parser takes abbreviations.
    return tuple(option for option in options if not any(full.startswith(option) for full in has))


def _plain(word: str) -> str:
    """A long option with hyphens and without its value, and without the field of a group
    (--compilation-config.level)."""
    return word.partition("=")[0].partition(".")[0].replace("_", "-")


def _models(server_a: Server, server_b: Server) -> Outcome | None:
    """Compare the models. A folder may hold the model of the hub, or of another folder, with the same last name."""
    models = [server_a.model.rstrip("/"), server_b.model.rstrip("/")]
    if models[0] == models[1]:
        return None
    stated = "; ".join(f"{side.name}: {redaction.text(side.model) or 'no model'}" for side in (server_a, server_b))
    if any(not model or SHELL.search(model) for model in models):
        return Unseen(f"whether the model is the same is not known: {stated}")
    fix, last_names = "serve one model in both", set(map(os.path.basename, models))
    if any(map(_PATH.match, models)) and len(last_names) == 1:
        return Problem("warning", "model differs", stated, "a folder may hold the same model", fix)
    return Problem("error", "model differs", stated, CONCEPTS["policy"].does, fix)


def _versions(server_a: Server, server_b: Server) -> Outcome:
    stated = f"{server_a.build}; {server_b.build}"
    if server_a.engine != server_b.engine:
        fix = f"harness parity {server_a.engine} {server_b.engine}   # compares what they compute"
        return Problem("info", "the engines differ", stated, "settings are compared by what they mean in each", fix)
    if not (server_a.version and server_b.version):
        return Unseen(f"the versions: {stated}")
    if server_a.version == server_b.version:
        return Fine(stated)
    return Problem(
        UNKNOWN.severity, "the versions of the engine differ", stated, UNKNOWN.does, "start both of one environment"
    )


def _version(engine: str, program: str) -> str:
    """The version of an engine where this program, its own or an interpreter, is installed; else that of the harness's
    environment of this engine; empty where neither is there."""
    environment = find_whole(engine)
    return installed_version(engine, program) or (environment.version if environment else "")


def _native(server_a: Server, server_b: Server) -> Iterator[Outcome | None]:
    table = _table(server_a.engine)
    canonical = {argument.name: name for name, argument in table.items()}
    for argument in sorted({*server_a.arguments, *server_b.arguments}):
        name = canonical.get(argument, "")
        alike = server_a.arguments.get(argument) == server_b.arguments.get(argument)
        if alike or _are_one(table.get(name), server_a, server_b):
            yield None
        else:
            stated = f"{server_a.stated(argument)}; {server_b.stated(argument)}"
            yield _differs(argument, name, stated)


def _are_one(argument: Native | None, server_a: Server, server_b: Server) -> bool:
    """Whether two values of an argument mean the same, such as a default that only one command writes down."""
    if argument is None:
        return False
    value_a, value_b = (argument.value_in(server.arguments) for server in (server_a, server_b))
    return value_a is not None and bool(value_a == value_b)


@dataclass(frozen=True)
class EngineArguments:
    """What a command gives its engine.

    `name`: of the command. `values`: by the engine's own names. `table`: the engine's argument of each canonical name.
    """

    name: str
    engine: str
    values: Mapping[str, Any]
    table: Mapping[str, Native]

    def gives(self, parameter: str) -> bool:
        """Whether the command sets a canonical parameter."""
        return parameter in self.table and self.table[parameter].name in self.values

    def value(self, parameter: str) -> Any:
        """The value of a canonical parameter; None where the engine has no such argument, or the value is not known."""
        return self.table[parameter].value_in(self.values) if parameter in self.table else None

    def written(self, parameter: str, value: Any) -> Any:
        """What this engine is to be given for a canonical value; None where it has no such argument or the value is not
        known."""
        return None if value is None or parameter not in self.table else self.table[parameter].write(value)

    def is_given(self, parameter: str, word: Any) -> bool:
        """Whether the command gives the argument this value, in the engine's own form."""
        return word is not None and self.values.get(self.table[parameter].name) == word

    def unnamed(self, aside: Container[str] = ()) -> list[str]:
        """Arguments that have no canonical name."""
        names = {argument.name for argument in self.table.values()}
        return [name for name in self.values if name not in names and name not in aside]

    def unseen(self, arguments: Sequence[str]) -> Unseen:
        where = f"{', '.join(arguments)} of {self.engine} in {self.name}"
        return Unseen(f"{where}: what it is elsewhere is not known here")


def _canonical(server_a: Server, server_b: Server) -> Iterator[Outcome | None]:
    sides = [EngineArguments(server.name, server.engine, server.arguments, _table(server.engine))
             for server in (server_a, server_b)]  # fmt: skip
    for name in _PARAMETERS:
        if any(side.gives(name) for side in sides):
            yield _parameter(name, *sides)
    for side in sides:
        if others := sorted(side.unnamed(aside=_ASIDE)):
            yield side.unseen(others)
    is_given = {name: any(side.gives(name) for side in sides) for name in _PARAMETERS}
    for parameter, stated in other_defaults(server_a.engine, server_b.engine):
        if parameter.part == "engine" and not is_given[parameter.name]:
            options = [_option(side.table[parameter.name].name, "…") for side in sides]
            yield Problem(
                "warning", f"the engines have another {parameter.concept} where none is given", stated,
                parameter.trap or of_parameter(parameter).does, f"{options[0]} in A, and {options[1]} in B",
            )  # fmt: skip
    if not is_given["max_model_len"] and (problem := context(server_a.engine, server_b.engine)):
        yield problem


def context(engine_a: str, engine_b: str) -> Problem | None:
    """That two engines count their context another way; None where they do not, or it is not known."""
    arguments = {engine: _table(engine).get("max_model_len") for engine in (engine_a, engine_b)}
    notes = {f"{registry.get(engine).title}: {argument.note}" for engine, argument in arguments.items() if argument}
    if len(notes) < 2:
        return None
    return Problem(
        "warning", "the engines count the context another way", "; ".join(sorted(notes, reverse=True)),
        BY_NAME["max_model_len"].trap,
        "set the context, and the longest prompt and response, alike in both, with room for 8 tokens more",
    )  # fmt: skip


def _parameter(name: str, side_a: EngineArguments, side_b: EngineArguments) -> Problem | None:
    """What differs in one canonical parameter of two engines; None where both are given the same."""
    value_a, value_b = side_a.value(name), side_b.value(name)
    # SGLang keeps tokens of its context for itself: what our mapping writes for the other's value is alike, too.
    word_a, word_b = side_a.written(name, value_b), side_b.written(name, value_a)
    if value_a == value_b or side_a.is_given(name, word_a) or side_b.is_given(name, word_b):
        return None
    stated = f"{side_a.name}: {name} {value_a}; {side_b.name}: {name} {value_b}"
    fixes = [f"{_option(side.table[name].name, word)} in {side.name}"
             for side, word in ((side_a, word_a), (side_b, word_b)) if word is not None]  # fmt: skip
    return _differs(name, name, stated, trap=True, fix=", or ".join(fixes))


def _table(engine: str) -> dict[str, Native]:
    """The engine's arguments by canonical name, with those that no scenario sets."""
    arguments = {name: item.argument(engine) for name, item in _PARAMETERS.items() if item.part == "engine"}
    return {name: argument for name, argument in arguments.items() if argument is not None}


def _option(name: str, value: Any) -> str:
    """An option of a server with its value, in words where it is a switch."""
    option = f"--{name.replace('_', '-')}"
    if isinstance(value, bool):
        return option if value else f"no {option}"
    return f"{option} {value}"


def _differs(argument: str, canonical: str, stated: str, *, trap: bool = False, fix: str = "") -> Problem:
    """The difference of one argument. `trap`: between two engines, which may not mean the same by it."""
    what = f"{argument} differs"
    if argument in _ASIDE:
        return Problem(NOTHING.severity, what, stated, NOTHING.does, "")
    parameter = _PARAMETERS.get(canonical)
    concept = of_parameter(parameter)
    does = parameter.trap if trap and parameter and parameter.trap else concept.does
    return Problem(concept.severity, what, stated, does, fix or "write it alike in both commands")


def _arguments(engine: str, words: Sequence[str], lacking: Sequence[str]) -> dict[str, Any]:
    """The server's arguments by name. The first word that belongs to no option is the model.

    `lacking`: options that the server does not have, which are left out. A word behind one is its value where another
    word is left for the model.
    """
    spec = registry.find(engine)
    spellings = spec.spellings if spec else {}
    switches = {argument.name for argument in _table(engine).values() if isinstance(argument.default, bool)}
    arguments: dict[str, Any] = {}
    loose: list[str] = []  # words behind options that the server does not have
    rest = deque(words)
    while rest:
        word = rest.popleft()
        value_follows = bool(rest) and not _OPTION.match(rest[0])
        if word.startswith("--") and _plain(word) in lacking:
            if value_follows and "=" not in word:
                loose.append(rest.popleft())
            continue
        if not word.startswith("-"):
            arguments.setdefault("model", word)
            continue
        name, equals, value = _option_parts(word, spellings)
        takes_value = name not in switches and not _SWITCH.fullmatch(name)
        if not equals and takes_value and value_follows:
            value, equals = rest.popleft(), True
        if name.startswith("no_") and not equals:
            arguments[name.removeprefix("no_")] = False
        else:
            arguments[name] = _value(value) if equals else True
    if loose and not any(title in arguments for title in _MODEL):
        arguments["model"] = loose[-1]
    return arguments


def _option_parts(word: str, spellings: Mapping[str, str]) -> tuple[str, bool, str]:
    """(Name of an option, whether its value is in the same word, that value). `spellings`: short form -> name."""
    if word[:2] in spellings and word.partition("=")[0] not in spellings:  # -O3, -qawq
        return spellings[word[:2]], True, word[2:]
    option, equals, value = word.partition("=")
    head, dot, key = option.partition(".")  # -cc.mode=3
    return spellings.get(head, head.lstrip("-").replace("-", "_")) + dot + key, bool(equals), value


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return {"True": True, "False": False}.get(text, text)
