"""A ring of waits over several groups: who alone is out of step by the program's text, and where nobody is named."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest
from triage_evidence import TORCH, compared, evidence, group, rank, wording

from harness.triage import source
from harness.triage.evidence import Frame, Process
from harness.triage.flight.model import Comparison, Habit
from harness.triage.judge import triage
from reports.model import Triage, Verdict

PROGRAM = """
def rounds(batches):
    for batch in batches:
        all_reduce(data)
        broadcast(weights)
    barrier()

def engine(batches):
    while batches:
        broadcast(weights)

def serve():
    while True:
        try:
            order()
        except Exception as error:
            log(error)

def careful():
    while True:
        try:
            order()
        except Exception:
            log()
            raise
"""
HERE, WEIGHTS, END, ENGINE, SERVE, CAREFUL = 4, 5, 6, 10, 15, 22
FUNCTIONS = {ENGINE: "engine", SERVE: "serve", CAREFUL: "careful"}
CUT = Habit("tp", "all_reduce", "orders", "broadcast", 9, cut=True)
KEPT = Habit("tp", "all_reduce", "tp", "all_reduce", 9)


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    return str(path)


def placed(file: str, lines: Sequence[int], op: str = "all_reduce") -> list[Process]:
    """Ranks of one world, each in a collective at a line of the program."""
    ranks = [rank(number, "all_reduce", world=len(lines)) for number in range(len(lines))]
    for number, line in enumerate(lines):
        stack = (Frame(op, TORCH, 9), Frame(FUNCTIONS.get(line, "rounds"), file, line))
        looks = [dataclasses.replace(look, threads=(dataclasses.replace(look.threads[0], frames=stack),))
                 for look in ranks[number].samples]  # fmt: skip
        ranks[number] = dataclasses.replace(ranks[number], samples=tuple(looks))
    return ranks


def ring(*, orders: bool = False, habits: dict[int, Habit] | None = None) -> Comparison:
    """Rank 0 and its peer in a ring: 0 waits for the weights of 2, 2 for the gradients of 3, 3 at the end for 0; with
    `orders`: 0 waits for 1 in one group, 1 for 0 in another one."""
    if orders:
        states = [group("tp", {0: (9, "all_reduce"), 1: 8}), group("orders", {1: (4, "broadcast"), 0: 3})]
    else:
        states = [
            group("weights", {0: (9, "broadcast"), 1: (9, "broadcast"), 2: 8}),
            group("data", {2: (9, "all_reduce"), 3: 8}),
            group("world", {3: (1, "barrier"), 0: 0, 1: 0, 2: 0}),
        ]
    habits = habits or {}
    return dataclasses.replace(
        compared(*states, world=4), habits={f"node0:{100 + number}": one for number, one in habits.items()}
    )


def body(verdict: Verdict) -> Triage:
    assert (verdict.verdict, verdict.triage is not None) == ("HUNG", True)
    assert verdict.triage is not None
    return verdict.triage


def named(verdict: Verdict) -> list[int | None]:
    return [party.rank for party in body(verdict).culprits]


def test_who_alone_has_left_the_loop_of_all_others_is_named(file: str) -> None:
    verdict = triage(evidence(*placed(file, [WEIGHTS, WEIGHTS, HERE, END])), ring())
    assert (named(verdict), body(verdict).hang) == ([3], "K1")
    assert "line 3" in wording(verdict)


def test_who_alone_goes_round_while_all_others_have_left_is_named(file: str) -> None:
    states = [group("data", {2: (9, "all_reduce"), 3: 8}), group("world", {0: (1, "barrier"), 1: (1, "barrier"),
                                                                         3: (1, "barrier"), 2: 0})]  # fmt: skip
    verdict = triage(evidence(*placed(file, [END, END, HERE, END])), compared(*states, world=4))
    assert (named(verdict), body(verdict).hang) == ([2], "K1")


def test_hosts_that_ran_ahead_of_their_devices_do_not_say_who_is_alone_in_a_loop(file: str) -> None:
    states = [group("data", {2: (9, "all_reduce"), 3: 8}), group("world", {3: (1, "barrier"), 2: 0}),
              group("tp", {0: (7, "all_reduce"), 1: 6})]  # fmt: skip
    assert named(triage(evidence(*placed(file, [END, END, HERE, END])), compared(*states, world=4))) == []


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([ENGINE, ENGINE, HERE, END], id="the engines go round a loop of their own"),
        pytest.param([WEIGHTS, END, HERE, END], id="two have left"),
        pytest.param([END, END, END, END], id="nobody is in it: a host runs ahead of its device"),
        pytest.param([WEIGHTS, WEIGHTS, HERE, HERE], id="nobody has left"),
    ],
)
def test_nobody_is_named_without_one_against_several(file: str, lines: list[int]) -> None:
    verdict = triage(evidence(*placed(file, lines)), ring())
    assert (named(verdict), body(verdict).hang) == ([], "K2")


def test_nobody_is_named_while_a_rank_of_the_world_is_not_seen(file: str) -> None:
    ranks = placed(file, [WEIGHTS, WEIGHTS, HERE, END])
    unseen = dataclasses.replace(ranks[1], samples=())
    assert named(triage(evidence(ranks[0], unseen, *ranks[2:]), ring())) == []


def test_who_left_the_rest_out_and_outlives_any_error_is_named(file: str) -> None:
    seen = evidence(*placed(file, [HERE, SERVE, HERE, HERE]))
    verdict = triage(seen, ring(orders=True, habits={0: KEPT, 1: CUT}))
    assert (named(verdict), body(verdict).hang) == ([1], "K2")
    assert "`except` at line 16" in body(verdict).culprits[0].why


@pytest.mark.parametrize(
    ("line", "habits"),
    [
        pytest.param(CAREFUL, {0: KEPT, 1: CUT}, id="an error would have ended it"),
        pytest.param(HERE, {0: KEPT, 1: CUT}, id="nothing catches errors"),
        pytest.param(SERVE, {0: KEPT, 1: dataclasses.replace(CUT, cut=False)}, id="it may do something new"),
        pytest.param(SERVE, {0: CUT, 1: CUT}, id="both depart"),
        pytest.param(SERVE, {0: KEPT, 1: KEPT}, id="neither departs"),
        pytest.param(SERVE, {1: CUT}, id="nothing is known of the other one"),
        pytest.param(SERVE, {0: KEPT, 1: CUT, 2: CUT}, id="one that does the same work departs as well"),
    ],
)
def test_nobody_is_named_where_another_rank_may_have_told_it_to(file: str, line: int, habits: dict[int, Habit]) -> None:
    seen = evidence(*placed(file, [HERE, line, HERE, HERE]))
    assert named(triage(seen, ring(orders=True, habits=habits))) == []


@pytest.mark.parametrize(
    ("handler", "outlives"),
    [
        ("except Exception: log()", True),
        ("except: log()", True),
        ("except (OSError, Exception): continue", True),
        ("except ValueError: log()", False),
        ("except Exception: raise", False),
        ("except Exception: return", False),
        ("except Exception: break", False),
        ("except Exception: sys.exit(1)", False),
        ("finally: log()", False),
    ],
)
def test_the_text_says_whether_a_loop_goes_on_after_an_error(tmp_path: Path, handler: str, outlives: bool) -> None:
    path = tmp_path / "a.py"
    text = f"def run():\n  while True:\n    try: step()\n    {handler}\n\ndef main():\n  for _ in x:\n    run()\n"
    path.write_text(text)
    inner, outer = Frame("run", str(path), 3), Frame("main", str(path), 8)
    assert bool(source.outlives_error([inner])) is outlives
    returns = outlives or "return" in handler or "break" in handler
    assert bool(source.outlives_error([inner, outer])) is returns
