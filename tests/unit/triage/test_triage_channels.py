"""Who alone can write what a process reads, and rings of processes that read from each other."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import Pipe
from pathlib import Path

import pytest
import triage_evidence as make
from triage_evidence import wording
from waiting import until

from harness.triage.collect import channels, conduct, connections, proc
from harness.triage.collect.draft import Draft
from harness.triage.evidence import Process, Sample, Thread
from harness.triage.graph import build
from harness.triage.judge import triage
from reports.model import Verdict

READ = "import os, sys; os.read(int(sys.argv[1]), 1)"
POLL = "import select, sys; select.select([int(sys.argv[1])], [], [])"
HOLD = "import os, sys; os.read(0, 1)"
Start = Callable[..., int]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts Python with a program and descriptors, of which the first is its argument; returns its pid."""
    with contextlib.ExitStack() as stack:

        def run(text: str, *ends: int) -> int:
            process = subprocess.Popen(
                [sys.executable, "-S", "-c", text, *map(str, ends[:1])], pass_fds=ends, stdin=subprocess.PIPE
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process.pid

        yield run


@pytest.mark.parametrize("seconds", [100, 10**6])
def test_how_long_a_sleep_still_lasts_is_read_from_the_kernel(start: Start, seconds: int) -> None:
    pid = start(f"import time; time.sleep({seconds})")
    until(lambda: channels.waiting(pid).sleeps_s is not None)
    left_s = channels.waiting(pid).sleeps_s
    assert left_s is not None and seconds - 60 < left_s <= seconds


TIMER = """
import ctypes, os, select, struct
libc = ctypes.CDLL(None)
timer = libc.timerfd_create(1, 0)  # CLOCK_MONOTONIC
libc.timerfd_settime(timer, 0, struct.pack("=qqqq", 0, 0, {}, 0), None)
{}
"""
READ_TIMER, POLL_TIMER = "os.read(timer, 8)", "poll = select.epoll(); poll.register(timer); poll.poll()"


@pytest.mark.parametrize(("seconds", "timed"), [(100, True), (0, False)])
@pytest.mark.parametrize(("waits", "awaited"), [(READ_TIMER, "timerfd"), (POLL_TIMER, "eventpoll")])
def test_a_wait_for_a_timer_lasts_until_it_goes_off(
    start: Start, waits: str, awaited: str, seconds: int, timed: bool
) -> None:
    """A timer of zero is not set, and never goes off."""
    pid = start(TIMER.format(seconds, waits))

    def in_its_wait() -> bool:
        with contextlib.suppress(OSError, ValueError):  # it runs
            _, arguments = channels._call(pid)
            return os.readlink(f"/proc/{pid}/fd/{arguments[0]}") == f"anon_inode:[{awaited}]"
        return False

    until(in_its_wait)
    its = channels.waiting(pid)
    assert its.timed is timed
    assert (its.sleeps_s is not None and seconds - 60 < its.sleeps_s <= seconds) is timed


LIMITED_POLL = (
    "import select, socket; ends = socket.socketpair(); poll = select.poll(); poll.register(ends[0], 1); poll.poll({})"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "timed"),
    [
        (LIMITED_POLL.format(100_000), True),
        (LIMITED_POLL.format(""), False),
        ("import threading; lock = threading.Lock(); lock.acquire(); lock.acquire(timeout=1_000)", True),
    ],
)
def test_a_limit_is_seen_although_the_process_was_stopped_and_continued(start: Start, text: str, timed: bool) -> None:
    """As py-spy does for each stack: the kernel goes on with another system call."""
    pid = start(text)
    until(lambda: channels.waiting(pid).timed if timed else channels.waiting(pid).polled)
    before = channels.waiting(pid)
    os.kill(pid, signal.SIGSTOP)
    until(lambda: proc.look(pid).state == "T")
    os.kill(pid, signal.SIGCONT)
    until(lambda: proc.look(pid).state == "S")
    assert channels.waiting(pid) == before and before.timed is timed


def socketpair() -> tuple[int, int]:
    return tuple(one.detach() for one in socket.socketpair())  # type: ignore[return-value]


def connection() -> tuple[int, int]:
    """Of TCP on this host: one end with IPv4, the other in an IPv6 socket, which has it as ::ffff:127.0.0.1."""
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as server:
        mine = socket.create_connection(("127.0.0.1", server.getsockname()[1]))
        return mine.detach(), server.accept()[0].detach()


def duplex() -> tuple[int, int]:
    one, other = Pipe()
    ends = os.dup(one.fileno()), os.dup(other.fileno())
    one.close(), other.close()
    return ends


def writer_of(reader: int) -> dict[int, int]:
    link = ""

    def waits() -> bool:
        nonlocal link
        link = channels.reading(reader).link
        return bool(link)

    until(waits, 10)
    return channels.writers({reader: link}, connections.Sockets())


@pytest.mark.slow
@pytest.mark.parametrize("made", [os.pipe, socketpair, connection, duplex])
def test_the_only_other_process_that_can_write_is_told(start: Start, made: Callable[[], tuple[int, int]]) -> None:
    read, write = made()
    reader, writer = start(READ, read), start(HOLD, write)
    os.close(read)
    if made is os.pipe:
        start(HOLD, os.open(f"/proc/self/fd/{write}", os.O_RDONLY))  # the same pipe, and it cannot write there
    os.close(write)
    assert writer_of(reader) == {reader: writer}


@pytest.mark.slow
@pytest.mark.parametrize("made", [os.pipe, socketpair, connection])
def test_where_several_can_write_nobody_is_told(start: Start, made: Callable[[], tuple[int, int]]) -> None:
    """As where a forked child keeps what its parent had; or nobody beside the reader, which holds both ends."""
    read, write = made()
    reader = start(READ, read)
    start(HOLD, write), start(HOLD, write)
    os.close(write)
    assert writer_of(reader) == {}
    own, other = made()
    alone = start(READ, own, other)
    assert writer_of(alone) == {}, "beside the test, which has it as well"
    os.close(other)
    assert writer_of(alone) == {}


@pytest.mark.slow
@pytest.mark.parametrize("made", [os.pipe, socketpair, connection])
def test_who_can_write_itself_waits_for_nobody(start: Start, made: Callable[[], tuple[int, int]]) -> None:
    """As by the handler of a signal, whatever a forked child holds too."""
    read, write = made()
    reader = start(READ, read, write)
    start(HOLD, write)
    os.close(write)
    assert writer_of(reader) == {}


@pytest.mark.slow
@pytest.mark.parametrize("text", [
    "import socket; socket.socket(fileno=int(sys.argv[1])).sendall(bytes(10**7))",
    "from multiprocessing.connection import Connection; Connection(int(sys.argv[1])).send_bytes(bytes(10**7))",
])  # fmt: skip
def test_who_reads_a_full_unix_socket_is_told(start: Start, text: str) -> None:
    write, read = socketpair()
    writer, reader = start(f"import sys; {text}", write), start(HOLD, read)
    os.close(write), os.close(read)
    until(lambda: bool(channels.writing(writer).link), 10)
    assert channels.readers({writer: channels.writing(writer).link}, connections.Sockets()) == {writer: {reader}}


@pytest.mark.slow
def test_what_a_reader_does_is_read_from_the_kernel(start: Start) -> None:
    pid = start("import time; time.sleep(990)")
    until(lambda: conduct._reader(pid, {}).sleeps_s is not None)
    reader = conduct._reader(pid, {5: pid, 6: 7})
    assert reader.sleeps_s is not None and 900 < reader.sleeps_s <= 990
    assert reader.children == (5,) and "time.sleep" in reader.command and "nanosleep" in reader.wchan


@pytest.mark.slow
def test_a_wait_for_several_at_once_is_no_read(start: Start) -> None:
    """And a file, a terminal, or a process that is not there."""
    read, _ = os.pipe()
    polling = start(POLL, read)
    until(lambda: "poll" in Path(f"/proc/{polling}/wchan").read_text() or _selects(polling), 10)
    assert {channels.reading(pid) for pid in (polling, 2**22, os.getpid())} == {channels.NOT_READING}


def _selects(pid: int) -> bool:
    return Path(f"/proc/{pid}/syscall").read_text().split()[0] in ("23", "270", "72")


@pytest.mark.parametrize(
    ("looks", "read"),
    [
        ((("pipe:[7]", 5), ("pipe:[7]", 5)), "pipe:[7]"),
        ((("pipe:[7]", 5), ("pipe:[7]", 6)), ""),
        ((("pipe:[7]", 5), ("pipe:[8]", 5)), ""),
        ((("pipe:[7]", None), ("pipe:[7]", None)), ""),
        ((("pipe:[7]", 5),), ""),
    ],
    ids=["one sleep", "it woke up", "another pipe", "not known", "one look"],
)
def test_a_read_counts_where_it_sleeps_from_the_first_look_to_the_last(
    looks: Sequence[tuple[str, int | None]], read: str
) -> None:
    draft = Draft("h", 1, None)
    draft.samples += [
        Sample(float(at), "S", reading=link, main_switches=woken) for at, (link, woken) in enumerate(looks)
    ]
    assert conduct._read_throughout(draft) == read


SERVE = """
def engine():
    while True:
        request = requests.recv()

def drive():
    for engine in engines:
        engine.recv()

def late():
    sleep(100)
    requests.send(0)

def exporter():
    while True:
        sleep(1)
"""
LINES = {"engine": 4, "drive": 8, "late": 11, "exporter": 16}


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "job.py"
    path.write_text(SERVE)
    return str(path)


def reads(file: str, pid: int, function: str, writer: int, *beside: str, at_s: float = 0.0) -> Process:
    """A process that waits in `function` for what `writer` alone can write, with threads beside its main one."""
    one = make.process(pid, "process", f"{function}:{LINES[function]} pipe.recv")
    looks = []
    for look in one.samples:
        [main] = look.threads
        main = dataclasses.replace(main, frames=(main.frames[0], dataclasses.replace(main.frames[1], file=file)))
        others = [
            dataclasses.replace(
                main, name=name, tid=pid + 1, main=False,
                frames=(dataclasses.replace(main.frames[1], function=name, line=LINES[name]),),
            )
            for name in beside
        ]  # fmt: skip
        looks.append(dataclasses.replace(look, at_s=look.at_s + at_s, threads=(main, *others)))
    return dataclasses.replace(one, samples=tuple(looks), writer=writer)


def judged(*processes: Process) -> Verdict:
    return triage(make.evidence(*processes))


def test_two_that_read_from_each_other_are_told_and_nobody_is_hung(file: str) -> None:
    """The first engine, which reads from the driver as the second one does, stands beside. A native thread, a signal's
    handler or a process outside may still write."""
    verdict = judged(reads(file, 1, "drive", 3, "exporter"), reads(file, 2, "engine", 1), reads(file, 3, "engine", 1))
    assert verdict.triage is not None
    assert verdict.verdict == "INSUFFICIENT" and not verdict.triage.culprits, verdict.reason
    assert "processes read from each other" in wording(verdict) and "native code" in wording(verdict)
    assert "job.py:8 in drive" in wording(verdict) and "job.py:4 in engine" in wording(verdict)
    assert ":2)" not in verdict.reason, "the first engine"
    assert "a request or its answer was lost" in verdict.triage.next[0]


def test_who_waits_for_orders_waits_for_nobody(file: str) -> None:
    """The driver sleeps, or waits for another one; no edge, so that nobody is named for it."""
    asleep = make.process(1, "process", "main:9 keep_alive:12")
    for driver in (asleep, reads(file, 1, "drive", 2), reads(file, 1, "drive", 0), reads(file, 1, "drive", 9)):
        some = (driver, reads(file, 3, "engine", 1))
        if driver.writer == 2:  # which computes
            some = (*some, make.process(2, "process", "main:1 work:2", "main:1 work:7 inner:3", cpu_s=1.4))
        assert not build(make.evidence(*some), None).waits
        verdict = judged(*some)
        assert verdict.verdict != "HUNG" and verdict.triage and not verdict.triage.culprits, verdict.reason
        assert "read from each other" not in verdict.reason


@pytest.mark.parametrize("how", ["a thread answers", "an event loop", "a timer", "no stack", "another moment"])
def test_a_ring_that_may_not_be_one_is_not_drawn(file: str, how: str) -> None:
    engine = reads(file, 3, "engine", 1, *(["late"] if how == "a thread answers" else []))
    if how in ("an event loop", "a timer"):  # neither has a frame of the user's
        stack = "run_forever select" if how == "an event loop" else "lock.wait"
        thread = Thread("beside", 9, make.frames(stack))
        engine = dataclasses.replace(
            engine,
            samples=tuple(dataclasses.replace(look, threads=(*look.threads, thread)) for look in engine.samples),
        )
    if how == "no stack":
        engine = dataclasses.replace(
            engine, samples=tuple(dataclasses.replace(look, threads=()) for look in engine.samples)
        )
    if how == "another moment":
        engine = reads(file, 3, "engine", 1, at_s=2.0)
    verdict = judged(reads(file, 1, "drive", 3), engine)
    assert verdict.verdict != "HUNG" and "read from each other" not in verdict.reason


def test_the_writers_of_pipes_that_are_polled_together_are_found_where_they_are_the_same() -> None:
    """`Popen.communicate` polls for output and errors: a service that the child left behind keeps both open."""
    code = "import subprocess; subprocess.run(['sh', '-c', 'sleep 60 & echo $!'], capture_output=True)"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.DEVNULL) as reader:
        try:
            until(lambda: len(channels.waiting(reader.pid).polled) == 2)
            links = channels.waiting(reader.pid).polled
            [service] = channels.common_feeders({reader.pid: links})[reader.pid]
            os.kill(service, signal.SIGKILL)
            assert reader.wait(30) == 0
        finally:
            reader.kill()
    apart = os.pipe(), os.pipe()
    try:
        with subprocess.Popen(["sleep", "60"], pass_fds=[apart[0][1]]) as other:
            links = tuple(f"pipe:[{os.fstat(end).st_ino}]" for end, _ in apart)
            assert channels.common_feeders({1: links}) == {}
            other.kill()
    finally:
        for end in (*apart[0], *apart[1]):
            os.close(end)


@pytest.mark.parametrize(("wait", "named"), [("os.waitpid(second, 0)", True), ("os.wait()", False)])
def test_the_child_for_whose_end_a_process_waits_is_read_from_the_kernel(wait: str, named: bool) -> None:
    code = f"""
import os, time
def child():
    pid = os.fork()
    if not pid:
        time.sleep(60)
        os._exit(0)
    return pid
first, second = child(), child()
print(second, flush=True)
{wait}
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        try:
            assert parent.stdout is not None
            second = int(parent.stdout.readline())
            until(lambda: proc.wchan(parent.pid, parent.pid) == "do_wait")
            assert channels.waiting(parent.pid).child == (second if named else 0)
        finally:
            for pid in Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split():
                os.kill(int(pid), signal.SIGKILL)
            parent.kill()
