"""One engine environment: an interpreter that can import an engine, and the `env.json` that describes it."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from harness.envs import home
from harness.errors import BadInput, EnvironmentUnusable
from scenarios.engines import registry

Device = Literal["cpu", "cuda"]

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,63}")  # starts with a letter, so that engine@name is never engine@version


@dataclass(frozen=True)
class Environment:
    """An interpreter with an engine. `owned`: made by the harness; other environments are the user's and are only
    read.
    """

    name: str
    engine: str
    version: str  # the engine's version
    python: str  # absolute path of the interpreter; a symbolic link inside a venv stays one
    python_version: str
    ray: str
    torch: str
    device: Device
    owned: bool
    created: str = ""  # UTC, ISO 8601
    asked: str = ""  # the requested version; empty stands for the recipe's
    digest: str = ""  # the digest of the recipe that it was made from
    shims: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)  # variables that every process of the engine needs

    @property
    def folder(self) -> Path:
        return folder(self.name)

    @property
    def exists(self) -> bool:
        """Whether its interpreter is still there."""
        return Path(self.python).exists()

    @property
    def fix(self) -> str:
        """The command that makes the environment again, or registers it again."""
        if self.owned:
            return f"{create_command(self.engine, self.asked, self.name)} --recreate"
        if not self.exists:
            return (
                f"harness env remove {self.name}   # or where it is now: "
                f"harness env add {self.name} --engine {self.engine} --python PATH"
            )
        return f"harness env add {self.name} --engine {self.engine} --python {shlex.quote(self.python)}"

    def to_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "shims": list(self.shims)}

    @staticmethod
    def from_json(data: dict[str, Any]) -> Environment:
        """Rebuild an environment from `to_json`. Keys of a newer harness are ignored; missing keys raise TypeError."""
        field_names = {item.name for item in dataclasses.fields(Environment)}
        values = {key: value for key, value in data.items() if key in field_names}
        return Environment(**{**values, "shims": tuple(values.get("shims", ()))})


def is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def check_name(name: str, engine: str = "") -> str:
    """Return the name. Raises BadInput for an invalid name, and for one that an environment of that engine cannot
    have.
    """
    if engine and name != engine and name in registry.names():
        raise BadInput(
            f"an environment of {engine} cannot be called {name!r}: that is another engine",
            fix=f"{engine}-mine",
            instead=name,
        )
    if not is_name(name):
        raise BadInput(
            f"{name!r} cannot name an environment: a letter first, then letters, digits, '.', '_' or '-'",
            fix="mine",
            instead=name,
        )
    return name


def default_name(engine: str, version: str) -> str:
    return f"{engine}-{version}" if version else engine


def create_command(engine: str, version: str, name: str) -> str:
    """Return the command line that makes an environment. An empty `version` stands for the recipe's."""
    words = f"harness env create {engine}" + (f" --version {version}" if version else "")
    return words if name == default_name(engine, version) else f"{words} --name {name}"


def folder(name: str) -> Path:
    return home.home() / "envs" / name


def find(name: str) -> Environment | None:
    """Return the environment of that name, or None. Raises EnvironmentUnusable when its env.json cannot be read."""
    path = folder(name) / "env.json"
    try:
        return Environment.from_json(json.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, TypeError) as error:
        raise EnvironmentUnusable(f"{path} cannot be read: {error}", fix=f"harness env remove {name}") from error


def find_whole(name: str) -> Environment | None:
    """Return the environment like `find`, but None where env.json is broken. For callers that are about to replace
    it.
    """
    try:
        return find(name)
    except EnvironmentUnusable:
        return None


def all_environments() -> list[Environment]:
    """Return all environments, by name. Raises EnvironmentUnusable where the home is no directory."""
    folders = sorted((home.checked() / "envs").glob("*/env.json"))
    environments = [find(path.parent.name) for path in folders if not path.parent.name.startswith(".")]
    return [environment for environment in environments if environment is not None]


def get(name: str) -> Environment:
    """Return the environment of that name. Raises BadInput with the names that exist."""
    environment = find(name) if is_name(name) else None
    if environment is None:
        raise unknown(name)
    return environment


def unknown(name: str) -> BadInput:
    """Return the error for a name that no environment has, with the names that exist. Its fix makes one of an engine,
    or names the one that has the version of ENGINE@VERSION.
    """
    names = ", ".join(item.name for item in all_environments()) or "none yet"
    message = f"there is no environment named {name!r} (there are: {names})"
    engine, at, version = name.partition("@")
    if engine not in registry.names(embedded=False):
        return BadInput(message, fix="harness env list")
    fitting = [item.name for item in all_environments() if (item.engine, item.version) == (engine, version)]
    if fitting:
        return BadInput(message, fix=engine if engine in fitting else fitting[0], instead=name)
    return BadInput(message, fix=f"harness env create {shlex.quote(name if version or not at else engine)}")
