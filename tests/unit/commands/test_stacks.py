"""`harness stacks`: equal stacks once with their ranks, the rarest first."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from triage_evidence import evidence, process

from harness import cli
from harness.errors import BadInput
from harness.triage import directory, pasted
from harness.triage.collect import draft, scope
from harness.triage.folding import fold
from harness.triage.judge import triage
from harness.triage.run import look

WAIT = (
    "    all_reduce (torch/distributed/distributed_c10d.py:3252)\n    step (train.py:{0})\n    <module> (train.py:60)\n"
)
SIDE = 'Thread {0} (idle): "Loader-{1}"\n    wait (threading.py:327)\n'


def job(folder: Path, *lines: int) -> str:
    for rank, line in enumerate(lines):
        header = f'Process {rank + 50}: python /job/train.py\nThread {rank + 50} (idle): "MainThread"\n'
        stack = header + WAIT.format(line) + SIDE.format(rank + 900, rank)
        (folder / f"rank{rank}.txt").write_text(stack)
    return str(folder)


def test_equal_stacks_are_folded_and_the_rarest_comes_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["stacks", job(tmp_path, 12, 12, 10, 12), "--format", "json"]) == 0
    folded = json.loads(capsys.readouterr().out)
    assert folded["processes"] == 4
    assert [(stack["thread"], stack["ranks"], stack["threads"]) for stack in folded["stacks"]] == [
        ("MainThread", [2], 1), ("MainThread", [0, 1, 3], 3), ("Loader-N", [0, 1, 2, 3], 4)]  # fmt: skip
    assert [frame["user"] for frame in folded["stacks"][0]["frames"]] == [False, True, True]


def test_the_text_marks_the_users_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["stacks", job(tmp_path, 12, 12, 10)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("rank 2 ") and "  > step (train.py:10)" in lines
    assert "    all_reduce (torch/distributed/distributed_c10d.py:3252)" in lines


def test_without_a_stack_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("nothing")
    assert cli.main(["stacks", str(tmp_path / "notes.txt")]) == 2
    assert "fix:" in capsys.readouterr().err


def test_a_process_that_is_not_there_is_named_beside_those_that_are(tmp_path: Path) -> None:
    [gone] = draft.absent(scope.Cast("node0", (), ended=(4_199_999,)), {})
    ranks = pasted.evidence([job(tmp_path, 12, 12)])
    assert ranks is not None and not any("no stack" in note for note in fold(ranks).notes)
    both = dataclasses.replace(ranks, processes=(*ranks.processes, gone))
    assert any("4199999" in note for note in fold(both).notes)


def test_a_verdict_names_a_process_that_is_not_there() -> None:
    [gone] = draft.absent(scope.Cast("node0", (), ended=(4_199_999,)), {})
    sleeper = process(9, "process", "main:10 sleep")
    alone, both = triage(evidence(sleeper, stall_s=0.0)), triage(evidence(sleeper, gone, stall_s=0.0))
    assert (alone.verdict, both.verdict) == ("HEALTHY", "HEALTHY") and "4199999" not in alone.to_json()
    assert "4199999" in both.reason and "4199999" in both.evidence[0]


def test_threads_without_python_are_native_and_need_no_name(tmp_path: Path) -> None:
    (tmp_path / "gdb.txt").write_text(
        'Thread 1 (Thread 0x7f0 (LWP 812) "python"):\n#0  0x00007f in ncclCommFinalize () from /usr/lib/libnccl.so.2\n'
        "#1  0x00007f in main () at main.c:3\n\n"
        "Thread 2 (Thread 0x7f1 (LWP 813)):\n#0  0x00007f in ncclProxyService () from /usr/lib/libnccl.so.2\n"
    )
    folded = fold(pasted.evidence([str(tmp_path / "gdb.txt")]))  # type: ignore[arg-type]
    assert {(stack.main, stack.doing, stack.thread) for stack in folded.stacks} == {
        (True, "native", "MainThread"), (False, "native", "without a name")}  # fmt: skip


def test_of_two_jobs_the_stacks_of_each_are_proposed(tmp_path: Path) -> None:
    for number in range(2):
        alone = dataclasses.replace(process(100 + number, "process", "main:10 step:12 acquire"), ppid=1)
        directory.write(evidence(alone, source="live"), tmp_path / f"job{number}")
    words = [str(tmp_path / f"job{number}") for number in range(2)]
    with pytest.raises(BadInput) as refused:
        look(words)
    assert refused.value.fix == "; ".join(f"harness stacks {word}" for word in words)
    for word in words:
        assert look([word]).processes


@pytest.mark.parametrize(
    ("file", "is_own"),
    [
        ("threading.py", False),
        ("concurrent/futures/_base.py", False),
        ("tqdm/_monitor.py", False),
        ("pathlib/_local.py", False),  # of a later Python
        ("code/train.py", True),  # `code` is a module of the standard library, and no package
        ("train.py", True),
        ("queue.py", True),  # the program itself, by its command line
    ],
)
def test_a_short_path_is_shown_as_it_was_printed(tmp_path: Path, file: str, is_own: bool) -> None:
    frames = f"    wait ({file}:324)\n    run ({file}:20)\n"
    (tmp_path / "rank_0.txt").write_text(
        f'Process 7: python /job/queue.py\nPython v3.11.7\n\nThread 7 (idle): "MainThread"\n{frames}'
    )
    [stack] = fold(pasted.evidence([str(tmp_path / "rank_0.txt")])).stacks  # type: ignore[arg-type]
    assert {(frame.file, frame.user) for frame in stack.frames} == {(file, is_own)}


VENV = "/venv/lib/python3.11/site-packages/"
NATIVE = "    pthread_cond_wait (libc.so.6)\n    c10d::Work::wait ({0})\n"
FAULT = """\
Current thread 0x00007f10 (most recent call first):
  File "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "{0}/train.py", line 12 in step
  File "{0}/train.py", line 60 in <module>
"""


def text_of(pid: int, line: int = 12, native: str = "") -> str:
    wait = WAIT.format(line).replace("step (", "Trainer.step (")
    return f'Process {pid}: python train.py\nThread {pid} (idle): "MainThread"\n{native}{wait}'


def json_of(pid: int, folder: str = "/job", line: int = 12) -> str:
    frames = [("all_reduce", f"{VENV}torch/distributed/distributed_c10d.py", 3252),
              ("Trainer.step", f"{folder}/train.py", line), ("<module>", f"{folder}/train.py", 60)]  # fmt: skip
    listed = [{"name": name, "filename": file, "line": number} for name, file, number in frames]
    return json.dumps([{"pid": pid, "thread_id": pid, "os_thread_id": pid, "thread_name": "MainThread",
                        "active": False, "owns_gil": False, "frames": listed}])  # fmt: skip


def folded_of(folder: Path, *dumps: str) -> list[tuple[int, list[int], list[str]]]:
    """Of each stack how many threads have it, the lines of its Python frames, and the files of all its frames."""
    for number, dump in enumerate(dumps):
        (folder / f"rank{number}.txt").write_text(dump)
    read = pasted.evidence([str(folder)])
    assert read is not None
    return [(stack.threads, [frame.line for frame in stack.frames if frame.file.endswith(".py")],
             [frame.file for frame in stack.frames]) for stack in fold(read).stacks]  # fmt: skip


def test_equal_stacks_of_several_tools_are_one_though_they_spell_paths_in_their_own_way(tmp_path: Path) -> None:
    native = text_of(52, native=NATIVE.format("libtorch_cpu.so"))
    stacks = folded_of(tmp_path, text_of(50), json_of(51), native, FAULT.format("/job"))
    [(threads, lines, files)] = stacks
    assert (threads, lines) == (4, [3252, 12, 60])
    assert files == ["libc.so.6", "libtorch_cpu.so", f"{VENV}torch/distributed/distributed_c10d.py",
                     "/job/train.py", "/job/train.py"]  # fmt: skip


def test_what_only_some_tools_show_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folded_of(tmp_path, text_of(50), json_of(51), text_of(52, native=NATIVE.format("libtorch_cpu.so")))
    assert cli.main(["stacks", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "3 of 3 main threads" in lines[0]
    assert (
        "    c10d::Work::wait (libtorch_cpu.so:0), in 1 of 3" in lines
        and "  > Trainer.step (/job/train.py:12)" in lines
    )


@pytest.mark.parametrize(
    "dumps",
    [
        (text_of(50), json_of(51, line=13)),  # another line
        (json_of(50, "/job"), json_of(51, "/other")),  # another file of that name
        (json_of(50, "/job"), json_of(51, "/my/job")),
        (text_of(50), json_of(51).replace("Trainer.step", "Trainer.pause")),
        (text_of(50, native=NATIVE.format("libtorch_cpu.so")), text_of(51, native=NATIVE.format("libgloo.so"))),
    ],
)
def test_stacks_that_differ_stay_apart(tmp_path: Path, dumps: tuple[str, ...]) -> None:
    """The look-alikes."""
    assert [threads for threads, _, _ in folded_of(tmp_path, *dumps)] == [1, 1]


def test_a_short_path_that_may_be_of_two_files_is_of_neither(tmp_path: Path) -> None:
    assert len(folded_of(tmp_path, json_of(50, "/job"), json_of(51, "/other"), text_of(52))) == 3
