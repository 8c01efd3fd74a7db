"""Words of a command line that the parser refuses because they are at another place: an argument that was typed as an
option, and an engine that was typed as an argument."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from harness.amended_command import parsed_parts
from probes import redaction


def argument_called(command: Any, option: str) -> str:
    """The argument of a command that a wrong option is called after; empty if there is none."""
    name = option.lstrip("-").replace("-", "_")
    return name if any(argument.name == name for argument in _arguments(command)) else ""


def joined_engines(word: str) -> list[str]:
    """The engines of a word that joins them: vllm,sglang or hf/hf. Empty for any other word."""
    parts = [part for part in re.split(r"[,;/+:|]", word) if part]
    return parts if len(parts) > 1 and all(map(is_engine, parts)) else []


def in_place(command: Any, path: Sequence[str], words: Sequence[str]) -> str:
    """The command line `path words` with each argument and engine at its own place. Empty if a word has no place, or an
    argument no value."""
    values, positional, options, job = _sorted_out(command, words)
    positional = _placeable(command, path, positional)
    free = [argument.name for argument in _arguments(command) if argument.name not in values]
    option = _option_of_engine(command, path)
    backend = [word for word in positional if option and is_engine(word)]
    positional = [word for word in positional if word not in backend]
    if [*path] == ["run"] and len(backend) == 2 and not (positional or options):
        return shlex.join(["harness", "parity", *backend])
    if len(positional) > len(free) or len(backend) + (option in options) > 1:
        return ""
    values |= dict(zip(free, positional, strict=False))
    for argument in _arguments(command):
        if argument.required and argument.name not in values:
            values[argument.name] = _proposed(path, argument.name, values)
    open_ended = (item for item in command.params if item.param_type_name == "argument" and item.nargs == -1)
    if "" in values.values() or any(item.required for item in open_ended):
        return ""
    arguments = [values[argument.name] for argument in _arguments(command) if argument.name in values]
    engine = [option, *backend] if backend else []
    return shlex.join(["harness", *redaction.arguments([*path, *arguments, *options, *engine, *job])])


def _option_of_engine(command: Any, path: Sequence[str]) -> str:
    """The option of a command that names its only engine; empty without one."""
    if path[:1] == ["env"]:  # an environment may be called as its engine
        return ""
    names = [name for item in command.params for name in item.opts]
    return next((name for name in ("--backend", "--engine") if name in names), "")


def _placeable(command: Any, path: Sequence[str], positional: list[str]) -> list[str]:
    """The words without a name that can have a place: none of a command that takes no argument, and of a comparison
    each engine of a word that joins several."""
    if not any(item.param_type_name == "argument" for item in command.params):
        return []
    if [*path] == ["parity"]:
        return [engine for word in positional for engine in joined_engines(word) or [word]]
    return positional


def _proposed(path: Sequence[str], name: str, values: Mapping[str, str]) -> str:
    """The value of an argument that was not typed; empty where nothing is as good as anything else."""
    if name == "scenario":
        return first_scenario()
    if [*path] != ["parity"]:
        return ""
    from scenarios.engines import registry

    return next((engine for engine in registry.names(embedded=False) if engine not in values.values()), "")


def _sorted_out(command: Any, words: Sequence[str]) -> tuple[dict[str, str], list[str], list[str], tuple[str, ...]]:
    """(argument -> the value that was typed as an option, the words without a name, the options, the job's command)."""
    values: dict[str, str] = {}
    positional: list[str] = []
    options: list[str] = []
    parts, job = parsed_parts(command, words)
    called = ""  # the argument whose value the next word is
    for typed in parts:
        name, equals, value = typed[0].partition("=")
        argument = argument_called(command, name) if name.startswith("-") else ""
        if called and not name.startswith("-"):
            values[called], called = typed[0], ""
        elif argument and equals:
            values[argument] = value
        elif argument:
            called = argument
        elif name.startswith("-"):
            options += typed
        else:
            positional.append(typed[0])
    if "scenario" in values and not _is_scenario(values["scenario"]):
        values["scenario"] = first_scenario()
    return values, positional, options, job


def _arguments(command: Any) -> list[Any]:
    """The arguments that take one value each."""
    return [item for item in command.params if item.param_type_name == "argument" and item.nargs == 1]


def is_engine(word: str) -> bool:
    """Whether a word is an engine, or one of a release or an environment: vllm@0.31."""
    from scenarios.engines import registry

    return word.partition("@")[0] in registry.names()


def _is_scenario(word: str) -> bool:
    from harness.config import catalog

    return word in catalog() or word.endswith(".toml")


def first_scenario() -> str:
    """The scenario to propose where none was typed."""
    from harness.config import catalog

    return catalog()[0]
