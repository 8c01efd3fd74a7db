"""What an interpreter has installed of a framework, found without importing any of it: its version, and where its
source is."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.errors import BadInput
from probes.adapters import Adapter

NAME_IT = "command -v python   # in the job's environment, prints the interpreter to name"
TIMEOUT_S = 30.0  # chosen: for a query that imports only the standard library
PARSER_S = 120.0  # TRL's parser imports transformers: half a minute was seen with a cold disk
_PYTHON, _ANSWER = "rlhf-harness-python:", "rlhf-harness:"
# Runs in the framework's interpreter. It first prints that an interpreter is there: a program that is none does not get
# so far. find_spec of a top-level name imports nothing.
_ASK = """
import sys
print("rlhf-harness-python:%d.%d" % sys.version_info[:2])
here = [sys.path.pop(0)] if sys.path[:1] == [""] else []  # the job's folder may hold a json.py
import importlib.metadata, importlib.util, email.parser, json
distribution, *packages = sys.argv[1:]
version = ""
for places in ([], here):  # and it may hold the framework
    sys.path[:0] = places
    try:
        version = version or importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        pass
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


_SAY = f"""
import sys
if sys.path[:1] == [""]:
    del sys.path[0]  # the job's folder may hold a json.py
import json
def answer(**found):
    print({_ANSWER!r} + json.dumps(found, default=str), flush=True)
"""


@dataclass(frozen=True)
class Installation:
    """What an interpreter has of a framework.

    `version`: empty if it is not installed. `places`: top-level package -> the directories of its source. `environ`:
    the environment in which the interpreter was asked.
    """

    python: str
    version: str
    places: Mapping[str, tuple[str, ...]]
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)

    def query(self, code: str, *words: str) -> dict[str, Any]:
        """`query`, in this interpreter."""
        return query(self.python, code, words, self.environ)

    def source(self, module: str) -> Path | None:
        """The file of a module's source; None if the installed packages have none."""
        top, *submodules = module.split(".")
        for place in self.places.get(top, ()):
            base = Path(place).joinpath(*submodules)
            if not submodules and base.is_file():
                return base
            files = [base / "__init__.py"]
            if submodules:
                files.append(base.with_name(f"{base.name}.py"))
            if file := next(filter(Path.is_file, files), None):
                return file
        return None


def ask(
    python: str, adapter: Adapter, environ: Mapping[str, str] = os.environ, *, beside: Sequence[str] = ()
) -> Installation:
    """Find what that interpreter has of a framework, and of the packages `beside` it.

    Raises BadInput if it is no interpreter, does not run, or does not answer within `TIMEOUT_S`.
    """
    hooked = (hook.module.split(".")[0] for hook in adapter.hooks)
    packages = sorted({*adapter.triggers, *hooked, *beside})
    code, output, errors = _answer(python, _ASK, [adapter.distribution, *packages], environ, TIMEOUT_S)
    version = ""
    for line in output.splitlines():
        if line.startswith(_PYTHON):
            version = line.removeprefix(_PYTHON)
        if line.startswith(_ANSWER):
            answer = json.loads(line.removeprefix(_ANSWER))
            places = {name: tuple(paths) for name, paths in answer["places"].items()}
            return Installation(python, answer["version"], places, dict(environ))
    if version:
        raise BadInput(f"{python} is Python {version} and cannot say what it has: {_last_line(errors)}", fix=NAME_IT)
    raise BadInput(
        f"{python} is no Python interpreter that works: told to run Python it ended with {code} ({_last_line(errors)})",
        fix=NAME_IT,
    )


def query(python: str, code: str, words: Sequence[str], environ: Mapping[str, str]) -> dict[str, Any]:
    """What a program run in that interpreter answers by `answer(**found)`. The key `unknown` says why there is no
    answer."""
    try:
        _, output, errors = _answer(python, _SAY + code, words, environ, PARSER_S)
    except BadInput as error:
        return {"unknown": error.message}
    for line in output.splitlines():
        if line.startswith(_ANSWER):
            return dict(json.loads(line.removeprefix(_ANSWER)))
    return {"unknown": f"its parser cannot be asked in {python}: {_last_line(errors)}"}


def _last_line(errors: str) -> str:
    lines = errors.strip().splitlines() or ["nothing"]
    return lines[-1].strip()[:200]


def _answer(
    python: str, code: str, words: Sequence[str], environ: Mapping[str, str], timeout_s: float
) -> tuple[int, str, str]:
    """(exit code, standard output, standard error) of a program. Everything that it started is killed with it."""
    environ = {name: value for name, value in environ.items() if not name.startswith("RLHF_HARNESS_")}
    folder = Path(python)
    if folder.is_dir():
        binary = folder / "bin" / "python"
        fix = f"--python {binary}" if binary.exists() else NAME_IT
        raise BadInput(f"{python} is a directory, no interpreter", fix=fix)
    try:
        process = subprocess.Popen(
            [python, "-c", code, *words], env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True,
        )  # fmt: skip
    except FileNotFoundError as error:
        if shutil.which(python, path=environ.get("PATH")) or folder.exists():
            raise BadInput(
                f"{python} cannot be started: the interpreter that it names is not there", fix=NAME_IT
            ) from error
        raise BadInput(f"there is no interpreter {python}", fix=NAME_IT) from error
    except OSError as error:
        raise BadInput(
            f"{python} is no Python interpreter, it cannot be started: {error.strerror}", fix=NAME_IT
        ) from error
    with process:
        try:
            output, errors = process.communicate(timeout=timeout_s)
        except BaseException as error:  # Ctrl-C does not reach its session, so kill it for any exception
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise BadInput(
                    f"{python} did not say within {timeout_s:g} s what it has installed", fix=NAME_IT
                ) from error
            raise
    return process.returncode, output, errors
