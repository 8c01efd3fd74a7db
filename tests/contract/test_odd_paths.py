"""Whatever a path on the command line names (a pipe, a folder, a device, nothing), the command answers.

A path of the user's may be wrong, and a file from somebody else may be none. Reading a pipe waits for whoever writes
into it, and /dev/zero never ends.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from hostile_server import Server

from harness import cli

DEADLINE_S = 20.0  # on the clock, for commands that take 0.1 to 2 s of processor time
# "command parameter" -> the words of a command that reads PATH; PATH.toml: with a name that ends so.
READS = {
    "parity scenario": "parity hf hf --scenario PATH.toml",
    "parity model": "parity hf hf --model PATH",
    "parity prompts": "parity hf hf --prompts PATH.jsonl",
    "parity mapping": "parity hf hf --mapping PATH.py",
    "parity baseline_mapping": "parity hf hf --baseline-mapping PATH.py",
    "parity command": "parity vllm sglang -- PATH.py",
    "run scenario": "run PATH.toml",
    "run model": "run ppo-tiny --model PATH",
    "run prompts": "run ppo-tiny --prompts PATH.parquet",
    "run mapping": "run ppo-tiny --mapping PATH.py",
    "run resume": "run ppo-tiny --resume PATH",
    "replay run": "replay PATH",
    "mapping file": "mapping PATH.py --engine sglang",
    "mapping python": "mapping FILE.py --engine sglang --python PATH",
    "diff baseline": "diff PATH FOLDER",
    "diff candidate": "diff FOLDER PATH",
    "diff again": "diff FOLDER FOLDER --again PATH",
    "audit run": "audit PATH",
    "report run": "report PATH.json",
    "bundle what": "bundle PATH",
    "watch token_file": "watch --serve 127.0.0.1:0 --token-file PATH -- true",
    "triage what": "triage PATH",
    "triage token_file": "triage http://127.0.0.1:9 --token-file PATH",
    "stacks what": "stacks PATH",
    "doctor nodes": "doctor --no-imports --nodes PATH",
    "nightly matrix": "nightly PATH.toml --list",
    "bisect good": "bisect hf --good PATH.toml --bad FILE.toml",
    "bisect bad": "bisect hf --good FILE.toml --bad PATH.toml",
    "bisect repo": "bisect a..b --repo PATH --run true",
    "bisect resume": "bisect --resume PATH",
    "history list history": "history list --history PATH",
    "history show history": "history show --history PATH",
    "history compare history": "history compare 1 2 --history PATH",
    "history metric history": "history metric hf-hf/a --history PATH",
    "history html history": "history html pages --history PATH",
    "faults list source": "faults list --from PATH.py",
    "faults run source": "faults run --from PATH.py",
    "faults run model": "faults run --suite parity control --backends hf hf --model PATH",
    "env create python": "env create vllm --python PATH",
    "env add python": "env add mine --engine vllm --python PATH",
    "adapters check python": "adapters check --python PATH",
    "render github matrix": "render github PATH.toml",
    "render dstack base": "render dstack --base PATH -- python a.py",
    "render kuberay base": "render kuberay --base PATH -- python a.py",
    "render skypilot base": "render skypilot --base PATH -- python a.py",
}
# The words of a command that writes into PATH. No run is started: those commands are refused before.
WRITES = {
    "bundle out": "bundle FOLDER --out PATH",
    "triage out": "triage FOLDER --out PATH",
    "report out": "report FOLDER --export trackio --out PATH",
    "watch out": "watch --out PATH -- true",
    "history html folder": "history html PATH",
    "render dstack out": "render dstack --out PATH -- python a.py",
    "render github out": "render github MATRIX.toml --out PATH",
    "render github-job out": "render github-job --out PATH -- python a.py",
    "render kuberay out": "render kuberay --image a --out PATH -- python a.py",
    "render ray-job out": "render ray-job --out PATH -- python a.py",
    "render skypilot out": "render skypilot --out PATH -- python a.py",
    "render slurm out": "render slurm --out PATH -- python a.py",
    "render torchrun out": "render torchrun --out PATH -- python a.py",
}
# Folders that a job is recorded into: a job would have to run.
STARTS = {f"{command} out" for command in ("parity", "run", "replay", "record", "nightly", "bisect", "faults run")}
# Parameters of any command that are no path of this machine.
NO_PATH = {
    "words", "stall", "format", "name", "names", "time", "setup", "doctor", "address", "framework", "set",
    "engine", "backend", "backends", "at", "against", "runner", "version", "submit", "serve", "serve_after",
    "shared", "sbatch", "run", "results", "options", "only", "on", "on_push", "nproc_per_node", "more",
    "metric", "max_size", "local", "limit", "keep_size", "install", "image", "ignore", "idle", "function",
    "export", "fault", "end", "claim", "cell", "cause", "candidate_set", "build", "budget",
}  # fmt: skip
NO_PATH_OF = {
    "parity baseline", "parity candidate", "mapping source", "record command", "watch command", "watch on_verdict",
    "doctor command",
    "bisect what", "up scenario", "up model", "up prompts", "render github nightly", "render github source",
    "render github python", "render github-job source", "render github-job python", "nightly history",
}  # fmt: skip


def parameters(command: Any, path: str = "") -> Iterator[str]:
    """Every "command parameter" of the command line that takes a text."""
    for name, below in getattr(command, "commands", {}).items():
        yield from parameters(below, f"{path} {name}".strip())
    if not hasattr(command, "commands"):
        for parameter in command.params:
            kind = str(getattr(getattr(parameter, "type_descriptor", None), "annotation", ""))
            if not any(word in kind for word in ("bool", "Literal", "int", "float")):
                yield f"{path} {parameter.name}"


def test_every_parameter_is_said_to_be_a_path_or_none() -> None:
    every = set(parameters(typer.main.get_command(cli.app)))
    paths = {*READS, *WRITES, *STARTS}
    others = {name for name in every if name in NO_PATH_OF or (name.split()[-1] in NO_PATH and name not in paths)}
    assert every - others == paths & every and not paths - every


def pipe(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


KINDS: dict[str, Callable[[Path], None]] = {
    "pipe": pipe, "folder": Path.mkdir, "device": device, "nothing": lambda path: None,
}  # fmt: skip
NO_FILE = ("pipe", "device")  # of these nothing may be made


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARNESS_HOME", str(tmp_path_factory.mktemp("home")))
        with Server() as running:
            yield running


def answered(server: Server, folder: Path, words: str, kind: str) -> None:
    place = folder / "files"
    (place / "FOLDER").mkdir(parents=True)
    (place / "FILE.toml").write_text("")
    (place / "FILE.py").write_text("def sglang_sampling(asked, ours): return dict(ours)\n")
    (place / "MATRIX.toml").write_text('[matrix]\npairs = [["hf", "hf"]]\nscenarios = ["rollout-tiny"]\n')
    KINDS[kind](place / next(word for word in words.split() if word.startswith("PATH")))
    answer = server.run(tuple(words.split()), place, clock_s=DEADLINE_S)
    printed = answer.stdout.decode(errors="replace") + answer.stderr
    assert not answer.stopped, f"it did not answer: {printed}"
    assert "defect of the harness" not in printed and "Traceback" not in printed, printed
    assert printed.strip() and answer.code >= (kind in NO_FILE), printed


@pytest.mark.by_day(40)
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("parameter", READS)
def test_a_path_that_is_read(parameter: str, kind: str, server: Server, tmp_path: Path) -> None:
    answered(server, tmp_path, READS[parameter], kind)


@pytest.mark.by_day(8)
@pytest.mark.slow
@pytest.mark.parametrize("kind", NO_FILE)
@pytest.mark.parametrize("parameter", WRITES)
def test_a_path_that_is_written(parameter: str, kind: str, server: Server, tmp_path: Path) -> None:
    answered(server, tmp_path, WRITES[parameter], kind)
