"""Children of one program that wait for each other while their parent joins them, or polls for their end. With
controls."""

from __future__ import annotations

import dataclasses

import pytest
from triage_evidence import HOST, evidence, frames, process, samples

from harness.triage.collect.proc import Facts
from harness.triage.collect.roles import role_of
from harness.triage.evidence import Frame, Process
from harness.triage.judge import triage
from probes import identity
from reports.model import Verdict

LIBRARY = "/usr/lib/python3.11"
TORCH = "/venv/lib/python3.11/site-packages/torch/multiprocessing/spawn.py"
SELECT = Frame("select", f"{LIBRARY}/selectors.py", 415)
SPAWNED = (SELECT, Frame("wait", f"{LIBRARY}/multiprocessing/connection.py", 948), Frame("join", TORCH, 180))
JOINED = (Frame("poll", f"{LIBRARY}/multiprocessing/popen_fork.py", 27),
          Frame("join", f"{LIBRARY}/multiprocessing/process.py", 149))  # fmt: skip
SENTINELS = (SELECT, Frame("wait", f"{LIBRARY}/multiprocessing/connection.py", 948))
ACQUIRE = Frame("wait", f"{LIBRARY}/multiprocessing/synchronize.py", 263)
BARRIER = (ACQUIRE, Frame("wait", f"{LIBRARY}/threading.py", 668), Frame("work", "/job/locks.py", 6))
EVENT = (ACQUIRE, Frame("wait", f"{LIBRARY}/multiprocessing/synchronize.py", 349), Frame("work", "/job/locks.py", 9))
QUEUE = (Frame("_recv", f"{LIBRARY}/multiprocessing/connection.py", 395),
         Frame("get", f"{LIBRARY}/multiprocessing/queues.py", 103), Frame("serve", "/job/locks.py", 12))  # fmt: skip
SHARED = (Frame("__enter__", f"{LIBRARY}/multiprocessing/synchronize.py", 95), *QUEUE[1:])
MAIN = Frame("main", "/job/locks.py", 20)


def standing(
    pid: int, stack: tuple[Frame, ...], ppid: int = 100, *, timed: bool = False, cpu_s: float = 0.0
) -> Process:
    looks = tuple(
        dataclasses.replace(
            look, timed=timed, threads=tuple(dataclasses.replace(thread, frames=stack) for thread in look.threads)
        )
        for look in samples("main:1 work:2", cpu_s=cpu_s)
    )
    return dataclasses.replace(process(pid, "process", "main:1"), ppid=ppid, samples=looks, beat=None)


def judged(parent: tuple[Frame, ...], *children: tuple[Frame, ...], timed: bool = False, cpu_s: float = 0.0) -> Verdict:
    below = [standing(101 + number, stack, timed=timed) for number, stack in enumerate(children)]
    job = standing(100, (*parent, MAIN), ppid=1, cpu_s=cpu_s)
    return triage(evidence(job, *below, source="live", stall_s=0.0))


@pytest.mark.parametrize("parent", [SPAWNED, JOINED, SENTINELS])
@pytest.mark.parametrize("children", [(BARRIER, BARRIER), (EVENT, QUEUE)])
def test_children_that_wait_for_each_other_are_not_healthy(
    parent: tuple[Frame, ...], children: tuple[tuple[Frame, ...], ...]
) -> None:
    verdict = judged(parent, *children)
    assert verdict.verdict == "INSUFFICIENT"
    assert any(f"{HOST}:101" in line for line in verdict.missing)


@pytest.mark.parametrize("parent", [SPAWNED, JOINED])
def test_a_join_names_the_children_and_where_they_stand(parent: tuple[Frame, ...]) -> None:
    verdict = judged(parent, BARRIER, BARRIER)
    assert verdict.triage is not None and "locks.py:6" in verdict.triage.place
    assert "2 processes at locks.py:6 wait" in verdict.reason and len(verdict.reason.split()) <= 20
    stacks = [step for step in verdict.triage.next if "py-spy dump --pid " in step]
    assert stacks and all(" 101 " in step for step in stacks)


@pytest.mark.parametrize("children", [(QUEUE, SHARED), (QUEUE,), (SHARED, SHARED)])
def test_idle_workers_of_a_pool_are_healthy(children: tuple[tuple[Frame, ...], ...]) -> None:
    assert judged((SELECT,), *children).verdict == "HEALTHY"


@pytest.mark.parametrize(("timed", "cpu_s"), [(True, 0.0), (False, 1.0)])
def test_a_wait_with_a_limit_or_beside_work_is_healthy(timed: bool, cpu_s: float) -> None:
    assert judged(SENTINELS, BARRIER, BARRIER, timed=timed, cpu_s=cpu_s).verdict == "HEALTHY"


@pytest.mark.parametrize("child", [QUEUE, BARRIER, (SELECT, *frames("loop:3"))])
@pytest.mark.parametrize("parent", [SPAWNED, JOINED])
def test_a_single_child_is_not_blamed(parent: tuple[Frame, ...], child: tuple[Frame, ...]) -> None:
    assert judged(parent, child).verdict != "HUNG"


RAY = Facts(10, argv=("ray::Rollout.generate",), title="ray::Rollout.generate")


@pytest.mark.parametrize(
    ("title", "forked", "role"),
    [
        pytest.param("ray::Rollout.generate", True, "process", id="a loader's worker has the title of its actor"),
        pytest.param("ray::Rollout", True, "process", id="the actor has begun another task since"),
        pytest.param("ray::Critic.step", True, "Critic", id="it has given itself a title"),
        pytest.param("ray::Rollout.generate", False, "Rollout", id="an actor that runs a program of its own"),
    ],
)
def test_a_forked_child_with_the_title_of_its_parent_has_no_role_by_it(title: str, forked: bool, role: str) -> None:
    child = Facts(11, 10, argv=(title,), title=title, forked=forked)
    assert role_of(child, parent=RAY) == role
    assert role_of(child) != "process"


def test_a_title_is_no_program() -> None:
    its = dataclasses.replace(process(11, "process", "main"), command="ray::Rollout.generate")
    verdict = triage(evidence(its))
    assert verdict.triage is not None and "Rollout" not in verdict.triage.nodes[0].label


def test_a_probe_in_a_forked_child_takes_no_role_from_the_title_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(identity.ROLE, raising=False)
    monkeypatch.setattr(identity, "_title", lambda: "ray::Rollout.generate ")
    monkeypatch.setattr(identity, "_titles", {})
    monkeypatch.setattr(identity, "_inherited", set())
    assert identity.role_now() == "Rollout"
    identity.forked()
    assert identity.role_now() == "process"
    monkeypatch.setattr(identity, "_title", lambda: "ray::Critic.step ")
    assert identity.role_now() == "Critic"
