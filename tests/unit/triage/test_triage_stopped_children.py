"""A process that records nothing and is stopped: named where somebody waits for it, and nowhere else."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from triage_evidence import compared, evidence, group, process, rank, wording

from harness.triage.evidence import Frame, Process
from harness.triage.judge import triage
from reports.model import Triage, Verdict

PIPE = "anon_pipe_read"


def child(pid: int, ppid: int, stack: str = "", state: str = "T", **more: Any) -> Process:
    return dataclasses.replace(process(pid, "process", stack, state=state), ppid=ppid, **more)


def body(verdict: Verdict) -> Triage:
    assert verdict.triage is not None
    return verdict.triage


def named(verdict: Verdict) -> set[int | None]:
    return {party.pid for party in body(verdict).culprits}


@pytest.mark.parametrize("shell", [False, True])
def test_the_tokenizer_whose_answer_a_rank_reads_is_named_and_the_rank_waits(shell: bool) -> None:
    waiting = rank(1, "main ask:9", wchan=PIPE, world=2)
    below = (child(300, 101, state="S"), child(301, 300)) if shell else (child(301, 101),)
    states = group("0", {0: (9, "all_reduce"), 1: 8})
    seen = evidence(rank(0, "main step:4 all_reduce", world=2), waiting, *below)
    verdict = triage(seen, compared(states))
    assert (verdict.verdict, body(verdict).hang, named(verdict)) == ("HUNG", "K9", {301})
    assert ("a child of rank 1" in wording(verdict)) is not shell
    assert {party.rank for party in body(verdict).victims if party.rank is not None} == {0, 1}


def test_an_engine_that_stands_in_its_transition_waits_for_its_stopped_scheduler() -> None:
    """SGLang below an actor: uvloop leaves no frame above the call."""
    actor = process(20, "rollout", "call resume_memory_occupation")
    frame = Frame("resume_memory_occupation", "/venv/lib/python3.11/site-packages/sglang/srt/entrypoints/engine.py", 7)
    looks = tuple(
        dataclasses.replace(look, threads=(dataclasses.replace(look.threads[0], frames=(frame,)),))
        for look in actor.samples
    )
    scheduler = child(30, 20, title="sglang::scheduler", engine="sglang")
    actor = dataclasses.replace(actor, samples=looks)
    verdict = triage(evidence(process(10, "trainer", "fit ray.get"), actor, scheduler))
    assert (verdict.verdict, body(verdict).hang, named(verdict)) == ("HUNG", "K9", {30})
    assert "rollout (node0:20)" in wording(verdict)


@pytest.mark.parametrize(
    ("stack", "look"),
    [
        ("main step:4 all_reduce", {}),  # it waits for its peer
        ("main poll:9", {"wchan": "hrtimer_nanosleep"}),  # for a file
        ("main locked:9", {"wchan": "locks_lock_inode_wait"}),
        ("event_loop_normal recv queue.get", {}),  # for orders
    ],
)
def test_a_stopped_child_of_a_rank_that_waits_elsewhere_is_not_named(stack: str, look: dict[str, Any]) -> None:
    failed = rank(0, "main keep_alive:3", world=2, wchan="hrtimer_nanosleep")
    seen = evidence(failed, rank(1, stack, world=2, **look), child(301, 101))
    states = group("0", {0: 8, 1: (9, "all_reduce") if "all_reduce" in stack else 8})
    assert 301 not in named(triage(seen, compared(states)))


def test_a_stopped_helper_beside_a_child_that_works_is_not_named() -> None:
    loading = rank(1, "main ask:9", wchan=PIPE, world=2)
    works = dataclasses.replace(process(300, "process", "work:1", cpu_s=1.0), ppid=101)
    seen = evidence(rank(0, "main step:4 all_reduce", world=2), loading, works, child(301, 101))
    verdict = triage(seen, compared(group("0", {0: (9, "all_reduce"), 1: 8})))
    assert verdict.verdict == "SLOW" and not named(verdict)


def test_a_job_of_a_shell_beside_the_ranks_is_not_named() -> None:
    shell = dataclasses.replace(process(50, "shell"), ppid=1)
    ranks = rank(0, "main step:4 all_reduce", world=2), rank(1, "main keep_alive:3", world=2)
    verdict = triage(evidence(*ranks, shell, child(51, 50)), compared(group("0", {0: (9, "all_reduce"), 1: 8})))
    assert verdict.verdict == "HUNG" and named(verdict) == {101}
