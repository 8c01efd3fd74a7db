"""The arguments that the engine of an environment accepts, stored in the environment's folder.

They are stored when the harness makes the environment. For an older or a registered environment the engine is queried
once.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path

from harness.envs import home, interpreter
from harness.envs.bundles import bundle
from harness.envs.environment import Environment
from harness.envs.install import CommandFailed, run
from scenarios.engines import registry
from scenarios.engines.accepted import FILE, Accepted
from scenarios.engines.mapping import PARTS
from scenarios.engines.native_arguments import table

PROGRAM = "scenarios.engines.accepted"


def accepted(
    environment: Environment, *, ask: bool, renew: bool = False, say: Callable[[str], None] = lambda line: None
) -> Accepted:
    """Return the accepted arguments of an environment's engine.

    Return an empty result where nothing is stored and `ask` is False, and where the engine cannot list them. `renew`:
    a list without choices, which an older version of the harness stored, counts as none.
    """
    kept = _read(environment, with_choices=renew)
    if kept is not None or not ask or not registry.get(environment.engine).accepts:
        return kept or Accepted()
    say(f"asking {environment.engine} {environment.version} which arguments it takes, once for this environment")
    home.directory("envs")
    environment.folder.mkdir(exist_ok=True)
    command = [environment.python, "-m", PROGRAM, environment.engine, environment.version,
               str(environment.folder / FILE)]  # fmt: skip
    writes = {} if environment.owned else {"PYTHONDONTWRITEBYTECODE": "1"}
    variables = interpreter.clean(os.environ, **environment.env, **writes, PYTHONPATH=str(bundle(plugins=False)))
    with contextlib.suppress(CommandFailed):  # the engine itself reports a wrong argument when it starts
        run(command, variables, lambda line: None, cwd=Path("/"))
    return _read(environment) or Accepted()


def of_tables(engine: str) -> Accepted:
    """Return the arguments of the embedded engine, which reads those of the harness's tables alone."""
    of_engine, of_sampling = (tuple(each.name for each in table(part, engine).values()) for part in PARTS)
    return Accepted(of_engine, of_sampling)


def keeping(engine: str, version: str, file: Path) -> tuple[str, dict[str, str]]:
    """Return (a statement that stores the list in `file`, the variables that it needs).

    The statement follows one that imports the engine.
    """
    statement = f"from {PROGRAM} import keep; keep({engine!r}, {version!r}, {str(file)!r})"
    return statement, {"PYTHONPATH": str(bundle(plugins=False))}


def _read(environment: Environment, *, with_choices: bool = False) -> Accepted | None:
    try:
        data = json.loads((environment.folder / FILE).read_text(encoding="utf-8"))
        is_stored = data["version"] == environment.version and ("choices" in data or not with_choices)
        return Accepted.of(data) if is_stored else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
