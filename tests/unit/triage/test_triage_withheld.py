"""A rank that has not come, whose main thread waits inside its process: what it waits for, and what keeps that."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from triage_evidence import compared, evidence, group, process, rank, wording

from harness.triage import judge, lock_text, queue_text
from harness.triage.evidence import Frame, LostThread, Process, Sample, SharedLock, Thread
from reports.model import Party, Verdict

PROGRAM = """import queue, threading
lock, batches = threading.Lock(), queue.Queue()


def flush():
    with lock:
        never.wait()  # kept


def save():
    with lock:  # wanted
        return 1


def rounds():
    with lock:
        while True:
            time.sleep(1)  # for good


def load():
    for step in range(3):
        batches.put(step)  # fills


class Saver:
    def run(self):
        with self.lock:
            self.never.wait()  # method kept

    def put(self):
        with self.lock:  # method wanted
            return 1


def start():
    threading.Thread(target=load, name="loader").start()


def train():
    with lock:  # taken
        pass
    with lock:
        save()  # inside
        pool.submit(save).result()  # result
        thread.join()  # joined
    batches.get()  # item
    Saver().put()  # calls
    ready.wait()  # notified


def waits_beside():
    gone.wait()  # beside
"""
THREADING, SYNCHRONIZE = "/usr/lib/python3.11/threading.py", "/usr/lib/python3.11/multiprocessing/synchronize.py"
POOL, FUTURE = "/usr/lib/python3.11/concurrent/futures/thread.py", "/usr/lib/python3.11/concurrent/futures/_base.py"
QUEUE = "/usr/lib/python3.11/queue.py"
NOTIFIED = (Frame("wait", THREADING, 327),)
BY_RESULT = (*NOTIFIED, Frame("result", FUTURE, 451))
BY_GET = (*NOTIFIED, Frame("get", QUEUE, 171))
BY_JOIN = (Frame("_wait_for_tstate_lock", THREADING, 1169), Frame("join", THREADING, 1149))
IN_POOL = (Frame("run", POOL, 58), Frame("_worker", POOL, 83))
SHARED = (Frame("__enter__", SYNCHRONIZE, 95),)
CHILD = 170


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    return path


def line(marker: str) -> int:
    return next(number for number, text in enumerate(PROGRAM.splitlines(), 1) if text.endswith(f"# {marker}"))


def at(program: Path, function: str, marker: str) -> Frame:
    return Frame(function, str(program), line(marker))


def side(name: str, *frames: Frame, wchan: str = "futex_do_wait") -> Thread:
    return Thread(name, 90, frames, wchan=wchan)


def late(*frames: Frame, beside: tuple[Thread, ...] = (), look: dict[str, object] | None = None,
         **fields: object) -> Process:  # fmt: skip
    """Rank 0, whose main thread stands in these frames, innermost first."""
    its = rank(0, "main")
    main = Thread("MainThread", 1, frames, main=True, wchan="futex_do_wait")
    changes = {"threads": (main, *beside), "wchan": "futex_do_wait", **(look or {})}
    looks = tuple(dataclasses.replace(each, **changes) for each in its.samples)  # type: ignore[arg-type]
    return dataclasses.replace(its, samples=looks, **fields)  # type: ignore[arg-type]


def judged(*processes: Process) -> Verdict:
    """The verdict where rank 0 has not come to what the others are in."""
    ranks = [rank(number, "main:10 step:42 all_reduce") for number in range(1, 4)]
    waits = compared(group("0", {0: 16, **dict.fromkeys((1, 2, 3), (17, "all_reduce"))}))
    return judge.triage(evidence(*processes, *ranks), waits)


def culprit(verdict: Verdict) -> Party:
    assert verdict.triage is not None and (verdict.verdict, verdict.triage.hang) == ("HUNG", "K4"), verdict.reason
    [party] = verdict.triage.culprits
    assert party.rank == 0
    return party


def advice(verdict: Verdict) -> str:
    assert verdict.triage is not None
    return " ".join(verdict.triage.next)


def test_a_thread_that_keeps_the_lock_is_told_with_its_place(program: Path) -> None:
    keeper = side("flusher", *NOTIFIED, at(program, "flush", "kept"))
    verdict = judged(late(at(program, "train", "taken"), beside=(keeper,)))
    assert culprit(verdict).frame == f"train.py:{line('taken')} in train"
    for fact in (f"train.py:{line('taken')}", "lock", "thread flusher keeps", f"train.py:{line('kept')}"):
        assert fact in verdict.reason
    assert f"train.py:{line('kept')}" in advice(verdict) and "py-spy" not in advice(verdict)


def test_a_lock_whose_name_may_mean_two_only_seems_to_be_kept(program: Path) -> None:
    keeper = side("saver", *NOTIFIED, at(program, "run", "method kept"))
    frames = (at(program, "put", "method wanted"), at(program, "train", "calls"))
    verdict = judged(late(*frames, beside=(keeper,)))
    assert culprit(verdict).frame == f"train.py:{line('method wanted')} in put"
    assert "seems to keep" in verdict.reason and "if both take one lock" in advice(verdict)


def test_a_thread_that_will_leave_the_lock_is_waited_for(program: Path) -> None:
    keeper = side("flusher", at(program, "flush", "kept"), wchan="hrtimer_nanosleep")
    verdict = judged(late(at(program, "train", "taken"), beside=(keeper,)))
    assert verdict.verdict == "INSUFFICIENT" and verdict.triage is not None and not verdict.triage.culprits


def test_a_thread_in_a_loop_without_an_end_never_leaves_the_lock(program: Path) -> None:
    keeper = side("flusher", at(program, "rounds", "for good"), wchan="hrtimer_nanosleep")
    culprit(judged(late(at(program, "train", "taken"), beside=(keeper,))))
    assert lock_text.keeps_for_good(keeper.frames[0], "lock") and not lock_text.keeps_for_good(
        keeper.frames[0], "other"
    )


def test_a_lock_that_the_main_thread_has_taken_already_is_its_own(program: Path) -> None:
    verdict = judged(late(at(program, "save", "wanted"), at(program, "train", "inside")))
    culprit(verdict)
    assert "itself" in verdict.reason and "RLock" in advice(verdict)


def test_no_keeper_is_told_where_the_text_shows_none(program: Path) -> None:
    beside = side("other", *NOTIFIED, at(program, "run", "method kept"))
    verdict = judged(late(at(program, "train", "taken"), beside=(beside,)))
    culprit(verdict)
    assert "no thread is seen to keep" in verdict.reason
    assert "other" not in verdict.reason


@pytest.mark.parametrize(
    ("calls", "marker", "outer"),
    [pytest.param(BY_RESULT, "result", IN_POOL, id="a task"), pytest.param(BY_JOIN, "joined", (), id="a thread")],
)
def test_a_rank_that_keeps_the_lock_its_worker_needs_waits_for_itself(
    program: Path, calls: tuple[Frame, ...], marker: str, outer: tuple[Frame, ...]
) -> None:
    worker = side("worker", at(program, "save", "wanted"), *outer)
    verdict = judged(late(*calls, at(program, "train", marker), beside=(worker,)))
    assert culprit(verdict).frame == f"train.py:{line(marker)} in train"
    assert f"train.py:{line(marker)} " in verdict.reason and "keeps lock" in verdict.reason
    assert f"needs at train.py:{line('wanted')}" in verdict.reason
    assert f"train.py:{line('wanted')}" in advice(verdict)


def test_of_two_tasks_none_is_said_to_be_the_awaited_one(program: Path) -> None:
    workers = tuple(side(name, at(program, "save", "wanted"), *IN_POOL) for name in ("one", "two"))
    verdict = judged(late(*BY_RESULT, at(program, "train", "result"), beside=workers))
    assert "keeps lock" not in verdict.reason


def test_a_queue_whose_filling_thread_died_is_told_with_its_error(program: Path) -> None:
    died = (LostThread("loader", "ValueError: corrupt shard"),)
    its = late(*BY_GET, at(program, "train", "item"), logged_threads=died, beat=None)
    verdict = judged(its)
    culprit(verdict)
    assert "batches.get()" in verdict.reason
    assert "thread loader" in verdict.reason and "ValueError" in verdict.reason
    assert "corrupt shard" in advice(verdict)


def test_a_wait_for_an_event_tells_that_no_thread_is_left(program: Path) -> None:
    verdict = judged(late(*NOTIFIED, at(program, "train", "notified")))
    culprit(verdict)
    assert f"train.py:{line('notified')} in ready.wait()" in verdict.reason and "no other thread" in verdict.reason
    assert "py-spy" not in advice(verdict)


def test_a_wait_for_an_event_tells_where_the_thread_beside_stands(program: Path) -> None:
    setter = side("setter", *NOTIFIED, at(program, "waits_beside", "beside"))
    verdict = judged(late(*NOTIFIED, at(program, "train", "notified"), beside=(setter,)))
    culprit(verdict)
    assert "setter" in verdict.reason and f"train.py:{line('beside')}" in verdict.reason
    assert f"train.py:{line('beside')}" in advice(verdict)


def test_a_wait_for_an_event_tells_of_the_thread_that_died(program: Path) -> None:
    died = (LostThread("loader", "ValueError: corrupt shard"),)
    verdict = judged(late(*NOTIFIED, at(program, "train", "notified"), logged_threads=died, beat=None))
    culprit(verdict)
    assert "thread loader" in verdict.reason and "corrupt shard" in advice(verdict)


def test_a_queue_whose_filling_function_nobody_runs_is_told(program: Path) -> None:
    verdict = judged(late(*BY_GET, at(program, "train", "item")))
    culprit(verdict)
    assert f"load (train.py:{line('fills')})" in verdict.reason
    assert "end mark" in advice(verdict)


def test_a_queue_whose_filling_thread_lives_is_not_left_alone(program: Path) -> None:
    filler = side("loader", at(program, "load", "fills"))
    verdict = judged(late(*BY_GET, at(program, "train", "item"), beside=(filler,)))
    assert "no thread" not in wording(verdict)


@pytest.mark.parametrize(
    "more",
    [
        pytest.param("def extra():\n    batches.put(1)\n", id="a function that no thread runs"),
        pytest.param("batches.put(1)\n", id="the module itself"),
        pytest.param("feed(batches)\n", id="it is handed on"),
        pytest.param("alias = batches\n", id="it has another name"),
    ],
)
def test_a_queue_that_somebody_else_may_fill_has_no_sole_fillers(program: Path, more: str) -> None:
    assert queue_text.fillers(str(program), "batches") == {"load": line("fills")}
    other = program.with_name("other.py")
    other.write_text(PROGRAM + more)
    assert queue_text.fillers(str(other), "batches") == {}


def shared(program: Path, *sharers: int) -> Process:
    lock = SharedLock("/dev/shm/sem.mp-1 (deleted)", (100, *sharers), running=(100,))
    return late(
        *SHARED, at(program, "train", "taken"), look={"in_shared_lock": True}, shared_lock=lock, environ={}
    )  # fmt: skip


def child(program: Path, **fields: object) -> Process:
    its = process(CHILD, "process", "main", ppid=100)
    stands = Thread("MainThread", CHILD, (*NOTIFIED, at(program, "flush", "kept")), main=True, wchan="futex_do_wait")
    looks = tuple(dataclasses.replace(each, threads=(stands,), wchan="futex_do_wait") for each in its.samples)
    return dataclasses.replace(its, **{"samples": looks, **fields})  # type: ignore[arg-type]


def test_a_lock_of_processes_without_another_sharer_has_nobody_to_release_it(program: Path) -> None:
    verdict = judged(shared(program))
    culprit(verdict)
    assert "nobody can release" in verdict.reason and "flock" in advice(verdict)


def test_a_child_that_was_killed_is_told_beside_its_lock(program: Path) -> None:
    verdict = judged(shared(program), child(program, exit_code=-9, samples=(Sample(0.0, "Z"),)))
    culprit(verdict)
    assert f"child {CHILD} was killed" in verdict.reason


def test_a_process_that_stands_in_the_lock_is_told(program: Path) -> None:
    verdict = judged(shared(program, CHILD), child(program))
    culprit(verdict)
    assert "nobody" not in verdict.reason
    assert f":{CHILD}" in verdict.reason and f"train.py:{line('kept')}" in verdict.reason


def test_a_lock_of_processes_with_another_sharer_is_not_given_up(program: Path) -> None:
    assert "nobody can release" not in wording(judged(shared(program, CHILD)))
