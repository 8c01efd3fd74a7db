"""Register an interpreter that the user already has, and remove environments."""

from __future__ import annotations

import shlex
from pathlib import Path

from harness import dates
from harness.envs import home, interpreter, recipe
from harness.envs.environment import Device, Environment, check_name, find_whole, folder, is_name, unknown
from harness.envs.interpreter import Driver
from harness.errors import BadInput, EnvironmentUnusable
from harness.similar_names import similar
from scenarios.engines import registry


def add(name: str, engine: str, python: str) -> Environment:
    """Register an interpreter that the user already has. Nothing is ever written into its environment.

    The engine is imported once as a check (seconds). If this interpreter is already registered under the name, its
    versions and device are updated; another interpreter is refused. Raises BadInput or EnvironmentUnusable.
    """
    engines = registry.names(embedded=False)
    if engine not in engines:
        raise BadInput(
            f"there is no engine {engine!r} (there are: {', '.join(engines)})",
            fix=f"--engine {next(iter(similar(engine, engines)), engines[0])}",
        )
    check_name(name, engine)
    if not Path(python).exists():
        here = f'harness env add {name} --engine {engine} --python "$(command -v python3)"'
        raise EnvironmentUnusable(f"there is no interpreter at {python}", fix=here)
    driver = Driver.here()
    facts = interpreter.inspect(python)
    if reason := interpreter.misfit(facts, engine, driver):
        raise reason
    device: Device = "cuda" if facts.cuda else "cpu"
    plan = recipe.load(engine, device)
    variables = dict(plan.env)
    if facts.python != driver.python:  # by default Ray compares patch versions too
        variables["RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL"] = "minor"
    untouched = {**variables, "PYTHONDONTWRITEBYTECODE": "1"}
    if failure := interpreter.import_failure(facts.path, plan.imports, untouched):
        statement = shlex.join([facts.path, "-c", plan.imports])
        raise EnvironmentUnusable(f"{engine} cannot be imported by {facts.path}: {failure}", fix=statement)
    environment = Environment(
        name=name,
        engine=engine,
        version=facts.versions[engine],
        python=facts.path,
        python_version=facts.python,
        ray=facts.versions["ray"],
        torch=facts.versions["torch"],
        device=device,
        owned=False,
        created=dates.now(),
        shims=facts.shims,
        env=variables,
    )
    with home.locked(f"env-{name}"):
        existing = find_whole(name)
        if existing is not None and existing.owned:
            raise BadInput(f"environment {name!r} exists and was made by the harness", fix=f"harness env remove {name}")
        if existing is not None and (existing.engine, existing.python) != (engine, facts.path):
            raise BadInput(
                f"environment {name!r} is {existing.engine} of {existing.python}", fix=f"harness env remove {name}"
            )
        home.directory("envs")
        folder(name).mkdir(exist_ok=True)
        home.write_json(folder(name) / "env.json", environment.to_json())
    return environment


def remove(name: str) -> Path:
    """Remove an environment that the harness made, or unregister an interpreter. Raises BadInput when there is none."""
    if not is_name(name) or not folder(name).exists():
        raise BadInput(unknown(name).message, fix="harness env list")
    with home.locked(f"env-{name}"):
        path = folder(name)
        home.remove_tree(path)
        return path
