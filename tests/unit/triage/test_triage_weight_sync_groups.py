"""Groups made beside torch's register (a weight sync): joined across processes by name and own rank; else no blame."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from triage_evidence import evidence, process

from harness.triage import recorders
from harness.triage.evidence import Call, Group, Journal, Process
from harness.triage.judge import triage
from probes import limits
from reports.model import Verdict

NAME = "weight_sync"


def entries(count: int, pending: bool) -> list[dict[str, Any]]:
    return [
        {
            "record_id": seq - 1, "process_group": [NAME, ""], "collective_seq_id": seq, "p2p_seq_id": 0,
            "profiling_name": "gloo:broadcast", "input_sizes": [[8]], "output_sizes": [[8]], "input_dtypes": ["Float"],
            "output_dtypes": ["Float"], "time_created_ns": 0, "state": "scheduled", "is_p2p": False,
            "retired": seq < count or not pending, "timeout_ms": 1000,
        }
        for seq in range(1, count + 1)
    ]  # fmt: skip


def member(
    folder: Path, pid: int, role: str, stack: str, own: int, count: int, *, size: int, pending: bool = False,
    recorded: bool = True, **more: Any,
) -> Process:  # fmt: skip
    name = f"{role}{pid}.json"
    dump = {"version": "2.10", "pg_config": {"": {"name": "", "desc": "", "ranks": "[]"}}, "pg_status": {},
            "entries": entries(count, pending)}  # fmt: skip
    (folder / name).write_text(json.dumps(dump))
    groups = (Group(NAME, (), "gloo", "", size, own),) if recorded else ()
    one = process(pid, role, stack, journal=Journal("j", 9, 40.0, groups=groups), **more)
    return dataclasses.replace(one, dump=name)


def judged(folder: Path, *processes: Process) -> Verdict:
    return triage(dataclasses.replace(evidence(*processes), path=str(folder), taken="2026-01-01T00:00:00+00:00"))


def keys(verdict: Verdict) -> set[int | None]:
    return {party.pid for party in verdict.triage.culprits}  # type: ignore[union-attr]


@pytest.mark.parametrize("engines", [1, 2, 3])
def test_the_engine_that_left_is_the_one(tmp_path: Path, engines: int) -> None:
    """The trainer is in broadcast #17, the engines are back in their loop with 16."""
    size = engines + 1
    trainer = member(tmp_path, 10, "trainer", "main sync broadcast", 0, 17, size=size, pending=True, rank=0)
    loops = [
        member(tmp_path, 20 + n, "rollout", "main event_loop receive", n, 16, size=size, rank=n - 1, engine="sglang")
        for n in range(1, size)
    ]
    found = judged(tmp_path, trainer, *loops)
    assert (found.verdict, keys(found)) == ("HUNG", {20 + n for n in range(1, size)}), found.reason


def test_of_several_engines_the_one_that_left(tmp_path: Path) -> None:
    trainer = member(tmp_path, 10, "trainer", "main sync broadcast", 0, 17, size=3, pending=True)
    inside = member(tmp_path, 21, "rollout", "main event_loop update broadcast", 1, 17, size=3, pending=True)
    left = member(tmp_path, 22, "rollout", "main event_loop receive", 2, 16, size=3)
    assert keys(judged(tmp_path, trainer, inside, left)) == {22}


def test_a_member_that_nobody_looked_at_is_missing_and_not_blamed(tmp_path: Path) -> None:
    trainer = member(tmp_path, 10, "trainer", "main sync broadcast", 0, 17, size=3, pending=True)
    inside = member(tmp_path, 21, "rollout", "main event_loop update broadcast", 1, 17, size=3, pending=True)
    found = judged(tmp_path, trainer, inside)
    assert found.verdict == "INSUFFICIENT" and not keys(found)
    assert any(f"rank 2 of {NAME}" in one for one in found.missing)


def test_where_the_members_are_unknown_nobody_is_blamed(tmp_path: Path) -> None:
    unknown = {"size": 2, "recorded": False, "rank": 0}
    trainer = member(tmp_path, 10, "trainer", "main sync broadcast", 0, 17, pending=True, **unknown)
    engine = member(tmp_path, 20, "rollout", "main event_loop receive", 1, 16, **unknown)
    found = judged(tmp_path, trainer, dataclasses.replace(engine, engine="sglang"))
    assert found.verdict == "INSUFFICIENT" and not keys(found), found.reason


def test_two_groups_of_one_name_are_not_joined(tmp_path: Path) -> None:
    """Two policies, each with its own sync: the name does not say whose belong together."""
    some = [member(tmp_path, 10 + n, "trainer", "main sync broadcast", 0, 17, size=2, pending=True) for n in range(2)]
    engines = [member(tmp_path, 20 + n, "rollout", "main event_loop receive", 1, 16, size=2) for n in range(2)]
    found = judged(tmp_path, *some, *engines)
    assert not keys(found) and found.verdict == "INSUFFICIENT"


@pytest.mark.slow
def test_a_thousand_processes_with_a_sync_are_judged_in_seconds(tmp_path: Path) -> None:
    import time

    size = 1000
    trainer = member(tmp_path, 10, "trainer", "main sync broadcast", 0, 5, size=size, pending=True)
    others = [
        member(tmp_path, 1000 + n, "rollout", "main event_loop update broadcast", n, 5, size=size, pending=True)
        for n in range(1, size - 1)
    ]
    left = member(tmp_path, 5000, "rollout", "main event_loop receive", size - 1, 4, size=size)
    began = time.process_time()
    assert keys(judged(tmp_path, trainer, *others, left)) == {5000}
    assert time.process_time() - began < 30


def test_a_trainer_does_not_wait_for_the_engine_process_of_its_own_rank(tmp_path: Path) -> None:
    """The trainer and SGLang's scheduler are each rank 0 of a world of one, and both are known by the engine's name;
    the process that was asked is another one, and has refused."""
    known = (Group("weights", (0, 1), "gloo", "", 2),)
    refusal = Call("update", False, "update_weights_from_distributed before begin_weight_update", 5.0)
    own = Group("0", (0,), "gloo", "default_pg", 1)
    trainer = process(10, "trainer", "main sync broadcast", rank=0, world_size=1, engine="sglang",
                      journal=Journal("j", 9, 40.0, groups=(own, *known)))  # fmt: skip
    asked = process(20, "rollout", "main event_loop receive", rank=1, world_size=2,
                    journal=Journal("j", 9, 40.0, groups=known, calls=(refusal,)))  # fmt: skip
    joined = Journal("j", 9, 40.0, groups=(own, Group("weights", (), "gloo", "", 2, 1)))
    scheduler = process(30, "sglang_scheduler", "main event_loop zmq.poll", rank=0, world_size=1, engine="sglang",
                        ppid=20, journal=joined)  # fmt: skip
    verdict = judged(tmp_path, trainer, asked, scheduler)
    assert verdict.triage is not None
    assert (verdict.verdict, verdict.triage.hang, keys(verdict)) == ("HUNG", "K13", {20}), verdict.reason


def test_more_groups_than_any_job_has_are_not_all_compared(tmp_path: Path) -> None:
    groups = tuple(Group(f"group {number}", (), "gloo", "", limits.RANKS // 16, 0) for number in range(20))
    one = process(7, "rollout", "main:10 recv", journal=Journal("j", 9, 40.0, groups=groups))
    notes: list[str] = []
    assert len(recorders._spanning((one,), notes)) == 16 and len(notes) == 1
