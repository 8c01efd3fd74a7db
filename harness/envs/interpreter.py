"""Query an interpreter for its version and packages, in a short process that imports no engine and writes nothing."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from harness import extras
from harness.envs.install import CommandFailed, run
from harness.errors import EnvironmentUnusable
from scenarios.engines import registry

_PATIENCE_S = 60.0  # a cold interpreter on a network disk takes seconds; a program that is not Python may never answer

# The script runs in any Python 3. torch/version.py contains only assignments, so it gives the CUDA version without an
# import of torch.
_QUESTION = """
import json, os, platform, sys
try:
    from importlib import metadata
except ImportError:
    metadata = None
import importlib.util

def version(*names):
    for name in names:
        try:
            return metadata.version(name)
        except Exception:  # not installed, or damaged metadata, which raises anything
            pass
    return ""

def cuda():
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.origin:
        return ""
    facts = {}
    with open(os.path.join(os.path.dirname(spec.origin), "version.py")) as file:
        exec(file.read(), facts)
    return str(facts.get("cuda") or "")

def has(name):
    try:
        return importlib.util.find_spec(name) is not None
    except Exception:  # a broken parent package raises whatever its import raises
        return False

engines = json.loads(sys.argv[1])
shims = sys.modules.get("rlhf_harness_cpu_shims")
print("\\n" + json.dumps({
    "python": platform.python_version(),
    "implementation": platform.python_implementation(),
    "versions": {
        **{name: version(*names) if has(name) else "" for name, names in engines.items()},
        "ray": version("ray") if has("ray") else "",
        "torch": version("torch") if has("torch") else "",
    },
    "present": {name: has(name) for name in (*engines, "ray", "torch")},
    "cuda": cuda(),
    "shims": list(shims.INSTALLED) if shims else [],
}))
"""


class _OfPython:
    python: str

    @property
    def minor(self) -> str:
        return ".".join(self.python.split(".")[:2])


@dataclass(frozen=True)
class Interpreter(_OfPython):
    """Facts about an interpreter. A version is empty where the package is absent or has no version."""

    path: str
    python: str  # 3.11.7
    implementation: str  # CPython
    versions: dict[str, str]  # the versions of every engine with environments, of ray and of torch
    present: dict[str, bool]  # for the same names: whether an import would find them
    cuda: str  # the CUDA version of its torch; empty for a CPU build
    shims: tuple[str, ...]  # our CPU shims that are installed there


@dataclass(frozen=True)
class Driver(_OfPython):
    """The interpreter that runs the harness. Every environment of one Ray cluster has to agree with it."""

    python: str
    ray: str

    @staticmethod
    def here() -> Driver:
        """Return the facts of this interpreter. Raises EnvironmentUnusable when ray is not installed beside the
        harness.
        """
        try:
            return Driver(python=platform.python_version(), ray=importlib.metadata.version("ray"))
        except importlib.metadata.PackageNotFoundError as error:
            raise EnvironmentUnusable(
                "ray is not installed in the harness's own environment", fix=extras.install_command("parity")
            ) from error


_ANSWERS: ContextVar[dict[Path, Interpreter] | None] = ContextVar("answers", default=None)  # of `inspected_once`


def absolute(python: str | Path) -> Path:
    """Return the interpreter's absolute path, or bin/python of a venv's directory. Links are kept because venvs need
    them.
    """
    path = Path(os.path.abspath(Path(python).expanduser()))
    return path / "bin" / "python" if path.is_dir() else path


def clean(environ: Mapping[str, str], **more: str) -> dict[str, str]:
    """Return an environment for another interpreter, without the variables that would expose this one's packages to
    it.
    """
    kept = {key: value for key, value in environ.items() if key not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    return {**kept, **more}


def inspect(python: str | Path) -> Interpreter:
    """Query the interpreter. Takes about 0.2 s. Raises EnvironmentUnusable when it is not a Python that answers."""
    path = absolute(python)
    answers = _ANSWERS.get()
    if answers is None:
        return _queried(path)
    if path not in answers:
        answers[path] = _queried(path)
    return answers[path]


@contextmanager
def inspected_once() -> Iterator[None]:
    """Query each interpreter once within the block, which makes and changes no environment."""
    token = _ANSWERS.set({})
    try:
        yield
    finally:
        _ANSWERS.reset(token)


def _queried(path: Path) -> Interpreter:
    if not path.exists():
        raise EnvironmentUnusable(f"there is no interpreter at {path}", fix="harness env list")
    engines = {name: registry.get(name).distributions or (name,) for name in registry.names(embedded=False)}
    try:
        answer = subprocess.run(
            [str(path), "-B", "-c", _QUESTION, json.dumps(engines)],
            env=clean(os.environ),
            cwd="/",
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=_PATIENCE_S,
            errors="replace",
        )
        facts = json.loads(answer.stdout.strip().splitlines()[-1])
        return Interpreter(
            path=str(path),
            python=facts["python"],
            implementation=facts["implementation"],
            versions=facts["versions"],
            present=facts["present"],
            cuda=facts["cuda"],
            shims=tuple(facts["shims"]),
        )
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError, KeyError, TypeError) as error:
        raise EnvironmentUnusable(
            f"{path} is not a Python interpreter that answers ({_why(error)})", fix=f"{path} --version"
        ) from error


def import_failure(python: str, statement: str, variables: Mapping[str, str], keep_open: tuple[int, ...] = ()) -> str:
    """Return why the import statement fails there; empty where it works. The import of an engine takes 10 to 40 s."""
    environ = clean(os.environ, **variables)
    try:
        run([python, "-c", statement], environ, lambda line: None, keep_open=keep_open, cwd=Path("/"))
    except CommandFailed as failure:
        return failure.reason()
    return ""


def _why(error: BaseException) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if isinstance(error, subprocess.TimeoutExpired):
        return f"silent for {_PATIENCE_S:.0f} s"
    return "its output is not what a Python 3 would print"


def misfit(facts: Interpreter, engine: str, driver: Driver) -> EnvironmentUnusable | None:
    """Return the first reason why this interpreter cannot serve that engine with this driver, or None."""
    where = facts.path
    if facts.minor != driver.minor or facts.implementation != "CPython":
        return EnvironmentUnusable(
            f"{where} is {facts.implementation} {facts.python}, the driver is CPython {driver.python}: "
            "one Ray cluster needs the same minor version everywhere",
            fix=f"harness env create {engine}   # makes one with Python {driver.minor}",
        )
    if not facts.present.get(engine):
        present_engines = [
            name for name in registry.names(embedded=False) if facts.present.get(name) and name != engine
        ]
        alternative = f"; it has {present_engines[0]}" if present_engines else ""
        # An engine would replace packages of the harness in its own environment.
        of_harness = os.path.realpath(os.path.dirname(where)) == os.path.realpath(os.path.dirname(sys.executable))
        fix = f"harness env create {engine}" if of_harness else extras.install_into(where, engine)
        return EnvironmentUnusable(f"{where} has no {engine}{alternative}", fix=fix)
    if facts.versions.get("ray") != driver.ray:
        has = f"ray {facts.versions['ray']}" if facts.versions.get("ray") else "no ray"
        return EnvironmentUnusable(
            f"{where} has {has}, the driver has ray {driver.ray}: one Ray cluster needs the same ray everywhere",
            fix=extras.install_into(where, f"ray=={driver.ray}"),
        )
    return None
