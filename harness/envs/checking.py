"""Check that an environment works: versions, shims, imports, and one prompt through the real engine."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from harness import extras
from harness.envs import interpreter, recipe
from harness.envs.bundles import bundle
from harness.envs.environment import Environment
from harness.envs.install import CommandFailed, run
from harness.envs.interpreter import Driver, Interpreter
from harness.envs.progress import Progress, Silent
from harness.errors import EnvironmentUnusable

Outcome = Literal["ok", "failed", "not run"]


@dataclass(frozen=True)
class Check:
    """The result of one check of an environment.

    name: what was checked.
    outcome: ok, failed or not run.
    found: what was found, in words.
    fix: the command that may repair a failed check.
    """

    name: str
    outcome: Outcome
    found: str
    fix: str = ""

    def to_json(self) -> dict[str, str]:
        return asdict(self)


def check(environment: Environment, *, generate: bool = True, progress: Progress | None = None) -> list[Check]:
    """Run every check of one environment, in order.

    The imports take 10 to 40 s, and generation with `generate` about the same again.
    """
    progress = progress or Silent()
    progress.step("asking the interpreter")
    try:
        facts = interpreter.inspect(environment.python)
    except EnvironmentUnusable as error:
        return [Check("interpreter", "failed", error.message, environment.fix)]
    checks = _versions(environment, facts)
    progress.step(f"importing {environment.engine}")
    checks.append(_import(environment))
    if not generate:
        return [*checks, Check("generation", "not run", "--no-generate")]
    if any(item.outcome == "failed" for item in checks):
        return [*checks, Check("generation", "not run", "the checks above failed")]
    progress.step("one prompt through the engine")
    return [*checks, _generation(environment)]


def _compared(name: str, good: bool, measured: str, fix: str) -> Check:
    return Check(name, "ok", measured) if good else Check(name, "failed", measured, fix)


def _versions(environment: Environment, facts: Interpreter) -> list[Check]:
    """What is installed, against the driver's own and against what was there when the environment was made."""
    driver, rebuild = Driver.here(), environment.fix
    version, ray = facts.versions.get(environment.engine, ""), facts.versions.get("ray", "")
    ray_fix = rebuild if environment.owned else extras.install_into(environment.python, f"ray=={driver.ray}")
    as_made = version == environment.version
    engine_text = (version or "absent") + ("" if as_made else f" (was {environment.version})")
    return [
        _compared("python", facts.minor == driver.minor, f"{facts.python} (driver {driver.python})", rebuild),
        _compared("ray", ray == driver.ray, f"{ray or 'absent'} (driver {driver.ray})", ray_fix),
        _compared(environment.engine, bool(version) and as_made, engine_text, rebuild),
        Check("torch", "ok", f"{facts.versions.get('torch')} ({'CUDA ' + facts.cuda if facts.cuda else 'CPU'})"),
        _compared("shims", facts.shims == environment.shims, ", ".join(facts.shims) or "none", rebuild),
    ]


def _import(environment: Environment) -> Check:
    started = time.monotonic()
    writes = {} if environment.owned else {"PYTHONDONTWRITEBYTECODE": "1"}
    plan = recipe.load(environment.engine, environment.device)
    failure = interpreter.import_failure(environment.python, plan.imports, {**environment.env, **writes})
    return _compared("import", not failure, failure or f"{time.monotonic() - started:.1f} s", environment.fix)


def smoke_command(environment: Environment) -> tuple[list[str], dict[str, str]]:
    """Return (command, environment) to generate from one prompt in the engine's own interpreter."""
    variables = {**environment.env, "PYTHONPATH": str(bundle(plugins=True))}
    if not environment.owned:
        variables["PYTHONDONTWRITEBYTECODE"] = "1"
    argv = [environment.python, "-m", "scenarios.engines.smoke", environment.engine, "--device", environment.device]
    return argv, interpreter.clean(os.environ, **variables)


def _generation(environment: Environment) -> Check:
    rebuild = environment.fix
    argv, variables = smoke_command(environment)
    lines: list[str] = []
    try:
        run(argv, variables, lines.append, cwd=Path("/"))
    except CommandFailed as failure:
        answer = _answer(failure.tail)
        return Check("generation", "failed", str(answer.get("error") or failure.reason()), rebuild)
    answer = _answer(lines)
    if not answer.get("tokens"):
        return Check("generation", "failed", "the engine ended without generating a token", rebuild)
    if not answer.get("finite"):
        return Check("generation", "failed", "the engine reported log-probabilities that are not finite", rebuild)
    active = f", shims active: {', '.join(answer['shims'])}" if answer.get("shims") else ""
    return Check(
        "generation",
        "ok",
        f"{answer['tokens']} tokens; engine started in {answer['start_s']:.1f} s, "
        f"generated in {answer['generate_s']:.1f} s{active}",
    )


def _answer(lines: list[str]) -> dict[str, Any]:
    """Return the last line that is a JSON object with the key `smoke`. Engines print to the same stream."""
    for line in reversed(lines):
        if line.startswith('{"smoke"'):
            try:
                return dict(json.loads(line))
            except ValueError:
                continue
    return {}
