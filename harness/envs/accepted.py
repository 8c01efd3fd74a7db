"""Which arguments the engine of an environment takes: kept in its folder when it is made, and asked once where it was
made before, or is somebody else's."""

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

PROGRAM = "scenarios.engines.accepted"


def accepted(environment: Environment, *, ask: bool, say: Callable[[str], None] = lambda line: None) -> Accepted:
    """What is known of it; nothing where nothing is kept and `ask` is off, or where the engine does not say."""
    kept = _read(environment)
    if kept is not None or not ask or not registry.get(environment.engine).accepts:
        return kept or Accepted()
    say(f"asking {environment.engine} {environment.version} which arguments it takes, once for this environment")
    home.directory("envs")
    environment.folder.mkdir(exist_ok=True)
    command = [environment.python, "-m", PROGRAM, environment.engine, environment.version,
               str(environment.folder / FILE)]  # fmt: skip
    writes = {} if environment.owned else {"PYTHONDONTWRITEBYTECODE": "1"}
    variables = interpreter.clean(os.environ, **environment.env, **writes, PYTHONPATH=str(bundle(plugins=False)))
    with contextlib.suppress(CommandFailed):  # what it takes is found when it starts
        run(command, variables, lambda line: None, cwd=Path("/"))
    return _read(environment) or Accepted()


def keeping(engine: str, version: str, file: Path) -> tuple[str, dict[str, str]]:
    """A statement that keeps the list in `file`, to follow one that imports the engine; and the variables it needs."""
    statement = f"from {PROGRAM} import keep; keep({engine!r}, {version!r}, {str(file)!r})"
    return statement, {"PYTHONPATH": str(bundle(plugins=False))}


def _read(environment: Environment) -> Accepted | None:
    try:
        data = json.loads((environment.folder / FILE).read_text(encoding="utf-8"))
        return Accepted.of(data) if data["version"] == environment.version else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
