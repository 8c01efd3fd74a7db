"""A rank that reads from another one, which waits in a collective for it: a ring over two kinds of waits."""

from __future__ import annotations

import dataclasses

import pytest
from triage_evidence import compared, evidence, group, process, rank

from harness.triage import judge
from harness.triage.evidence import Evidence, Process, Thread
from harness.triage.flight.model import Comparison
from reports.model import Triage, Verdict

WRITER, READER = 100, 101
IN_COLLECTIVE = group("0", {0: (17, "all_reduce"), 1: 16})


def looks(its: Process, **fields: object) -> Process:
    return dataclasses.replace(
        its, samples=tuple(dataclasses.replace(look, **fields) for look in its.samples)  # type: ignore[arg-type]
    )  # fmt: skip


def reader(number: int = 1, world: int = 2, writers: tuple[int, ...] = (WRITER,), stack: str = "main:9 pipe._recv",
           **fields: object) -> Process:  # fmt: skip
    its = rank(number, stack, world=world, writers=writers, writer=writers[0] if len(writers) == 1 else 0)
    changes = {"reads_for_ever": True, "reading": "pipe:[7]", "main_switches": 4, "wchan": "anon_pipe_read", **fields}
    return looks(its, **changes)


def writer(stack: str = "main:12 all_reduce", world: int = 2, **fields: object) -> Process:
    return rank(0, stack, world=world, **fields)


def judged(job: Evidence, *groups: object) -> tuple[Verdict, Triage]:
    comparison: Comparison | None = compared(*groups) if groups else None  # type: ignore[arg-type]
    verdict = judge.triage(job, comparison)
    assert verdict.triage is not None
    return verdict, verdict.triage


def live(*processes: Process) -> Evidence:
    unrecorded = (dataclasses.replace(each, beat=None) for each in processes)
    return evidence(*unrecorded, source="live", stall_s=0.0)


@pytest.mark.parametrize("recorded", [True, False])
def test_a_reader_whose_writer_waits_for_it_in_a_collective_is_in_a_ring(recorded: bool) -> None:
    processes = writer(), reader()
    verdict, body = judged(evidence(*processes), IN_COLLECTIVE) if recorded else judged(live(*processes))
    assert (verdict.verdict, body.hang) == ("HUNG", "K6"), verdict.reason
    assert set(body.cycle) == {f"node0:{WRITER}", f"node0:{READER}"} and not body.culprits
    assert "rank 1 reads at train.py:9 from rank 0" in verdict.reason and "all_reduce" in verdict.reason
    assert "before the collective" in body.next[0]


def test_a_parent_that_has_the_pipe_open_as_well_and_joins_its_ranks_is_no_other_writer() -> None:
    parent = looks(process(70, "process", "main:5 _try_wait"), wchan="do_wait")
    children = (dataclasses.replace(each, ppid=70) for each in (writer(), reader(writers=(70, WRITER))))
    verdict, body = judged(evidence(parent, *children), IN_COLLECTIVE)
    assert (verdict.verdict, body.hang) == ("HUNG", "K6"), verdict.reason


SIDE = Thread("feeder", 9, (), active=True)


@pytest.mark.parametrize(
    "processes",
    [
        pytest.param((writer("main:12"), reader()), id="a writer that computes"),
        pytest.param((writer(), reader(reads_for_ever=False, timed=True)), id="a read with a limit"),
        pytest.param((writer(), reader(writers=(WRITER, 990))), id="a writer that nobody looked at"),
        pytest.param((writer(), reader(stack="main:9", wchan="futex_do_wait")), id="no read of a connection"),
        pytest.param((looks(writer(), threads=(*writer().threads, SIDE)), reader()), id="a thread that may write"),
        pytest.param((writer(), reader(), process(71, "process", "main:3")), id="a group of which others are members"),
    ],
)
def test_a_reader_whose_writer_may_still_write_is_in_no_ring(processes: tuple[Process, ...]) -> None:
    # The last job has a third process, so that its ranks may be in groups of which no stack says the members.
    wide = len(processes) > 2
    ranks = [dataclasses.replace(each, world_size=3) if wide and each.rank is not None else each for each in processes]
    _, body = judged(live(*ranks))
    assert body.hang != "K6" and not body.cycle


def test_a_reader_that_woke_between_the_looks_is_in_no_ring() -> None:
    its = reader()
    first, last = its.samples
    woken = dataclasses.replace(its, samples=(first, dataclasses.replace(last, main_switches=9)))
    _, body = judged(live(writer(), woken))
    assert body.hang != "K6"


@pytest.mark.parametrize(
    ("child", "told"),
    [
        pytest.param({"gone": True, "exit_code": 0}, True, id="the child has ended"),
        pytest.param({}, False, id="the child lives"),
    ],
)
def test_output_that_a_grandchild_keeps_open_is_told(child: dict[str, object], told: bool) -> None:
    service = process(300, "process", ppid=1)
    its = looks(dataclasses.replace(reader(writers=(300,), stack="main:9 communicate"), fed=True), wchan="do_poll")
    shell = dataclasses.replace(process(200, "process", **child), ppid=READER)
    verdict, body = judged(evidence(writer(), its, shell, service), IN_COLLECTIVE)
    assert verdict.verdict == "INSUFFICIENT" and not body.culprits
    assert ("keeps it open" in verdict.reason) is told
