"""Deaths that leave no traceback: limits of the system, engines that find a process dead, schedulers and clusters."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.triage.evidence import LogError
from harness.triage.pasted import evidence
from harness.triage.run import triage
from reports.model import Verdict

ALLOCATOR = (
    "[rank2]: RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: "
    "you tried to allocate 17179869184 bytes. Error code 12 (Cannot allocate memory)"
)
EVICTED = """\
Name:             trainer-3
Status:           Failed
Reason:           Evicted
Message:          The node was low on resource: ephemeral-storage."""
LSF_MEMORY = "TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.\nExited with exit code 137."
CLOSED = "[rank{0}]: RuntimeError: Connection closed by peer [10.0.0.2]:3333"
SIGQUIT = "[2026-11-28 09:00:01 TP0] Received sigquit from a child process. It usually means the child failed."
ENGINE_DEAD = (
    "(APIServer pid=50) vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace "
    "(above) for the root cause."
)
DESCRIBED = """\
Name:         trainer-0
Namespace:    rlhf
Containers:
  main:
    State:          Running
    Last State:     Terminated
      Reason:       {reason}
      Exit Code:    {code}
"""
EVENTS = "low 0\nhigh 0\nmax 1234\noom 3\noom_kill {0}\noom_group_kill 0\n"


def judged(folder: Path, text: str) -> Verdict:
    (folder / "job.log").write_text(text + "\n")
    return triage([str(folder / "job.log")])


def errors(folder: Path, text: str) -> tuple[LogError, ...]:
    (folder / "job.log").write_text(text + "\n")
    read = evidence([str(folder / "job.log")])
    return read.errors if read else ()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("[rank2]: OSError: [Errno 122] Disk quota exceeded: '/home/u/ckpt.pt'", "disk quota"),
        (ALLOCATOR, "17179869184 bytes"),
        ("[rank2]: OSError: [Errno 12] Cannot allocate memory", "host memory"),
        ("[rank2]: OSError: [Errno 24] Too many open files", "open files"),
        ("[rank2]: torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB.", "GPU memory"),
        ("[rank2]: RuntimeError: HIP error: hipErrorOutOfMemory", "GPU memory"),
        ("[rank2]: ValueError: nothing left to draw", "ValueError"),
    ],
)  # fmt: skip
def test_picked_lines_without_a_traceback_name_the_first_death_and_not_its_echo(
    tmp_path: Path, line: str, words: str
) -> None:
    verdict = judged(tmp_path, f"{line}\n{CLOSED.format(0)}")
    assert verdict.verdict == "INSUFFICIENT" and "first failure: rank 2" in verdict.reason
    assert any(words in text for text in (verdict.reason, *verdict.evidence))
    assert judged(tmp_path, f"{CLOSED.format(0)}\n{line}").reason.startswith("first failure: rank 2")


@pytest.mark.parametrize(
    "line",
    [
        "hint: 'Too many open files' errors go away with ulimit -n 65536",
        "if the disk quota is exceeded, clean /home",
        "Error handling: Cannot allocate memory errors are retried",
        "HIP memory: 3 GiB free",
        "evicted 12 blocks of the KV cache",
        "  Reason: Completed",
        "  Exit Code:    0",
        "oom_kill 0",
        "trainer-0   1/1   Running   0   5m",
        "PBS: job killed nobody",
        "TERM_UNKNOWN: job killed",
        "ValueError: caught",  # no rank, no traceback: a word of a log
        "Worker procs died unexpectedly often last week",
    ],
)
def test_a_look_alike_tells_of_no_death(tmp_path: Path, line: str) -> None:
    assert errors(tmp_path, f"step 1\n{line}\nstep 2") == ()


def test_an_exception_behind_a_rank_counts_only_where_no_traceback_has_its_head(tmp_path: Path) -> None:
    trace = "[rank1]: Traceback (most recent call last):\n[rank1]:   File \"t.py\", line 1\n[rank1]: KeyError: 'x'"
    [error] = errors(tmp_path, f"{trace}\n[rank0]: ValueError: a line of a message")
    assert error.rank == 1


@pytest.mark.parametrize(
    ("first", "of", "echo"),
    [
        ("[2026-11-28 09:00:01] Child process unexpectedly failed with exitcode=-9. pid=812", "pid 812", SIGQUIT),
        ("[2026-11-28 09:00:01] Subprocess scheduler_0 (pid=812) crashed with exit code -9. Triggering SIGQUIT for "
         "cleanup...", "scheduler_0 (pid 812)", SIGQUIT),
        ("(EngineCore_DP0 pid=100) ERROR 06-06 09:00:35 [multiproc_executor.py:230] Worker proc VllmWorker-1 died "
         "unexpectedly, shutting down executor.", "VllmWorker-1", ENGINE_DEAD),
        ("(EngineCore_DP0 pid=100) ERROR 06-06 09:00:35 [multiproc_executor.py:316] Worker proc VllmWorker-1 died "
         "unexpectedly (exit code: -9), shutting down executor.", "VllmWorker-1", ENGINE_DEAD),
        ("(EngineCore_DP0 pid=100) ERROR RayWorkerProc rank=3 died unexpectedly, shutting down executor.", "rank 3",
         ENGINE_DEAD),
        ("(APIServer pid=50) RuntimeError: Engine core process EngineCore_DP1 died unexpectedly.", "EngineCore_DP1",
         ENGINE_DEAD),
    ],
)  # fmt: skip
def test_the_process_that_an_engine_found_dead_is_named_and_not_who_found_it(
    tmp_path: Path, first: str, of: str, echo: str
) -> None:
    found_dead, later = errors(tmp_path, f"{first}\n{echo}")
    assert (found_dead.of, found_dead.echo, later.echo) == (of, False, True)
    assert f"first failure: {of}" in judged(tmp_path, f"{first}\n{echo}").reason


def test_the_workers_own_error_comes_before_the_engine_that_found_it(tmp_path: Path) -> None:
    own = "(VllmWorker rank=1 pid=812) torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    found = "(EngineCore_DP0 pid=100) ERROR Worker proc VllmWorker-1 died unexpectedly, shutting down executor."
    assert "first failure: rank 1" in judged(tmp_path, f"{own}\n{found}\n{ENGINE_DEAD}").reason


def test_a_sigquit_alone_is_no_first_failure(tmp_path: Path) -> None:
    assert judged(tmp_path, SIGQUIT).reason.startswith("no first failure in the log")


@pytest.mark.parametrize(
    ("text", "what", "of"),
    [
        (DESCRIBED.format(reason="OOMKilled", code=137), "OOMKilled", "trainer-0"),
        (DESCRIBED.format(reason="Error", code=137), "SIGKILL", "trainer-0"),
        (EVICTED, "evicted", "trainer-3"),
        ("NAME        READY   STATUS      RESTARTS   AGE\ntrainer-0   0/1     OOMKilled   2          5m", "OOMKilled",
         "trainer-0"),
        (EVENTS.format(1), "cgroup", "a process"),
        ("=>> PBS: job killed: mem 9000kb exceeded limit 8000kb", "memory", "job"),
        (LSF_MEMORY, "memory", "job"),
    ],
)  # fmt: skip
def test_what_a_cluster_says_of_an_end(tmp_path: Path, text: str, what: str, of: str) -> None:
    [error] = errors(tmp_path, text)
    assert what in error.what and (error.of, error.echo) == (of, False)


@pytest.mark.parametrize(
    "text",
    [
        "=>> PBS: job killed: walltime 3605 exceeded limit 3600\nTerminated",
        "TERM_RUNLIMIT: job killed after reaching LSF run time limit.",
    ],
)
def test_the_time_limit_of_a_job_is_no_failure_of_it(tmp_path: Path, text: str) -> None:
    assert judged(tmp_path, text).reason.startswith("no first failure in the log: job was ended by")
    oom = "[rank1]: torch.OutOfMemoryError: CUDA out of memory."
    assert "first failure: rank 1" in judged(tmp_path, f"{oom}\n{text}").reason


def test_a_pod_that_ended_well_did_not_fail(tmp_path: Path) -> None:
    assert errors(tmp_path, DESCRIBED.format(reason="Completed", code=0)) == ()
    assert errors(tmp_path, EVENTS.format(0)) == ()


TABLE = """\
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
{others}
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-06-01_10:00:00
  host      : node1
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 813)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 813
============================================================"""
ALONE = "  <NO_OTHER_FAILURES>"
RANK_0 = """\
[1]:
  time      : 2026-06-01_10:00:00
  host      : node1
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 812)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"""
KERNEL = "[  912.3] Memory cgroup out of memory: Killed process {pid} (python) total-vm:91234kB, anon-rss:6123kB"
XID = "[12345.6] NVRM: Xid (PCI:0000:3b:00): 79, pid={pid}, name=python, GPU has fallen off the bus."
SLURM = "slurmstepd: error: Detected 1 oom_kill event in StepId=812.0. Some of the step tasks have been OOM Killed."


def with_table(folder: Path, system: str, others: str = ALONE, *, apart: bool) -> Verdict:
    """The verdict on torchrun's table and a line of the system, in one log or in two files."""
    table = TABLE.format(others=others)
    texts = {"job.log": table, "kern.log": system} if apart else {"job.log": f"{system}\n{table}"}
    for name, text in texts.items():
        (folder / name).write_text(text + "\n")
    return triage([str(folder / name) for name in texts])


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize(
    ("system", "what", "step"),
    [
        (KERNEL.format(pid=813), "rank 1 was killed by the kernel for memory", "memory"),
        (XID.format(pid=813), "rank 1 met a GPU error", "nvidia-smi -q"),
        (SLURM, "rank 1 ended with signal 9", "memory"),
        # The control: the kernel killed a process that is none of the table.
        (KERNEL.format(pid=4711), "rank 1 ended with signal 9", "dmesg"),
    ],
)
def test_what_the_system_says_of_a_pid_explains_the_exit_code_of_a_table(
    tmp_path: Path, apart: bool, system: str, what: str, step: str
) -> None:
    verdict = with_table(tmp_path, system, apart=apart)
    assert what in verdict.reason and step in verdict.triage.next[0]
    assert any("pid=813" in line or "oom_kill" in line or "813 (python)" in line for line in verdict.evidence) == (
        "4711" not in system
    )


def test_a_kill_that_the_kernel_tells_comes_before_an_exit_code_that_nothing_explains(tmp_path: Path) -> None:
    verdict = with_table(tmp_path, KERNEL.format(pid=813), RANK_0, apart=True)
    assert "rank 1 was killed by the kernel for memory" in verdict.reason
    assert any("after it rank 0" in line for line in verdict.evidence)
    # The control: a kill of a process of another job leaves it open who was first.
    control = with_table(tmp_path, KERNEL.format(pid=4711), RANK_0, apart=True)
    assert "rank 0 and rank 1" in control.reason


def test_a_pid_that_two_hosts_have_is_not_explained_by_a_log_without_a_host(tmp_path: Path) -> None:
    twin = RANK_0.replace("pid: 812", "pid: 813").replace("node1", "node2")
    verdict = with_table(tmp_path, KERNEL.format(pid=813), twin, apart=True)
    assert "by the kernel" not in verdict.reason
