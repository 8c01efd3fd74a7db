"""`harness watch` around real processes: untouched when all is well, a verdict when they stand still."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from waiting import until

from reports.model import Verdict

ROOT = Path(__file__).parents[2]
HARNESS = [sys.executable, "-m", "harness.cli", "watch"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
TRAIN = """
import os, pathlib, sys, time
import torch, torch.distributed as dist

dist.init_process_group("gloo")
rank, total = dist.get_rank(), torch.ones(4)
for step in range(6):
    if sys.argv[1] == "hang" and rank == 1 and step == 3:
        while True:
            time.sleep(0.2)
    if sys.argv[1] == "slow" and rank == 1 and step == 3:
        end = time.monotonic() + float(sys.argv[2])
        while time.monotonic() < end:
            sum(range(1000))
    dist.all_reduce(total)
beat = pathlib.Path(os.environ["RLHF_HARNESS_WATCH"], "beats", f"{os.getpid()}.json")
while sys.argv[1] == "beat" and not (beat.exists() and beat.stat().st_size):  # after a period
    time.sleep(0.05)
os.write(1, f"rank {rank}: {total[0]:.0f}\\n".encode())  # print writes the end of the line by itself
dist.destroy_process_group()
"""


def watch(*words: str, cwd: Path, code: int | None = 0, **more: Any) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*HARNESS, *words], cwd=cwd, env=environment, capture_output=True, text=True, timeout=300, **more
    )
    assert code is None or done.returncode == code, done.stderr
    return done


@pytest.fixture
def train(tmp_path: Path) -> list[str]:
    (tmp_path / "train.py").write_text(TRAIN)
    return [*TORCHRUN, str(tmp_path / "train.py")]


def left_over(directory: Path) -> list[int]:
    """Processes that were watched into this directory and still live."""
    pids = [int(path.stem) for path in (directory / "beats").glob("*.json")]
    return [pid for pid in pids if os.path.exists(f"/proc/{pid}")]


def test_a_recording_is_kept_where_it_was_asked_for(tmp_path: Path, train: list[str]) -> None:
    out = tmp_path / "out"
    done = watch("--stall", "30s", "--out", str(out), "--", *train, "beat", cwd=tmp_path)
    assert sorted(done.stdout.splitlines()) == ["rank 0: 64", "rank 1: 64"]
    assert "WorkerServer" not in done.stderr
    beats = [json.loads(path.read_text()) for path in (out / "beats").glob("*.json")]
    ranks = {beat["rank"]: beat for beat in beats}
    assert set(ranks) == {None, 0, 1} and all(beat["ended"] for beat in beats)
    assert ranks[None]["role"] == "launcher" and ranks[0]["world_size"] == 2
    opened = [json.loads(path.read_text().splitlines()[0]) for path in (out / "events").glob("*.jsonl")]
    assert sorted(event["rank"] for event in opened) == [0, 0, 1]
    assert json.loads((out / "watchdog.json").read_text())["ended"]


@pytest.mark.by_day(2)
@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["sh", "-c", "echo out; echo err >&2; exit 3"], 3),
        (["sh", "-c", "echo out; echo err >&2; kill -9 $$"], 137),
        (["sh", "-c", "cat; echo err >&2"], 0),
        (["nice", "--no-such-option", "--", "x"], 125),
    ],
)
def test_output_input_and_exit_code_pass_through(tmp_path: Path, command: list[str], code: int) -> None:
    done = watch(*command, cwd=tmp_path, code=code, input="out\n")
    bare = subprocess.run(command, input="out\n", capture_output=True, text=True, timeout=600)
    assert done.stdout == bare.stdout and done.stderr.startswith(bare.stderr)
    more = done.stderr.removeprefix(bare.stderr)  # of a command that failed, its last words once more
    assert more.startswith(f"harness: the command ended with exit code {code}: ") if code else more == ""


@pytest.mark.by_day(2)
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_signals_reach_the_command(tmp_path: Path, signum: signal.Signals) -> None:
    code = (
        "import signal, sys, time\n"
        f"signal.signal({int(signum)}, lambda *_: sys.exit(7))\n"
        "print('ready', flush=True)\n"
        "while True: time.sleep(1)\n"
    )
    process = subprocess.Popen(
        [*HARNESS, "--", sys.executable, "-c", code], cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    process.send_signal(signum)
    assert process.wait(300) == 7


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["no-such-command"], 127, "not found"),
        (["--stall", "soon", "true"], 2, "is not a duration"),
        (["--out", "/proc/out", "true"], 2, "cannot be written"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path: Path, words: list[str], code: int, said: str) -> None:
    done = watch(*words, cwd=tmp_path, code=code)
    first, *rest = done.stderr.splitlines()
    assert said in first and len(rest) <= 1 and not (tmp_path / "runs").exists()


def test_a_hang_is_noticed_named_and_ended(tmp_path: Path, train: list[str]) -> None:
    out = tmp_path / "out"
    words = ("--stall", "6s", "--on-stall", "end", "--out", str(out), "--", *train, "hang")
    began = time.monotonic()
    done = watch(*words, cwd=tmp_path, code=86)
    verdict = Verdict.from_dict(json.loads((out / "verdict.json").read_text()))
    assert verdict.verdict == "HUNG" and verdict.triage is not None
    assert [party.rank for party in verdict.triage.culprits] == [1]
    assert "train.py" in verdict.triage.culprits[0].frame
    assert "rank 1" in done.stderr and "HUNG" in done.stderr and done.stdout == ""
    evidence = Path(verdict.paths["evidence"])  # beside it an earlier look, where one rank began seconds later
    assert evidence.parent == out / "evidence" and any(evidence.iterdir())
    line = next(line for line in done.stderr.splitlines() if "after the last progress" in line)
    assert 6 <= int(line.split(" s after")[0].split()[-1]) <= time.monotonic() - began
    assert left_over(out) == []


@pytest.mark.night
def test_a_hang_can_be_left_as_it_is(tmp_path: Path, train: list[str]) -> None:
    out = tmp_path / "out"
    words = ("--stall", "6s", "--on-stall", "exit", "--format", "json", "--out", str(out), "--", *train, "hang")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with open(tmp_path / "err", "w+") as err:
        done = subprocess.run([*HARNESS, *words], cwd=tmp_path, env=environment, stdout=err, stderr=err, timeout=300)
        assert done.returncode == 86
    left = left_over(out)
    try:
        text = (tmp_path / "err").read_text()
        printed = json.loads(text[text.index("{") : text.rindex("}") + 1])
        assert printed == json.loads((out / "verdict.json").read_text())
        assert len(left) == 3
    finally:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):  # torchrun ends the others when one is gone
                os.kill(pid, signal.SIGKILL)


@pytest.mark.night
def test_slow_is_not_called_hung(tmp_path: Path, train: list[str]) -> None:
    done = watch("--stall", "6s", "--on-stall", "end", "--", *train, "slow", "20", cwd=tmp_path)
    assert sorted(done.stdout.splitlines()) == ["rank 0: 64", "rank 1: 64"]
    assert "HUNG" not in done.stderr and "slow, not hung" in done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("harness: ")]
    assert len(lines) == 2 and lines[-1] == "harness: the command went on since, and ended well"


@pytest.mark.night
def test_a_healthy_command_with_a_long_pause_is_not_touched(tmp_path: Path) -> None:
    code = "import time, torch; time.sleep(9); print('done')"
    done = watch("--stall", "3s", "--on-stall", "end", "--", sys.executable, "-c", code, cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("done\n", "")
    assert not (tmp_path / "runs").exists()  # nothing was found, nothing is kept


def test_a_watchdog_that_is_killed_is_missed_and_the_command_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "out"
    code = (
        "import os, pathlib, time, torch\n"
        "lost = pathlib.Path(os.environ['RLHF_HARNESS_WATCH'], 'watchdog.lost')\n"
        "while not lost.exists(): time.sleep(0.1)\n"
        "time.sleep(1)\n"  # the line is printed once the file is there
        "print('done', flush=True)\n"
    )
    with open(tmp_path / "log", "w+") as log:
        process = subprocess.Popen(
            [*HARNESS, "--stall", "60s", "--out", str(out), "--", sys.executable, "-c", code], cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
        until(lambda: list((out / "beats").glob("*.json")))
        process.kill()
        process.wait()
        until(lambda: "no longer watched" in (tmp_path / "log").read_text())
        until(lambda: "done" in (tmp_path / "log").read_text())
    assert (tmp_path / "log").read_text().count("no longer watched") == 1
    [journal] = (out / "events").glob("*.jsonl")
    assert "no longer watched" in journal.read_text()


def test_a_forked_child_beats_for_itself(tmp_path: Path) -> None:
    code = (
        "import multiprocessing, os, pathlib, time, torch\n"
        "def work():\n"
        "    beat = pathlib.Path(os.environ['RLHF_HARNESS_WATCH'], 'beats', f'{os.getpid()}.json')\n"
        "    while not (beat.exists() and '\"count\":2,' in beat.read_text()): time.sleep(0.05)\n"
        "if __name__ == '__main__':\n"
        "    time.sleep(1.5)\n"
        "    child = multiprocessing.get_context('fork').Process(target=work)\n"
        "    child.start(); child.join()\n"
        "    print(os.getpid(), child.pid, child.exitcode)\n"
    )
    (tmp_path / "fork.py").write_text(code)
    out = tmp_path / "out"
    environment = {"RANK": "3", "WORLD_SIZE": "8"}
    done = watch("--out", str(out), "--", "env", *(f"{k}={v}" for k, v in environment.items()), sys.executable,
                 str(tmp_path / "fork.py"), cwd=tmp_path)  # fmt: skip
    parent, child, exitcode = map(int, done.stdout.split())
    beats = {pid: json.loads((out / "beats" / f"{pid}.json").read_text()) for pid in (parent, child)}
    assert exitcode == 0 and done.stderr == ""
    assert (beats[parent]["rank"], beats[child]["rank"]) == (3, None)  # a child is not the rank that it inherits
    assert all(beat.get("ended") for beat in beats.values())
    assert beats[child]["count"] >= 2 and beats[child]["socket"] != beats[parent]["socket"]
