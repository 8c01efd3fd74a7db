"""Recipes for engine environments: the data files in `harness/recipes`, one per engine and device."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.envs.environment import Device
from harness.errors import BadInput
from scenarios.engines import registry

FOLDER = Path(__file__).parent.parent / "recipes"
SHIMS_MODULE = "rlhf_harness_cpu_shims"

# A public version of PEP 440 with a local part, without an epoch.
_VERSION = re.compile(r"\d+(\.\d+)*((a|b|rc)\d+)?(\.post\d+)?(\.dev\d+)?(\+[a-z0-9]+([._-][a-z0-9]+)*)?")


@dataclass(frozen=True)
class Recipe:
    """The packages to install.

    requirements: packages beside the engine and ray.
    overrides: replace the requirements of dependencies.
    no_deps: packages that are installed last, without their dependencies.
    shims: names of the CPU shims.
    env: variables that every process of the engine needs.
    """

    engine: str
    device: Device
    package: str
    version: str  # the engine's version where the user requests none
    imports: str  # a statement that imports what a rollout needs
    requirements: tuple[str, ...]
    overrides: tuple[str, ...]
    no_deps: tuple[str, ...]
    shims: tuple[str, ...]
    env: dict[str, str]
    first: str = ""  # the first version of the package that there is; empty where that is not known
    torch: str = ""  # the requirement for the CPU build

    def packages(self, version: str, ray: str) -> list[str]:
        """Return the requirements of one environment.

        `version` may be short (0.31 stands for the newest 0.31.x), or empty for the recipe's version.
        """
        return [f"{self.package}{pin(version or self.version)}", f"ray=={ray}", *self.requirements]

    def torch_for(self, version: str) -> str:
        """Return the requirement of torch for that version of the engine; empty where it is not known."""
        return self.torch if not version or self.torch in self.overrides else ""

    def digest(self, version: str, ray: str, python: str) -> str:
        """Return a digest of what would be made. An environment with another digest was made from other
        instructions.
        """
        shims = shims_source() if self.shims else ""
        packages = self.packages(version, ray)
        facts = [packages, self.overrides, self.no_deps, self.shims, sorted(self.env.items()), shims, python]
        return hashlib.blake2b(json.dumps(facts).encode(), digest_size=8).hexdigest()


def find(engine: str, device: Device, folder: Path = FOLDER) -> Recipe | None:
    """Return the recipe of that engine and device; None if there is none."""
    path = _path(engine, device, folder)
    return load(engine, device, folder) if path.is_file() else None


def _path(engine: str, device: Device, folder: Path) -> Path:
    spec = registry.find(engine)
    return (Path(spec.recipes) if spec is not None and spec.recipes else folder) / f"{engine}-{device}.toml"


def load(engine: str, device: Device, folder: Path = FOLDER) -> Recipe:
    """Return the recipe of that engine and device. Raises BadInput with the engines that have one."""
    path = _path(engine, device, folder)
    if not path.is_file():
        engines = sorted({file.stem.rsplit("-", 1)[0] for file in folder.glob("*.toml")})
        raise BadInput(
            f"there is no recipe for engine {engine!r} (there are: {', '.join(engines)})",
            fix=f"harness env create {engines[0]}",
        )
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}
    return Recipe(**values)


def is_version(text: str) -> bool:
    return _VERSION.fullmatch(text) is not None


def matches(version: str, requested: str) -> bool:
    """Whether a version is the requested one, or begins with it (0.31 matches any 0.31.x)."""
    return version == requested or version.startswith(requested + ".") or version.startswith(requested + "+")


def is_before(version: str, first: str) -> bool:
    """Whether no release of that version, which may be short, can be as new as `first`."""
    parts, least = ([int(part) for part in re.findall(r"\d+", text)[:3]] for text in (version, first))
    return bool(first) and parts < least[: len(parts)]


def pin(version: str) -> str:
    """Return the specifier of the requirement. Raises BadInput for an invalid version."""
    if not is_version(version):
        raise BadInput(f"{version!r} is not a version of an engine, such as 0.32.0 or 0.32", fix="--version 0.32.0")
    return f"=={version}" if version.count(".") >= 2 or not version.replace(".", "").isdigit() else f"=={version}.*"


def shims_source() -> str:
    return (FOLDER / f"{SHIMS_MODULE}.py").read_text(encoding="utf-8")
