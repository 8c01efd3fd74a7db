"""Whether an engine of an environment fits a scenario, checked before anything starts: a failing start takes
minutes.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from harness import extras
from harness.envs import interpreter, recipe
from harness.envs.bundles import bundle
from harness.envs.environment import Environment
from harness.envs.stored_arguments import accepted, of_tables
from harness.errors import BadInput, HarnessError, closest, collected, refuse
from harness.model_shape import Shape
from harness.triage.graph.subjects import exit_text
from scenarios import tiny
from scenarios.engines import canonical_request, registry
from scenarios.engines.accepted import Accepted
from scenarios.engines.ahead import ANSWER, BEGUN, Ahead, words
from scenarios.engines.spec import EngineSpec
from scenarios.settings import Scenario

PROGRAM = "scenarios.engines.ahead"
TIMEOUT_S = 60.0  # chosen: a user's mapping may import torch, which takes 20 s from a cold disk


def check_fit(
    environment: Environment, scenario: Scenario, mapping: Mapping[str, Any], say: Callable[[str], None]
) -> None:
    """Refuse what the engine cannot start with. Raises BadInput.

    That is a model that the engine cannot compute with, an engine whose plug-in its environment lacks, what a user's
    mapping needs and does not find, and arguments that the engine does not take.
    """
    spec = registry.get(environment.engine)
    shape = Shape.read(scenario.model.path)
    ahead = _given(environment, spec, scenario, mapping, shape.context or scenario.engine.max_model_len)
    where = "the harness's own mapping"
    fix = f"harness env arguments {environment.name}   # what the engine takes"
    if file := mapping.get("file"):
        where = f"the mapping {file}"
        fix = f"harness mapping {shlex.quote(file)} --engine {spec.name}   # checks the file in seconds, without a run"
    mistakes: list[HarnessError] = [BadInput(why, fix=fix) for why in ahead.refused]
    with collected(mistakes):
        _check_context(spec, scenario, shape)
    if spec.embedded and not file:  # what the harness itself gives it needs no check
        return refuse(mistakes)
    if spec.embedded:
        takes = of_tables(spec.name)
    else:
        # The stored list is of the pinned version and of the harness's own mapping. Only otherwise is the engine asked,
        # which takes seconds.
        unusual = bool(mapping) or environment.version != _pinned(environment)
        takes = accepted(environment, ask=unusual, say=say)
        with collected(mistakes):
            _check_model(spec, environment, scenario, shape, takes)
    names_fix = fix if spec.embedded else ""  # it has no environment whose arguments could be listed
    with collected(mistakes):
        _check_names(environment, "argument", ahead.engine, takes.engine, where, names_fix)
    with collected(mistakes):
        _check_names(environment, "sampling parameter", ahead.sampling, takes.sampling, where, names_fix)
    for name, value in ahead.words.items():
        if refusal := takes.refusal(name, value):
            text = f"{spec.title} {environment.version} does not take {name}={value!r}, which {where} gives; {refusal}"
            mistakes.append(BadInput(text, fix=fix))
    refuse(mistakes)


def _given(
    environment: Environment, spec: EngineSpec, scenario: Scenario, mapping: Mapping[str, Any], longest: int
) -> Ahead:
    """Return what the engine would be given. Raises BadInput where its environment lacks the engine.

    The engine's own interpreter makes it where it has code that this process has not: a user's mapping, or the engine
    of another package.
    """
    if not mapping and (registry.home(spec.name) is None or spec.embedded):
        arguments = _ours(spec, environment, scenario, longest)
        return Ahead(tuple(arguments), words=words(arguments))
    ahead = _ask(environment, spec, scenario, mapping, longest)
    if not ahead.brought:
        raise _not_brought(environment, "".join(ahead.refused))
    return ahead


def _check_context(spec: EngineSpec, scenario: Scenario, shape: Shape) -> None:
    longest = scenario.engine.max_model_len
    longer = bool(spec.longer_context) and os.environ.get(spec.longer_context) in ("1", "true", "True")
    if 0 < shape.context < longest and not longer:
        raise BadInput(
            f"engine.max_model_len = {longest}: the model {scenario.model.path} was made for {shape.context} tokens",
            fix=canonical_request.with_room(None, scenario, shape.context),
        )


def _check_model(spec: EngineSpec, environment: Environment, scenario: Scenario, shape: Shape, takes: Accepted) -> None:
    ranks = scenario.engine.tensor_parallel
    if shape.heads and shape.heads % ranks:
        fitting = max(size for size in range(1, ranks) if shape.heads % size == 0)
        raise BadInput(
            f"engine.tensor_parallel = {ranks}: the {shape.heads} attention heads of {scenario.model.path} cannot be "
            "shared evenly",
            fix=f"--set engine.tensor_parallel={fitting}",
        )
    if takes.head_sizes and shape.head_size and shape.head_size not in takes.head_sizes:
        sizes = ", ".join(map(str, takes.head_sizes))
        raise BadInput(
            f"{spec.title} {environment.version} on {environment.device} computes with heads of {sizes}, and those of "
            f"{scenario.model.path} have {shape.head_size}",
            fix=f"{tiny.OPTIONS['model.path']}{tiny.ANY_MODEL} with such heads, or another engine",
        )


def _check_names(
    environment: Environment, kind: str, names: Iterable[str], takes: tuple[str, ...], where: str, fix: str
) -> None:
    unknown = [name for name in names if name not in takes] if takes else []
    if not unknown:
        return
    spec = registry.get(environment.engine)
    title = spec.title if spec.embedded else f"{spec.title} {environment.version}"
    raise BadInput(
        f"{title} has no {kind} {' or '.join(map(repr, unknown))}, which {where} gives{closest(unknown[0], takes)}",
        fix=fix or f"harness env arguments {environment.name}   # lists all of them",
    )


def _not_brought(environment: Environment, why: str) -> BadInput:
    plugin = registry.home(environment.engine)
    package = plugin.entry.dist.name if plugin is not None and plugin.entry.dist else ""
    if not why:
        why = f"{package or 'the package'}, which brings the engine {environment.engine!r}, is not installed there"
    fix = f"uv pip list --python {environment.python}   # without what brings {environment.engine}: add it"
    if package:
        fix = extras.install_into(environment.python, package)
    where = f"the environment {environment.name} ({environment.python})"
    return BadInput(f"{where} cannot start {environment.engine}: {why}", fix=fix)


def _ours(spec: EngineSpec, environment: Environment, scenario: Scenario, longest: int) -> dict[str, Any]:
    requested = canonical_request.engine_asked(
        scenario.model.path, scenario.model.dtype, scenario.engine, device=environment.device
    )
    return {} if spec.maps is None else {**spec.machine(requested), **spec.maps(requested, longest)}


def _ask(
    environment: Environment, spec: EngineSpec, scenario: Scenario, mapping: Mapping[str, Any], longest: int
) -> Ahead:
    """Return what the engine's own interpreter makes of the request. A missing answer refuses nothing, except of a
    mapping that ends the interpreter."""
    request = {
        "engine": environment.engine, "scenario": scenario.to_json(), "mapping": dict(mapping),
        "device": environment.device, "longest_context": longest,
    }  # fmt: skip
    path = [str(bundle(plugins=False))]
    if spec.embedded and "PYTHONPATH" in os.environ:
        path.append(os.environ["PYTHONPATH"])
    variables = interpreter.clean(os.environ, **environment.env, PYTHONPATH=os.pathsep.join(path))
    if not environment.owned:
        variables["PYTHONDONTWRITEBYTECODE"] = "1"
    try:
        answer = subprocess.run(
            [environment.python or sys.executable, "-m", PROGRAM], input=json.dumps(request), capture_output=True,
            text=True, errors="replace", timeout=TIMEOUT_S, env=variables,
        )  # fmt: skip
        lines = answer.stdout.splitlines()
        line = next((line for line in reversed(lines) if line.startswith(ANSWER)), "")
        if not line and mapping and BEGUN in lines:
            ending = exit_text(answer.returncode)
            return Ahead(refused=(f"the mapping {mapping['file']} ends the process that executes it, with {ending}",))
        return Ahead.of(json.loads(line.removeprefix(ANSWER)))
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError, TypeError):
        return Ahead()


def _pinned(environment: Environment) -> str:
    """Return the version that the recipe pins, whose arguments the harness's own tests use."""
    try:
        return recipe.load(environment.engine, environment.device).version
    except BadInput:  # the embedded engine has no recipe
        return environment.version
