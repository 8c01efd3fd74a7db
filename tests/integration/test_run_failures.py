"""Runs that end badly, on the embedded engine: one sentence, the right exit code, readable recordings, no process left
behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from probes.format import Run
from reports.model import Verdict
from scenarios.engines.last_words import COLLECTED

pytestmark = pytest.mark.timeout(1200)

HARNESS = Path(sys.executable).with_name("harness")
STEPS = 100  # more than are done by the time that anything happens to the run


def start(out: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [str(HARNESS), "run", "ppo-tiny", "--out", str(out), "--set", f"steps={STEPS}", *arguments]

    def own_interrupt() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores it

    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=own_interrupt
    )


def until(process: subprocess.Popen[str], words: str) -> str:
    """Read the output up to a line with these words."""
    assert process.stdout is not None
    seen = ""
    for line in process.stdout:
        seen += line
        if words in line:
            return seen
    raise AssertionError(f"{words!r} never came:\n{seen}")


def family(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def gone(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that are still there once the kernel had a moment to take them down."""
    _, left = psutil.wait_procs(processes, timeout=600)
    return [p for p in left if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.night
@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_leaves_readable_events_and_no_process(
    tmp_path: Path, signum: signal.Signals, code: int
) -> None:
    process = start(tmp_path / "run")
    until(process, "step 1 ")
    processes = family(process)
    process.send_signal(signum)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == code
    kept = f"harness: interrupted; what was recorded until then is in {tmp_path / 'run'}"
    assert output.strip().splitlines()[-1] == kept
    assert gone(processes) == []
    run = Run(tmp_path / "run", strict=False)
    assert len(list(run.frames(kind="rollout"))) >= 2 and run.incomplete


def test_a_role_that_is_killed_ends_the_run_with_a_sentence(tmp_path: Path) -> None:
    process = start(tmp_path / "run")
    until(process, "step 0 ")
    journal = next((tmp_path / "run" / "events").glob("critic-*.jsonl"))
    pid = int(re.findall(r"\d+", journal.stem)[-1])
    processes = family(process)
    os.kill(pid, signal.SIGKILL)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 3, output
    assert "died" in "".join(output.strip().splitlines(keepends=True)[-2:])
    assert gone(processes) == []
    assert list(Run(tmp_path / "run", strict=False).frames(kind="rollout"))


@pytest.mark.night
def test_a_real_engine_whose_scheduler_is_killed_ends_the_run_with_a_sentence(tmp_path: Path) -> None:
    process = start(tmp_path / "run", "--backend", "sglang")
    until(process, "step 0 ")
    processes = family(process)
    scheduler = next(one for one in processes if "sglang::scheduler" in " ".join(one.cmdline()))
    scheduler.kill()
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 3, output
    assert f"engine process {scheduler.pid} died" in "".join(output.strip().splitlines(keepends=True)[-2:])
    assert gone(processes) == []
    run = Run(tmp_path / "run", strict=False)
    assert list(run.frames(kind="rollout")) and any(run.events(kind="engine_died"))


@pytest.mark.night
def test_a_run_that_hangs_is_ended_and_names_who_stands_still(tmp_path: Path) -> None:
    process = start(tmp_path / "run", "--stall", "8s")
    until(process, "step 0 ")
    journal = next((tmp_path / "run" / "events").glob("actor-*.jsonl"))
    pid = int(re.findall(r"\d+", journal.stem)[-1])
    processes = family(process)
    os.kill(pid, signal.SIGSTOP)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 3, output
    assert "hung: rank 0 (actor): stopped" in output, output
    assert gone(processes) == []
    verdict = Verdict.from_dict(json.loads((tmp_path / "run" / "watch" / "verdict.json").read_text()))
    assert verdict.triage is not None
    assert (verdict.verdict, verdict.triage.hang) == ("HUNG", "K9")
    assert [party.pid for party in verdict.triage.culprits] == [pid]


def test_an_address_without_a_cluster_is_said_in_one_sentence(tmp_path: Path) -> None:
    process = start(tmp_path / "run", "--address", "127.0.0.1:1")
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 2 and "could not be joined" in output, output
    assert not (tmp_path / "run").exists()


@pytest.mark.night
def test_a_tensor_parallel_rank_that_dies_at_its_start_is_told_in_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cores for one rank of two: the second one fails by itself, and its engine ends the process that drives it."""
    monkeypatch.setenv("SGLANG_CPU_OMP_THREADS_BIND", "0")
    process = start(tmp_path / "run", "--backend", "sglang", "--set", "engine.tensor_parallel=2")
    until(process, "waiting for the engine")
    processes = family(process)
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 3, output
    last = output.strip().splitlines()[-1]
    assert "AssertionError: NUMA index 1" in last and "SGLANG_CPU_OMP_THREADS_BIND" in last, output
    assert gone(processes) == []


@pytest.mark.night
def test_a_tensor_parallel_rank_that_is_killed_is_named(tmp_path: Path) -> None:
    process = start(tmp_path / "run", "--backend", "vllm", "--set", "engine.tensor_parallel=2")
    until(process, "step 0 ")
    processes = family(process)
    rank = next(one for one in processes if "VLLM::Worker_TP1" in " ".join(one.cmdline()))
    rank.kill()
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 3, output
    last = output.strip().splitlines()[-1]
    assert f"engine process {rank.pid} died (VLLM::Worker_TP1)" in last, output
    # vLLM and the harness are woken by the same end: where vLLM collects the exit code first, nobody can read it again.
    assert "killed by signal 9" in last or COLLECTED in last, output
    assert gone(processes) == []


@pytest.mark.night
@pytest.mark.parametrize("pair", [("sglang", "vllm"), ("vllm", "sglang")])
def test_an_engine_that_is_asked_to_draw_in_its_sleep_ends_the_run_with_a_sentence(
    tmp_path: Path, pair: tuple[str, str]
) -> None:
    """vLLM would take the requests and never answer; SGLang draws from memory that it gave up."""
    out = tmp_path / "run"
    command = [str(HARNESS), "parity", *pair, "--fault", "sleep-drawn-asleep", "--no-native", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 3, done.stdout + done.stderr
    verdict = Verdict.from_dict(json.loads((out / "verdict.json").read_text()))
    refused = f"{pair[1]} is asleep and was asked to generate: its cache and weights must be woken first"
    assert verdict.verdict == "INCONCLUSIVE" and refused in verdict.reason, verdict.reason


@pytest.mark.night
def test_an_engine_that_never_wakes_is_named(tmp_path: Path) -> None:
    """A scheduler, which records nothing, is stopped while the learner trains; its actor waits for it to wake."""
    process = start(tmp_path / "run", "--backend", "sglang", "--set", "engine.sleep_level=1", "--stall", "30s")
    until(process, "step 0 ")
    processes = family(process)
    scheduler = next(one for one in processes if "sglang::scheduler" in " ".join(one.cmdline()))

    def asleep() -> bool:
        calls = [one["name"] for one in Run(tmp_path / "run", strict=False).events(kind="call")]
        transitions = [name for name in calls if name in ("sleep", "wake")]
        return transitions[-1:] == ["sleep"]

    while True:
        while not asleep():
            assert process.poll() is None
        scheduler.suspend()
        if asleep():
            break
        scheduler.resume()  # it was woken before it was stopped
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 3, output
    verdict = Verdict.from_dict(json.loads((tmp_path / "run" / "watch" / "verdict.json").read_text()))
    assert verdict.triage is not None and (verdict.verdict, verdict.triage.hang) == ("HUNG", "K9"), output
    journal = next((tmp_path / "run" / "events").glob("rollout-0-*.jsonl"))
    [culprit] = verdict.triage.culprits
    assert culprit.pid == scheduler.pid, verdict.reason
    assert any("sglang::scheduler" in fact for fact in verdict.evidence), verdict.evidence
    assert int(journal.stem.rpartition("-")[2]) in {party.pid for party in verdict.triage.victims}
    assert gone(processes) == []
