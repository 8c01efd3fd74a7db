"""Compares two commands that start an engine's server (`vllm serve MODEL`, `python -m sglang.launch_server`), argument
by argument and before either runs.

Two servers of one engine are compared by its own names; servers of two engines by the canonical parameters that their
arguments amount to. What has no canonical meaning is reported as not compared, never as equal.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from harness.doctor.outcome import Fine, Outcome, Problem, Unseen
from harness.envs.environment import find_whole
from harness.errors import closest
from harness.frameworks.argv import taken_apart
from harness.frameworks.detection import without_prefixes
from harness.frameworks.settings import SHELL
from harness.frameworks.shared_meanings import CONCEPTS
from probes import redaction
from probes.engines import ENGINES
from reports.doctor_model import Severity
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
_COMPUTES = "it decides what is computed, or in which order"
_DOES = "what it changes is not known here: a comparison of the runs may show it"


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


def read(
    name: str, command: Sequence[str], served: Callable[[str], tuple[str, Sequence[str]]] = lambda engine: ("", ())
) -> Server | None:
    """Return the server that a command starts; None for any other command.

    `served`: returns the installed version of an engine and all options of its server; none where that is not known.
    """
    words = without_prefixes(command)
    for at, word in enumerate(words):
        for engine, process in ENGINES.items():
            serves = os.path.basename(word) == engine and words[at + 1 : at + 2] == ["serve"]
            module = bool(process.modules) and words[at - 1] == "-m" and word.startswith(process.modules)
            if serves or module:
                start = taken_apart(command, "$^", os.environ)
                mine = {key: value for key, value in start.variables.items() if os.environ.get(key) != value}
                server_words = words[at + 1 + serves :]
                version = _version(engine, words[at - 2] if module else word)
                lacking = _lacking(server_words, version, *served(engine))
                arguments = _arguments(engine, server_words, lacking)
                models = [str(arguments.pop(title)) for title in _MODEL if title in arguments]
                return Server(
                    name=name, engine=engine, model="".join(models[:1]), arguments=arguments, variables=mine,
                    version=version, lacking=lacking,
                )  # fmt: skip
    return None


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
            yield Problem("warning", f"the variable {name} differs", f"A: {stated[0]}; B: {stated[1]}", _DOES,
                          f"set {name} alike for both commands")  # fmt: skip
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
    has = [_plain(f"--{name}") for name in names] if version == installed else []
    options = (_plain(word) for word in words if word.startswith("--"))
    # Its parser takes abbreviations.
    return tuple(
        dict.fromkeys(option for option in options if has and not any(full.startswith(option) for full in has))
    )


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
    may_be_one = any(map(_PATH.match, models)) and len({os.path.basename(model) for model in models}) == 1
    does = "a folder may hold the same model" if may_be_one else CONCEPTS["policy"].does
    return Problem("warning" if may_be_one else "error", "model differs", stated, does, "serve one model in both")


def _versions(server_a: Server, server_b: Server) -> Outcome:
    stated = f"{server_a.build}; {server_b.build}"
    if server_a.engine != server_b.engine:
        fix = f"harness parity {server_a.engine} {server_b.engine}   # compares what they compute"
        return Problem("info", "the engines differ", stated, "settings are compared by what they mean in each", fix)
    if not (server_a.version and server_b.version):
        return Unseen(f"the versions: {stated}")
    if server_a.version == server_b.version:
        return Fine(stated)
    return Problem("warning", "the versions of the engine differ", stated, _DOES, "start both of one environment")


def _version(engine: str, program: str) -> str:
    """The version of an engine where this program, its own or an interpreter, is installed; else that of the harness's
    environment of this engine; empty where neither is there."""
    environment = find_whole(engine)
    if path := shutil.which(program):
        packages = [str(folder) for folder in Path(path).parent.parent.glob("lib/python3*/site-packages")]
        names = {engine, *ENGINES[engine].packages}
        if version := next((each.version for each in distributions(path=packages) if each.name in names), ""):
            return version
    return environment.version if environment else ""


def _native(server_a: Server, server_b: Server) -> Iterator[Outcome | None]:
    canonical = {argument.name: name for name, argument in _table(server_a.engine).items()}
    for argument in sorted({*server_a.arguments, *server_b.arguments}):
        if server_a.arguments.get(argument) == server_b.arguments.get(argument):
            yield None
        else:
            stated = f"{server_a.stated(argument)}; {server_b.stated(argument)}"
            yield _differs(argument, canonical.get(argument, ""), stated)


def _canonical(server_a: Server, server_b: Server) -> Iterator[Outcome | None]:
    sides = [(side, _table(side.engine)) for side in (server_a, server_b)]
    for name in _PARAMETERS:
        if not any(name in table and table[name].name in side.arguments for side, table in sides):
            continue
        values = [table[name].value_in(side.arguments) if name in table else None for side, table in sides]
        # SGLang keeps tokens of its context for itself: what our mapping writes for the other's value is alike, too.
        written = [_written(table.get(name), other) for (_, table), other in zip(sides, values[::-1], strict=True)]
        if values[0] == values[1] or any(
            word is not None and side.arguments.get(table[name].name) == word
            for (side, table), word in zip(sides, written, strict=True)
        ):
            yield None
            continue
        stated = "; ".join(f"{side.name}: {name} {value}" for (side, _), value in zip(sides, values, strict=True))
        fixes = [
            f"{_option(table[name].name, word)} in {side.name}"
            for (side, table), word in zip(sides, written, strict=True)
            if word is not None
        ]
        yield _differs(name, name, stated, trap=True, fix=", or ".join(fixes))
    for side, table in sides:
        meant = {argument.name for argument in table.values()} | _ASIDE
        if others := sorted({*side.arguments} - meant):
            yield Unseen(f"{', '.join(others)} of {side.engine} in {side.name}: what it is elsewhere is not known here")


def _table(engine: str) -> dict[str, Native]:
    """The engine's arguments by canonical name, with those that no scenario sets."""
    arguments = {name: item.argument(engine) for name, item in _PARAMETERS.items() if item.part == "engine"}
    return {name: argument for name, argument in arguments.items() if argument is not None}


def _written(argument: Native | None, value: Any) -> Any:
    """What the engine is to be given for a canonical value; None where it has no such argument or the value is not
    known."""
    return None if argument is None or value is None else argument.write(value)


def _option(name: str, value: Any) -> str:
    """An option of a server with its value, in words where it is a switch."""
    option = f"--{name.replace('_', '-')}"
    if isinstance(value, bool):
        return option if value else f"no {option}"
    return f"{option} {value}"


def _differs(argument: str, canonical: str, stated: str, *, trap: bool = False, fix: str = "") -> Problem:
    """The difference of one argument. `trap`: between two engines, which may not mean the same by it."""
    parameter = _PARAMETERS.get(canonical)
    results = parameter is not None and parameter.results
    severity: Severity = "info" if argument in _ASIDE else "error" if results else "warning"
    if severity == "info":
        return Problem(severity, f"{argument} differs", stated, "it bears on no number that is compared", "")
    does = parameter.trap if trap and parameter and parameter.trap else _COMPUTES if results else _DOES
    return Problem(severity, f"{argument} differs", stated, does, fix or "write it alike in both commands")


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
    at = 0
    while at < len(words):
        option, equals, value = words[at].partition("=")
        at += 1
        if option.startswith("--") and _plain(option) in lacking:
            if not equals and at < len(words) and not _OPTION.match(words[at]):
                loose.append(words[at])
                at += 1
            continue
        if not option.startswith("-"):
            arguments.setdefault("model", option + equals + value)
            continue
        if option[:2] in spellings and option not in spellings:  # -O3, -qawq
            option, equals, value = option[:2], "=", option[2:] + equals + value
        head, dot, key = option.partition(".")  # -cc.mode=3
        name = spellings.get(head, head.lstrip("-").replace("-", "_")) + dot + key
        takes_value = name not in switches and not _SWITCH.fullmatch(name)
        if not equals and at < len(words) and takes_value and not _OPTION.match(words[at]):
            value, equals = words[at], "="
            at += 1
        if name.startswith("no_") and not equals:
            arguments[name.removeprefix("no_")] = False
        else:
            arguments[name] = _value(value) if equals else True
    if loose and not any(title in arguments for title in _MODEL):
        arguments["model"] = loose[-1]
    return arguments


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return {"True": True, "False": False}.get(text, text)
