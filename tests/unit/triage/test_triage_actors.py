"""Every rule that proves a hang by absence ("nobody is seen who could end this wait") asks the one place that knows who
may: a table of rule and kind of actor, with evidence of each pair.

A rule that is added to the registry is in this table, or among those that prove a hang by something else.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from triage_evidence import compared, frames, group, process, rank

from harness.triage.evidence import EventLoop, Evidence, FileLock, Frame, OpenSpan, Process, SharedLock, Task, Thread
from harness.triage.flight.model import Comparison
from harness.triage.graph import build
from harness.triage.rules import RULES, Case, alive

PROGRAM = """
def sends():
    look()
    connection.send(1)

def waits():
    lock.acquire()

def polls():
    while not done:
        time.sleep(2)

def pauses():
    time.sleep(42)

def gives_up():
    done.wait(60)
    go_on()

def reads():
    os.read(stream, 9)
"""
LINES = {"sends": 3, "waits": 7, "polls": 11, "pauses": 14, "gives_up": 17, "reads": 21}
SLEEP, FUTEX = "hrtimer_nanosleep", "futex_do_wait"
THREADING, SUBPROCESS = "/usr/lib/python3.11/threading.py", "/usr/lib/python3.11/subprocess.py"
RANKS = compared(group("0", {0: (17, "all_reduce"), 1: 16}))
PID = 101  # of the process on which each ruling stands

# Rules that may call a job HUNG, and prove it by what was seen: a process that is dead, held or stopped, operations
# that differ, a ring of locks or tasks, text that leaves nothing open, a holder or a maker that was itself looked at.
BY_WHAT_WAS_SEEN = frozenset({
    "over.over", "pasted.stalled", "engines.refused", "processes.blocked", "processes.died", "pools.lost",
    "lock_rings.ring", "tasks.ring", "builds.locked", "engines.transition", "nodes.unreachable",
    "groups.diverged", "groups.conditional", "routes.closed", "makers.stopped", "resources.starved", "nodes.between",
    "engines.branch", "absence.left_loop", "absence.device", "groups.wedged", "apart.apart", "one_place.one_place",
    "closed.closed",
    "ras.live", "locks.unreleased", "own_loops.awaited",
    "store_keys.unset",
})  # fmt: skip
NEVER_HUNG = frozenset({
    "nodes.incomplete", "nodes.unlooked", "nodes.moments", "pauses.debugger", "pauses.question",
    "ras.pasted", "ray_lists.pasted",
    "recorder_findings.analysed",
    "pasted.first_error", "pasted.one_look", "pasted.last_lines", "pasted.signalled", "pauses.flowing", "pauses.slow",
    "locks.worked",
    "makers.at_work", "pauses.fresh", "pasted.first_error_of_waiters", "pasted.timed_out", "pasted.without_dump",
    "pasted.in_kernel", "alone.unreleased", "calls.read_ring",
    "nodes.lost", "resources.unmet", "makers.undecided", "polls.undecided", "alive.undecided", "outsiders.unopened",
    "absence.unseen", "pauses.healthy", "over.ending", "together.idle", "mute.unread",
})  # fmt: skip


def looks(subject: Process, **fields: object) -> Process:
    return dataclasses.replace(
        subject, samples=tuple(dataclasses.replace(look, **fields) for look in subject.samples)  # type: ignore[arg-type]
    )  # fmt: skip


def standing(subject: Process, *stack: Frame, **fields: object) -> Process:
    main, *beside = subject.samples[-1].threads
    return looks(subject, threads=(dataclasses.replace(main, frames=stack), *beside), **fields)


@dataclasses.dataclass(frozen=True)
class Hang:
    """Evidence of a job that hangs by one rule. The ruling stands on process PID."""

    processes: tuple[Process, ...]
    comparison: Comparison | None = None
    more: dict[str, object] = dataclasses.field(default_factory=dict)

    def case(self) -> Case:
        its = Evidence("", "watch", "", 30.0, self.processes, **self.more)  # type: ignore[arg-type]
        return Case(its, self.comparison, build(its, self.comparison))

    def with_party(self, change: Callable[[Process], Process], *more: Process, **fields: object) -> Hang:
        processes = tuple(change(each) if each.pid == PID else each for each in self.processes)
        return Hang((*processes, *more), self.comparison, {**self.more, **fields})


def at(folder: Path, function: str) -> Frame:
    (folder / "train.py").write_text(PROGRAM)
    return Frame(function, str(folder / "train.py"), LINES[function])


def absent(folder: Path) -> Hang:
    """A rank that has not come to a collective."""
    late = standing(rank(1, "main", world=2), at(folder, "waits"), wchan=FUTEX)
    return Hang((rank(0, "main:10 step:42 all_reduce", world=2), late), RANKS)


def uncome(folder: Path) -> Hang:
    """A rank that has not come to the making of a group."""
    span = (OpenSpan("init_process_group", 30.0, {"world_size": 2}),)
    late = standing(rank(1, "main", world=2), at(folder, "waits"), wchan=FUTEX)
    return Hang((rank(0, "main init_process_group", world=2, spans=span), late))


def locked(folder: Path) -> Hang:
    """A child with a lock that its fork copied, for whose end its parent waits."""
    child = standing(process(PID, "process", "main", ppid=70), at(folder, "waits"), wchan=FUTEX, locked_alone=True)
    return Hang((process(70, "process", "main:5 communicate"), dataclasses.replace(child, forked=True)))


def locked_together(folder: Path) -> Hang:
    """A process each of whose threads waits for a lock of its own."""
    program = standing(process(PID, "process", "main"), at(folder, "waits"), wchan=FUTEX, locked_together=True)
    other = Thread("loader", 7, (at(folder, "waits"),), wchan=FUTEX)
    return Hang((looks(program, threads=(*program.samples[-1].threads, other)),))


def called(folder: Path) -> Hang:
    """A parent that joins its child, which waits for an answer of it."""
    wait = Frame("_try_wait", SUBPROCESS, 2010)
    parent = process(PID, "process", "main", listening=("127.0.0.1:8000",))
    child = process(71, "process", "main score getresponse", ppid=PID, peers=("127.0.0.1:8000",))
    return Hang((standing(parent, wait, at(folder, "waits"), wchan="do_wait"), child))


def undrained(folder: Path) -> Hang:
    """A parent that joins a child, which writes to a full pipe that the parent alone can read."""
    parent = standing(process(PID, "process", "main"), *frames("communicate"), at(folder, "waits"))
    child = looks(process(200, "tool", "main log:3", ppid=PID, reader=PID), writing="pipe:[7]", writes_to="stderr")
    return Hang((parent, child))


def crossed_files(folder: Path) -> Hang:
    """Two processes, each of which waits in the kernel for the lock of a file that the other one holds."""
    both = (
        standing(process(pid, "process", "main"), at(folder, "waits"), wchan="locks_lock_inode_wait")
        for pid in (PID, 78)
    )
    locks = (FileLock("node0", "/data/1", PID, waiters=(78,)), FileLock("node0", "/data/2", 78, waiters=(PID,)))
    return Hang(tuple(both), None, {"locks": locks})


def inverted(folder: Path) -> Hang:
    """Two ranks in operations of two groups, each of which the other has not come to."""
    crossed = compared(group("A", {0: (5, "all_reduce"), 1: 4}), group("B", {1: (3, "all_reduce"), 0: 2}))
    return Hang((rank(0, "main:10 all_reduce", world=2), rank(1, "main:20 all_reduce", world=2)), crossed)


def unwritten(folder: Path) -> Hang:
    """A process that reads a queue to which it alone could write."""
    reader = standing(process(PID, "process", "main"), *frames("pipe.recv"), at(folder, "waits"), wchan="pipe_read")
    return Hang((dataclasses.replace(reader, own_pipe=True),))


def kept_open(folder: Path) -> Hang:
    """A process that reads a pipe to which it alone can write since its child has ended in good order."""
    reader = standing(process(PID, "process", "main"), at(folder, "reads"), wchan="pipe_read")
    child = process(200, "process", gone=True, ppid=PID, exit_code=0)
    return Hang((dataclasses.replace(reader, own_pipe=True), dataclasses.replace(child, beat=None)))


def task(awaits: str, target: int, *, main: bool = False, **more: object) -> Task:
    stack = (Frame("get", "/usr/lib/python3.11/asyncio/queues.py", 158), Frame("main", "/job/serve.py", 9))
    return Task((target + 1,), "Task-1", stack, awaits, target, main=main, still=True, **more)  # type: ignore[arg-type]


def unfilled(folder: Path) -> Hang:
    """A process whose every task awaits an item of a queue."""
    loop = EventLoop(PID, (task("queue.get", 7, main=True),), later=(), descriptors=0)
    late = process(PID, "process", "main run_forever select")
    return Hang((dataclasses.replace(late, loops=(loop,)),))


def owed(folder: Path) -> Hang:
    """A server of which a request waits for another one, in which a task waits for a request that nobody sends."""
    names = Frame("serve", "/job/serve.py", 9)
    keeps = Task((2,), "Task-2", (names,), "event", 72, keeps=(71,), still=True)
    waits = Task((1,), "Task-1", (names,), "lock", 71, still=True)
    accepts = Task((9,), "Task-9", (names,), "connections", 73, main=True, still=True)
    loop = EventLoop(PID, (waits, keeps, accepts), later=(), descriptors=2)
    server = process(PID, "server", "main run_forever select", listening=("127.0.0.1:30000",))
    asks = process(20, "trainer", "rollout getresponse", peers=("127.0.0.1:30000",))
    return Hang((asks, dataclasses.replace(server, loops=(loop,))))


def in_a_loop_of_nobody(folder: Path) -> Hang:
    """A thread that runs an event loop and waits for what it gave to one that no thread runs."""
    program = folder / "served.py"
    program.write_text("LOOP = asyncio.new_event_loop()\ndef call():\n"
                       "    return asyncio.run_coroutine_threadsafe(work(), LOOP).result()\n")  # fmt: skip
    waits = (
        Frame("wait", THREADING, 327),
        Frame("result", "/usr/lib/python3.11/concurrent/futures/_base.py", 451),
        Frame("call", str(program), 3),
        Frame("_run_once", "/usr/lib/python3.11/asyncio/base_events.py", 1936),
    )
    return Hang((standing(process(PID, "process", "main"), *waits, wchan=FUTEX),))


def kept_by_the_dead(folder: Path) -> Hang:
    """A child that waits for a lock of multiprocessing, which only it and its parent, who waits for its end, have."""
    waits = standing(process(PID, "process", "main", ppid=70), at(folder, "waits"), wchan=FUTEX, in_shared_lock=True)
    parent = looks(process(70, "process", "main:5 communicate"), wchan="do_wait")
    return Hang((parent, dataclasses.replace(waits, shared_lock=SharedLock("/dev/shm/sem.mp-1 (deleted)", (70, PID)))))


HANGS: dict[str, Callable[[Path], Hang]] = {
    "shared_locks.orphaned": kept_by_the_dead,
    "own_loops.unserved": in_a_loop_of_nobody,
    "absence.outside": absent,
    "forming.unformed": uncome,
    "alone.locked": locked,
    "together.locked": locked_together,
    "calls.ring": called,
    "pipes.undrained": undrained,
    "groups.inverted": inverted,
    "locks.ring": crossed_files,
    "processes.unwritten": unwritten,
    "processes.kept_open": kept_open,
    "tasks.unfilled": unfilled,
    "tasks.owed": owed,
}


def beside(hang: Hang, folder: Path, **thread: object) -> Hang:
    each = Thread("sender", 7, (at(folder, "sends"),), **thread)  # type: ignore[arg-type]

    def add(subject: Process) -> Process:
        return looks(subject, threads=(*subject.samples[-1].threads, each))

    return hang.with_party(add)


def waiting(hang: Hang, folder: Path, function: str, **fields: object) -> Hang:
    return hang.with_party(lambda its: standing(its, at(folder, function), **fields))


def tool(hang: Hang, folder: Path, *, wchan: str, woke: int = 0) -> Hang:
    child = standing(process(300, "tool", "main", ppid=PID), at(folder, "waits"), wchan=wchan)
    first, last = child.samples
    ends = (dataclasses.replace(first, main_switches=7), dataclasses.replace(last, main_switches=7 + woke))
    return hang.with_party(lambda its: its, dataclasses.replace(child, samples=ends))


def collected(hang: Hang, folder: Path) -> Hang:
    stack = (Frame("_communicate", SUBPROCESS, 2115), at(folder, "waits"))
    child = looks(process(300, "shell", "main", ppid=PID), threads=(), wchan="do_wait")
    select = Frame("select", "/usr/lib/python3.11/selectors.py", 415)
    return hang.with_party(lambda its: standing(its, select, *stack, wchan="poll_schedule_timeout"), child)


def shared(hang: Hang, folder: Path) -> Hang:
    parent = standing(process(400, "process", "main"), at(folder, "pauses"), wchan=SLEEP)
    waits = hang.with_party(lambda its: standing(its, at(folder, "waits"), wchan=FUTEX, in_shared_lock=True))
    return waits.with_party(lambda its: dataclasses.replace(its, ppid=400), parent)


LOCK = FileLock("node0", "/data/lock", 900, waiters=(PID,))
ACTORS: dict[str, Callable[[Hang, Path], Hang]] = {
    "a thread that computes": lambda hang, folder: beside(hang, folder, active=True),
    "a thread that sleeps": lambda hang, folder: beside(hang, folder, wchan=SLEEP),
    "a thread that waits for a signal": lambda hang, folder: beside(hang, folder, wchan="do_sigtimedwait"),
    "the handler of a signal": lambda hang, folder: hang.with_party(lambda its: looks(its, handles=("SIGUSR1",))),
    "a child that sleeps": lambda hang, folder: tool(hang, folder, wchan=SLEEP),
    "a child that moves": lambda hang, folder: tool(hang, folder, wchan=FUTEX, woke=2),
    "a program whose output is collected": collected,
    "the end of a sleep": lambda hang, folder: waiting(hang, folder, "pauses", wchan=SLEEP),
    "a time limit": lambda hang, folder: waiting(hang, folder, "gives_up", wchan=FUTEX, timed=True),
    "who opens a pipe": lambda hang, folder: waiting(hang, folder, "waits", wchan="wait_for_partner"),
    "who writes to a pipe": lambda hang, folder: waiting(hang, folder, "waits", wchan="pipe_read").with_party(
        lambda its: dataclasses.replace(its, fed=True)
    ),
    "who reads a full pipe": lambda hang, folder: waiting(hang, folder, "waits", writing="pipe:[9]"),
    "who shares a lock": shared,
    "who sends a signal to a descriptor": lambda hang, folder: waiting(
        hang, folder, "waits", wchan="signalfd_read_iter"
    ),
    "who sends a message": lambda hang, folder: waiting(hang, folder, "waits", wchan="wq_sleep"),
    "who connects": lambda hang, folder: waiting(hang, folder, "waits", wchan="inet_csk_accept"),
    "who makes what is polled": lambda hang, folder: waiting(hang, folder, "polls", wchan=SLEEP),
    "the holder of a file's lock": lambda hang, folder: waiting(
        hang, folder, "waits", wchan="locks_lock_inode_wait"
    ).with_party(lambda its: its, locks=(LOCK,)),
    "progress a moment ago": lambda hang, folder: hang.with_party(
        lambda its: dataclasses.replace(its, beat=dataclasses.replace(its.beat, progress_age_s=5.0)),  # type: ignore[type-var]
        threshold_s=30.0,
    ),
}
# What cannot end such a wait: a collective and a device wait in C, where no handler of Python runs and no child helps.
CANNOT = {
    ("groups.inverted", actor)
    for actor in ACTORS
    if not actor.startswith("a thread") and actor != "progress a moment ago"
}


def rule(name: str) -> Callable[[Case], object]:
    return next(each for each in RULES if f"{each.__module__.rpartition('.')[2]}.{each.__name__}" == name)


def names() -> set[str]:
    return {f"{each.__module__.rpartition('.')[2]}.{each.__name__}" for each in RULES}


def test_each_rule_that_concludes_from_absence_is_in_the_table() -> None:
    assert set(HANGS) == alive.UNAIDED
    assert names() == {*HANGS, *BY_WHAT_WAS_SEEN, *NEVER_HUNG}


@pytest.mark.parametrize("name", HANGS)
def test_the_rule_names_a_hang_where_nobody_may_act(name: str, tmp_path: Path) -> None:
    ruling = rule(name)(HANGS[name](tmp_path).case())
    assert ruling is not None and ruling.verdict == "HUNG"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "actor"), [(name, actor) for name in HANGS for actor in ACTORS if (name, actor) not in CANNOT]
)
@pytest.mark.slow
def test_no_rule_names_a_hang_where_somebody_may_act(name: str, actor: str, tmp_path: Path) -> None:
    ruling = rule(name)(ACTORS[actor](HANGS[name](tmp_path), tmp_path).case())
    assert ruling is None or ruling.verdict != "HUNG", ruling  # type: ignore[attr-defined]


def test_a_server_whose_tasks_are_seen_is_named_on_any_event_loop(tmp_path: Path) -> None:
    """Under uvloop, which is in C, its innermost Python frame is asyncio's runner."""
    stack = (
        Frame("Runner.run", "/usr/lib/python3.11/asyncio/runners.py", 118),
        Frame("Server.run", "/venv/lib/python3.11/site-packages/uvicorn/server.py", 75),
        at(tmp_path, "waits"),
    )
    ruling = rule("tasks.owed")(owed(tmp_path).with_party(lambda its: standing(its, *stack)).case())
    assert ruling is not None and ruling.verdict == "HUNG"  # type: ignore[attr-defined]
