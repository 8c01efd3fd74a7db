"""Arguments that a job's command passes on to its engine as they are, held against the stored list of what it takes.

Nothing is asked of an engine here, so that a wrong argument is refused before anything starts. Without a list, nothing
is judged.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from harness.doctor.outcome import Fine, Outcome, Problem, Unseen
from harness.envs.environment import Environment, all_environments
from harness.envs.stored_arguments import accepted
from harness.errors import did_you_mean, near_names
from harness.frameworks.settings import Settings
from harness.frameworks.shared_meanings import ENGINE
from harness.frameworks.spec import Framework
from probes import redaction
from probes.engines import ENGINES
from scenarios.engines import native_arguments, registry
from scenarios.engines.canonical import BY_NAME
from scenarios.engines.parameter import Parameter

BY_ENGINE = "auto"  # a default that each engine reads in its own way


@dataclass(frozen=True)
class UnknownArgument:
    """An argument that an engine does not take.

    `setting`: its whole name in the framework. `near`: arguments that may be meant. `environment`: whose list was
    read. `is_of_job`: whether the job runs the version that the list is of.
    """

    setting: str
    name: str
    value: Any
    near: tuple[str, ...]
    environment: Environment
    is_of_job: bool

    @property
    def what(self) -> str:
        engine = f"{registry.get(self.environment.engine).title} {self.environment.version}"
        return f"{engine} has no argument {self.name}{did_you_mean(self.near)}"

    @property
    def listed(self) -> str:
        """The command that lists what the engine takes."""
        return f"harness env arguments {self.environment.name}"

    @property
    def mended(self) -> str:
        """The setting with the nearest argument; empty where none is near."""
        if not self.near:
            return ""
        head, _, rest = self.setting.rpartition(f".{self.name}")
        return f"{head}.{self.near[0]}{rest}"


def other_defaults(engine_a: str, engine_b: str) -> Iterator[tuple[Parameter, str]]:
    """Yield (parameter, what each engine does without it) where the engines then do different things."""
    for name, parameter in BY_NAME.items():
        first = native_arguments.table(parameter.part, engine_a).get(name)
        second = native_arguments.table(parameter.part, engine_b).get(name)
        if first is None or second is None or not parameter.results or first.note == second.note:
            continue
        if first.default != second.default or first.default == BY_ENGINE:
            titles = [registry.get(engine).title for engine in (engine_a, engine_b)]
            yield parameter, f"{titles[0]}: {first.name} {first.note}; {titles[1]}: {second.name} {second.note}"


def drawing_engine(framework: Framework, settings: Settings) -> str:
    """The engine that draws in a job; empty if it is not known."""
    for name, meaning in framework.meanings.items():
        if meaning.concept == ENGINE and (name in settings.values or name in settings.unknown):
            value = settings.values.get(name)
            return "" if value is None else str(meaning.read(value, settings))
    return framework.engines[0] if framework.engines else ""


def installed_version(engine: str, program: str) -> str:
    """The version of an engine where this program, its own or an interpreter, is installed; empty where it is not."""
    if not (path := shutil.which(program)):
        return ""
    packages = [str(folder) for folder in Path(path).parent.parent.glob("lib/python3*/site-packages")]
    names = [engine, *(ENGINES[engine].packages if engine in ENGINES else ())]
    versions = (each.version for name in names for each in distributions(name=name, path=packages))
    return next(versions, "")


def passed_on(framework: Framework, values: Mapping[str, Any], engine: str) -> dict[str, Any]:
    """The settings of a command that are an argument of the engine itself, by their whole names."""
    if not framework.engine_kwargs:
        return {}
    prefix = f"{framework.engine_kwargs}.{engine}."
    return {name: value for name, value in values.items() if name.startswith(prefix) and value is not None}


def unknown_arguments(
    framework: Framework, values: Mapping[str, Any], engine: str, python: str
) -> list[UnknownArgument] | None:
    """The arguments that the engine does not take; None where no list of its arguments is stored.

    `python`: the interpreter of the job; empty if it is not known.
    """
    version = installed_version(engine, python) if python else ""
    listed = _list_of(engine, version)
    if listed is None:
        return None
    environment, names = listed
    begins = len(f"{framework.engine_kwargs}.{engine}.")
    unknown = []
    for setting, value in passed_on(framework, values, engine).items():
        name = setting[begins:].partition(".")[0]
        if name.replace("-", "_") not in names:
            near = tuple(near_names(name, sorted(names)))
            unknown.append(UnknownArgument(setting, name, value, near, environment, environment.version == version))
    return unknown


def judged(framework: Framework, values: Mapping[str, Any], engines: Sequence[str], python: str) -> Iterator[Outcome]:
    """What is wrong with the arguments that a command passes on to these engines."""
    for engine in engines:
        settings = passed_on(framework, values, engine)
        if not settings:
            continue
        unknown = unknown_arguments(framework, values, engine, python)
        if unknown is None:
            why = f"whether {engine} takes {', '.join(settings)} is not known: no list of its arguments is stored"
            yield Unseen(why, f"harness env create {engine}   # stores it")
            continue
        for argument in unknown:
            yield Problem(
                "error" if argument.is_of_job else "warning",
                argument.what,
                redaction.arguments([f"{argument.setting}={argument.value}"])[0],
                "the engine refuses it, and the job ends before its first step"
                if argument.is_of_job
                else "if the job's engine is of that version, it refuses it, and the job ends before its first step",
                f"give {argument.near[0]} in its place   # {argument.listed} lists what it takes"
                if argument.near
                else f"{argument.listed}   # lists what it takes",
            )
        if not unknown:
            yield Fine(f"{engine} takes all {len(settings)} arguments that the command passes on to it")


def _list_of(engine: str, version: str) -> tuple[Environment, frozenset[str]] | None:
    """The environment whose list is of this version, or else of any, with the names; None where none is stored."""
    for environment in sorted(all_environments(), key=lambda item: (item.version != version, item.name != engine)):
        if environment.engine != engine:
            continue
        takes = accepted(environment, ask=False)
        # verl starts vLLM by the options of its server, and SGLang by its arguments.
        if takes.engine and takes.server:
            return environment, frozenset((*takes.engine, *takes.server))
    return None
