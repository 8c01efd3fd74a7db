"""Logs that were pasted: which process failed first, and which lines only echo that."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import BadInput
from harness.triage import pasted
from harness.triage.evidence import LogError
from harness.triage.pasted.errors import MAX_ERRORS
from harness.triage.run import triage

VLLM = """\
(APIServer pid=101) INFO 11-28 04:12:01 [launcher.py:44] Starting vLLM API server
(Worker_TP1 pid=140) ERROR 11-28 04:12:31 [multiproc_executor.py:1063] WorkerProc hit an exception.
(Worker_TP1 pid=140) ERROR 11-28 04:12:31 [multiproc_executor.py:1063] Traceback (most recent call last):
(Worker_TP1 pid=140) ERROR 11-28 04:12:31 [multiproc_executor.py:1063]   File "/opt/x.py", line 1050, in loop
(Worker_TP1 pid=140) ERROR 11-28 04:12:31 [multiproc_executor.py:1063] {error}
(EngineCore_DP0 pid=120) INFO 11-28 04:13:33 [shm_broadcast.py:466] No available shared memory broadcast block \
found in 60 seconds.
(EngineCore_DP0 pid=120) ERROR 11-28 04:17:31 [core.py:1512] EngineCore encountered a fatal error.
(EngineCore_DP0 pid=120) ERROR 11-28 04:17:31 [core.py:1512] Traceback (most recent call last):
(EngineCore_DP0 pid=120) ERROR 11-28 04:17:31 [core.py:1512] TimeoutError: RPC call to sample_tokens timed out.
(APIServer pid=101) vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.
"""
SGLANG = """\
[2026-11-28 04:12:33 TP0] Decode batch. #running-req: 5
[2026-11-28 04:12:34 TP1] Scheduler hit an exception: Traceback (most recent call last):
  File "/opt/sglang/srt/managers/scheduler.py", line 6360, in run_scheduler_process
    scheduler.event_loop_overlap()
AssertionError: token=hunter2secretvalue page table is full
[2026-11-28 04:12:40] DetokenizerManager hit an exception: Traceback (most recent call last):
ConnectionError: broken pipe
"""


def errors(folder: Path, text: str) -> tuple[LogError, ...]:
    (folder / "job.log").write_text(text)
    evidence = pasted.evidence([str(folder / "job.log")])
    assert evidence is not None
    return evidence.errors


@pytest.mark.parametrize(
    "error", ["torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB.", "ValueError: no slot is free"]
)
def test_a_worker_of_vllm_failed_and_the_others_echo_it(tmp_path: Path, error: str) -> None:
    first, *others = errors(tmp_path, VLLM.format(error=error))
    assert (first.pid, first.role, first.line, first.echo) == (140, "Worker_TP1", 5, False)
    assert "in a worker of vLLM" in first.what and error in first.text
    assert [(other.pid, other.echo) for other in others] == [(120, True), (120, True), (101, True)]


def test_a_scheduler_of_sglang_failed_and_its_detokenizer_echoes_it(tmp_path: Path) -> None:
    first, second = errors(tmp_path, SGLANG)
    assert "AssertionError in SGLang's scheduler (TP1)" in first.what and not first.echo and second.echo
    assert "hunter2" not in first.text


@pytest.mark.parametrize(
    ("line", "what", "pid"),
    [
        ("[12.7] Out of memory: Killed process 4321 (python) total-vm:1kB", "killed by the kernel", 4321),
        ("[12.7] Memory cgroup out of memory: Killed process 4321 (ray::Actor)", "killed by the kernel", 4321),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=12.0.", "cgroup", 0),
        ("slurmstepd: error: *** JOB 9 ON n1 CANCELLED AT 2026-11-28T04:00:00 DUE TO TIME LIMIT ***", "time limit", 0),
        ("[9.1] NVRM: Xid (PCI:0000:1b:00): 79, pid=77, name=python, GPU has fallen off the bus.", "Xid", 77),
        ("2 worker(s) were killed due to the node running low on memory.", "killed by Ray", 0),
        ("OSError: [Errno 28] No space left on device: '/dev/shm/x'", "full disk", 0),
        ("[rank3]: torch.AcceleratorError: CUDA error: an illegal memory access was encountered", "CUDA error", 0),
        ("ERROR 11-28 04:17:31 [e.py:316] Worker proc VllmWorker-1 died unexpectedly (exit code: -9), ", "worker", 0),
        ("[2026-11-28 04:12:40 TP0] Scheduler watchdog timeout (self.watchdog_timeout=300)", "no progress", 0),
    ],
)
def test_each_sign_is_a_failure_of_its_own(tmp_path: Path, line: str, what: str, pid: int) -> None:
    [error] = errors(tmp_path, f"step 1\n{line}\nstep 2\n")
    assert what in error.what and (error.pid, error.line, error.echo) == (pid, 2, False)
    assert error.rank == (3 if line.startswith("[rank3]") else None)


@pytest.mark.parametrize(
    "text",
    [
        "step 1 loss 0.3\nINFO retrying: no Traceback, RPC call to step took 3 s\nstep 2\n",
        "Traceback (most recent call last):\n  File 'x'\nSystemExit: 0\n",
        "ValueError: told without a traceback\n",
        "Worker proc VllmWorker-0 started\n",
    ],
)
def test_a_log_without_a_failure_is_not_evidence(tmp_path: Path, text: str) -> None:
    (tmp_path / "job.log").write_text(text)
    with pytest.raises(BadInput):
        triage([str(tmp_path / "job.log")])


def test_the_first_failure_decides_and_nobody_is_blamed(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(VLLM.format(error="ValueError: no slot is free"))
    verdict = triage([str(tmp_path / "job.log")])
    assert verdict.verdict == "INSUFFICIENT" and verdict.triage is not None and not verdict.triage.culprits
    assert "Worker_TP1 (pid 140)" in verdict.reason and len(verdict.reason.split()) <= 20


def test_failures_beside_stacks_and_counters_are_told(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text("[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB\n")
    (tmp_path / "rank_0.txt").write_text(
        'Process 7: python train.py\nThread 7 (idle): "MainThread"\n'
        "    all_reduce (torch/distributed/distributed_c10d.py:3252)\n    step (train.py:12)\n"
    )
    assert any("rank 1 ran out of GPU memory" in line for line in triage([str(tmp_path)]).evidence)


def test_the_number_of_failures_is_bounded(tmp_path: Path) -> None:
    assert len(errors(tmp_path, "EngineDeadError\n" * 3 * MAX_ERRORS)) == MAX_ERRORS


NCCL_WARN = (
    "node7:4321:4400 [1] net_ib.cc:1295 NCCL WARN NET/IB: Got completion from peer 10.0.0.9 with status=12",
    "node7:4322:4401 [2] include/alloc.h:99 NCCL WARN Cuda failure 2 'out of memory'",
)


def test_a_warning_of_nccl_names_the_process_and_a_lost_connection_is_an_echo(tmp_path: Path) -> None:
    lost, failed = errors(tmp_path, "\n".join(NCCL_WARN))
    assert (lost.pid, lost.echo, failed.pid, failed.echo) == (4321, True, 4322, False)


def test_information_of_nccl_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text("node7:1:2 [0] NCCL INFO NET/IB: Got completion from peer 10.0.0.9\n")
    with pytest.raises(BadInput):
        triage([str(tmp_path / "job.log")])
