"""Pasted stacks: who stands where is told, and nothing is proven from one look."""

from __future__ import annotations

import errno
import gzip
import io
import json
import os
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.errors import BadInput
from harness.triage import directory, pasted
from harness.triage.evidence import Evidence
from harness.triage.flight import synthesis
from harness.triage.pasted import naming, text
from harness.triage.run import triage
from reports.model import Verdict

COMMAND = "/opt/venv/bin/python -u /job/train.py"
FORWARD = "    forward (train.py:10)\n    main (train.py:50)\n    <module> (train.py:60)\n"
COLLECTIVE = "    {0} (torch/distributed/distributed_c10d.py:3252)\n    wrapper (torch/distributed/c10d_logger.py:83)\n"


def dump(pid: int, frames: str, command: str = COMMAND) -> str:
    return (
        f'Process {pid}: {command}\nPython v3.11.7 (/usr/bin/python3.11)\n\nThread {pid} (idle): "MainThread"\n{frames}'
    )


def waiting(line: int, op: str = "all_reduce") -> str:
    return COLLECTIVE.format(op) + f"    step (train.py:{line})\n    main (train.py:50)\n    <module> (train.py:60)\n"


def job(folder: Path, *frames: str, command: str = COMMAND) -> Path:
    for rank, stack in enumerate(frames):
        (folder / f"rank_{rank}.txt").write_text(dump(2000 + rank, stack, command))
    return folder


def judged(*words: Path) -> Verdict:
    verdict = triage([str(word) for word in words])
    assert verdict.verdict in ("INSUFFICIENT", "HEALTHY"), "one look proves no hang"
    assert verdict.triage is not None and not verdict.triage.culprits and not verdict.triage.cycle
    return verdict


def places(verdict: Verdict) -> list[str]:
    return [line for line in verdict.evidence if "stands elsewhere" in line]


def test_the_one_that_stands_elsewhere_is_named_and_not_blamed(tmp_path: Path) -> None:
    verdict = judged(job(tmp_path, *[waiting(12)] * 7, waiting(10, "broadcast"), *[waiting(12)] * 3))
    assert verdict.reason == "10 ranks at train.py:12 all_reduce; rank 7 at train.py:10 broadcast"
    [line] = places(verdict)
    assert line.startswith("rank 7 ")


@pytest.mark.parametrize("readable", [True, False])
def test_the_branch_of_each_place_is_told_where_the_program_can_be_read(tmp_path: Path, readable: bool) -> None:
    program = tmp_path / "program.py"
    program.write_text("def step(rank, t):\n    if rank == 1:\n        dist.broadcast(t, 0)\n    dist.all_reduce(t)\n")
    if not readable:
        program.write_text("# changed since\n" * 9)

    def at(line: int, op: str) -> str:
        return COLLECTIVE.format(op) + f"    step ({program}:{line})\n    <module> ({program}:6)\n"

    (tmp_path / "stacks").mkdir()
    verdict = judged(job(tmp_path / "stacks", at(4, "all_reduce"), at(3, "broadcast"), at(4, "all_reduce")))
    [line] = places(verdict)
    assert ("under `if rank == 1` (line 2)" in line) is readable


def test_the_place_is_where_the_odd_one_stands(tmp_path: Path) -> None:
    command = f"{COMMAND} --world-size 4"
    verdict = judged(job(tmp_path, waiting(12), waiting(12), FORWARD, waiting(12), command=command))
    assert verdict.triage is not None and verdict.triage.place.startswith("train.py:10")
    assert "ranks 0-1, 3 at" in verdict.reason


def test_no_more_stacks_are_asked_for_where_every_rank_was_pasted(tmp_path: Path) -> None:
    def asks(folder: Path, count: int) -> bool:
        folder.mkdir()
        verdict = judged(job(folder, *[waiting(12)] * count, command=f"{COMMAND} --world-size 3"))
        assert verdict.triage is not None
        return any("py-spy dump" in step for step in verdict.triage.next)

    assert not asks(tmp_path / "all", 3) and asks(tmp_path / "some", 2)


def test_nobody_stands_elsewhere_where_all_wait_at_one_place(tmp_path: Path) -> None:
    assert not places(judged(job(tmp_path, *[waiting(12)] * 4)))


def test_without_a_majority_nobody_stands_elsewhere(tmp_path: Path) -> None:
    assert not places(judged(job(tmp_path, waiting(12), waiting(12), waiting(10), waiting(10))))


def test_the_operation_is_the_one_that_the_users_code_called(tmp_path: Path) -> None:
    inner = COLLECTIVE.format("broadcast") + waiting(12, "broadcast_object_list")
    assert judged(job(tmp_path, inner, inner)).triage.place == "train.py:12 broadcast_object_list"


def test_ranks_at_one_line_by_different_ways_stand_at_two_places(tmp_path: Path) -> None:
    helper = COLLECTIVE.format("barrier") + "    sync (util_mine.py:5)\n    {0} (train.py:{1})\n"
    stacks = [helper.format("train", 30)] * 3 + [helper.format("save", 40)]
    [line] = places(judged(job(tmp_path, *stacks)))
    assert line.startswith("rank 3 ") and "train.py:40" in line


def test_two_jobs_in_one_folder_are_told_apart(tmp_path: Path) -> None:
    for node in ("first", "second"):
        (tmp_path / node).mkdir()
    job(tmp_path / "first", *[waiting(12)] * 2)
    for rank in (0, 1):
        (tmp_path / "second" / f"rank_{rank}.txt").write_text(dump(9000 + rank, waiting(99)))
    assert judged(tmp_path).reason.startswith("rank 0 is there twice")


def test_one_rank_of_many_says_which_are_missing(tmp_path: Path) -> None:
    launcher = dump(
        1, "    run (torch/distributed/run.py:1)\n", "python /bin/torchrun --nproc-per-node 4 /job/train.py"
    )
    (tmp_path / "launcher.txt").write_text(launcher)
    (tmp_path / "rank2.txt").write_text(dump(2002, waiting(12)))
    assert "nothing from rank 0, 1, 3" in judged(tmp_path).missing


def test_a_world_that_no_command_says_is_not_guessed(tmp_path: Path) -> None:
    (tmp_path / "rank2.txt").write_text(dump(2002, waiting(12)))
    missing = judged(tmp_path / "rank2.txt").missing
    assert any(line.startswith("stacks of ranks 0-1") for line in missing)
    assert any("number of ranks" in line for line in missing)


def test_two_threads_of_each_rank_in_a_collective_are_both_told(tmp_path: Path) -> None:
    side = 'Thread 7 (idle): "Saver"\n' + COLLECTIVE.format("all_gather") + "    save (train.py:9)\n"
    assert (
        judged(job(tmp_path, *[waiting(12) + side] * 2)).triage.place
        == "train.py:12 all_reduce and train.py:9 all_gather"
    )


def test_several_dumps_in_one_file_and_the_same_process_twice(tmp_path: Path) -> None:
    file = tmp_path / "all.txt"
    file.write_text("$ py-spy dump\n" + dump(1, waiting(12)) + "\n" + dump(2, waiting(10)) + dump(1, FORWARD))
    evidence = pasted.evidence([str(file)])
    assert evidence is not None and evidence.stall_s == 0.0
    assert [(process.pid, process.rank, len(process.samples)) for process in evidence.processes] == [
        (1, None, 1), (2, None, 1)]  # fmt: skip
    assert any("2 times" in note and "different places" in note for note in evidence.notes)


def test_values_of_variables_are_dropped(tmp_path: Path) -> None:
    secret = '        Arguments:\n            key: "hf_abc (x.py:3)"\n        Locals:\n            y: Foo (evil.py:3)\n'
    stack = waiting(12).replace("    main", secret + "    main")
    for stacks in (stack, "\n".join(line.strip() for line in stack.splitlines()) + "\n"):
        (tmp_path / "a.txt").write_text(dump(5, stacks))
        evidence = pasted.evidence([str(tmp_path / "a.txt")])
        assert evidence is not None
        functions = [frame.function for frame in evidence.processes[0].samples[0].threads[0].frames]
        assert functions[-3:] == ["step", "main", "<module>"] and "hf_abc" not in repr(evidence)


def test_json_of_py_spy_with_locals(tmp_path: Path) -> None:
    frames = [{"name": "all_reduce", "filename": "/v/site-packages/torch/distributed/distributed_c10d.py", "line": 1,
               "locals": [{"name": "key", "repr": "hf_abc"}]},
              {"name": "step", "filename": "/job/train.py", "line": 12}]  # fmt: skip
    thread = {"pid": 44, "thread_name": None, "os_thread_id": 44, "active": False, "owns_gil": False, "frames": frames}
    text_of_two = json.dumps([thread], indent=2) + "\n" + json.dumps([{**thread, "pid": 45, "os_thread_id": 45}])
    (tmp_path / "x").write_text(text_of_two)
    verdict = judged(tmp_path / "x")
    assert verdict.reason.startswith("2 processes at train.py:12 all_reduce")
    assert "hf_abc" not in verdict.to_json()


FAULT = (
    "Timeout (0:10:00)!\n"
    "Thread 0x00007f2b34ff9700 (most recent call first):\n"
    '  File "/v/lib/python3.11/queue.py", line 171 in get\n'
    '  File "/v/lib/python3.11/threading.py", line 1002 in _bootstrap\n\n'
    "Thread 0x00007f2bc8a01740 (most recent call first):\n"
    '  File "/v/site-packages/torch/distributed/distributed_c10d.py", line 2806 in all_reduce\n'
    '  File "/job/train.py", line {0} in average\n'
)


def test_faulthandler_with_the_prefixes_of_ranks_whose_lines_are_mixed(tmp_path: Path) -> None:
    stacks = [FAULT.format(77 if rank else 70).splitlines() for rank in range(4)]
    mixed = [f"[rank{rank}]: {lines[at]}" for at in range(len(stacks[0])) for rank, lines in enumerate(stacks)]
    (tmp_path / "job.log").write_text("step 1 loss 2.3\n" + "\n".join(mixed) + "\nmore\n")
    [line] = places(judged(tmp_path / "job.log"))
    assert line.startswith("rank 0 ") and "train.py:70 all_reduce" in line


PYSTACK = """\
Traceback for thread {worker} (python) [] (most recent call last):
    (C) File "./nptl/pthread_create.c", line 442, in start_thread (/usr/lib/x86_64-linux-gnu/libc.so.6)
    (Python) File "/usr/lib/python3.11/threading.py", line 1002, in _bootstrap
        self._bootstrap_inner()
      Arguments:
        self: <Thread at 0x7f70835cb890>
    (Python) File "/job/train.py", line 4, in fetch
        q.get()
      Arguments:
        secret: "hunter2"

Traceback for thread {pid} (python) [Has the GIL] (most recent call last):
    (C) File "???", line 0, in _start (/usr/bin/python3.11)
    (Python) File "/job/train.py", line 60, in <module>
        main()
    (Python) File "/job/train.py", line 12, in step
        dist.all_reduce(x)
      Locals:
        token: "hunter2"
    (C) File "./nptl/futex-internal.c", line 57, in __futex_abstimed_wait (inlined) (/usr/lib/libc.so.6)
"""
GDB = """\
Using host libthread_db library "/lib/x86_64-linux-gnu/libthread_db.so.1".

Thread 2 (Thread 0x7f29741b56c0 (LWP {worker}) "python"):
Traceback (most recent call first):
  File "/job/train.py", line 4, in fetch
    q.get("hunter2")
  File "/usr/lib/python3.11/threading.py", line 1002, in _bootstrap
    self._bootstrap_inner()

Thread 1 (Thread 0x7f2974c21b80 (LWP {pid}) "python"):
Traceback (most recent call first):
  <built-in method acquire of _thread.lock object at remote 0x7f>
  File "/job/train.py", line 12, in step
    dist.all_reduce(x)
  File "/job/train.py", line 60, in <module>
    main()
[Inferior 1 (process {pid}) detached]
"""
GDB_OF_C = """\
Thread 2 (Thread 0x7f708353d6c0 (LWP {worker}) "python"):
#0  0x00007f7083927860 in pthread_cond_wait () from /usr/lib/libc.so.6
#1  0x00007f7083927866 in c10d::ProcessGroupNCCL::ncclCommWatchdog() () from /opt/torch/lib/libtorch_cuda.so

Thread 1 (Thread 0x7f708408cb80 (LWP {pid}) "python"):
#0  __futex_abstimed_wait (private=<optimized out>, futex_word=0x5643ccd17010) at ./nptl/futex-internal.c:57
#1  0x1b3 in _PyEval (f=Frame 0x55, for file /job/train.py, line 12, in step (token='hunter2')) at Python/ceval.c:47
#2  0x1b4 in _PyEval (f=Frame 0x56, for file /job/train.py, line 60, in <module> ()) at Python/ceval.c:47
"""


@pytest.mark.parametrize("text_of_tool", [PYSTACK, GDB, GDB_OF_C])
def test_stacks_of_other_tools_with_two_processes_in_one_file(tmp_path: Path, text_of_tool: str) -> None:
    file = tmp_path / "stacks.txt"
    file.write_text("".join(text_of_tool.format(worker=pid + 1, pid=pid) for pid in (700, 800)))
    evidence = pasted.evidence([str(file)])
    assert evidence is not None
    assert [process.pid for process in evidence.processes] == [700, 800]
    for process in evidence.processes:
        main, worker = sorted(process.samples[-1].threads, key=lambda thread: not thread.main)
        python = [(frame.function, frame.line) for frame in main.frames if frame.file == "/job/train.py"]
        assert main.main and not worker.main and python == [("step", 12), ("<module>", 60)]
        assert (main.tid, worker.tid) == (process.pid, process.pid + 1)
    assert "hunter2" not in repr(evidence)


def test_gzip_escapes_and_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    colored = dump(5, waiting(12)).replace("Thread", "\x1b[1;34mThread\x1b[0m").replace("\n", "\r\n").encode()
    (tmp_path / "rank_3").write_bytes(gzip.compress(colored))
    assert judged(tmp_path / "rank_3").reason.startswith("rank 3 at train.py:12")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(colored)))
    assert judged(Path("-")).reason.startswith("pid 5 at train.py:12")


@pytest.mark.parametrize("line, rank, pid, host", [
    ("[rank3]: x", 3, 0, ""),
    ("[rank3]:[E606 09:09:08] x", 3, 0, ""),
    ("(Worker pid=812, ip=10.0.0.2) x", None, 812, "10.0.0.2"),
    ("[1,5]<stderr>: x", 5, 0, ""),
    ("12: x", 12, 0, ""),
    ("[2026-11-28] x", None, 0, ""),
])  # fmt: skip
def test_names_in_the_prefix_of_a_line(line: str, rank: int | None, pid: int, host: str) -> None:
    name, _ = naming.split(line)
    assert (name.rank, name.pid, name.host) == (rank, pid, host)


@pytest.mark.parametrize("path, rank, host", [
    ("rank_3.txt", 3, ""), ("node-2/rank7.txt.gz", 7, "node-2"), ("rankx.txt", None, ""), ("frank3.txt", None, ""),
    ("logs/rank0/stacks", 0, ""), ("local_rank1.txt", 1, ""), ("node3_local_rank1.txt", None, "node3"),
])  # fmt: skip
def test_names_in_a_path(path: str, rank: int | None, host: str) -> None:
    assert naming.of_path(path) == naming.Name(rank, host)


def test_ranks_in_command_lines() -> None:
    assert naming.rank_in("env RANK=3 python t.py") == naming.rank_in("python t.py --rank 3") == 3
    assert naming.rank_in("python t.py --local_rank=3 --lora-rank 8") is None
    assert naming.world_in("torchrun --nnodes 2 --nproc_per_node=8 t.py") == 16
    assert naming.world_in("torchrun --nnodes 1:4 --nproc_per_node=8 t.py") is None


def test_a_stack_of_c_alone_says_who_called_the_wait(tmp_path: Path) -> None:
    (tmp_path / "gdb.txt").write_text(
        'Thread 1 (Thread 0x7f0 (LWP 26346) "python"):\n'
        "#0  __lll_lock_wait () at ../sysdeps/unix/sysv/linux/x86_64/lowlevellock.S:135\n"
        "#1  0x00007fc73a873dbd in pthread_mutex_lock (mutex=0x56) at ../nptl/pthread_mutex_lock.c:80\n"
        "#2  0x00007fc733b1b7b1 in __kmp_lock_suspend_mx () from libiomp5.so\n"
    )
    alone = "pid 26346 at libiomp5.so __kmp_lock_suspend_mx: nobody else to compare it with"
    assert judged(tmp_path / "gdb.txt").reason == alone


@pytest.mark.parametrize("command", ["python train.py", "python -m torch.distributed.run train.py"])
def test_two_stacks_are_never_called_one(command: str, tmp_path: Path) -> None:
    """Two dumps of one process, and one beside its launcher's."""
    for name, line, pid in (("a", 12, 100), ("b", 14, 100 if command.endswith("n train.py") else 101)):
        (tmp_path / name).write_text(
            f"Process {pid}: {command if name == 'b' else 'python train.py'}\nPython v3.11.7 (/usr/bin/python3.11)\n\n"
            f'Thread {pid} (idle): "MainThread"\n    recv (socket.py:10)\n    step (train.py:{line})\n'
        )
    assert "one stack" not in judged(tmp_path / "a", tmp_path / "b").reason


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = job(tmp_path, *[waiting(12)] * 3)
    closed = folder / "rank_2.txt"
    access, opened = os.access, open
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != closed and access(path, mode))

    def refusing(file: Any, *rest: Any, **more: Any) -> Any:
        if file == closed:
            raise PermissionError(errno.EACCES, "Permission denied")
        return opened(file, *rest, **more)

    monkeypatch.setattr("builtins.open", refusing)
    verdict = judged(folder)
    assert "nobody stands elsewhere" not in verdict.reason
    assert any("rank_2.txt" in line and "Permission denied" in line for line in verdict.missing)


FAILURE = """\
[{number}]:
  time      : 2026-11-28_04:49:{second:02}
  host      : node-1
  rank      : {rank} (local_rank: {rank})
  exitcode  : {code} (pid: {pid})  (SIGNAL)
  error_file: <N/A>
  traceback : Traceback (most recent call last):
    File "/job/train.py", line 12, in main
      dist.barrier()
  {error}
"""
ECHO = "RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:27811."


def table(*failures: tuple[int, int, int, str]) -> str:
    """What torchrun prints of (rank, second, exit code, error); the last one is its root cause."""
    rows = [
        FAILURE.format(number=number, rank=rank, second=second, code=code, pid=900 + rank, error=error)
        for number, (rank, second, code, error) in enumerate(failures)
    ]
    border = "=" * 60
    return "\n".join([border, "train.py FAILED", "-" * 60, "Failures:", *rows[:-1], "-" * 60,
                      "Root Cause (first observed failure):", rows[-1], border, ""])  # fmt: skip


@pytest.mark.parametrize(
    ("failures", "first", "said"),
    [
        ([(0, 5, -15, ECHO), (2, 5, -15, ECHO), (1, 5, 1, "ValueError: reward is NaN")], 1, "reward is NaN"),
        ([(0, 7, -15, ECHO), (1, 6, -6, ECHO)], 1, "closed by peer"),  # echoes alone: the oldest
        ([(0, 5, -15, ECHO), (3, 5, -9, "Signal 9 (SIGKILL) received by PID 903")], 3, "SIGKILL"),
    ],
)
def test_the_table_of_torchrun_names_the_first_failure(
    tmp_path: Path, failures: list[tuple[int, int, int, str]], first: int, said: str
) -> None:
    file = tmp_path / "job.log"
    file.write_text("step 7 loss 0.3\n" + table(*failures) + "srun: error: task 1 exited\n")
    verdict = triage([str(file)])
    assert verdict.verdict == "INSUFFICIENT" and verdict.triage is not None and not verdict.triage.culprits
    assert f"rank {first} ended with" in verdict.reason and said in verdict.evidence[0]
    evidence = pasted.evidence([str(file)])
    assert evidence is not None and {p.rank: p.exit_code for p in evidence.processes} == {
        rank: code for rank, _, code, _ in failures
    }


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["zip", "gztar"])
def test_an_archive_of_stacks_is_read_as_its_folder(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "stacks"
    folder.mkdir()
    job(folder, *[waiting(12)] * 3, waiting(10, "broadcast"))
    file = shutil.make_archive(str(tmp_path / "sent"), kind, folder)
    assert judged(Path(file)).reason == judged(folder).reason


def test_a_stack_of_a_launcher_alone_is_a_stack(tmp_path: Path) -> None:
    frames = "    poll (torch/distributed/elastic/agent/server/api.py:905)\n    main (torch/distributed/run.py:900)\n"
    launcher = "/usr/bin/python /usr/bin/torchrun --nproc-per-node 2 train.py"
    (tmp_path / "launcher.txt").write_text(dump(5, frames, launcher))
    verdict = judged(tmp_path)
    assert "launchers only" in verdict.reason and verdict.triage is not None
    assert not any(step.startswith("harness triage 5") for step in verdict.triage.next)


def test_a_text_that_is_no_paste_says_how_it_ends(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("Process 12: done\nnothing here\n")
    for words in ([str(file)], [str(file), str(file)], [str(tmp_path)]):
        verdict = triage(words)
        assert (verdict.verdict, verdict.exit_code) == ("INSUFFICIENT", 3) and "nothing here" in verdict.reason


@pytest.mark.slow
def test_recorder_dumps_beside_the_stacks_decide(tmp_path: Path) -> None:
    job(tmp_path, *[waiting(12)] * 5, FORWARD, waiting(12), waiting(12))
    simulated = synthesis.simulate(8, 40, synthesis.Fault("dead", rank=5, at=20))
    for rank in range(8):
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(synthesis.encoded(simulated, rank))
    verdict = triage([str(tmp_path)])
    assert verdict.verdict == "HUNG" and verdict.triage is not None
    assert [(party.rank, party.frame) for party in verdict.triage.culprits] == [(5, "train.py:10 in forward")]


@pytest.mark.slow
@pytest.mark.parametrize("words", [["."], ["a", "b"]])
def test_recorder_dumps_in_a_folder_of_each_node_are_one_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    simulated = synthesis.simulate(8, 40, synthesis.Fault("dead", rank=5, at=20))
    for rank in range(8):
        folder = tmp_path / "ab"[rank // 4]
        folder.mkdir(exist_ok=True)
        (folder / f"nccl_trace_rank_{rank}").write_bytes(synthesis.encoded(simulated, rank))
    verdict = triage(words)
    assert verdict.triage is not None
    assert (verdict.verdict, [party.rank for party in verdict.triage.culprits]) == ("HUNG", [5])


def test_other_json_in_folders_is_no_recorder_dump(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "package.json").write_text('{"name": "x"}')
    with pytest.raises(BadInput, match="holds neither evidence"):
        triage([str(tmp_path)])


def test_evidence_and_a_paste_are_not_one_job(tmp_path: Path) -> None:
    directory.write(Evidence("", "live", "", 0.0), tmp_path / "evidence")
    file = tmp_path / "stack.txt"
    file.write_text(dump(5, waiting(12)))
    with pytest.raises(BadInput, match="judged apart"):
        triage([str(tmp_path / "evidence"), str(file)])


@pytest.mark.slow
def test_a_bomb_and_a_long_line_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "FILE_BYTES", 1 << 20)
    (tmp_path / "bomb").write_bytes(gzip.compress(b"x" * (8 << 20)))
    (tmp_path / "line").write_bytes(dump(3, waiting(12)).encode() + b"y" * (2 << 20))
    (tmp_path / "cut").write_bytes(gzip.compress(dump(4, waiting(12)).encode())[:-9])
    evidence = pasted.evidence([str(tmp_path)])
    assert evidence is not None and {process.pid for process in evidence.processes} == {3, 4}
    assert sum("only its first" in note for note in evidence.notes) == 2
    assert any("damaged" in note for note in evidence.notes)


PIECES = st.sampled_from([
    "Process 7: python t.py", 'Thread 7 (idle): "MainThread"', "Thread 0x7F (active+gil)", "    f (a.py:3)", "    g (",
    "Current thread 0x1f (most recent call first):", '  File "a.py", line 3 in f', "[rank1]: ", "(A pid=3) ",
    "\x1b[", "[{",
    "==> rank1 <==", "Fatal Python error: x", "        Locals:", "Timeout (",
])  # fmt: skip


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.one_of(PIECES, st.text(max_size=20)), max_size=12).map("\n".join))
def test_no_text_raises(tmp_path: Path, pasted_text: str) -> None:
    file = tmp_path / "any"
    file.write_bytes(pasted_text.encode("utf-8", "surrogatepass"))
    if pasted.evidence([str(file)]) is not None:
        judged(file)


# What torch.distributed.debug's server of torch 2.13 wrote of two ranks, each three seconds.
DEBUG_SERVER = """Fetched 2/2 ranks

=== Rank 0: http://node7:60901/handler/dump_traceback? ===
Current thread 0x00007f9d06ffd6c0 (most recent call first):
  <no Python frame>

Thread 0x00007f9d2fe1ab80 (most recent call first):
  File "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "/job/train.py", line 6 in step

=== Rank 1: http://[fd00::7]:60539/handler/dump_traceback? ===
Current thread 0x00007f7cff7fe6c0 (most recent call first):
  <no Python frame>

Thread 0x00007f7d2cca6b80 (most recent call first):
  File "/job/train.py", line {line} in <module>
"""


def test_the_folder_of_torchs_debug_server_has_each_rank_and_its_last_look(tmp_path: Path) -> None:
    (tmp_path / "stacks_20261128_091737.txt").write_text(DEBUG_SERVER.format(line=8))
    (tmp_path / "stacks_20261128_091740.txt").write_text(DEBUG_SERVER.format(line=9))
    verdict = triage([str(tmp_path)])
    assert verdict.reason == "rank 0 at train.py:6 all_reduce; rank 1 at train.py:9 <module>"
    assert any("dumped 2 times" in line for line in verdict.missing)


def test_a_pasted_file_is_opened_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, opened, plain_open = job(tmp_path, *[waiting(12)] * 3), [], open

    def count(file: Any, *arguments: Any, **options: Any) -> Any:
        opened.append(str(file))
        return plain_open(file, *arguments, **options)

    monkeypatch.setattr("builtins.open", count)
    assert pasted.evidence([str(folder)]) is not None
    assert sorted(opened) == [str(folder / f"rank_{rank}.txt") for rank in range(3)]


@pytest.mark.parametrize("number", ["99999999999999999999", "-1", "x"])
def test_a_section_without_a_possible_rank_is_a_line_like_any_other(tmp_path: Path, number: str) -> None:
    text = f"=== Rank {number}: http://node7:1/ ===\n" + DEBUG_SERVER.format(line=8).partition("===\n")[2]
    (tmp_path / "stacks.txt").write_text(text.partition("=== Rank 1")[0])
    assert "rank" not in triage([str(tmp_path)]).reason


def pasted_folder(tmp_path: Path) -> Path:
    (tmp_path / "pasted").mkdir()
    return tmp_path / "pasted"


def test_what_is_no_plain_file_is_told_in_one_line(tmp_path: Path) -> None:
    folder = job(pasted_folder(tmp_path), waiting(10), waiting(10))
    control = judged(folder)
    os.mkfifo(folder / "pipe.txt")
    (folder / "outside").symlink_to("/etc/passwd")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(folder / "sock"))
    (folder / ".hidden").symlink_to("/etc/passwd")
    verdict = judged(folder)
    assert (verdict.verdict, verdict.reason) == (control.verdict, control.reason)
    [line] = [line for line in verdict.missing if line not in control.missing]
    assert all(word in line for word in ("pipe.txt (a pipe)", "outside (a link)", "sock (a socket)"))
    assert ".hidden" not in line


def test_a_long_list_of_links_is_one_short_line(tmp_path: Path) -> None:
    folder = job(pasted_folder(tmp_path), waiting(10), waiting(10))
    for number in range(10):
        (folder / f"link{number}").symlink_to("/dev/zero")
    [line] = [line for line in judged(folder).missing if "link0" in line]
    assert "6 more" in line and "link7" not in line


@pytest.mark.parametrize("world", ["9" * 25, "9" * 5_000, "1000001"])
def test_a_world_of_more_ranks_than_any_job_is_not_used(tmp_path: Path, world: str) -> None:
    folder = job(pasted_folder(tmp_path), waiting(10), waiting(10), command=f"python train.py --world-size {world}")
    assert (evidence := pasted.evidence([str(folder)])) is not None and evidence.expected_world is None


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "stacks of rank 0")
    with pytest.raises(BadInput, match="is a pipe"):
        pasted.evidence([str(tmp_path / "stacks of rank 0")])
