"""Logs that were pasted: which process failed first, and which lines only echo that."""

from __future__ import annotations

from pathlib import Path

import pytest

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
def test_a_log_without_a_failure_says_how_it_ends(tmp_path: Path, text: str) -> None:
    (tmp_path / "job.log").write_text(text)
    verdict = triage([str(tmp_path / "job.log")])
    assert verdict.verdict == "INSUFFICIENT" and "nothing recognised in job.log" in verdict.reason


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
    verdict = triage([str(tmp_path / "job.log")])
    assert verdict.verdict == "INSUFFICIENT" and "nothing recognised in job.log" in verdict.reason


WAITS = (
    "[rank{0}]:[E606 09:19:08.164985344 ProcessGroupNCCL.cpp:757] [Rank {0}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=7310, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600004 ms\n"
    "[rank{0}]:[E606 09:19:08.169193689 ProcessGroupNCCL.cpp:2395] [PG ID 0 PG GUID 0(default_pg) Rank {0}]  failure "
    "detected by watchdog at work sequence id: 7310 PG status: last enqueued work: 7313, last completed work: 7309\n"
)
SIGNAL = (
    "[rank1]:[E606 09:19:09.172524105 ProcessGroupNCCL.cpp:1987] [PG ID 0 PG GUID 0(default_pg) Rank 1] Received a "
    "dump signal due to a collective timeout. Last enqueued NCCL work: 7309, last completed NCCL work: 7309.\n"
)
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
ACTOR = "(Rollout pid=4201, ip=10.0.0.2) "
ECHOES = WAITS.format(0) + WAITS.format(2) + WAITS.format(3)
RAY = """\
Traceback (most recent call last):
  File "main.py", line 9, in <module>
ray.exceptions.RayTaskError(ValueError): \x1b[36mray::Rollout.sample()\x1b[39m (pid=4201, ip=10.0.0.2, actor_id=ab)
  File "roll.py", line 8, in sample
ValueError: page table is full
"""


def raised(prefix: str, error: str) -> str:
    lines = ("Traceback (most recent call last):", '  File "train.py", line 88, in <module>', "    main()", error)
    return "".join(f"{prefix}{line}\n" for line in lines)


def steps(count: int) -> str:
    return "".join(f"[rank{rank}]: step {step} loss 0.3\n" for step in range(count) for rank in range(4))


VALUE_ERROR = raised("", "ValueError: bad reward")
LOST = "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error"


@pytest.mark.parametrize(
    ("lost", "rank"),
    [
        (f"2026-11-30 10:10:01,500 ERROR [rank0]: {LOST}", 0),
        (f"[rank0]: {LOST}", 0),
        (f"2026-11-30T10:10:01Z [rank2]: {LOST}", 2),
        # The look-alikes: a message of a logger, and a rank without an exception.
        (f"2026-11-30 10:10:01,500 ERROR handled {LOST}", None),
        ("2026-11-30 10:10:01,500 INFO [rank0]: all peers are there", None),
    ],
)
def test_the_echo_of_a_peer_in_another_log_is_told_below_the_first_death(
    tmp_path: Path, lost: str, rank: int | None
) -> None:
    (tmp_path / "rank1.log").write_text("2026-11-30 09:59:58,100 INFO step 41\n" + VALUE_ERROR)
    (tmp_path / "node.log").write_text(f"2026-11-30 09:59:58,100 INFO step 41\n{lost}\n")
    names = [str(tmp_path / name) for name in ("node.log", "rank1.log")]
    verdict = triage(names)
    read = pasted.evidence(names)
    assert verdict.reason.startswith("first failure: rank 1 ended with ValueError")
    assert read is not None and [error.rank for error in read.errors if error.echo] == ([] if rank is None else [rank])
    assert any(f"rank {rank} ended with DistBackendError" in line for line in verdict.evidence) is (rank is not None)


@pytest.mark.parametrize(("error", "step"), [("MemoryError", "free -h"), ("ValueError: MemoryError", "read the log")])
def test_what_ran_out_of_host_memory_in_a_log_is_looked_for_there(tmp_path: Path, error: str, step: str) -> None:
    (tmp_path / "job.log").write_text(raised("[rank1]: ", error))
    verdict = triage([str(tmp_path / "job.log")])
    assert verdict.triage is not None and verdict.triage.next[0].startswith(step)


def test_equal_echoes_are_one_line(tmp_path: Path) -> None:
    echoes = "".join(raised(f"[rank{rank}]: ", LOST) for rank in (0, 2, 3))
    (tmp_path / "job.log").write_text(raised("[rank1]: ", "ValueError: bad reward") + echoes)
    lines = [line for line in triage([str(tmp_path / "job.log")]).evidence if "DistBackendError" in line]
    assert len(lines) == 1 and lines[0].startswith("ranks 0, 2-3 ended with DistBackendError")


def table(code: int) -> str:
    rows = ((0, -6, "09:19:12"), (1, code, "09:09:02"))
    return "".join(
        f"[{rank}]:\n  time      : 2026-11-28_{at}\n  host      : node7\n  rank      : {rank} (local_rank: {rank})\n"
        f"  exitcode  : {ending} (pid: 410{rank})\n  error_file: <N/A>\n  traceback : To enable traceback see: x\n"
        for rank, ending, at in rows
    )


@pytest.mark.parametrize(
    ("text", "who", "what"),
    [
        (steps(5) + raised("[rank1]: ", OOM) + ECHOES, "rank 1", "ran out of GPU memory"),
        (steps(5) + raised("[rank1]: ", "ValueError: no slot") + ECHOES, "rank 1", "ValueError: no slot"),
        (steps(5) + ECHOES + raised("[rank1]: ", "ValueError: no slot"), "rank 1", "ValueError: no slot"),
        (steps(5) + raised("", "ValueError: no slot") + ECHOES, "a process", "ValueError: no slot"),
        (raised(ACTOR, "ValueError: full") + ECHOES, "Rollout (pid 4201)", "ValueError: full"),
        (RAY + ECHOES, "Rollout (pid 4201)", "ValueError: page"),
        (steps(5) + ECHOES + table(-9), "rank 1 (pid 4101)", "SIGKILL"),
        (steps(5) + ECHOES + table(1), "rank 1 (pid 4101)", "exit code 1"),
        (steps(5) + raised("[rank1]: ", "ValueError: no slot") + ECHOES + table(1), "rank 1", "ValueError: no slot"),
        (raised("[rank1]: ", "KeyError: 'old'") + steps(30) + raised("[rank3]: ", "ValueError: new") + WAITS.format(0),
         "rank 3", "ValueError: new"),
    ],
)  # fmt: skip
def test_the_first_failure_comes_before_the_timeouts_that_echo_it(
    tmp_path: Path, text: str, who: str, what: str
) -> None:
    (tmp_path / "job.log").write_text(text)
    verdict = triage([str(tmp_path / "job.log")])
    assert verdict.verdict == "INSUFFICIENT" and f": {who} " in f"{verdict.reason} " and what in verdict.reason
    assert any("all_reduce #7310" in line for line in verdict.evidence) and len(verdict.reason.split()) <= 20


def test_counters_beside_the_error_prove_that_its_rank_has_not_come(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(steps(5) + raised("[rank1]: ", OOM) + ECHOES + SIGNAL)
    verdict = triage([str(tmp_path / "job.log")])
    assert verdict.triage is not None and (verdict.verdict, verdict.triage.hang) == ("HUNG", "K4")
    assert [party.rank for party in verdict.triage.culprits] == [1] and "CUDA out of memory" in verdict.reason
    assert [party.rank for party in verdict.triage.victims] == [0, 2, 3]


@pytest.mark.parametrize(
    "text",
    [
        ECHOES,
        steps(5) + "[rank1]: train.py:12: UserWarning: ValueError: empty mask\n[rank1]:   warnings.warn(\n" + ECHOES,
        raised("[rank1]: ", "ValueError: the cache is old") + steps(30) + ECHOES,  # caught, long before
        raised("", "ImportError: no flash_attn") + steps(30).replace("[rank", "[r") + ECHOES,
        raised("[rank1]: ", "ValueError: the cache is old") + steps(3) + WAITS.format(1) + ECHOES,  # it waits as well
        steps(5) + ECHOES + raised("[rank2]: ", "ValueError: told after its own timeout"),
    ],
)
def test_what_ended_nobody_is_no_first_failure(tmp_path: Path, text: str) -> None:
    (tmp_path / "job.log").write_text(text)
    verdict = triage([str(tmp_path / "job.log")])
    assert verdict.verdict == "INSUFFICIENT" and "first failure" not in verdict.reason


@pytest.mark.parametrize(
    "stamps",
    [
        ("2026-11-28 09:09:05,120 ERROR ", "2026-11-28 09:09:01,120 ERROR "),
        ("ERROR 11-28 09:09:05 [a.py:1] ", "ERROR 11-28 08:59:59 [a.py:1] "),
        ("[E1128 09:09:05.120 a.cpp:1] ", "[E1128 09:09:01.120 a.cpp:1] "),
    ],
)
def test_of_two_errors_the_earlier_by_time_is_the_first(tmp_path: Path, stamps: tuple[str, str]) -> None:
    later, earlier = (f"[rank{rank}]: {stamp}step failed\n" for rank, stamp in zip((2, 1), stamps, strict=True))
    text = later + raised("[rank2]: ", "ValueError: b") + earlier + raised("[rank1]: ", "ValueError: a") + ECHOES
    (tmp_path / "job.log").write_text(text.replace(WAITS.format(2), ""))
    verdict = triage([str(tmp_path / "job.log")])
    assert "rank 1 ended with ValueError: a" in verdict.reason


@pytest.mark.parametrize(
    ("task", "first"), [("chrome", "rank 1"), ("python3", "pid 999"), ("pt_main_thread", "pid 999")]
)
def test_a_kill_of_another_program_comes_after_the_failures_of_the_job(tmp_path: Path, task: str, first: str) -> None:
    (tmp_path / "dmesg.txt").write_text(
        f"[Sat Nov 28 02:00:00 2026] Out of memory: Killed process 999 ({task}) total-vm:9kB, anon-rss:8kB\n"
    )
    (tmp_path / "job.log").write_text(
        "2026-11-28 12:00:01 [rank1]: Traceback (most recent call last):\n"
        '2026-11-28 12:00:01 [rank1]:   File "/job/train.py", line 9, in <module>\n'
        "2026-11-28 12:00:01 [rank1]: KeyError: 'score'\n"
    )
    verdict = triage([str(tmp_path)])
    assert first in verdict.reason and verdict.reason.index(first) < 60


def test_the_file_of_a_rank_names_it(tmp_path: Path) -> None:
    for rank, text in enumerate((WAITS.format(0), raised("", "ValueError: no slot"))):
        (tmp_path / f"rank_{rank}.log").write_text(text)
    assert "rank 1 ended with ValueError: no slot" in triage([str(tmp_path)]).reason


def test_an_error_that_whoever_met_it_outlived_is_no_failure(tmp_path: Path) -> None:
    """As of a job that skipped a batch, worked for hours and was ended by somebody."""
    log = tmp_path / "job.log"
    traceback = 'Traceback (most recent call last):\n  File "job.py", line 3, in <module>\nValueError: bad batch\n'
    for steps, outlived in ((60, True), (2, False)):
        log.write_text(traceback + "".join(f"step {step} loss 0.3\n" for step in range(steps)) + "Terminated\n")
        verdict = triage([str(log)])
        assert verdict.verdict == "INSUFFICIENT" and verdict.triage is not None
        assert bool(verdict.triage.place) is not outlived
        assert ("first failure" in verdict.reason) is not outlived and "bad batch" in verdict.reason


@pytest.mark.parametrize("error", ["Exception: boom", "Exception", "mine.Stuck: boom", "_queue.Empty", "StopIteration"])
def test_whatever_ends_a_traceback_is_its_error(tmp_path: Path, error: str) -> None:
    log = tmp_path / "job.log"
    log.write_text(f'Traceback (most recent call last):\n  File "job.py", line 3, in <module>\n    f()\n{error}\n')
    verdict = triage([str(log)])
    assert "ended with " + error.split(":")[0].rsplit(".", 1)[-1] in verdict.reason


@pytest.mark.parametrize(("done", "first"), [(3, 1), (2, 0)])
def test_an_error_after_which_its_rank_did_several_steps_was_caught(tmp_path: Path, done: int, first: int) -> None:
    caught = raised("[rank0]: ", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")
    (tmp_path / "job.log").write_text(caught + steps(done) + raised("[rank1]: ", "KeyError: 7"))
    verdict = triage([str(tmp_path / "job.log")])
    assert verdict.verdict == "INSUFFICIENT" and f"first failure: rank {first} " in verdict.reason


@pytest.mark.parametrize("work", [
    "[rank1]: step {0}\n",  # of another rank
    "[rank0]: step 7 loss 0.{0}\n",  # one step
    "step {0}\n",  # of nobody knows whom
])  # fmt: skip
def test_steps_that_are_not_of_the_rank_that_failed_prove_nothing(tmp_path: Path, work: str) -> None:
    text = raised("[rank0]: ", "ValueError: a") + "".join(work.format(step) for step in range(10))
    (tmp_path / "job.log").write_text(text + raised("[rank1]: ", "KeyError: 7"))
    assert "first failure: rank 0 " in triage([str(tmp_path / "job.log")]).reason


def test_steps_in_the_file_of_a_host_may_be_of_any_of_its_ranks(tmp_path: Path) -> None:
    (tmp_path / "node1.log").write_text(raised("", "ValueError: a") + "".join(f"step {step}\n" for step in range(10)))
    assert "ended with ValueError: a" in triage([str(tmp_path / "node1.log")]).reason


@pytest.mark.parametrize("signal", ["15", "2", "1"])
def test_a_launcher_that_was_ended_by_a_signal_is_no_first_failure(tmp_path: Path, signal: str) -> None:
    name = "torch.distributed.elastic.multiprocessing.api.SignalException"
    lines = f"Received {signal} death signal, shutting down workers\n{name}: Process 71 got signal: {signal}\n"
    launcher, raised = errors(tmp_path, lines)
    assert launcher.echo and raised.echo and raised.pid == 71
    first, *_ = errors(tmp_path, f"[rank1]: ValueError: x\n{lines}")
    assert first.rank == 1 and not first.echo
