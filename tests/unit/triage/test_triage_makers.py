"""Who makes what a process looks for again and again: by the source text, and by what the makers do."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from triage_evidence import compared, evidence, frames, group, process, rank
from waiting import until

from harness.triage.collect import conduct, makers, thread_errors
from harness.triage.collect.draft import Draft
from harness.triage.evidence import Frame, LostThread, Maker, Process, Sample, Thread
from harness.triage.judge import triage
from harness.triage.sought import Start, sought
from reports.model import Verdict

PROGRAM = """
import http.client, os, sys, threading, time, urllib.request
from pathlib import Path

URL = f"http://127.0.0.1:{os.environ.get('PORT', 0)}"
changing = "/a"
changing = "/b"

def get(path):
    return urllib.request.urlopen(URL + path)

def sample(needed):
    while get("/size") < needed:
        time.sleep(1)  # in sample

def wait_for(path):
    while not os.path.exists(path):
        open("/data/log", "a").write("waits")
        time.sleep(1)  # in wait_for

def part(folder, step):
    target = Path(folder) / f"score-{step}.json"
    while not target.is_file():
        time.sleep(1)  # in part

def changed():
    while not os.path.exists(changing):
        time.sleep(1)  # in changed

class Client:
    def __init__(self, host, port):
        self.host, self.port = host, port
    def scored(self):
        connection = http.client.HTTPConnection(self.host, self.port, timeout=10)
        return connection.getresponse()
    def wait(self):
        while True:
            if self.scored():
                return
            time.sleep(1)  # in Client.wait

class Prefetcher:
    def __init__(self):
        self.batches = []
        threading.Thread(target=self.fill, name="prefetch").start()
    def fill(self):
        for number in range(100):
            time.sleep(1)  # in Prefetcher.fill
            self.batches.append(number)
    def next(self):
        while not self.batches:
            time.sleep(1)  # in Prefetcher.next

ITEMS, SCORES = [], {}

def answer():
    return len(ITEMS), len(SCORES)

def fill_items():
    ITEMS.append(1)

def first():
    SCORES[1] = 1.0

def second():
    SCORES[2] = 1.0

threading.Thread(target=fill_items, name="collect")

def telemetry():
    while True:
        time.sleep(1)  # in telemetry
        report()

def seldom(items):
    while True:
        time.sleep(1)  # in seldom
        if ready():
            items.append(1)

def summed():
    while not os.path.exists(f"/data/{int(os.environ['PORT']) + 1}"):
        time.sleep(1)  # in summed

def multiplied():
    while True:
        time.sleep(1)  # in multiplied
        matrix = torch.randn(50, 50)

def main():
    sample(8)  # in main
    wait_for(os.environ["SCORE"])  # in main too
    wait_for(sys.argv[1])  # with argv
    part("/data", step)  # with a part
    client = Client("127.0.0.1", int(os.environ["PORT"]))
    client.wait()  # with a client
"""
START = Start({"PORT": "4711", "SCORE": "/data/score", "TOKEN": "/secret"}, ("python", "train.py", "/data/out"), "/job")
ADDRESS = "127.0.0.1:4711"
LOST = LostThread("collect", "RuntimeError: no prompt groups")
OF_PREFETCHER = LostThread("prefetch", "ValueError: bad sample")
OF_TELEMETRY, OF_SEVERAL = (
    LostThread("Thread-1 (telemetry)", "OSError: no statsd"),
    LostThread("Thread-3 (first)", "OSError"),
)
ASLEEP: dict[str, Any] = {"wchan": "hrtimer_nanosleep", "timed": True}


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    return str(path)


def at(file: str, place: str) -> Frame:
    """The frame at the line that ends with `# in PLACE` or `# with ...`."""
    line = next(number for number, text in enumerate(PROGRAM.splitlines(), 1) if text.endswith(f"# {place}"))
    name = place.removeprefix("in ").rpartition(".")[2] if place.startswith("in ") else "main"
    return Frame("main" if name.startswith("main") else name, file, line)


@pytest.mark.parametrize(
    ("stack", "things"),
    [
        (("in sample", "in main"), (ADDRESS,)),
        (("in wait_for", "in main too"), ("/data/score",)),
        (("in wait_for", "with argv"), ("/data/out",)),
        (("in part", "with a part"), ("/data/",)),
        (("in Client.wait", "with a client"), (ADDRESS,)),
        (("in wait_for",), ()),  # nobody says which path
        (("in summed",), ("/data/",)),
        (("in changed",), ()),  # it is assigned twice
        (("in Prefetcher.next",), ()),
        (("in multiplied",), ()),  # two numbers are no address
    ],
)
def test_the_text_of_a_loop_says_what_it_looks_for(file: str, stack: tuple[str, ...], things: tuple[str, ...]) -> None:
    assert sought([at(file, place) for place in stack], START) == things


def test_without_its_text_or_variables_a_loop_says_nothing(file: str) -> None:
    stack = [at(file, "in wait_for"), at(file, "in main too")]
    assert sought(stack, Start()) == ()
    unbound = dataclasses.replace(START, environ={"PORT": "0"})
    assert sought([at(file, "in Client.wait"), at(file, "with a client")], unbound) == ()
    assert sought([dataclasses.replace(frame, file="/nonexistent.py") for frame in stack], START) == ()


# --- what follows from it


def polling(file: str, place: str, *things: str, lost: tuple[LostThread, ...] = ()) -> Process:
    poller = rank(1, "main", world=2)
    assert poller.beat is not None
    looks = tuple(
        dataclasses.replace(
            look,
            threads=(dataclasses.replace(look.threads[0], frames=(at(file, place), *frames("main:40"))),),
            **ASLEEP,
        )
        for look in poller.samples
    )
    return dataclasses.replace(
        poller, samples=looks, sought=things, beat=dataclasses.replace(poller.beat, lost_threads=lost)
    )


def server(file: str, *threads: Thread, lost: tuple[LostThread, ...] = (), **fields: Any) -> Process:
    """A process that listens at ADDRESS, with these threads beside the main one, which serves."""
    its = process(900, "collector", "main:5 serve_forever", listening=(ADDRESS,), **fields)
    assert its.beat is not None
    serving = (*frames("serve_forever"), Frame("main", file, at(file, "in main").line))
    looks = tuple(dataclasses.replace(look, threads=(dataclasses.replace(look.threads[0], frames=serving), *threads))
                  for look in its.samples)  # fmt: skip
    return dataclasses.replace(its, samples=looks, beat=dataclasses.replace(its.beat, lost_threads=lost))


def thread(file: str, place: str, wchan: str = "hrtimer_nanosleep") -> Thread:
    return Thread(place, 77, (at(file, place),), wchan=wchan)


def judged(*processes: Process, **fields: Any) -> Verdict:
    """Rank 0 waits for rank 1, which polls."""
    pending = compared(group("0", {0: (6, "all_reduce"), 1: 5}))
    return triage(evidence(rank(0, "main:10 step:42 all_reduce", world=2), *processes, **fields), pending)


def culprits(verdict: Verdict) -> list[str]:
    assert verdict.triage is not None
    return [party.key for party in verdict.triage.culprits]


def test_a_server_that_lost_its_only_thread_is_named(file: str) -> None:
    verdict = judged(polling(file, "in sample", ADDRESS), server(file, lost=(LOST,)))
    assert (verdict.verdict, verdict.triage and verdict.triage.hang) == ("HUNG", "K4")
    assert culprits(verdict) == ["node0:900"] and LOST.error in verdict.triage.culprits[0].why  # type: ignore[union-attr]
    assert {party.rank for party in verdict.triage.victims} == {0, 1}  # type: ignore[union-attr]


@pytest.mark.parametrize("lost", [OF_TELEMETRY, OF_SEVERAL, LostThread("unknown", "OSError")])
def test_a_dead_thread_that_alone_fills_nothing_is_no_reason(file: str, lost: LostThread) -> None:
    verdict = judged(polling(file, "in sample", ADDRESS), server(file, lost=(lost,)))
    assert verdict.verdict == "INSUFFICIENT" and not culprits(verdict)


@pytest.mark.parametrize("place", ["in telemetry", "in seldom", "in Prefetcher.fill"])
def test_a_server_with_another_thread_is_not_named(file: str, place: str) -> None:
    verdict = judged(polling(file, "in sample", ADDRESS), server(file, thread(file, place), lost=(LOST,)))
    assert verdict.verdict == "INSUFFICIENT" and not culprits(verdict)
    assert any("collector" in missing for missing in verdict.missing)


def test_a_server_to_which_somebody_else_may_bring_it_is_not_named(file: str) -> None:
    producer = process(901, "producer", "main:3 rollout:9", state="R", cpu_s=1.4)
    verdict = judged(polling(file, "in sample", ADDRESS), server(file, lost=(LOST,)), producer)
    assert not culprits(verdict) and verdict.verdict != "HUNG"


@pytest.mark.parametrize("other", ["/data/stop", "10.0.0.7:80"])
def test_nothing_is_certain_where_the_loop_looks_for_something_else_too(file: str, other: str) -> None:
    dead = judged(polling(file, "in sample", ADDRESS, other), server(file, lost=(LOST,)))
    slow = judged(polling(file, "in sample", ADDRESS, other), server(file, thread(file, "in Prefetcher.fill")))
    assert [dead.verdict, slow.verdict] == ["INSUFFICIENT"] * 2 and not culprits(dead)


def test_a_server_whose_main_thread_may_start_the_thread_again_is_not_named(file: str) -> None:
    its = server(file, lost=(LOST,), wchan="hrtimer_nanosleep")
    stack = (at(file, "in Client.wait"), *frames("main:4"))
    looks = tuple(dataclasses.replace(look, threads=(dataclasses.replace(look.threads[0], frames=stack),))
                  for look in its.samples)  # fmt: skip
    verdict = judged(polling(file, "in sample", ADDRESS), dataclasses.replace(its, samples=looks))
    assert verdict.verdict == "INSUFFICIENT" and not culprits(verdict)


@pytest.mark.parametrize("address", ["127.0.0.1:4712", "10.0.0.7:4711"])
def test_a_server_at_another_address_is_not_named(file: str, address: str) -> None:
    verdict = judged(polling(file, "in sample", address), server(file, lost=(LOST,)))
    assert verdict.verdict == "INSUFFICIENT" and not culprits(verdict)


@pytest.mark.parametrize(
    ("place", "verdict"),
    [("in Prefetcher.fill", "SLOW"), ("in telemetry", "INSUFFICIENT"), ("in seldom", "INSUFFICIENT")],
)
def test_a_thread_that_makes_something_in_each_round_goes_on(file: str, place: str, verdict: str) -> None:
    its = judged(polling(file, "in sample", ADDRESS), server(file, thread(file, place)))
    assert its.verdict == verdict and not culprits(its)


def test_a_thread_that_makes_something_beside_one_that_stands_proves_nothing(file: str) -> None:
    threads = thread(file, "in Prefetcher.fill"), thread(file, "in telemetry", "futex_wait_queue")
    verdict = judged(polling(file, "in sample", ADDRESS), server(file, *threads))
    assert verdict.verdict == "INSUFFICIENT" and not culprits(verdict)


def test_rounds_of_sleeps_count_for_a_few_thresholds_only(file: str) -> None:
    its = judged(
        polling(file, "in sample", ADDRESS),
        server(file, thread(file, "in Prefetcher.fill")),
        stall_s=95.0,
        threshold_s=30.0,
    )
    assert its.verdict == "INSUFFICIENT" and not culprits(its)


def test_a_rank_whose_own_thread_died_is_named_where_its_loop_looks_at_nothing_else(file: str) -> None:
    assert culprits(judged(polling(file, "in Prefetcher.next", lost=(OF_PREFETCHER,)))) == ["node0:101"]
    assert culprits(judged(polling(file, "in Prefetcher.next", lost=(LOST,)))) == []  # it filled another list
    assert culprits(judged(polling(file, "in sample", lost=(LOST,)))) == []
    assert culprits(judged(polling(file, "in Prefetcher.next"))) == []


@pytest.mark.parametrize(
    ("fields", "verdict"),
    [({"works": "1.00 s of CPU"}, "SLOW"), ({"sleeps_s": 24.0}, "SLOW"), ({}, "INSUFFICIENT"),
     ({"works": "1.00 s of CPU", "exact": False}, "INSUFFICIENT")],
)  # fmt: skip
def test_who_writes_the_file_beside_the_job_decides(file: str, fields: dict[str, Any], verdict: str) -> None:
    maker = dataclasses.replace(Maker("node0", "/data/score", 5, "sh -c", "names it", exact=True), **fields)
    its = judged(polling(file, "in wait_for", "/data/score"), makers=(maker,))
    assert its.verdict == verdict and not culprits(its)
    other = judged(polling(file, "in wait_for", "/data/other"), makers=(maker,))
    assert other.verdict == "INSUFFICIENT" and not culprits(other)


def test_a_shell_of_the_job_that_sleeps_before_it_writes_goes_on(file: str) -> None:
    shell = process(900, "shell", "", wchan="do_wait")
    maker = Maker("node0", "/data/score", 900, "sh -c", "names it", exact=True, sleeps_s=9.0)
    poller = polling(file, "in wait_for", "/data/score")
    assert judged(poller, shell, makers=(maker,)).verdict == "SLOW"
    assert judged(poller, shell, makers=(dataclasses.replace(maker, sleeps_s=None),)).verdict == "INSUFFICIENT"


def test_who_waits_for_a_process_does_not_make_what_it_looks_for(file: str) -> None:
    maker = Maker("node0", "/data/score", 100, "python train.py --score /data/score", "names it", exact=True)
    verdict = judged(polling(file, "in wait_for", "/data/score"), makers=(maker,))
    assert verdict.verdict == "INSUFFICIENT" and not any("rank 0" in missing for missing in verdict.missing)


@pytest.mark.parametrize(("look", "named"), [({"locked_alone": True}, ["node0:900"]), ({"state": "T"}, []), ({}, [])])
def test_a_writer_that_never_goes_on_is_named(file: str, look: dict[str, Any], named: list[str]) -> None:
    sidecar = process(900, "sidecar", "main:3 evaluate:9 lock.wait")
    sidecar = dataclasses.replace(sidecar, samples=tuple(dataclasses.replace(each, **look) for each in sidecar.samples))
    maker = Maker("node0", "/data/score", 900, "python sidecar.py", "has /data/log open for writing")
    verdict = judged(polling(file, "in wait_for", "/data/score"), sidecar, makers=(maker,))
    assert culprits(verdict) == named
    exact = judged(
        polling(file, "in wait_for", "/data/score"), sidecar, makers=(dataclasses.replace(maker, exact=True),)
    )
    assert culprits(exact) == (["node0:900"] if look else [])


@pytest.mark.parametrize(
    ("place", "look", "verdict"),
    [
        ("in Prefetcher.fill", {}, "SLOW"),
        ("in telemetry", {}, "INSUFFICIENT"),
        ("in telemetry", {"state": "T"}, "HUNG"),
    ],
)
def test_the_only_writer_of_the_pipe_that_is_polled_decides(
    file: str, place: str, look: dict[str, Any], verdict: str
) -> None:
    worker = process(900, "rollout", "main:3 run:9")
    main = dataclasses.replace(thread(file, place), main=True, name="MainThread")
    looks = tuple(dataclasses.replace(each, threads=(main,), **look) for each in worker.samples)
    poller = dataclasses.replace(polling(file, "in Client.wait"), feeder=900)
    its = judged(poller, dataclasses.replace(worker, samples=looks))
    assert its.verdict == verdict and culprits(its) == (["node0:900"] if verdict == "HUNG" else [])


# --- how it is collected


@pytest.mark.parametrize(
    ("looks", "pipe"),
    [([("pipe:[7]",), ("pipe:[7]",)], "pipe:[7]"), ([("pipe:[7]",), ("pipe:[8]",)], ""), ([("pipe:[7]",), ()], ""),
     ([("pipe:[7]", "pipe:[8]")] * 2, ""), ([("127.0.0.1:80",)] * 2, "")],
)  # fmt: skip
def test_a_pipe_that_alone_is_polled_at_each_look(looks: list[tuple[str, ...]], pipe: str) -> None:
    draft = Draft("node0", 5, None)
    draft.samples = [Sample(1.5 * number, "S", timed=True, polled=polled) for number, polled in enumerate(looks)]
    assert conduct._polled_pipe(draft) == pipe
    draft.samples = [dataclasses.replace(look, timed=False) for look in draft.samples]
    assert conduct._polled_pipe(draft) == ""


@pytest.mark.slow
def test_a_process_that_names_a_file_or_writes_beside_it_may_make_it(tmp_path: Path) -> None:
    target = tmp_path / "score.json"
    naming = subprocess.Popen(["sh", "-c", f"sleep 60; echo 1 > {target}"])
    code = f"import sys, time; f = open({str(tmp_path)!r} + '/eval.log', 'w'); print(1, flush=True); time.sleep(60)"
    beside = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert beside.stdout is not None and beside.stdout.readline()
        until(lambda: any(maker.sleeps_s for maker in makers.look("node0", {1: (str(target),)}, 0.0)))
        its = {maker.pid: maker for maker in makers.look("node0", {1: (str(target),)}, 0.0)}
        assert its[naming.pid].exact and 0 < (its[naming.pid].sleeps_s or 0.0) <= 60
        assert beside.pid not in its, "a stranger with a log in the same folder"
        its = {maker.pid: maker for maker in makers.look("node0", {1: (str(target),)}, 0.0, members=(beside.pid,))}
        assert beside.pid in its and not its[beside.pid].exact
        assert naming.pid not in {
            maker.pid for maker in makers.look("node0", {1: (str(target)[:-5],)}, 0.0) if maker.exact
        }
        assert makers.look("node0", {os.getpid(): (str(tmp_path / "other-name"),)}, 0.0)[0].exact is False, "its group"
        assert beside.pid in {maker.pid for maker in makers.look("node0", {1: (f"{tmp_path}/",)}, 0.0)}
    finally:
        for child in (naming, beside):
            child.kill()
            child.communicate()


@pytest.mark.parametrize(("shared", "may_make"), [(True, False), (False, True)])
def test_a_log_that_a_seeker_writes_too_is_no_trace_of_a_maker(tmp_path: Path, shared: bool, may_make: bool) -> None:
    """The output of all ranks of a job may go into one file of the folder in which one of them looks for another."""
    with (tmp_path / "job.log").open("w") as log, (tmp_path / "rank-0.log").open("w") as its_own:
        streams = (log, log if shared else its_own)
        seeker, other = (subprocess.Popen(["sleep", "60"], stdout=stream) for stream in streams)
    try:
        sought_by = {seeker.pid: (str(tmp_path / "scores.json"),)}
        its = {maker.pid for maker in makers.look("node0", sought_by, 0.0, members=(seeker.pid, other.pid))}
        assert (other.pid in its) is may_make
    finally:
        for child in (seeker, other):
            child.kill()
            child.wait()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "makes"),
    [
        ("tail -f {0}/score.json", False),
        ("sleep 60 >> {0}/shell.log", False),
        ("sleep 60 >> {0}/score.json", True),
        ("sleep 60 >> {0}/score.json.part", True),
    ],
)
def test_a_stranger_makes_a_file_only_where_it_writes_that_file(tmp_path: Path, program: str, makes: bool) -> None:
    (tmp_path / "score.json").touch()
    stranger = subprocess.Popen(["sh", "-c", f"exec {program.format(tmp_path)}"], start_new_session=True)
    try:
        until(lambda: Path(f"/proc/{stranger.pid}/comm").read_text().strip() in ("tail", "sleep"))
        for thing in (f"{tmp_path}/score.json", f"{tmp_path}/"):
            its = {maker.pid for maker in makers.look("node0", {1: (thing,)}, 0.0)}
            assert (stranger.pid in its) is (makes and not thing.endswith("/"))
    finally:
        stranger.kill()
        stranger.wait()


def test_a_traceback_in_the_log_belongs_to_the_process_that_starts_such_a_thread(tmp_path: Path, file: str) -> None:
    log = tmp_path / "log"
    line = at(file, "in Prefetcher.fill").line
    text = (f"Exception in thread prefetch:\nTraceback (most recent call last):\n"
            f'  File "/usr/lib/python3.11/threading.py", line 982, in run\n    self._target()\n'
            f'  File "{file}", line {line}, in fill\n    time.sleep(1)\nValueError: bad sample\n')  # fmt: skip
    with log.open("w") as stream:
        children = [subprocess.Popen(["sleep", "60"], stderr=stream) for _ in range(2)]
        stream.write(text)
    owner, other = (child.pid for child in children)
    try:
        stacks = {owner: (Thread("MainThread", 1, (at(file, "in Prefetcher.next"),), main=True),),
                  other: (Thread("MainThread", 1, (at(file, "in sample"),), main=True),)}  # fmt: skip
        assert thread_errors.lost(stacks) == {owner: (LostThread("prefetch", "ValueError: bad sample"),)}
        alive = (*stacks[owner], Thread("prefetch", 2, (at(file, "in Prefetcher.fill"),)))
        assert thread_errors.lost({**stacks, owner: alive}) == {}
        assert thread_errors.lost({**stacks, other: stacks[owner]}) == {}  # of two, nothing says which
    finally:
        for child in children:
            child.kill()
            child.wait()


def test_a_log_that_was_there_before_says_nothing(tmp_path: Path, file: str) -> None:
    log = tmp_path / "log"
    line = at(file, "in Prefetcher.fill").line
    log.write_text("Exception in thread prefetch:\nTraceback (most recent call last):\n"
                   f'  File "{file}", line {line}, in fill\nValueError: bad\n')  # fmt: skip
    with log.open("a") as stream:
        child = subprocess.Popen(["sleep", "60"], stderr=stream)
    try:
        stack = (Thread("MainThread", 1, (at(file, "in Prefetcher.next"),), main=True),)
        assert thread_errors.lost({child.pid: stack}) == {}
    finally:
        child.kill()
        child.wait()
