"""Ranks that all wait in collectives at different places, of which nothing but two looks is known."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import pytest
from triage_evidence import HOST, TORCH, compared, evidence, group

from harness.triage import gate_text
from harness.triage.evidence import Frame, Gpu, Process, Sample, Thread
from harness.triage.group_argument import GroupArgument, group_argument
from harness.triage.judge import triage
from harness.triage.rules.standing import GROUPS_WANTED, MAX_PLACES
from reports.model import Verdict

PROGRAM = """
def load(path):
    if not exists(path):
        return None
    dist.broadcast_object_list(state, src=0)

def main(group):
    load(path)
    for step in range(9):
        dist.all_reduce(gradient)
        if step in saving:
            dist.all_gather(shards, shard)
        dist.all_to_all(x, y, group=group)
    dist.reduce(total, 0)

def save():
    dist.all_gather_object(plans, plan)
"""
CROSSED = """
def step(rank):
    if rank == 0:
        dist.all_reduce(x, group=actor)
        dist.all_reduce(x, dist.ReduceOp.SUM, critic)
    else:
        dist.all_reduce(x, group=critic)
        dist.all_reduce(x, group=actor)

def alone(rank):
    if rank == 0:
        dist.all_reduce(x, group=actor)
    else:
        dist.all_reduce(x, group=critic)
        dist.all_reduce(x, group=actor)
"""
LOAD, GRADIENT, SAVING, GROUPED, TOTAL, SAVE = 5, 10, 12, 13, 14, 17
CALLS = {LOAD: "broadcast_object_list", GRADIENT: "all_reduce", SAVING: "all_gather", GROUPED: "all_to_all",
         TOTAL: "reduce", SAVE: "all_gather_object"}  # fmt: skip


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    return str(path)


def stack(file: str, line: int) -> tuple[Frame, ...]:
    """The stack of a rank that stands in the collective at a line of the program, innermost frame first."""
    torch = Frame(CALLS[line], TORCH, 100)
    if line == LOAD:
        return torch, Frame("load", file, LOAD), Frame("main", file, 8)
    return torch, Frame("save" if line == SAVE else "main", file, line)


def job(file: str, lines: Mapping[int, int], *, quiet_s: float | None = 20.0, beside: int = 0) -> list[Process]:
    """Ranks of one world. `lines`: rank -> its line. `beside`: the line of a second thread of each."""
    ranks = []
    for number, line in lines.items():
        threads = [Thread("MainThread", 100 + number, stack(file, line), main=True)]
        threads += [Thread("saver", 900, stack(file, beside))] if beside else []
        looks = tuple(Sample(at_s, "S", threads=tuple(threads), net_quiet_s=quiet_s) for at_s in (0.0, 1.5))
        ranks.append(Process(HOST, 100 + number, rank=number, world_size=len(lines), samples=looks))
    return ranks


def judged(*processes: Process, **more: object) -> Verdict:
    return triage(evidence(*processes, source="live", stall_s=0.0, **more))


def culprits(verdict: Verdict) -> list[int | None]:
    assert verdict.triage is not None
    return [culprit.rank for culprit in verdict.triage.culprits]


@pytest.mark.parametrize(("quiet_s", "verdict"), [(20.0, "HUNG"), (2.0, "INSUFFICIENT")])
def test_ranks_that_all_receive_from_each_other_hang(file: str, quiet_s: float, verdict: str) -> None:
    """The control: data came a moment ago."""
    ranks = []
    for number in range(2):
        threads = (Thread("MainThread", 100 + number, (Frame("recv", TORCH, 100), Frame("main", file, 9)), main=True),)
        looks = tuple(Sample(at_s, "S", threads=threads, net_quiet_s=quiet_s) for at_s in (0.0, 1.5))
        ranks.append(Process(HOST, 100 + number, rank=number, world_size=2, samples=looks))
    its = judged(*ranks)
    assert its.verdict == verdict
    assert its.triage is not None and (its.triage.hang == "K2") is (verdict == "HUNG") and not its.triage.culprits


def test_the_rank_that_left_out_a_collective_is_named(file: str) -> None:
    verdict = judged(*job(file, {0: LOAD, 1: LOAD, 2: GRADIENT}))
    assert verdict.triage is not None and (verdict.verdict, verdict.triage.hang) == ("HUNG", "K1")
    assert culprits(verdict) == [2]
    assert "not exists(path)" in verdict.triage.culprits[0].why


def test_the_parent_that_joins_the_ranks_changes_nothing(file: str) -> None:
    join = Thread("MainThread", 50, (Frame("wait", "/usr/lib/python3.11/subprocess.py", 9),), main=True)
    parent = Process(HOST, 50, samples=tuple(Sample(at_s, "S", threads=(join,)) for at_s in (0.0, 1.5)))
    ranks = [dataclasses.replace(each, ppid=50) for each in job(file, {0: LOAD, 1: LOAD, 2: GRADIENT})]
    assert culprits(judged(parent, *ranks)) == [2]


def test_a_rank_that_is_by_a_gate_in_a_loop_is_named(file: str) -> None:
    assert culprits(judged(*job(file, {0: SAVING, 1: SAVING, 2: GRADIENT, 3: SAVING}))) == [2]


@pytest.mark.parametrize("lines", [
    {0: LOAD, 1: GRADIENT},  # no majority
    {0: GRADIENT, 1: LOAD, 2: GRADIENT},  # one waits alone where the others may have been and gone
    {0: SAVING, 1: GRADIENT, 2: GRADIENT},  # the same in a loop: who left it out is not known
    {0: LOAD, 1: LOAD, 2: GROUPED},  # in a group that the text does not say
    {0: LOAD, 1: LOAD, 2: LOAD, 3: GRADIENT, 4: TOTAL},  # three places
])  # fmt: skip
def test_nobody_is_named_where_the_text_proves_nothing(file: str, lines: Mapping[int, int]) -> None:
    verdict = judged(*job(file, lines))
    assert verdict.triage is not None and (verdict.verdict, verdict.triage.hang) == ("HUNG", "K2")
    assert not culprits(verdict)


def test_two_threads_of_each_rank_in_collectives(file: str) -> None:
    verdict = judged(*job(file, dict.fromkeys(range(4), GRADIENT), beside=SAVE))
    assert verdict.triage is not None and (verdict.verdict, verdict.triage.hang) == ("HUNG", "K2")
    assert not culprits(verdict) and "two threads" in verdict.reason


@pytest.mark.parametrize(("beside", "hang"), [(SAVING, "K2"), (TOTAL, "K1"), (0, "K1")])
def test_two_threads_in_the_operations_that_differ_share_their_group(file: str, beside: int, hang: str) -> None:
    """A recorder has one of the two operations of each rank. Batches that differ look the same there."""
    crossed = compared(group("0", {0: (14, "all_reduce"), 1: (14, "all_gather")}), world=2)
    verdict = triage(evidence(*job(file, {0: GRADIENT, 1: GRADIENT}, beside=beside)), crossed)
    assert verdict.triage is not None and (verdict.verdict, verdict.triage.hang) == ("HUNG", hang)
    assert not culprits(verdict) and ("two threads" in verdict.reason) is (hang == "K2")


@pytest.mark.parametrize(("beside", "hang"), [(SAVING, "K2"), (TOTAL, "K1")])
def test_one_rank_whose_threads_are_in_both_operations_is_enough(file: str, beside: int, hang: str) -> None:
    """The thread of the other rank has not come to its collective yet."""
    crossed = compared(group("0", {0: (14, "all_reduce"), 1: (14, "all_gather")}), world=2)
    threaded, single = job(file, {0: GRADIENT, 1: GRADIENT}, beside=beside), job(file, {0: GRADIENT, 1: SAVING})
    verdict = triage(evidence(threaded[0], single[1]), crossed)
    assert verdict.triage is not None and (verdict.verdict, verdict.triage.hang) == ("HUNG", hang)
    assert ("two threads of rank 0" in verdict.reason) is (hang == "K2") and not culprits(verdict)


@pytest.mark.parametrize(("lines", "named"), [({0: LOAD, 1: LOAD, 2: GRADIENT}, [2]), ({0: LOAD, 1: GRADIENT}, [])])
def test_a_recorder_and_a_look_from_outside_name_the_same_party_and_place(
    file: str, lines: Mapping[int, int], named: list[int]
) -> None:
    ranks = job(file, lines)
    at_once = compared(group("0", {number: (1, CALLS[line]) for number, line in lines.items()}), world=len(lines))
    outside, recorded = judged(*ranks), triage(evidence(*ranks), at_once)
    assert culprits(outside) == culprits(recorded) == named
    assert recorded.triage is not None and outside.triage is not None and recorded.triage.hang == "K1"
    if named:
        assert (recorded.reason, recorded.triage.place) == (outside.reason, outside.triage.place)


def test_who_stands_where_is_told_alike_where_a_receive_is_in_no_recorder(file: str) -> None:
    ranks = job(file, {0: GRADIENT, 1: GRADIENT, 2: TOTAL, 3: LOAD})
    in_recorder = compared(group("0", {0: (5, "all_reduce"), 1: (5, "all_reduce"), 2: 4, 3: 4}), world=4)
    for verdict in (judged(*ranks), triage(evidence(*ranks), in_recorder)):
        assert verdict.triage is not None and verdict.triage.hang == "K2" and not culprits(verdict)
        assert "train.py:10 all_reduce" in verdict.reason


def _outside(ranks: list[Process]) -> list[Process]:
    return [dataclasses.replace(ranks[0], peers=("10.0.0.9:4000",)), *ranks[1:]]


def _with_thread(ranks: list[Process]) -> list[Process]:
    """Rank 0 has a thread that may be about to come to a collective."""
    user = ranks[0].samples[-1].threads[0].frames[-1]
    thread = Thread("saver", 900, (dataclasses.replace(user, function="prepare", line=1),))
    looks = tuple(dataclasses.replace(look, threads=(*look.threads, thread)) for look in ranks[0].samples)
    return [dataclasses.replace(ranks[0], samples=looks), *ranks[1:]]


def _with_engine(ranks: list[Process]) -> list[Process]:
    """A process without a rank loads weights: it may be in a group with rank 0."""
    main = Thread("MainThread", 300, (Frame("load_everything", "/job/engine.py", 3),), main=True)
    looks = tuple(Sample(at_s, "S", threads=(main,)) for at_s in (0.0, 1.5))
    return [*ranks, Process(HOST, 300, samples=looks)]


def _moving(ranks: list[Process]) -> list[Process]:
    first = dataclasses.replace(ranks[0].samples[0], threads=ranks[-1].samples[0].threads)
    return [dataclasses.replace(ranks[0], samples=(first, ranks[0].samples[-1])), *ranks[1:]]


def _computing(ranks: list[Process]) -> list[Process]:
    """A native thread of rank 0 computes beside its collective."""
    first, last = ranks[0].samples
    return [dataclasses.replace(ranks[0], samples=(first, dataclasses.replace(last, cpu_s=1.0))), *ranks[1:]]


@pytest.mark.parametrize(
    "change", [_outside, _computing, _with_thread, _with_engine, _moving, lambda ranks: ranks[:-1]]
)
def test_a_job_to_which_somebody_may_still_come_is_not_hung(file: str, change) -> None:
    verdict = judged(*change(job(file, {0: LOAD, 1: LOAD, 2: LOAD, 3: GRADIENT})))
    assert verdict.verdict != "HUNG" and not culprits(verdict)


@pytest.mark.parametrize("quiet_s", [0.2, 9.0, None])
def test_data_of_a_moment_ago_proves_nothing(file: str, quiet_s: float | None) -> None:
    verdict = judged(*job(file, {0: LOAD, 1: LOAD, 2: GRADIENT}, quiet_s=quiet_s))
    assert verdict.verdict == "INSUFFICIENT" and not culprits(verdict)


def test_on_gpus_the_places_are_said_and_nothing_is_proven(file: str) -> None:
    """A host may be past what its device still does."""
    gpu = Gpu(HOST, 0, "H100", 1, 2, 0.0)
    verdict = judged(*job(file, dict.fromkeys(range(62), LOAD) | {62: GRADIENT}), gpus=(gpu,))
    assert verdict.verdict == "INSUFFICIENT" and not culprits(verdict)
    assert verdict.reason.startswith("62 ranks at train.py:5") and "rank 62 at train.py:10" in verdict.reason
    assert MAX_PLACES == 3


def test_what_decides_on_a_line(file: str) -> None:
    def lines(function: str, line: int) -> list[int]:
        return sorted(gate.line for gate in gate_text.gates(Frame(function, file, line)) or ())

    assert lines("load", LOAD) == [3]
    assert lines("main", GRADIENT) == [9]
    assert lines("main", SAVING) == [9, 11]
    assert lines("main", TOTAL) == []
    assert gate_text.gates(Frame("main", "/nowhere.py", 3)) is None
    assert group_argument([Frame("main", file, GRADIENT)], "all_reduce") == GroupArgument()
    assert group_argument([Frame("main", file, GROUPED)], "all_to_all") is None  # an argument of an unknown caller


def in_groups(tmp_path: Path, function: str, lines: Mapping[int, int]) -> Verdict:
    path = tmp_path / "groups.py"
    path.write_text(CROSSED)
    ranks = job(str(path), dict.fromkeys(lines, GRADIENT))
    for at, line in enumerate(lines.values()):
        frames = (Frame("all_reduce", TORCH, 100), Frame(function, str(path), line))
        looks = tuple(
            dataclasses.replace(look, threads=(dataclasses.replace(look.threads[0], frames=frames),))
            for look in ranks[at].samples
        )
        ranks[at] = dataclasses.replace(ranks[at], samples=looks)
    return triage(evidence(*ranks, source="live", stall_s=0.0))


def test_two_groups_in_two_orders_are_named_with_their_places(tmp_path: Path) -> None:
    verdict = in_groups(tmp_path, "step", {0: 4, 1: 7})
    assert verdict.triage is not None and (verdict.verdict, verdict.triage.hang) == ("HUNG", "K2"), verdict.reason
    assert all(words in verdict.reason for words in ("`actor` at groups.py:4", "`critic` at groups.py:7"))
    assert "groups.py:4" in verdict.triage.next[0] and "groups.py:7" in verdict.triage.next[0]


def test_a_group_that_one_rank_does_not_use_behind_is_no_crossing(tmp_path: Path) -> None:
    verdict = in_groups(tmp_path, "alone", {0: 12, 1: 14})
    assert verdict.verdict == "HUNG" and "`actor`" not in verdict.reason


BRANCHES = """
def by_data(todo):
    if todo:
        dist.all_reduce(x)
    else:
        dist.barrier()

def by_rank(rank):
    if rank < 2:
        dist.all_reduce(x)
    else:
        dist.barrier()

def by_rank_in_groups(rank, groups):
    mine = groups[rank < 2]
    if rank < 2:
        dist.all_reduce(x, group=mine)
    else:
        dist.barrier(group=mine)

def by_error():
    for batch in batches:
        try:
            forward(batch)
            dist.all_reduce(x)
        except ValueError:
            dist.all_gather_object(flags, "bad")

def behind_error():
    try:
        forward(batch)
    except ValueError:
        dist.all_reduce(x)
    dist.barrier()

def leaves_early(todo):
    if todo:
        dist.all_reduce(x)
        return
    dist.barrier()

def wrapped(group):
    for batch in batches:
        reduce(x, todo, group)
        dist.barrier(group=group)

def reduce(x, todo, group):
    if todo:
        dist.all_reduce(x, group=group)

def main():
    group = dist.new_group()
    wrapped(group)

def main_of_several():
    for group in groups:
        wrapped(group)
"""


def branch(path: Path, *calls: tuple[str, str]) -> tuple[Frame, ...]:
    """A stack of BRANCHES, the innermost first: the collective, and each function with the line that begins so."""
    frames = []
    for function, text in calls:
        lines = BRANCHES.splitlines()
        start = next(at for at, line in enumerate(lines) if line.startswith(f"def {function}("))
        at = next(at for at, line in enumerate(lines) if at > start and line.strip().startswith(text))
        frames.append(Frame(function, str(path), at + 1))
    return Frame(calls[0][1].removeprefix("dist.").partition("(")[0], TORCH, 100), *frames


def in_branches(tmp_path: Path, *stacks: tuple[Frame, ...]) -> Verdict:
    """A world whose ranks stand in these stacks, at two looks without data in between."""
    (tmp_path / "branches.py").write_text(BRANCHES)
    ranks = []
    for number, frames in enumerate(stacks):
        main = Thread("MainThread", 100 + number, frames, main=True)
        looks = tuple(Sample(at_s, "S", threads=(main,), net_quiet_s=20.0) for at_s in (0.0, 1.5))
        ranks.append(Process(HOST, 100 + number, rank=number, world_size=len(stacks), samples=looks))
    return judged(*ranks)


@pytest.mark.parametrize(
    ("function", "most", "odd", "hang"),
    [
        ("by_data", "dist.all_reduce", "dist.barrier", "K2"),  # each side has left out what the other one runs
        ("by_rank", "dist.all_reduce", "dist.barrier", "K10"),
        ("by_rank_in_groups", "dist.all_reduce", "dist.barrier", "K2"),  # each branch may have a group of its own
        ("by_error", "dist.all_reduce", "dist.all_gather_object", "K1"),
        ("by_error", "dist.all_gather_object", "dist.all_reduce", "K2"),  # most have met an error
        ("behind_error", "dist.all_reduce", "dist.barrier", "K2"),
        ("leaves_early", "dist.all_reduce", "dist.barrier", "K2"),
    ],
)
def test_of_two_branches_only_a_rank_or_an_error_says_who_is_odd(
    tmp_path: Path, function: str, most: str, odd: str, hang: str
) -> None:
    path = tmp_path / "branches.py"
    many, single = branch(path, (function, most)), branch(path, (function, odd))
    verdict = in_branches(tmp_path, many, many, single)
    assert verdict.triage is not None and (verdict.verdict, verdict.triage.hang) == ("HUNG", hang)
    assert culprits(verdict) == ([] if hang == "K2" else [2])


def test_an_except_is_told_with_its_own_line(tmp_path: Path) -> None:
    path = tmp_path / "branches.py"
    many = branch(path, ("by_error", "dist.all_reduce"))
    single = branch(path, ("by_error", "dist.all_gather_object"))
    verdict = in_branches(tmp_path, many, many, single)
    line = 1 + BRANCHES.splitlines().index("        except ValueError:")
    assert verdict.triage is not None and f"at line {line}," in verdict.triage.culprits[0].why
    gates = gate_text.gates(single[1]) or ()
    assert [gate.line for gate in gates if gate.in_handler] == [line]


@pytest.mark.parametrize(("main", "named"), [("main", [2]), ("main_of_several", [])])
def test_a_group_that_a_wrapper_passes_on_is_followed(tmp_path: Path, main: str, named: list[int]) -> None:
    """The control: the callers go through several groups, so that the ranks may be in two of them."""
    path = tmp_path / "branches.py"
    outer = (main, "wrapped(group)")
    many = branch(path, ("reduce", "dist.all_reduce"), ("wrapped", "reduce("), outer)
    single = branch(path, ("wrapped", "dist.barrier"), outer)
    assert culprits(in_branches(tmp_path, many, many, single)) == named


THROUGH_GROUPS = """
def loop(groups):
    for group in groups:
        dist.all_reduce(x, group=group)

def by_number(order):
    for number in order:
        reduce(x, groups[number])

def reduce(x, group):
    dist.all_reduce(x, group=group)

def in_steps(group):
    for step in steps:
        dist.all_reduce(x, group=group)
"""


@pytest.mark.parametrize(
    ("calls", "text"),
    [
        ([("loop", 4)], "group"),
        ([("reduce", 11), ("by_number", 8)], "groups[number]"),
        ([("in_steps", 15)], ""),  # the same group in each round
        ([("reduce", 11)], ""),
    ],
)
def test_a_loop_over_groups_is_told_with_what_would_decide(
    tmp_path: Path, calls: list[tuple[str, int]], text: str
) -> None:
    path = tmp_path / "groups.py"
    path.write_text(THROUGH_GROUPS)
    frames = (Frame("all_reduce", TORCH, 100), *(Frame(function, str(path), line) for function, line in calls))
    ranks = job(str(path), {0: GRADIENT, 1: GRADIENT})
    for at, each in enumerate(ranks):
        threads = (Thread("MainThread", 100 + at, frames, main=True),)
        looks = tuple(dataclasses.replace(look, threads=threads) for look in each.samples)
        ranks[at] = dataclasses.replace(each, samples=looks)
    verdict = judged(*ranks)
    assert verdict.verdict == "INSUFFICIENT" and not culprits(verdict) and verdict.triage is not None
    assert (f"`{text}`" in verdict.reason) is bool(text)
    assert GROUPS_WANTED in verdict.missing


SWALLOWED = """
def step():
    try:
        dist.all_reduce(x)
    except (RuntimeError,
            ValueError):
        keep_going()
    wait_for_somebody()
"""


@pytest.mark.parametrize(("function", "line", "place"), [("step", 7, "caught.py:5"), ("step", 8, "")])
def test_a_swallowed_error_is_told_with_the_line_of_its_except(
    tmp_path: Path, function: str, line: int, place: str
) -> None:
    """The control: behind the `try` nobody is known to have caught an error."""
    path = tmp_path / "caught.py"
    path.write_text(SWALLOWED)
    ranks = job(str(path), {0: GRADIENT, 1: GRADIENT})
    stacks = (Frame("all_reduce", TORCH, 100), Frame(function, str(path), 4)), (Frame(function, str(path), line),)
    for at, frames in enumerate(stacks):
        threads = (Thread("MainThread", 100 + at, frames, main=True),)
        looks = tuple(dataclasses.replace(look, threads=threads) for look in ranks[at].samples)
        ranks[at] = dataclasses.replace(ranks[at], samples=looks)
    verdict = judged(*ranks)
    assert verdict.triage is not None and culprits(verdict) == [1], verdict.reason
    for words in (verdict.triage.culprits[0].why, verdict.triage.next[0]):
        assert (place in words) if place else ("`except`" not in words)


def in_backward(file: str, *, cpu_s: float = 0.0) -> list[Process]:
    """Rank 0 in a backward pass, the others in a collective behind it."""
    ranks = job(file, {0: GRADIENT, 1: TOTAL, 2: TOTAL})
    frames = (
        Frame("_engine_run_backward", "/usr/lib/python3/site-packages/torch/autograd/graph.py", 829),
        Frame("main", file, GRADIENT),
    )
    thread = Thread("MainThread", 100, frames, main=True)
    looks = [
        dataclasses.replace(look, threads=(thread,), cpu_s=used_s)
        for look, used_s in zip(ranks[0].samples, (0.0, cpu_s), strict=True)
    ]
    return [dataclasses.replace(ranks[0], samples=tuple(looks)), *ranks[1:]]


@pytest.mark.parametrize(("cpu_s", "hung"), [(0.0, True), (1.4, False)])
def test_a_backward_pass_that_uses_no_processor_waits_for_the_gradients_of_the_others(
    file: str, cpu_s: float, hung: bool
) -> None:
    verdict = judged(*in_backward(file, cpu_s=cpu_s))
    assert (verdict.verdict == "HUNG") is hung, verdict.reason
    assert not hung or (f"train.py:{GRADIENT}" in verdict.reason and f"train.py:{TOTAL}" in verdict.reason)


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        pytest.param({0: TOTAL, 1: GRADIENT, 2: TOTAL, 3: TOTAL}, [1], id="one of four is still in the loop"),
        pytest.param({0: TOTAL, 1: GRADIENT, 2: TOTAL}, [], id="one of three: two may have left it too soon"),
        pytest.param({0: GRADIENT, 1: TOTAL, 2: GRADIENT, 3: GRADIENT}, [1], id="one of four is past the loop"),
        pytest.param({0: TOTAL, 1: GROUPED, 2: TOTAL, 3: TOTAL}, [], id="in another group"),
    ],
)
def test_few_ranks_in_a_loop_that_most_have_left_are_named(
    file: str, lines: Mapping[int, int], named: list[int]
) -> None:
    verdict = judged(*job(file, lines))
    assert verdict.verdict == "HUNG" and verdict.triage is not None
    assert culprits(verdict) == named and (not named or verdict.triage.hang == "K1")
