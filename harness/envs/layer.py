"""An environment on top of another one. It sees the packages of its base, its own come first, and the base is
unchanged.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from harness import dates
from harness.envs import home, interpreter, recipe
from harness.envs.environment import Environment, check_name, folder
from harness.envs.indexes import pip_configuration, uv_environment
from harness.envs.install import CommandFailed, run, uv_binary
from harness.envs.interpreter import Driver
from harness.errors import EnvironmentUnusable

_ASK = "import json, sys; print(json.dumps([p for p in sys.path if p.endswith(('site-packages', 'dist-packages'))]))"
_BELOW = "packages_below.pth"


@dataclasses.dataclass(frozen=True)
class Layer:
    """A layer over an environment.

    name: the layer's name as an environment.
    base: the environment below it.
    python: its interpreter.
    packages: the folder of its own packages.
    """

    name: str
    base: Environment
    python: Path
    packages: Path
    empty: frozenset[str]  # the names in `packages` before anything was installed

    @property
    def is_empty(self) -> bool:
        return {path.name for path in self.packages.iterdir()} - {"__pycache__"} <= self.empty

    def register(self) -> None:
        """Register the layer as an environment that backends can name. Raises EnvironmentUnusable where it does not
        fit the driver.
        """
        driver, base = Driver.here(), self.base
        facts = interpreter.inspect(self.python)
        if reason := interpreter.misfit(facts, base.engine, driver):
            raise reason
        plan = recipe.load(base.engine, base.device)
        made = dataclasses.replace(
            base, name=self.name, version=facts.versions[base.engine], python=str(self.python), owned=True,
            created=dates.now(), digest=plan.digest(base.asked, driver.ray, driver.minor),
        )  # fmt: skip
        home.write_json(folder(self.name) / "env.json", made.to_json())


@contextlib.contextmanager
def over(base: Environment, name: str) -> Iterator[Layer]:
    """Make a layer of that name over an environment, and remove it at the end. Raises EnvironmentUnusable."""
    path = folder(check_name(name, base.engine))
    with home.locked(f"env-{name}"):
        home.directory("envs")
        home.sweep(path)
        home.remove_tree(path)  # left by a search that was killed
        try:
            yield _make(base, name, path / "venv")
        finally:
            home.remove_tree(path)


def _make(base: Environment, name: str, venv: Path) -> Layer:
    environ = interpreter.clean(os.environ)
    command = [uv_binary(), "venv", "--no-project", "--python", base.python, str(venv)]
    try:
        answer = subprocess.run([base.python, "-c", _ASK], env=environ, cwd="/", capture_output=True, check=True)
        run(command, uv_environment(pip_configuration(), environ), lambda line: None, cwd=Path("/"))
    except subprocess.CalledProcessError as error:
        raise EnvironmentUnusable(f"{base.python} is not a Python interpreter that answers", fix=base.fix) from error
    except CommandFailed as failure:
        raise EnvironmentUnusable(f"{venv} cannot be made: {failure.reason()}", fix=base.fix) from failure
    (packages,) = venv.glob("lib/python3*/site-packages")
    lines = [f"import site; site.addsitedir({below!r})\n" for below in json.loads(answer.stdout)]
    (packages / _BELOW).write_text("".join(lines), encoding="utf-8")
    empty = frozenset(path.name for path in packages.iterdir())
    return Layer(name, base, venv / "bin" / "python", packages, empty)
