"""What a rule may and may not conclude: the order of the rules, the program's text, errors that are echoes."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from triage_evidence import HOST, compared, evidence, group, process, rank

from harness.triage import gate_text, source
from harness.triage.evidence import Beat, Call, Frame, Journal, OpenSpan, Process
from harness.triage.flight.model import Habit
from harness.triage.flight.synthesis import Fault, simulate, write
from harness.triage.judge import triage
from harness.triage.rules import RULES
from harness.triage.rules.processes import local_error
from harness.triage.run import triage as triage_paths

WAIT = "main:10 step:42 all_reduce"
PROGRAM = """
def keep_alive():
    while True:
        pass


def step(module, rank):
    try:
        module()
    except RuntimeError:
        keep_alive()


def train(batches, rank, save):
    for epoch in batches:
        for batch in epoch:
            step(batch, rank)
        publish(epoch)
    if rank == 0 and save:
        save()
    else:
        other()
    if save:
        save()
    return rank
"""


@pytest.fixture
def at(tmp_path: Path):
    file = tmp_path / "train.py"
    file.write_text(PROGRAM)
    lines = PROGRAM.splitlines()

    def frame(function: str, text: str, number: int = 0) -> Frame:
        found = [index for index, line in enumerate(lines, 1) if line.strip() == text]
        return Frame(function, str(file), found[number])

    return frame


def test_the_text_says_what_stands_in_a_handler(at):
    assert source.handler_line(at("step", "keep_alive()")) == at("step", "except RuntimeError:").line
    assert not source.handler_line(at("step", "module()"))
    assert not source.handler_line(at("train", "keep_alive()"))  # another function has that line


def test_the_text_says_which_loop_was_left(at):
    inner, after, end = at("train", "step(batch, rank)"), at("train", "publish(epoch)"), at("train", "return rank")
    assert source.behind_loop(after, inner) == at("train", "for batch in epoch:").line
    assert source.behind_loop(end, after) == at("train", "for epoch in batches:").line
    assert (
        source.behind_loop(inner, after) == 0 and source.behind_loop(end, dataclasses.replace(end, file="/b.py")) == 0
    )


def test_a_loop_of_epochs_brings_a_rank_back(at):
    inner, after, end = (at("train", text) for text in ("for batch in epoch:", "publish(epoch)", "return rank"))
    called = Frame("main", after.file, at("keep_alive", "pass").line)  # a caller that goes round calls it again
    assert source.comes_back([after], inner.line) and not source.comes_back([end], inner.line)
    assert source.comes_back([end, at("keep_alive", "pass")], inner.line)
    assert not source.comes_back([end, called], inner.line)  # of a function that the file does not have


def test_the_text_says_what_asks_for_the_rank(at):
    assert source.rank_condition(at("train", "save()")) == "rank == 0 and save"
    assert source.rank_condition(at("train", "other()")) == "" and source.rank_condition(at("train", "save()", 1)) == ""


@pytest.mark.parametrize(
    ("condition", "asks"),
    [
        ("rank == 0", True),
        ("dist.get_rank() == 0", True),
        ("self.local_rank < 2", True),
        ("os.environ['RANK'] == '0'", True),
        ("trainer.is_rank_zero", True),
        ("accelerator.is_main_process", True),
        ("reranker.enabled", False),
        ("self.ranking > 3", False),
        ("me in ranks", True),
        ("franked", False),
    ],
)
def test_what_is_a_condition_on_the_rank(tmp_path, condition, asks):
    file = tmp_path / "conditions.py"
    file.write_text(f"def step():\n    if {condition}:\n        save()\n")
    frame = Frame("step", str(file), 3)
    assert bool(source.rank_condition(frame)) is asks
    assert [gate.asks_for_rank for gate in gate_text.gates(frame) or ()] == [asks]


@pytest.mark.parametrize("content", ["def broken(:\n", "\x00", None, "x = 1\n" * 400_000])
def test_a_text_that_cannot_be_read_answers_nothing(tmp_path, content):
    file = tmp_path / "train.py"
    if content is not None:
        file.write_text(content)
    frame = Frame("main", str(file), 1)
    assert (source.handler_line(frame), source.rank_condition(frame), source.behind_loop(frame, frame)) == (0, "", 0)
    assert not source.handler_line(Frame("main", "train.py", 1))
    assert not source.handler_line(Frame("f", "/etc/passwd", 1))


@pytest.mark.parametrize(
    ("text", "local"),
    [
        ("Traceback ...\nValueError: no response tokens", "ValueError: no response tokens"),
        ("torch.OutOfMemoryError: CUDA out of memory", "torch.OutOfMemoryError: CUDA out of memory"),
        ("RuntimeError: [gloo] Timed out waiting 1800000ms for recv operation to complete", ""),
        ("DistBackendError: NCCL communicator was aborted on rank 3", ""),
        ("RuntimeError: Connection closed by peer [127.0.0.1]:40000", ""),
        ("ray.exceptions.RayActorError: The actor died unexpectedly", ""),
        ("", ""),
    ],
)
def test_an_echo_of_somebody_elses_failure_is_no_first_error(text, local):
    assert local_error(Process("h", 1, error=text)) == local


def late(odd, **more):
    at = {n: (17, "all_reduce") if n != odd else 16 for n in range(3)}
    stack = more.pop("stack", "main idle")
    return evidence(
        *(rank(n, WAIT, world=3) if n != odd else rank(n, stack, world=3, **more) for n in range(3))
    ), compared(group("0", at))


def test_the_first_error_in_time_is_the_culprit():
    early = rank(0, gone=True, world=3, error="ValueError: a", error_age_s=90.0)
    later = rank(1, gone=True, world=3, error="KeyError: b", error_age_s=60.0)
    seen = evidence(early, later, rank(2, WAIT, world=3))
    verdict = triage(seen, compared(group("0", {2: (5, "all_reduce")}, missing=[0, 1])))
    assert [party.rank for party in verdict.triage.culprits] == [0] and "ValueError: a" in verdict.reason


def test_a_failed_call_counts_only_as_the_last_one_and_of_an_idle_engine():
    failed, fine = Call("update", False, "no", 40.0), Call("begin", True, "", 30.0)
    refused = late(1, stack="main event_loop queue.get", journal=Journal("j", 1, 1.0, calls=(fine, failed)))
    fixed = late(1, stack="main event_loop queue.get", journal=Journal("j", 1, 1.0, calls=(failed, fine)))
    busy = late(1, stack="main event_loop load_weights", journal=Journal("j", 1, 1.0, calls=(failed,)), cpu_s=1.4)
    assert triage(*refused).triage.hang == "K13"
    assert triage(*fixed).triage.hang != "K13"
    assert triage(*busy).triage.hang != "K13"


def test_a_refusal_comes_before_the_death_of_somebody_else():
    """The engine is alive and idle: what it said is the cause, whatever else lies around."""
    built, at = late(
        1, stack="main event_loop queue.get", journal=Journal("j", 1, 1.0, calls=(Call("u", False, "no", 9.0),))
    )
    helper = process(900, "logger")
    helper = dataclasses.replace(helper, samples=(dataclasses.replace(rank(0, gone=True).samples[0]),), exit_code=1)
    assert triage(dataclasses.replace(built, processes=(*built.processes, helper)), at).triage.hang == "K13"


def test_a_stopped_helper_is_no_hang():
    pause = [rank(n, "main wait_for_window", world=2, progress_s=40.0) for n in range(2)]
    helper = dataclasses.replace(process(900, "editor", "main", state="T"), beat=None)
    verdict = triage(evidence(*pause, helper), compared(group("0", {0: 4, 1: 4})))
    assert verdict.verdict == "HEALTHY"


def test_a_clean_end_without_waiters_is_healthy():
    done = rank(1, gone=True, world=2, exit_code=0, journal=Journal("j", 9, 5.0, closed=True))
    verdict = triage(evidence(rank(0, "main upload", world=2), done), None)
    assert verdict.verdict in ("HEALTHY", "INSUFFICIENT") and not verdict.triage.culprits


def test_a_transition_that_waits_for_another_rank_is_not_the_end_of_it():
    """Rank 0 stands in wake_up because rank 1 is stopped."""
    span = (OpenSpan("wake_up", 30.0),)
    ranks = (rank(0, "main wake_up barrier", world=2, spans=span), rank(1, WAIT, world=2, state="T", stale_s=30.0))
    verdict = triage(evidence(*ranks), compared(group("0", {0: (5, "barrier"), 1: 4})))
    assert verdict.triage.hang == "K9" and [party.rank for party in verdict.triage.culprits] == [1]


def test_members_on_a_host_that_was_not_looked_at_are_not_missing():
    span = (OpenSpan("init_process_group", 30.0, {"world_size": 4}),)
    here = {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
    ranks = [rank(n, "main init_process_group", spans=span, environ=here) for n in range(2)]
    verdict = triage(evidence(*ranks), None)
    assert verdict.verdict == "INSUFFICIENT" and not verdict.triage.culprits
    assert "nothing from rank 2" in verdict.missing and "not looked at" in verdict.reason


def test_one_pid_of_many_says_nothing_of_the_others():
    span = (OpenSpan("init_process_group", 30.0, {"world_size": 4}),)
    alone = triage(evidence(rank(0, "main init_process_group", spans=span), source="live"), None)
    assert alone.verdict == "INSUFFICIENT" and "nothing from rank 3" in alone.missing
    launcher = process(7, "launcher", "main", command="/venv/bin/torchrun --nproc-per-node 4 train.py")
    whole = triage(evidence(rank(0, "main init_process_group", spans=span, ppid=7), launcher, source="live"), None)
    assert whole.triage.hang == "K5"


@pytest.mark.parametrize("fed", [False, True])
def test_members_that_meet_at_different_addresses(fed):
    """Also where each reads throughout from the connection to its store: what it waits for is the store's."""
    span = (OpenSpan("init_process_group", 30.0, {"world_size": 3}),)
    ranks = [
        rank(
            n,
            "main init_process_group",
            world=3,
            spans=span,
            fed=fed,
            environ={"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "1" if n == 2 else "2"},
        )
        for n in range(3)
    ]
    verdict = triage(evidence(*ranks), None)
    assert verdict.triage.hang == "K5" and [party.rank for party in verdict.triage.culprits] == [2]


def test_whoever_waits_for_somebody_unknown_is_not_blamed():
    """A receive is in no recorder: nothing says for whom rank 1 waits."""
    ranks = (rank(0, WAIT, world=3), rank(1, "main recv", world=3))
    verdict = triage(evidence(*ranks), compared(group("0", {0: (5, "all_reduce"), 1: 4})))
    assert verdict.verdict == "INSUFFICIENT" and not verdict.triage.culprits
    assert any("rank 1" in item for item in verdict.missing)


def test_rules_are_registered_once_each():
    assert len(set(RULES)) == len(RULES) and all(rule.__doc__ for rule in RULES)


def test_victims_are_grouped_behind_the_culprit():
    verdict = triage(*late(2))
    assert [party.key for party in verdict.triage.victims] == [f"{HOST}:100", f"{HOST}:101"]
    assert all("rank 2" in party.why for party in verdict.triage.victims)
    assert {node.party for node in verdict.triage.nodes} == {"culprit", "victim"}


def test_an_error_that_much_work_came_after_is_not_the_cause():
    old = Journal("j", 99, 2.0, errors=((600.0, "span: ValueError: retried"),))
    verdict = triage(*late(1, journal=old))
    assert verdict.triage.hang == "K4" and "retried" not in verdict.reason


LAST_BEAT = Beat(9, 60.0, 60.0, ended=True)


@pytest.mark.parametrize(
    ("beat", "why", "advice"),
    [
        (Beat(9, 60.0, 60.0), "ended without a last word, as by a signal", "dmesg"),
        (LAST_BEAT, "ended in good order", "fewer batches"),
        (
            dataclasses.replace(LAST_BEAT, exit_status=0, raised_at=Frame("work", "train.py", 12)),
            "ended itself by os._exit(0) at train.py:12 in work",
            "os._exit at train.py:12",
        ),
    ],
)
def test_how_a_rank_ended_that_its_peers_wait_for_is_told_by_its_last_word(beat: Beat, why: str, advice: str) -> None:
    verdict = triage(*late(1, gone=True, beat=beat))
    [culprit] = verdict.triage.culprits
    assert (verdict.triage.hang, culprit.rank) == ("K4", 1) and culprit.why.startswith(why)
    assert any(advice in step for step in verdict.triage.next)


def test_a_rank_that_has_come_to_its_end_meanwhile_is_not_blamed() -> None:
    """Its counters were read before, its stack after: all that its main thread runs now is the probe's last beat."""
    waits = dataclasses.replace(rank(0, "main:10 work:12"), world_size=2)
    [main] = waits.samples[-1].threads
    probes = (("beat", "heartbeat", 189), ("_end", "attach", 228))
    beat = tuple(Frame(function, f"/site-packages/probes/{file}.py", line) for function, file, line in probes)
    over = dataclasses.replace(waits.samples[-1], threads=(dataclasses.replace(main, frames=beat),))
    ends = dataclasses.replace(waits, samples=(waits.samples[0], over))
    at = compared(group("0", {0: 16, 1: (17, "all_reduce")}))
    control, told = (triage(evidence(one, rank(1, WAIT, world=2)), at) for one in (waits, ends))
    assert control.verdict == "HUNG" and control.triage and control.triage.culprits, control.reason
    assert told.verdict == "SLOW" and "its stack moved" in told.reason, told.reason


@pytest.mark.parametrize("looked_at", [4, 3])
def test_an_odd_operation_is_named_by_the_recorders_where_the_stack_of_its_rank_is_not_known(looked_at: int) -> None:
    ranks = [rank(number, "main:10 step:42 all_reduce" if number < 3 else "", world=4) for number in range(looked_at)]
    at = compared(group("0", {**dict.fromkeys(range(3), (9, "all_reduce")), 3: (9, "all_gather")}))
    verdict = triage(evidence(*ranks), at)
    assert verdict.verdict == "HUNG" and verdict.triage is not None
    assert [party.rank for party in verdict.triage.culprits] == [3]


def habit(now: str, usual: str) -> Habit:
    return Habit("0", usual, "0", now, times=4)


KEPT, BROKEN = habit("all_reduce", "all_reduce"), habit("all_gather", "all_reduce")
FIRST = habit("all_reduce", "broadcast")  # all of them do something for the first time


@pytest.mark.parametrize(
    ("stack", "habits", "named"),
    [
        pytest.param("", (), [], id="their number alone"),
        pytest.param("main:10 step:52 all_gather", (), [2], id="a stack that was read"),
        pytest.param("", (KEPT, KEPT, BROKEN), [2], id="one departs from what it always did"),
        pytest.param("", (FIRST, FIRST, BROKEN), [], id="all do something for the first time"),
        pytest.param("", (KEPT, KEPT), [], id="no habit of the odd one is known"),
    ],
)
def test_two_ranks_are_no_majority_over_one_by_their_number(
    stack: str, habits: tuple[Habit, ...], named: list[int]
) -> None:
    ranks = [rank(number, "main:10 step:42 all_reduce", world=3) for number in range(2)]
    ranks += [rank(2, stack, world=3)] if stack else []
    at = compared(group("0", {0: (9, "all_reduce"), 1: (9, "all_reduce"), 2: (9, "all_gather")}))
    keys = [state.key for state in at.groups[0].ranks.values()]
    at = dataclasses.replace(at, habits=dict(zip(keys, habits, strict=False)))
    verdict = triage(evidence(*ranks), at)
    assert verdict.triage is not None and (verdict.verdict, verdict.triage.hang) == ("HUNG", "K1")
    assert [party.rank for party in verdict.triage.culprits] == named
    assert ("2 to 1 ranks" in " ".join(verdict.evidence)) is not bool(named)


@pytest.mark.parametrize(("world", "named"), [(3, []), (4, [1]), (8, [1])])
def test_dumps_alone_name_the_odd_rank_from_three_to_one(tmp_path: Path, world: int, named: list[int]) -> None:
    list(write(simulate(world, 48, Fault("wrong-op", 1, 3), tensor_parallel=world), tmp_path))
    verdict = triage_paths([str(tmp_path)])
    assert verdict.triage is not None and (verdict.verdict, verdict.triage.hang) == ("HUNG", "K1")
    assert [party.rank for party in verdict.triage.culprits] == named
