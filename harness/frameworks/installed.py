"""What an interpreter has of a framework, found without importing any of it: its version, and where its source lies."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.errors import BadInput
from probes.adapters import Adapter

TIMEOUT_S = 30.0
# Runs in the framework's interpreter. find_spec of a top-level name imports nothing.
_ASK = """
import importlib.metadata, importlib.util, json, sys
distribution, *packages = sys.argv[1:]
try:
    version = importlib.metadata.version(distribution)
except importlib.metadata.PackageNotFoundError:
    version = ""
places = {}
for package in packages:
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        spec = None
    if spec is not None:
        places[package] = [str(one) for one in spec.submodule_search_locations or [spec.origin]]
print("rlhf-harness:" + json.dumps({"version": version, "places": places}))
"""


@dataclass(frozen=True)
class Installation:
    """`version`: empty where it is not installed. `places`: top-level package -> the directories of its source."""

    python: str
    version: str
    places: Mapping[str, tuple[str, ...]]

    def source(self, module: str) -> Path | None:
        """The file of a module's source; None where the installed packages have none."""
        top, *rest = module.split(".")
        for place in self.places.get(top, ()):
            base = Path(place).joinpath(*rest)
            if not rest and base.is_file():
                return base
            for file in (base / "__init__.py", base.with_name(base.name + ".py") if rest else base / "__init__.py"):
                if file.is_file():
                    return file
        return None


def ask(python: str, adapter: Adapter, environ: Mapping[str, str] = os.environ) -> Installation:
    """What that interpreter has. Raises BadInput where it does not run."""
    packages = sorted({*adapter.triggers, *(hook.module.split(".")[0] for hook in adapter.hooks)})
    quiet = {name: value for name, value in environ.items() if not name.startswith("RLHF_HARNESS_")}
    try:
        answer = subprocess.run(
            [python, "-c", _ASK, adapter.distribution, *packages], env=quiet, capture_output=True, text=True,
            stdin=subprocess.DEVNULL, timeout=TIMEOUT_S,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BadInput(f"{python} cannot be asked what it has: {error}") from error
    for line in answer.stdout.splitlines():
        if line.startswith("rlhf-harness:"):
            found = json.loads(line.partition(":")[2])
            places = {name: tuple(paths) for name, paths in found["places"].items()}
            return Installation(python, found["version"], places)
    said = (answer.stderr.strip().splitlines() or [f"it ended with {answer.returncode}"])[-1]
    raise BadInput(f"{python} cannot be asked what it has: {said}")
