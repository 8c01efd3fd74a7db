"""The engine environments of `harness env`, checked with the checks of `harness env` itself."""

from __future__ import annotations

from collections.abc import Callable

from harness import envs
from harness.envs import interpreter
from harness.envs.environment import Environment
from harness.envs.interpreter import Driver
from harness.errors import EnvironmentUnusable
from reports.doctor_model import Hazard, Passed, Unchecked

VERSIONS, IMPORTS = "environments", "engine-imports"
RULES = {
    VERSIONS: "Whether the interpreter and the packages of each environment of `harness env` fit this installation.",
    IMPORTS: "Whether each engine can be imported in its environment.",
}
_WHY = "the engine's actor does not start, or fails at its first call"


def look(
    *, imports: bool = False, progress: Callable[[str], None] = lambda text: None
) -> list[Hazard | Passed | Unchecked]:
    """Check each environment: its versions against the driver in 0.2 s; with `imports` also its engine, 10 to 40 s."""
    try:
        existing = envs.all_environments()
    except EnvironmentUnusable as error:
        return [
            Hazard(
                check=VERSIONS,
                severity="error",
                what="an engine environment cannot be read",
                where=("harness env",),
                measured=error.message,
                why=_WHY,
                fix=error.fix or "",
            )
        ]
    if not existing:
        return [Unchecked(VERSIONS, ("harness env",), "there is no engine environment yet", "harness env create vllm")]
    # What an environment has to fit is the interpreter of this process, which drives the engines.
    try:
        driver = Driver.here()
    except EnvironmentUnusable as error:  # the core installation runs no scenarios
        return [Unchecked(VERSIONS, ("harness env",), error.message, error.fix or "")]
    answers: list[Hazard | Passed | Unchecked] = []
    for environment in existing:
        progress(f"environment {environment.name}")
        answers += _thorough(environment) if imports else [_versions(environment, driver)]
    if not imports:
        answers.append(
            Unchecked(
                IMPORTS,
                ("harness env",),
                "the engines were not imported (10 to 40 s each)",
                "harness doctor --engines   # or: harness env check",
            )
        )
    return answers


def _versions(environment: Environment, driver: Driver) -> Hazard | Passed:
    where = (f"environment {environment.name}",)
    try:
        facts = interpreter.inspect(environment.python)
        wrong = interpreter.misfit(facts, environment.engine, driver)
    except EnvironmentUnusable as error:
        facts, wrong = None, error
    if wrong is not None:
        return Hazard(
            check=VERSIONS,
            severity="error",
            what="an engine environment does not fit the driver",
            where=where,
            measured=wrong.message,
            why=_WHY,
            fix=environment.fix if environment.owned else wrong.fix or environment.fix,
        )
    assert facts is not None
    versions = ", ".join(f"{name} {version}" for name, version in facts.versions.items() if version)
    return Passed(VERSIONS, where, f"Python {facts.python}, {versions}")


def _thorough(environment: Environment) -> list[Hazard | Passed | Unchecked]:
    where = (f"environment {environment.name}",)
    answers: list[Hazard | Passed | Unchecked] = []
    for item in envs.check(environment, generate=False):
        name = IMPORTS if item.name == "import" else VERSIONS
        if item.outcome == "failed":
            answers.append(
                Hazard(
                    check=name,
                    severity="error",
                    what=f"the check {item.name} of an engine environment failed",
                    where=where,
                    measured=item.found,
                    why=_WHY,
                    fix=item.fix,
                )
            )
        elif item.outcome == "ok":
            answers.append(Passed(name, where, f"{item.name} {item.found}"))
    return answers
