"""Commands that write, on a full disk: one sentence, an exit code that is no verdict's, and nothing half-written."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from recordings import make

ROOT = Path(__file__).parents[2]
SIZE = 128 << 10  # bytes, all of which a file takes
UNSHARED = ["unshare", "--user", "--map-root-user", "--mount", "bash", "-c"]
COMMANDS = [
    "watch --out w -- true",
    "watch -- true",
    "record --framework trl --out r -- python -c pass",
    "run ppo-tiny --out r",
    "parity hf hf --out p",
    "bundle {run} --out b.zip",
    "render slurm --out s -- python train.py",
    "report {run} --export tensorboard --out t",
    "doctor --no-imports --nodes absent",
]


def on_a_full_disk(tmp_path: Path, command: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Run a command in a folder on a full disk; what it printed, and what is left there."""
    disk, left = tmp_path / "disk", tmp_path / "left"
    disk.mkdir()
    harness = shlex.join([sys.executable, "-m", "harness", *shlex.split(command)])
    full = f"mount -t tmpfs -o size={SIZE} none {disk} && cd {disk} && head -c {SIZE} /dev/zero > fill"
    find = f"find . -mindepth 1 -not -name fill > {left}"
    script = f"{full} || exit 99; PYTHONPATH={ROOT} {harness} < /dev/null; code=$?; {find}; exit $code"
    done = subprocess.run([*UNSHARED, script], capture_output=True, text=True)
    if done.returncode == 99 or not left.exists():
        pytest.skip("no file system can be mounted here")
    return done, left.read_text().split()


@pytest.mark.by_day(2)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_on_a_full_disk_says_so_and_leaves_nothing(command: str, tmp_path: Path) -> None:
    if command.startswith("report"):
        pytest.importorskip("tensorboard")
    run = make("baseline").write(tmp_path / "run")
    done, left = on_a_full_disk(tmp_path, command.format(run=run))
    [message, fix] = [line for line in done.stderr.splitlines() if "no trl" not in line][-2:]
    assert done.returncode == 2 and message.startswith("harness: ") and fix.startswith("  fix: "), done.stderr
    assert ("No space left" in message or "no directory" in message) and "Traceback" not in done.stderr
    assert left == []


def test_a_verdict_is_printed_though_its_evidence_cannot_be_kept(tmp_path: Path) -> None:
    stacks = tmp_path / "stacks.txt"
    stacks.write_text('Process 7: python train.py\nThread 7 (idle): "MainThread"\n    wait (threading.py:331)\n' * 400)
    done, left = on_a_full_disk(tmp_path, f"triage {stacks} --out ev")
    assert (done.returncode, done.stdout.split()[0], left) == (3, "INSUFFICIENT", [])
    assert "could not be written" in " ".join(done.stdout.split())


@pytest.mark.parametrize("out", ["", " --out full/ev"])
def test_a_live_look_leaves_no_empty_folder_and_names_none(out: str, tmp_path: Path) -> None:
    job = subprocess.Popen(["sleep", "60"])
    try:
        done, left = on_a_full_disk(tmp_path, f"triage {job.pid}{out} --format json")
    finally:
        job.kill()
        job.wait()
    verdict = json.loads(done.stdout)
    assert done.returncode == 3 and "could not be written" in verdict["missing"][-1]
    assert (verdict["paths"], verdict["reproduce"], left) == ({}, f"harness triage {job.pid}", [])
