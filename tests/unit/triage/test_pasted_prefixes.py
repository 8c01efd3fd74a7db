"""What collectors and launchers put before each line is taken off, and keeps the rank or host that it names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.triage import pasted
from harness.triage.pasted import naming, prefixes
from harness.triage.pasted.naming import NOBODY, Name

TIME = "2025-06-06T09:09:08.1649853Z "
STACK = """\
Current thread 0x00007f2bc8a0174{0} (most recent call first):
  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 2806 in all_reduce

  File "/job/train.py", line {0}3 in step
"""
RAISED = """\
Traceback (most recent call last):
  File "/job/train.py", line 9, in <module>
    main()
ValueError: bad {0}
"""
# Before the line of a rank, and what it names.
PREFIXES: list[tuple[Callable[[int], str], Callable[[int], Name]]] = [
    (lambda rank: f"[default{rank}]:", Name),
    (lambda rank: f"[default{rank}]:[rank{rank + 8}]: ", lambda rank: Name(rank + 8)),
    (lambda rank: f"{TIME}[rank{rank}]: ", Name),
    (lambda rank: f"[rank{rank}]:2025-06-06 09:09:08,164 ", Name),
    (lambda rank: f"2025-06-06 09:09:08,164 [rank{rank}]: ", Name),
    (lambda rank: f"{TIME}stderr F [rank{rank}]: ", Name),
    (lambda rank: f"[pod/w-{rank}/pytorch] ", lambda rank: Name(host=f"w-{rank}")),
    (lambda rank: f"[pod/w-{rank}/pytorch] {TIME}", lambda rank: Name(host=f"w-{rank}")),
    (lambda rank: f"w-{rank}  | ", lambda rank: Name(host=f"w-{rank}")),
    (lambda rank: f"w-{rank}: ", lambda rank: Name(host=f"w-{rank}")),
    (lambda rank: f"w-{rank}: [default0]:", lambda rank: Name(host=f"w-{rank}", role="default0")),
    (lambda rank: f"[{rank}]: ", Name),
    (lambda rank: f"[{rank}] ", Name),
    (lambda rank: f"(rank {rank}) ", Name),
    (lambda rank: f"[prterun-w-1234@1,{rank}]<stderr>: ", Name),
    (lambda rank: f"Jun 06 09:09:21 w-{rank} python[81{rank}]: ", lambda rank: Name(None, f"w-{rank}", 810 + rank)),
    (lambda rank: f"> [rank{rank}]: ", Name),
]


def mixed(prefix: Callable[[int], str], text: str, ranks: int = 3) -> str:
    """The lines of all ranks in turn, an empty one without the space that follows a prefix."""
    blocks = [text.format(rank).splitlines() for rank in range(ranks)]
    return "".join(
        f"{prefix(rank)}{block[at]}".rstrip() + "\n"
        for at in range(len(blocks[0]))
        for rank, block in enumerate(blocks)
    )


@pytest.mark.parametrize("prefix, name", PREFIXES)
def test_stacks_are_read_behind_a_prefix(
    tmp_path: Path, prefix: Callable[[int], str], name: Callable[[int], Name]
) -> None:
    (tmp_path / "job.log").write_text("starting\n" + mixed(prefix, STACK) + "done\n")
    evidence = pasted.evidence([str(tmp_path / "job.log")])
    assert evidence is not None
    places = {
        (process.rank, process.host, process.pid): process.samples[0].threads[0].frames[-1].line
        for process in evidence.processes
    }
    assert places == {
        (name(rank).rank, name(rank).host or "pasted" if name(rank).rank is not None else name(rank).host,
         name(rank).pid): rank * 10 + 3
        for rank in range(3)
    }  # fmt: skip


@pytest.mark.parametrize("prefix, name", PREFIXES)
def test_tracebacks_are_read_behind_a_prefix(
    tmp_path: Path, prefix: Callable[[int], str], name: Callable[[int], Name]
) -> None:
    (tmp_path / "job.log").write_text("starting\n" + mixed(prefix, RAISED) + "done\n")
    evidence = pasted.evidence([str(tmp_path / "job.log")])
    assert evidence is not None
    assert [(error.what, error.rank, error.host, error.pid) for error in evidence.errors] == [
        (f"ended with ValueError: bad {rank}", name(rank).rank, name(rank).host, name(rank).pid) for rank in range(3)
    ]


@pytest.mark.parametrize("prefix", ["> ", TIME, f"{TIME}stderr F "])
def test_a_prefix_that_names_nobody(tmp_path: Path, prefix: str) -> None:
    (tmp_path / "job.log").write_text(mixed(lambda rank: prefix, RAISED, ranks=1))
    evidence = pasted.evidence([str(tmp_path / "job.log")])
    assert evidence is not None
    assert [(error.what, error.rank) for error in evidence.errors] == [("ended with ValueError: bad 0", None)]


def test_the_time_of_a_prefix_orders_errors(tmp_path: Path) -> None:
    late, early = (f"2025-06-06T09:09:{second}.000000Z " for second in (20, 10))
    text = mixed(lambda rank: late, RAISED, ranks=1) + mixed(lambda rank: early, RAISED, ranks=1)
    (tmp_path / "job.log").write_text(text)
    evidence = pasted.evidence([str(tmp_path / "job.log")])
    assert evidence is not None and [error.at and error.at[2] % 60 for error in evidence.errors] == [20, 10]


@pytest.mark.parametrize("text", [
    RAISED, STACK, f"node0: {RAISED}", f"ERROR: {RAISED}", f"[0] {RAISED}", "[0] first\n[1] second\n",
    "".join(f"ERROR: {line}\n" for line in RAISED.splitlines()),
    "RuntimeError: Process 12: it ended\nsrun: error: it did\n",
    "".join(f"unread words {line}\n" for line in RAISED.splitlines()),
])  # fmt: skip
def test_no_prefix_where_it_does_not_stand_on_the_lines_of_a_block(text: str) -> None:
    assert prefixes.of_text("job.log", text) == prefixes.NONE


def test_the_type_of_an_exception_is_no_host() -> None:
    split = prefixes.of_text("job.log", mixed(lambda rank: f"w-{rank}: ", RAISED)).split
    assert split("w-1: ValueError: bad") == (Name(host="w-1"), "ValueError: bad")
    assert split("ValueError: bad") == (NOBODY, "ValueError: bad")


def test_a_local_rank_is_no_rank_where_the_file_is_of_one_node_of_several() -> None:
    text = mixed(lambda rank: f"[default{rank}]:", RAISED)
    assert prefixes.of_text("job.log", text).split("[default1]:x")[0] == Name(1)
    assert prefixes.of_text("node1/job.log", text).split("[default1]:x")[0] == Name(role="default1")


def test_a_watchdog_behind_a_prefix_names_the_rank_of_the_job() -> None:
    line = "[default1]:[rank9]:[E606 09:09:08.169193689 ProcessGroupNCCL.cpp:2395] [PG ID 3 PG GUID 7(tp) Rank 1] x"
    assert naming.split(line)[0] == NOBODY
    assert prefixes.of_text("job.log", f"{line}\n{line}\n").split(line)[0] == Name(9)
