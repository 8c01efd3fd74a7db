"""The shortest command that works in place of one whose argument was not typed."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from harness.envs.environment import all_environments
from harness.errors import HarnessError
from harness.other_paths import free_path
from probes.format import MANIFEST, SIDES
from scenarios.engines import registry

RUNS = Path("runs")  # where commands record unless they are told otherwise
MATRIX = r'name = "mine"\n[matrix]\npairs = [["hf", "hf"]]\nscenarios = ["ppo-tiny"]\n'  # as printf takes it
_PROCESS = "pgrep -af python   # the pid of a process of the job, for harness"


def shortest(path: Sequence[str], arguments: Sequence[str]) -> str:
    """A command line like `harness PATH` with all that it needs; empty where nothing is as good as anything else.

    `arguments`: the words that were typed behind it.
    """
    words = shlex.join(["harness", *path])
    match [*path]:
        case ["audit" | "report" | "bundle" | "replay"]:
            return _of_a_run(words)
        case ["diff"]:
            return _of_a_pair(words)
        case ["mapping"]:
            engine = registry.names(embedded=False)[-1]
            function = rf"def {engine}_engine(asked, ours): return ours\n"  # as printf takes it
            return _of_a_file(words, "mapping.py", function, f"--engine {engine}")
        case ["nightly"] | ["render", "github"]:
            return _of_a_file(words, "matrix.toml", MATRIX)
        case ["stacks"]:
            return f"{_PROCESS} stacks PID"
        case ["up"]:
            return f"{words} {' '.join(registry.names(embedded=False))}"
        case ["env", "create"]:
            return f"{words} {registry.names(embedded=False)[0]}"
        case ["env", "add"]:
            name = next((word for word in arguments if not word.startswith("-")), "mine")
            engine = registry.names(embedded=False)[0]
            return f'{words} {shlex.quote(name)} --engine {engine} --python "$(command -v python3)"'
        case ["env", "path" | "arguments"]:
            return _of_an_environment(words)
        case ["env", "remove"]:
            return "harness env list   # which there are"
    return ""


def _of_a_run(words: str) -> str:
    if run := _newest([*RUNS.glob(f"*/{MANIFEST}"), *RUNS.glob(f"*/*/{MANIFEST}")]):
        return f"{words} {shlex.quote(str(run.parent))}"
    run = free_path(RUNS / "mine")
    return f"harness run ppo-tiny --out {run} && {words} {run}"


def _of_a_pair(words: str) -> str:
    if run := _newest(RUNS.glob(f"*/{SIDES[1]}/{MANIFEST}")):
        return f"{words} {shlex.quote(str(run.parent.parent))}"
    pair = free_path(RUNS / "mine")
    return f"harness parity hf hf --out {pair} && {words} {pair}"


def _of_a_file(words: str, name: str, text: str, *options: str) -> str:
    file = free_path(Path(name))
    return " ".join([f"printf {shlex.quote(text)} > {file} && {words} {file}", *options])


def _of_an_environment(words: str) -> str:
    try:
        names = [environment.name for environment in all_environments()]
    except HarnessError:  # one that cannot be read: `env list` says which
        return "harness env list"
    return f"{words} {names[0]}" if names else f"harness env create {registry.names(embedded=False)[0]}"


def _newest(files: Iterable[Path]) -> Path | None:
    return max(files, key=lambda file: file.stat().st_mtime, default=None)
