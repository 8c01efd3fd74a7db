"""Headlines of at most 20 words, whatever stands in the evidence; `conftest.py` counts those of all tests here."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from triage_evidence import compared, evidence, group, rank

from harness.triage import judge
from harness.triage.evidence import Beat, Call, Evidence, Journal, Process
from harness.triage.flight.model import Collective, Comparison
from harness.triage.graph import build
from harness.triage.graph.edges import title
from harness.triage.judge import triage
from harness.triage.pasted.text import cut
from harness.triage.rules.ruling import brief
from reports.headline import fits

WAIT = "main:10 step:42 all_reduce"
LONG = "RuntimeError: " + " ".join(f"word{n}" for n in range(200))


def job(*odd: Process, size: int = 8) -> tuple[Evidence, Comparison]:
    """Ranks in an operation to which some have not come."""
    away = {one.rank for one in odd}
    waiting = [rank(n, WAIT, world=size) for n in range(size) if n not in away]
    at = {n: 16 if n in away else (17, "all_reduce") for n in range(size)}
    return evidence(*odd, *waiting, expected_world=size), compared(group("weight_sync_group", at))


@pytest.mark.parametrize("seen, comparison", [
    job(rank(3, gone=True, world=8, error=LONG, error_age_s=60.0)),
    job(rank(3, "main:5 wait", world=8, error=LONG, error_age_s=60.0)),
    job(*(rank(n, "main:5 wait", world=8, role="rollout") for n in (1, 3, 5))),
    job(*(rank(n, "main:5 wait", world=64) for n in range(1, 64, 2)), size=64),
    job(rank(1, "main event_loop queue.get", world=8, role="rollout",
             journal=Journal("j", 1, 1.0, calls=(Call("update_weights_from_tensor", False, LONG, 40.0),)))),
    job(*(dataclasses.replace(rank(n, "main:5 wait", world=8), host=f"node{n}.a.long.name") for n in (0, 1, 2, 3))),
])  # fmt: skip
def test_the_details_stand_below_the_headline(seen: Evidence, comparison: Comparison) -> None:
    verdict = triage(seen, comparison)
    assert verdict.verdict == "HUNG" and len(verdict.reason.split()) <= 20, verdict.reason
    assert verdict.triage is not None and verdict.triage.culprits and all(one.why for one in verdict.triage.culprits)


def test_of_a_long_reason_the_first_fact_stands_above_the_whole() -> None:
    ended = [dataclasses.replace(rank(number, gone=True), role="long role", host=f"node{number}",
             beat=Beat(90, 90.0 - 9 * number, 9.0), exit_code=number + 1) for number in range(9)]  # fmt: skip
    alone, among_others = (triage(evidence(*ranks, source="live", stall_s=0.0)) for ranks in (ended[:1], ended))
    assert alone.reason.endswith("exit code 1") and alone.reason not in alone.evidence
    assert fits("INSUFFICIENT", among_others.reason) and not fits("INSUFFICIENT", among_others.evidence[0])


def test_the_beginning_of_an_error_is_enough() -> None:
    assert brief("a b c", 3) == "a b c" and brief("a b c d", 3) == "a b c …"


@pytest.mark.parametrize(
    ("text", "words", "beginning"),
    [
        ("out of memory. Tried to allocate 60.01 GiB. GPU 0 has", 7, "out of memory. Tried to allocate …"),
        ("out of memory. Tried to allocate 60.01 GiB. GPU 0 has", 8, "out of memory. Tried to allocate 60.01 GiB. …"),
        ("took 600000 milliseconds before it timed out", 3, "took 600000 milliseconds …"),
        ("raised ValueError on rank 3 at step 7", 4, "raised ValueError …"),
        ("raised ValueError on rank 3 at step 7", 5, "raised ValueError on rank 3 …"),
        ("python train.py --lr 3e-4 --seed 7", 5, "python train.py --lr 3e-4 …"),
        ("ran out of GPU memory: 60.01 GiB of 79", 6, "ran out of GPU memory …"),
        ("1 of 2 of 3 of 4", 4, "1 of 2 …"),
        ("raised it in this process and went on", 5, "raised it in this process …"),
        ("ended with exit code 137 and nobody", 4, "ended with exit …"),
        ("of the to at in by", 4, "of the to at …"),  # each cut parts something
    ],
)
def test_no_cut_parts_a_figure_from_its_unit_or_a_word_from_its_name(text: str, words: int, beginning: str) -> None:
    assert brief(text, words) == beginning
    assert cut(text, len(" ".join(text.split()[:words]))) == beginning


def test_a_group_without_a_name_is_no_count() -> None:
    titles = [title(group(name, {0: 1})) for name in ("1", "tp_group")]
    assert titles == ["group 1", "tp_group"]
    subject = next(iter(build(*job(rank(3, "main:5 wait", world=8))).subjects.values()))
    stuck = dataclasses.replace(subject, pending=Collective("1", 17, "all_reduce", False), progress="", blocked="")
    assert [stuck.state(name).partition(",")[0] for name in ("group 1", "tp")] == [
        "in all_reduce #17 of group 1", "in all_reduce #17 of group tp",
    ]  # fmt: skip


def test_who_only_sleeps_is_said_to_sleep_where_it_does() -> None:
    verdict = triage(*job(rank(3, "main:5 work:12", world=8, wchan="hrtimer_nanosleep", progress_s=34.0)))
    assert verdict.reason.startswith("rank 3 sleeps at train.py:12;") and verdict.triage is not None
    assert verdict.triage.culprits[0].why.endswith("asleep, train.py:12 in work, unchanged for 34 s")
    assert not any("caught" in step or "failed" in step for step in verdict.triage.next)
    failed = triage(*job(rank(3, "main:5 wait", world=8, error="ValueError: no", error_age_s=60.0)))
    assert failed.triage is not None and not failed.reason.startswith("rank 3 sleeps")


def test_who_only_sleeps_is_looked_at_before_its_log() -> None:
    verdict = triage(*job(rank(3, "main:5 wait", world=8)))
    assert verdict.triage is not None and verdict.triage.hang == "K4"
    assert (
        verdict.triage.next[0].rpartition("/")[2].startswith("py-spy dump --pid 103 ")
        and "log" in verdict.triage.next[1]
    )


STATES = re.compile(r"\bis (?:a )?\{[^{}]*\bstate\(\)\}")


def test_no_sentence_says_that_somebody_is_a_state() -> None:
    """A state begins with a verb, with the kind of a wait or with who keeps a lock: after a colon each of them reads
    well, after "is" few do."""
    rules = Path(judge.__file__).parent.rglob("*.py")
    assert {path.name: STATES.findall(path.read_text()) for path in rules if STATES.search(path.read_text())} == {}
