"""Lines that tell of an end, each in the words of its writer, with look-alikes that tell of none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.triage import pasted
from harness.triage.evidence import LogError
from harness.triage.run import triage
from reports.model import Verdict

TIMEOUT = (
    "[rank0]:[E606 09:19:08.164985344 ProcessGroupNCCL.cpp:757] [Rank 0] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=3, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600004 milliseconds "
    "before timing out."
)
RAYLET = (
    "(raylet) A worker died or was killed while executing a task by an unexpected system error. RayTask ID: ff Worker "
    "ID: ab Node ID: cd Worker IP address: 10.0.0.7 Worker port: 10002 Worker PID: 4711 Worker exit type: SYSTEM_ERROR "
    "Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file."
)
BARRIER = "[rank0]: RuntimeError: [Rank 0]: Rank 1 failed to pass monitoredBarrier in 3000 ms"  # torch 2.13, as below
REACHED = (
    "[rank3]: RuntimeError: Rank 3 successfully reached monitoredBarrier, but received errors while waiting for "
    "send/recv from rank 0. Please check rank 0 logs for faulty rank."
)
NOTIFY = (
    "[rank3]: RuntimeError: EI0002: The wait execution of the Notify register times out. Reason: The Notify register "
    "has not received the Notify record from remote rank [1]."
)
DEEPSPEED = (
    "[2026-11-28 10:00:00,123] [ERROR] [launch.py:325:sigkill_handler] ['/usr/bin/python', '-u', 'train.py', "
    "'--local_rank=3'] exits with return code = -9"
)
STALLED = "[2026-11-28 04:12:4{0} TP{0}] Watchdog timeout (self.watchdog_timeout=300)"
HUNG_TASK = "[Sat Nov 28 04:10:52 2026] INFO: task {0}:5150 blocked for more than 120 seconds."


def errors(folder: Path, *lines: str) -> tuple[LogError, ...]:
    (folder / "job.log").write_text("\n".join(("step 1", *lines, "")))
    evidence = pasted.evidence([str(folder / "job.log")])
    return evidence.errors if evidence else ()


def judged(folder: Path, *lines: str) -> Verdict:
    (folder / "job.log").write_text("\n".join(("step 1", *lines, "")))
    return triage([str(folder / "job.log")])


@pytest.mark.parametrize(
    ("line", "what", "of"),
    [
        ("Fatal Python error: Bus error", "bus error", "a process"),
        ("*** SIGSEGV received at time=1764300000 on cpu 3 ***", "segmentation fault", "a process"),
        ("(Worker pid=31, ip=10.0.0.2) free(): double free detected in tcache 2", "double free", "Worker (pid 31)"),
        ("[rank4]: RuntimeError: CUDA error: uncorrectable ECC error encountered", "ECC", "rank 4"),
        ("RuntimeError: DataLoader worker (pid 812) is killed by signal: Bus error. ", "killed by signal", "pid 812"),
        ("RuntimeError: DataLoader worker (pid 812) is killed by signal: Killed. ", "killed by signal", "pid 812"),
        ("RuntimeError: DataLoader worker (pid(s) 812, 813) exited unexpectedly", "unexpectedly", "pid 812"),
        ("srun: error: node2: task 5: Out Of Memory", "killed for memory, as Slurm says", "task 5"),
        ("srun: error: Node failure on node-17", "as Slurm says", "Node node-17"),
        ("[2026-11-28 04:12:40] Child process unexpectedly failed with an exit code 135. pid=77", "135", "pid 77"),
        ("[2026-11-28 04:12:40] Rank 3 scheduler is dead. Please check.", "dead", "rank 3"),
        ("node7.hsn.example: rank 25 died from signal 6 and dumped core", "signal 6", "rank 25"),
        (RAYLET, "SYSTEM_ERROR", "pid 4711"),
        ("root         101  153  0.0      0     0 ?        Z    Mar19 137:02 [worker] <defunct>", "defunct", "worker"),
        ("root     101     1  0 Mar19 ?        00:00:00 [worker] <defunct>", "defunct", "worker (pid 101)"),
        ("n1:7:7 [0] misc/shmutils.cc:93 NCCL WARN Call to open failed: No such file", "open failed", "pid 7"),
        ("n1:7:7 [0] misc/shmutils.cc:132 NCCL WARN Error while attaching to shared memory segment /dev/shm/nccl-a "
         "(size 0), error: No such file or directory (2)", "nccl-a", "pid 7"),
        ("[rank5]:[F ProcessGroupNCCL.cpp:1169] [PG 0 Rank 5] ProcessGroupNCCL's watchdog got stuck for 600 seconds "
         "without making progress in monitoring enqueued collectives.", "600 seconds", "rank 5"),
        ("[F ProcessGroupNCCL.cpp:1169] [PG ID 0 PG GUID 0(default_pg) Rank 6] ProcessGroupNCCL's watchdog got stuck "
         "for 480 seconds without making progress", "480 seconds", "rank 6"),
        (BARRIER, "missed a monitored barrier", "rank 1"),
        ("(WorkerDict pid=9) torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
         "capacity of 79.10 GiB of which 1.1 GiB is free. Process 5 has 40.00 GiB memory in use.",
         "GPU memory: Process 5 has 40.00 GiB", "WorkerDict (pid 9)"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "GPU memory", "a process"),
        ("srun: error: node2: tasks 4-7: Exited with exit code 1", "exit code 1", "tasks 4-7"),
        ("srun: error: nodec: task 9: Segmentation fault (core dumped)", "Segmentation fault", "task 9 nodec"),
        ("srun: error: nodec: tasks 8-9: Segmentation fault", "Segmentation fault", "tasks 8-9 nodec"),
        ("srun: error: nodec: task 9: Floating point exception (core dumped)", "Floating point", "task 9 nodec"),
        ("srun: error: nodec: task 9: Illegal instruction", "Illegal instruction", "task 9 nodec"),
        ("srun: error: nodec: task 9: Bus error (core dumped)", "Bus error", "task 9 nodec"),
        (DEEPSPEED, "return code = -9", "a process"),  # the rank in the line is the last that was started
    ],
)  # fmt: skip
def test_the_line_tells_whose_end_it_is(tmp_path: Path, line: str, what: str, of: str) -> None:
    [error] = errors(tmp_path, line)
    assert what in error.what and of in error.of and not error.echo


@pytest.mark.parametrize(
    "line",
    [
        "GPU 0: 0 uncorrectable ECC errors since boot",
        "n1:7:7 [0] NCCL WARN NET/Plugin: Could not find: libnccl-net.so.",
        "the watchdog got stuck once, in another job",
        "ps: no process is <defunct> here",
        "Worker exit type: INTENDED_USER_EXIT",
        "all 16 clients joined",
        HUNG_TASK.format("kworker/u8:1"),
        "[2026-11-28 04:12:40 TP0] Watchdog timeout (self.watchdog_timeout=300, self.soft=True)",
        "Bus error recovery is on",
        "Floating point exception handling is on",
        "srun: error: nodec: task 9: Hangup",
        "rank 3 failed to pass the test of monitoredBarrier",
        "srun: error: node2: task 5: Exited with exit code 0",
        "srun: error: node2: task 5: Terminated",  # as by scancel, or after another task's end
        "the tool exits with return code = 1",
    ],
)
def test_a_look_alike_tells_of_no_end(tmp_path: Path, line: str) -> None:
    assert errors(tmp_path, line) == ()


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("slurmstepd: error: *** JOB 9 ON n1 CANCELLED AT 2026-11-28T04:00:00 DUE TO TIME LIMIT ***", "time limit"),
        ("slurmstepd: error: *** JOB 9 ON n1 CANCELLED AT 2026-11-28T04:00:00 DUE TO PREEMPTION ***", "preempted"),
        ("slurmstepd: error: *** STEP 9.0 ON n1 CANCELLED AT 2026-11-28T04:00:00 ***", "cancelled"),
        ("[E329 06:28:12.5 socket.cpp:1023] [c10d] The client socket has timed out after 600000ms while trying to "
         "connect to (10.0.0.3, 29500).", "10.0.0.3, 29500"),
        ("torch.distributed.DistStoreError: Timed out after 9 seconds waiting for clients. 3/8 clients joined.", "3/8"),
        ("n1:7:7 [0] misc/socket.cc:484 NCCL WARN Call to recv from 10.0.0.9<4> failed : Connection reset by peer",
         "Connection reset"),
        (REACHED, "monitored barrier"),
        (NOTIFY, "remote rank [1]"),
        ("n1:7:9 [2] misc/socket.cc:483 NCCL WARN socketStartConnect: Connect to 10.0.0.2<4567> failed : Software "
         "caused connection abort", "10.0.0.2<4567>"),
    ],
)  # fmt: skip
def test_who_waited_in_vain_is_not_the_first_failure(tmp_path: Path, line: str, what: str) -> None:
    [error] = errors(tmp_path, line)
    assert what in error.what and error.echo
    verdict = judged(tmp_path, line)
    assert verdict.verdict == "INSUFFICIENT" and verdict.reason.startswith("no first failure in the log")


@pytest.mark.parametrize("report", [RAYLET, "Fatal Python error: Aborted", "n7: rank 2 died from signal 6"])
def test_a_death_after_a_timeout_may_be_its_consequence(tmp_path: Path, report: str) -> None:
    assert [error.echo for error in errors(tmp_path, report, TIMEOUT)] == [False]
    assert [error.echo for error in errors(tmp_path, TIMEOUT, report)] == [True]


def test_a_task_that_slurm_killed_after_it_cancelled_the_step_is_an_echo(tmp_path: Path) -> None:
    cancelled = "slurmstepd: error: *** STEP 77.0 ON n1 CANCELLED AT 2026-11-28T04:00:00 ***"
    killed = "srun: error: n2: task 1: Killed"
    assert [error.echo for error in errors(tmp_path, cancelled, killed)] == [True, True]
    verdict = judged(tmp_path, cancelled, killed)
    assert verdict.triage is not None and verdict.triage.place == "job.log:2" and "STEP 77.0" in verdict.reason
    # Slurm cancels the others once a task has failed.
    assert [error.echo for error in errors(tmp_path, killed, cancelled)] == [False, True]


def test_a_node_that_slurm_lost_is_a_failure_of_its_own(tmp_path: Path) -> None:
    [error] = errors(
        tmp_path,
        "slurmstepd: error: *** JOB 77 ON n1 CANCELLED AT 2026-11-28T04:00:00 DUE TO NODE FAILURE, SEE SLURMCTLD LOG "
        "FOR DETAILS ***",
    )
    assert (error.role, error.host, error.echo) == ("JOB 77", "", False)  # it names the first node, not the lost one


@pytest.mark.parametrize(("words", "echo"), [("EOFError", True), ("EOFError: Ran out of input", False)])
def test_the_end_of_a_pipe_is_an_echo_and_a_short_file_is_not(tmp_path: Path, words: str, echo: bool) -> None:
    trace = (
        "Traceback (most recent call last):",
        '  File "connection.py", line 399, in _recv',
        "    raise EOFError",
        words,
    )
    assert [error.echo for error in errors(tmp_path, *trace)] == [echo]


def test_the_death_comes_before_the_end_of_file_that_echoes_it(tmp_path: Path) -> None:
    stack = [f'  File "/job/load.py", line {line} in load' for line in range(30)]
    threads = ["Thread 0x00007976472006c0 (most recent call first):", *stack] * 25
    trace = ("Traceback (most recent call last):", '  File "connection.py", line 399, in _recv', "EOFError")
    verdict = judged(tmp_path, "Fatal Python error: Bus error", *threads, *trace)
    assert "first failure: a process ended with a bus error" in verdict.reason


def test_an_error_beside_the_stacks_of_the_dead_comes_first(tmp_path: Path) -> None:
    frames = [f"frame #{number}: c10::Error + 0x96 (0x79 in libc10.so)" for number in range(30)]
    stack = ("Fatal Python error: Aborted", "", "Current thread 0x0000700000000640 (most recent call first):",
             '  File "/job/train.py", line 9 in step')  # fmt: skip
    ecc = "[rank1]:[E129 08:52:51.6 ProcessGroupNCCL.cpp:1595] CUDA error: uncorrectable ECC error encountered"
    assert "first failure: rank 1 met an uncorrectable ECC error" in judged(tmp_path, ecc, *frames, *stack).reason


RAY_KILLED = (
    "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
    "Memory on the node (IP: 10.0.0.7, ID: ab) where the task (actor ID: cd, name=Engine.__init__, pid=3719, memory "
    "used=0.68GB) was running was 126.63GB / 128.00GB (0.989315), which exceeds the memory usage threshold of 0.95.",
    "Top 10 memory users:",
    "PID\tMEM(GB)\tCOMMAND",
    "3565\t45.16\tray::Trainer.train",
    "3312\t31.83\tray::Trainer.train",
)


def test_ray_says_whom_it_killed_and_who_held_the_memory(tmp_path: Path) -> None:
    asked = "ray.exceptions.RayTaskError(OutOfMemoryError): ray::Caller.run() (pid=99, ip=10.0.0.1)"
    [error] = errors(tmp_path, "Traceback (most recent call last):", asked, *RAY_KILLED)
    assert (error.pid, error.host) == (3719, "10.0.0.7") and "(pid 3565), 45.16 GB" in error.what


def test_a_table_of_memory_alone_kills_nobody(tmp_path: Path) -> None:
    assert errors(tmp_path, *RAY_KILLED[1:]) == ()


def test_two_logs_without_times_are_in_no_order(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("Fatal Python error: Bus error\n")
    (tmp_path / "b.log").write_text("[rank1]: torch.OutOfMemoryError: CUDA out of memory.\n")
    verdict = triage([str(tmp_path)])
    assert "first failure in a.log" in verdict.reason and any("b.log:1" in line for line in verdict.evidence)


def test_schedulers_that_their_watchdogs_ended_hung_and_nobody_is_blamed(tmp_path: Path) -> None:
    verdict = judged(tmp_path, *(STALLED.format(rank) for rank in range(4)), "Received sigquit from a child process.")
    assert verdict.triage is not None and (verdict.verdict, verdict.triage.culprits) == ("HUNG", [])
    assert verdict.reason.startswith("4 processes made no progress for 300 s") and len(verdict.reason.split()) <= 20


def test_a_failure_before_the_watchdogs_is_the_first(tmp_path: Path) -> None:
    verdict = judged(tmp_path, "[rank1]: torch.OutOfMemoryError: CUDA out of memory.", STALLED.format(0))
    assert verdict.verdict == "INSUFFICIENT" and "first failure: rank 1" in verdict.reason


def test_a_scheduler_that_went_on_did_not_hang(tmp_path: Path) -> None:
    work = ["[2026-11-28 04:13:01 TP1] Decode batch. #running-req: 5"] * 30
    assert judged(tmp_path, STALLED.format(1), *work).verdict == "INSUFFICIENT"


def test_the_process_that_the_kernel_holds_is_named(tmp_path: Path) -> None:
    verdict = judged(tmp_path, HUNG_TASK.format("python3"))
    assert verdict.triage is not None and (verdict.verdict, verdict.triage.hang) == ("HUNG", "K9")
    assert [party.pid for party in verdict.triage.culprits] == [5150]


PS = """\
USER         PID %CPU %MEM    VSZ   RSS TTY      STAT START   TIME COMMAND
root           1  0.0  0.0 5031316 757756 ?      Ssl  Mar19   8:23 python3 -m serve --port 8888
root         100  0.0  0.0      0     0 ?        Z    Mar19   0:00 [python3] <defunct>
root         101  153  0.0      0     0 ?        Z    Mar19 137:02 [eng::worker] <defunct>
root         102  152  0.0      0     0 ?        {state}    Mar19 137:44 {worker}
root       26403  0.0  0.0      0     0 ?        Z    Mar25   0:00 [sh] <defunct>
"""


def test_the_name_that_most_of_the_defunct_have_comes_first(tmp_path: Path) -> None:
    verdict = judged(tmp_path, PS.format(state="Z", worker="[eng::worker] <defunct>"))
    assert "2 processes called eng::worker ended and are defunct: pids 101-102" in verdict.reason
    assert verdict.triage is not None and verdict.exit_code == 3 and not verdict.triage.culprits


def test_a_process_list_of_the_living_tells_of_no_end(tmp_path: Path) -> None:
    living = "".join(line for line in PS.format(state="R", worker="eng::worker").splitlines(True) if "<def" not in line)
    assert errors(tmp_path, living) == ()


def test_the_words_of_the_rank_that_torchruns_table_names_are_told(tmp_path: Path) -> None:
    raised = ("[rank0]: Traceback (most recent call last):", '[rank0]:   File "t.py", line 9, in main',
              "[rank0]: RuntimeError: setStorage: size 0")  # fmt: skip
    table = ("Root Cause (first observed failure):", "[0]:", "  time      : 2026-11-28_09:09:02", "  host      : node7",
             "  rank      : 0 (local_rank: 0)", "  exitcode  : {0} (pid: 4100)", "  error_file: <N/A>",
             "  traceback : To enable traceback see: x")  # fmt: skip
    for code, told in ((1, True), (-9, False)):
        verdict = judged(tmp_path, *raised, "\n".join(table).format(code))
        assert ("setStorage" in f"{verdict.reason} {verdict.evidence}") is told


@pytest.mark.parametrize(("others", "verdict_names"), [("verl", True), ("trl", False)])
def test_the_one_error_of_a_log_without_prefixes_is_that_of_the_failed_rank(
    others: str, verdict_names: bool, tmp_path: Path
) -> None:
    """Without prefixes several errors are of nobody in particular."""
    raised = "Traceback (most recent call last):\nModuleNotFoundError: No module named '{0}'"
    table = "\n".join(("Root Cause (first observed failure):", *row(0, 1, 1, "To enable traceback see: x")))
    verdict = judged(tmp_path, raised.format("verl"), raised.format(others), table)
    assert "rank 1 ended with" in verdict.reason and ("'verl'" in verdict.reason) is verdict_names


def test_of_equal_failures_of_one_moment_none_is_the_first(tmp_path: Path) -> None:
    line = "(Engine_{0} pid=265{0}) ERROR 06-11 11:46:{1} [core.py:517] "
    for number, (seconds, both) in enumerate((((39, 39), True), ((39, 40), False))):
        folder = tmp_path / str(number)
        folder.mkdir()
        verdict = judged(folder, *(
            line.format(engine, second) + words
            for engine, second in enumerate(seconds)
            for words in ("Traceback (most recent call last):", "AttributeError: no attribute x")
        ))  # fmt: skip
        assert "Engine_0 (pid 2650)" in verdict.reason and ("Engine_1 (pid 2651)" in verdict.reason) is both
        assert len(verdict.reason.split()) <= 20


def row(number: int, rank: int, code: int, traceback: str) -> tuple[str, ...]:
    return (f"[{number}]:", "  time      : 2026-11-28_07:04:20", "  host      : localhost",
            f"  rank      : {rank} (local_rank: {rank})", f"  exitcode  : {code} (pid: 4{rank})", "  error_file: <N/A>",
            f"  traceback : {traceback}")  # fmt: skip


def test_the_rank_that_missed_a_monitored_barrier_comes_before_those_that_say_so(tmp_path: Path) -> None:
    """Torchrun's table has the ends of all, and none is of who did not come."""
    ends = [
        *row(1, 3, 1, "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"),
        *row(2, 1, -15, "Signal 15 (SIGTERM) received by PID 41"), "-" * 60, "Root Cause (first observed failure):",
        *row(0, 0, 1, "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"), "=" * 60,
    ]  # fmt: skip
    trace = ["[rank0]: Traceback (most recent call last):", "[rank0]:     dist.monitored_barrier()"]
    lines = [*trace, BARRIER, *(line.replace("rank0", "rank3") for line in trace), REACHED, "train.py FAILED", "-" * 60,
             "Failures:", *ends]  # fmt: skip
    verdict = judged(tmp_path, *lines)
    assert "rank 1 missed a monitored barrier" in verdict.reason
    barrier, end, *_ = errors(tmp_path, *trace, BARRIER)
    assert [(error.rank, error.echo) for error in (barrier, end)] == [(1, False), (0, True)]


@pytest.mark.parametrize(
    ("missing", "numbers", "who"),
    [
        ("Rank 2", [2], "rank 2"),
        ("Ranks 2, 3", [2, 3], "ranks 2-3"),
        ("Ranks 1, 4, 5, 9", [1, 4, 5, 9], "ranks 1, 4-5, 9"),
    ],
)
def test_all_ranks_that_missed_a_monitored_barrier_are_named(
    tmp_path: Path, missing: str, numbers: list[int], who: str
) -> None:
    barrier = BARRIER.replace("Rank 1", missing)
    *absent, told_so = errors(tmp_path, "[rank0]: Traceback (most recent call last):", barrier)
    assert [(error.rank, error.echo) for error in absent] == [(number, False) for number in numbers]
    assert (told_so.rank, told_so.echo) == (0, True)
    assert f"first failure: {who} missed a monitored barrier" in judged(tmp_path, barrier).reason


@pytest.mark.parametrize("line", ["Ranks 2, 3 passed monitoredBarrier", "Ranks two failed to pass monitoredBarrier"])
def test_a_barrier_that_names_no_missing_rank_blames_none(tmp_path: Path, line: str) -> None:
    """The look-alike."""
    assert all(error.echo for error in errors(tmp_path, f"[rank0]: {line} in 3000 ms"))


@pytest.mark.parametrize(
    ("line", "asks_the_kernel"),
    [
        ("RuntimeError: DataLoader worker (pid 812) is killed by signal: Killed. ", True),
        ("RuntimeError: DataLoader worker (pid 812) is killed by signal: Bus error. ", False),
        ("RuntimeError: DataLoader worker (pid(s) 812) exited unexpectedly", False),
        ("[12.7] Out of memory: Killed process 4321 (python) total-vm:1kB", False),  # the kernel's log itself
        ("[9.1] NVRM: Xid (PCI:0000:1b:00): 79, pid=77, name=python, GPU has fallen off the bus.", False),
    ],
)
def test_the_kernels_log_is_proposed_only_where_it_tells_more(tmp_path: Path, line: str, asks_the_kernel: bool) -> None:
    [error] = errors(tmp_path, line)
    assert ("dmesg" in error.fix) is asks_the_kernel


MAIN = ("Thread 0x00007f2bc8a01740 (most recent call first):", '  File "/job/train.py", line 77 in all_reduce')
LOADS = (" 0x00007f2b34ff9700 (most recent call first):", '  File "/job/loader.py", line 31 in decode')


@pytest.mark.parametrize("crash", [True, False])
@pytest.mark.parametrize("newest_first", [True, False])
def test_the_thread_that_crashed_says_where_its_process_was(tmp_path: Path, crash: bool, newest_first: bool) -> None:
    """faulthandler lists the newest thread first, and calls that current which crashed. After a timeout all count."""
    head = "Fatal Python error: Segmentation fault" if crash else "Timeout (0:00:10)!"
    loads = ("Current thread" + LOADS[0], LOADS[1])
    threads = (*loads, "", *MAIN) if newest_first else (*MAIN, "", *loads)
    verdict = judged(tmp_path, head, "", *threads)
    text = "\n".join(verdict.evidence)
    assert ("loader.py:31" in text and "train.py:77" not in text) if crash else re.search("(loader|train).py:", text)
