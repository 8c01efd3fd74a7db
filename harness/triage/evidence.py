"""Evidence of a job that stands still, as plain frozen data.

It is the same whoever collected it. Times are seconds unless the name says otherwise; ages are measured when the
evidence was taken. `None` and empty mean that a value was not collected, and a note says why. Nothing here judges.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec

from probes.limits import RANKS
from reports.codec import Number

Ranks = Annotated[int, msgspec.Meta(ge=0, le=RANKS)]  # a rank, or how many there are


@dataclass(frozen=True)
class Frame:
    """One frame of a stack, never with locals."""

    function: str
    file: str
    line: int
    module: str = ""


@dataclass(frozen=True)
class Thread:
    """One thread, `frames` innermost first. `native`: the frames include C and C++ ones."""

    name: str
    tid: int  # the operating system's thread id, 0 where unknown
    frames: tuple[Frame, ...]
    main: bool = False
    active: bool = False  # on a CPU when it was sampled
    gil: bool = False  # holds the interpreter lock
    native: bool = False
    cpu_s: Number | None = None  # user + system time of this thread so far
    io_bytes: int | None = None  # bytes that it read and wrote so far
    delay_s: Number | None = None  # seconds so far in which it was runnable without a processor
    wchan: str = ""  # kernel function in which it sleeps

    @property
    def leads(self) -> bool:
        """Whether it is the main thread, by what was collected of it or by its name."""
        return self.main or self.name == "MainThread"


# Beginnings of notes that say why there is no Python stack of a process.
NOT_PERMITTED = "ptrace is not permitted"
NOT_PYTHON = "not a Python process"
PASTED = "pasted"  # `source` of evidence from stacks that somebody pasted: one look without a time
UNREAD = "it cannot be read"  # in a note, of a file that was pasted
ENDED = ("gone", "Z", "X")  # states of a process that is over


def main_frames(threads: Sequence[Thread]) -> tuple[Frame, ...]:
    """The stack of the main thread; of the first thread if none is called main."""
    main = [thread for thread in threads if thread.leads] or list(threads[:1])
    return main[0].frames if main else ()


@dataclass(frozen=True)
class Sample:
    """One look at a process from outside. Two looks tell slow from stuck."""

    at_s: Number  # seconds since the first sample of this evidence
    state: str  # R, S, D, T, t, Z of /proc/PID/stat; "gone" when it ended meanwhile
    cpu_s: Number = 0.0  # user + system time so far, all threads
    switches: int = 0  # voluntary context switches of all threads so far
    io_bytes: int = 0  # read + written so far, from /proc/PID/io
    wchan: str = ""  # kernel function in which the main thread sleeps
    threads: tuple[Thread, ...] = ()
    net_bytes: int = 0  # bytes through its open TCP connections so far, both ways
    main_cpu_s: Number | None = None  # CPU seconds of its main thread alone
    main_io_bytes: int | None = None
    main_switches: int | None = None  # voluntary context switches of its main thread
    net_quiet_s: Number | None = None  # seconds since data went through its connections, except those to its store
    main_delay_s: Number | None = None  # seconds in which its main thread was runnable without a processor
    beat_delay_s: Number | None = None  # the same for the thread that writes its heartbeat
    beat_state: str = ""  # state of that thread, as `state`
    service_cpu_s: Number = 0.0  # CPU seconds of threads that only serve a device: CUDA's and NCCL's, which poll
    reading: str = ""  # pipe or socket that its main thread waits to read from, "pipe:[7]"
    reads_for_ever: bool = False  # the kernel shows that this wait has no time limit
    writing: str = ""  # full pipe or Unix socket to which one of its threads waits to write, "pipe:[7]"
    writes_to: str = ""  # which of its streams that is, stdout or stderr; empty for another descriptor
    locked_alone: bool = (
        False  # its only thread but the heartbeat's waits without a limit for a lock that no other process uses
    )
    locked_together: bool = False  # it has several threads but the heartbeat's, and each waits for such a lock
    # What its only thread but the heartbeat's waits for in an event loop without a timer, as "socket:[7]".
    loop: tuple[str, ...] = ()
    timed: bool = False  # its main thread waits with a time limit, as in a sleep
    sleeps_s: Number | None = None  # seconds that the sleep of its main thread still lasts, at most, by the kernel
    polled: tuple[
        str, ...
    ] = ()  # what that call waits for at once: TCP peers such as "127.0.0.1:80", or "anon_inode:[eventfd]"
    reads_from: str = ""  # TCP peer from which its main thread waits to read
    heard: tuple[tuple[str, Number], ...] = ()  # TCP peer -> seconds since data last came from it
    handles: tuple[str, ...] = ()  # signals for which it has a handler, of those that a program may wait for: "SIGUSR1"
    alone: bool = False  # it has no thread but its main one, its heartbeat's and torch's worker server
    in_shared_lock: bool = False  # its main thread waits for a lock that other processes may use, as multiprocessing's
    opens: str = ""  # named pipe that its main thread waits to open, "/tmp/fifo"; nobody has its other end open
    owed: tuple[str, ...] = ()  # TCP peers to which it sent data, and from which none has come since
    unread: tuple[tuple[str, Number], ...] = ()  # TCP clients of it -> bytes of theirs that it has not read
    unaccepted: int = 0  # connections at its ports that it has not accepted
    awaited_child: int = 0  # pid of the child for whose end its main thread waits in wait(2); 0 for any or none

    @property
    def main_frames(self) -> tuple[Frame, ...]:
        """The stack of its main thread, innermost first; empty without one."""
        return main_frames(self.threads)


NO_LOOK = Sample(at_s=0.0, state="")  # the last look at a process at which nobody looked


@dataclass(frozen=True)
class OpenSpan:
    """A span of the process's own recorder that has begun and not ended."""

    name: str
    age_s: Number
    fields: dict[str, Any] = field(default_factory=dict)  # step, version, ...


@dataclass(frozen=True)
class LostThread:
    """A thread that ended with an error which nobody caught, while its process went on."""

    name: str
    error: str
    age_s: Number | None = None  # seconds since it ended; None if only a log says it


@dataclass(frozen=True)
class HandledError:
    """The error that the main thread of a process handles, in an `except` or a `finally`.

    raised: innermost frame of it, beside those of installed packages. caught: the frame that handles it, with the line
    of its `try` by which the error came.
    """

    error: str
    raised: Frame
    caught: Frame


@dataclass(frozen=True)
class Beat:
    """The heartbeat of the probe in a process: that the interpreter is alive (`age_s`), and that work progresses
    (`progress_age_s`)."""

    count: int
    age_s: Number  # seconds since the last beat; large while the interpreter lock is held or the process is stopped
    progress_age_s: Number  # seconds since the main thread's stack, a collective counter or the journal changed
    period_s: Number = 1.0
    open_spans: tuple[OpenSpan, ...] = ()
    sequences: dict[str, int] = field(default_factory=dict)  # process group -> collectives that this process enqueued
    breakpoint: bool = False  # the process sits in a debugger, which is no hang
    wait: str = ""  # what its main thread waits for, by the probe: idle, collective, backward, ray, http, child, ...
    stack: tuple[str, ...] = ()  # innermost frames of its main thread, "file:line function"
    ended: bool = False  # the last beat of an interpreter that ended in order
    tid: int = 0  # thread id of the heartbeat's thread, as the kernel counts; 0 if unknown
    # States that the process reported, as "engine": running, waiting (requests), kv_usage (0 to 1), age_s of these
    # figures.
    states: dict[str, dict[str, Any]] = field(default_factory=dict)
    lost_threads: tuple[LostThread, ...] = ()
    # Innermost frame of the error that ended it, or of its call of `os._exit`, beside those of installed packages.
    raised_at: Frame | None = None
    exit_status: int | None = None  # with which it called `os._exit`; None for any other end
    handles: HandledError | None = None  # by its main thread
    tells_handled: bool = False  # it says whether its main thread handles an error, as older probes do not


@dataclass(frozen=True)
class Task:
    """A task of an event loop that has not ended, or several that stand in the same place for the same thing.

    Identities are numbers that mean something within one process only.
    """

    ids: tuple[int, ...]  # of each task
    name: str  # of the first
    frames: tuple[Frame, ...]  # of its coroutines, innermost first
    # lock, condition, event, semaphore, barrier, queue.get, queue.put, queue.join, task, tasks, sleep, socket,
    # connections, subprocess, executor, future; runs: it is about to go on.
    awaits: str
    target: int = 0  # identity of what it awaits
    of: str = ""  # its class, the other end of a connection, the name of a task
    targets: tuple[int, ...] = ()  # identities of the tasks that it awaits
    keeps: tuple[int, ...] = ()  # identities of locks whose `async with` it is in
    main: bool = False  # the loop runs until it ends
    limited: bool = False  # its wait has a time limit
    still: bool = False  # it awaited the same throughout


@dataclass(frozen=True)
class LostTask:
    """A task that died with an error which nobody has read."""

    name: str
    error: str
    age_s: Number | None = None  # seconds since that was certain; None if the program may still read it
    frame: Frame | None = None  # where it was raised, in the user's code


@dataclass(frozen=True)
class LaterCall:
    """A call that an event loop makes in `due_s` seconds, as the end of a task's sleep."""

    function: str
    file: str
    due_s: Number


@dataclass(frozen=True)
class EventLoop:
    """An event loop that runs, as the probe in its process sees it."""

    tid: int  # of its thread; 0 if unknown
    tasks: tuple[Task, ...] = ()
    left_out: int = 0  # tasks that are not listed
    later: tuple[LaterCall, ...] | None = None  # the first due first; None if the loop does not show them
    ready: int = 0  # calls that it was about to make
    descriptors: int | None = None  # for how many it waits; None if the loop does not show them
    lost: tuple[LostTask, ...] = ()


@dataclass(frozen=True)
class Call:
    """One call of an engine, as its session recorded it."""

    name: str
    ok: bool
    message: str
    age_s: Number
    step: int = -1


@dataclass(frozen=True)
class Group:
    """A process group. `members` are global ranks in the group's order; empty if nobody recorded them."""

    name: str  # its name in the flight recorder
    members: tuple[int, ...] = ()
    backend: str = ""
    desc: str = ""
    world_size: Ranks = 0  # expected number of members; 0 where unknown
    rank: Ranks | None = None  # rank in it of the process that recorded it, if the members are not known


@dataclass(frozen=True)
class Journal:
    """The end of a process's own recording."""

    path: str
    events: int
    last_age_s: Number  # seconds since the last event
    last_span: str = ""
    calls: tuple[Call, ...] = ()  # the last few engine calls, oldest first
    errors: tuple[tuple[Number, str], ...] = ()  # (age_s, text) of spans and calls that failed, oldest first
    groups: tuple[Group, ...] = ()
    closed: bool = False  # the process closed its recording
    engine_stats: dict[str, Any] = field(default_factory=dict)  # the engine's last report: running, waiting, kv_usage
    closing_error: str = ""  # error with which it closed its recording
    full: bool = False  # the disk was full, so that records are missing


@dataclass(frozen=True)
class SharedLock:
    """A lock of multiprocessing for which a thread of a process waits, and the processes of its host that can release
    it: those that have its file mapped."""

    path: str  # of its file, which is deleted as a rule: "/dev/shm/sem.mp-x1 (deleted)"
    sharers: tuple[int, ...] = ()  # pids, that of the process itself among them
    running: tuple[int, ...] = ()  # those of which another thread than the one that waits is in no lock itself


@dataclass(frozen=True)
class PipeReader:
    """A process that can read the full pipe or socket to which another one writes, and what it did last."""

    pid: int
    command: str = ""  # argv, without secrets
    wchan: str = ""  # the kernel function in which its main thread sleeps
    sleeps_s: Number | None = None  # seconds that its sleep still lasts, at most
    children: tuple[int, ...] = ()


@dataclass(frozen=True)
class Process:
    """One process of the job. `rank`: its global rank in torch.distributed; None if it has none or none is known."""

    host: str
    pid: int
    ppid: int = 0
    command: str = ""  # argv, without secrets
    title: str = ""  # the title that it gave itself: sglang::scheduler, ray::Stage.step, ...
    role: str = ""  # actor, critic, rollout, trainer, driver, launcher, ...: from the journal, Ray, or the title
    engine: str = ""  # vllm, sglang
    rank: Ranks | None = None
    world_size: Ranks | None = None
    age_s: Number = 0.0  # seconds since it was started
    exit_code: int | None = None  # of a process that has ended, if known
    first_by_launcher: bool = False  # its launcher found it dead before it ended the others
    ended_at: tuple[int, int, Number] | None = None  # month, day and seconds of its end, as its launcher's table has it
    error: str = ""  # its first error: an actor's death cause, the tail of a traceback
    error_age_s: Number | None = None
    samples: tuple[Sample, ...] = ()
    native: tuple[Thread, ...] = ()  # one native stack, if it was asked for and allowed
    beat: Beat | None = None
    journal: Journal | None = None
    dump: str = ""  # flight recorder dump of this process, relative to the evidence directory
    # Wall clock of its host in ns when the dump was taken. 0 if that clock was set while the process ran; None if
    # nobody recorded the time.
    dump_taken_ns: int | None = None
    environ: dict[str, str] = field(default_factory=dict)  # rank, NCCL and network variables it was started with
    listening: tuple[str, ...] = ()  # TCP addresses at which it listens, "127.0.0.1:8000"
    peers: tuple[str, ...] = ()  # other ends of its established TCP connections
    notes: tuple[str, ...] = ()  # what could not be collected of it, and how to enable it
    unanswered: tuple[str, ...] = ()  # "local remote": connections whose data the other end does not acknowledge
    asked: tuple[str, ...] = ()  # addresses to which it keeps asking for a connection without an answer
    writer: int = 0  # the one other process on its host that can write what its main thread reads; 0: several or none
    # All of these, itself among them if it can; empty if none or too many are known.
    writers: tuple[int, ...] = ()
    fed: bool = (
        False  # another process of its host can write what its main thread reads, from the first look to the last
    )
    own_pipe: bool = False  # it reads throughout from a pipe or socket to which it alone of its host can write
    # Other processes of its host whose data can wake the event loop without a timer in which it slept from the first
    # look to the last; None if it did not, or if an end is not known.
    wakers: tuple[int, ...] | None = None
    forked: bool = False  # it was forked by its parent and still runs that one's program
    forked_at: str = ""  # line of its parent at which multiprocessing forked it, "train.py:9 in main"
    reader: int = 0  # the one other process on its host that can read the full pipe or socket to which it writes
    readers: tuple[PipeReader, ...] = ()  # all of these, where several can
    loops: tuple[EventLoop, ...] = ()  # its event loops, where a probe of ours is in it
    # What its loop looks for again and again, by its source text: "127.0.0.1:80", "/a/file", "/a/folder/".
    sought: tuple[str, ...] = ()
    feeder: int = 0  # the one other process on its host that can write to the pipe that it polls; 0: several or none
    shared: tuple[str, ...] = ()  # files of shared memory that it and another process of its job have mapped
    # Those of `shared` that it read or wrote within half a second while it polled; empty if nobody asked the kernel.
    touched: tuple[str, ...] = ()
    # The lock for which it waited from the first look to the last; None if it waits for none, or none is known.
    shared_lock: SharedLock | None = None
    logged_threads: tuple[LostThread, ...] = ()  # threads whose end its log tells, where no probe of ours is in it

    def is_child_of(self, parent: Process) -> bool:
        return (self.host, self.ppid) == (parent.host, parent.pid)

    @property
    def last_look(self) -> Sample:
        """What it showed when it was last looked at; `NO_LOOK` if it never was."""
        return self.samples[-1] if self.samples else NO_LOOK

    @property
    def first_look(self) -> Sample:
        """What it showed when it was first looked at; `NO_LOOK` if it never was."""
        return self.samples[0] if self.samples else NO_LOOK

    @property
    def between_looks_s(self) -> float:
        """Seconds from the first look to the last; 0 without two looks."""
        return self.last_look.at_s - self.first_look.at_s

    @property
    def threads(self) -> tuple[Thread, ...]:
        """Its threads at the last look."""
        return self.last_look.threads

    @property
    def main_frames(self) -> tuple[Frame, ...]:
        """The stack of its main thread at the last look, innermost first."""
        return self.last_look.main_frames

    @property
    def open_spans(self) -> tuple[OpenSpan, ...]:
        """Its open spans by its heartbeat, the outermost first."""
        return self.beat.open_spans if self.beat is not None else ()

    @property
    def is_recorded(self) -> bool:
        """Whether a probe of ours is in it."""
        return self.beat is not None or self.journal is not None

    @property
    def has_last_word(self) -> bool:
        """Whether it said itself that it ended in order, by its heartbeat or its journal."""
        return (self.beat is not None and self.beat.ended) or (self.journal is not None and self.journal.closed)

    @property
    def lost_threads(self) -> tuple[LostThread, ...]:
        """Its threads that ended with an error, by its heartbeat, else by its log."""
        return self.beat.lost_threads if self.beat is not None else self.logged_threads

    @property
    def key(self) -> str:
        """Host and pid; of a rank without a pid, as in a log, its rank in place of it."""
        return f"{self.host}:{self.pid}" if self.pid or self.rank is None else f"{self.host}:rank_{self.rank}"


# The process of a node of which only a peer's recorder knows: it was not looked at, and has neither heartbeat nor
# journal. No process of evidence has an empty host.
NO_PROCESS = Process(host="", pid=0)

Resources = tuple[tuple[str, Number], ...]  # amounts of Ray's resources by name, such as ("CPU", 1.0)


@dataclass(frozen=True)
class RayActor:
    actor_id: str
    name: str  # class name, or the name that it was given
    state: str  # ALIVE, DEAD, PENDING_CREATION, RESTARTING, DEPENDENCIES_UNREADY
    host: str = ""
    pid: int = 0
    death: str = ""
    resources: Resources = ()  # what it holds while it lives; empty for an actor of a placement group
    count: int = 1  # how many of one name and state, where Ray's summary has no ids


@dataclass(frozen=True)
class RayTask:
    task_id: str
    name: str  # Class.method
    state: str  # PENDING_ARGS_AVAIL, PENDING_NODE_ASSIGNMENT, SUBMITTED_TO_WORKER, RUNNING, ...
    age_s: Number
    host: str = ""  # where it runs
    pid: int = 0
    actor_id: str = ""
    caller_pid: int = 0  # the process that submitted it, 0 if Ray does not say
    error: str = ""
    caller_host: str = ""
    resources: Resources = ()  # what it asks for; empty for a method of an actor
    count: int = 1  # as of `RayActor`


@dataclass(frozen=True)
class RayNode:
    """A node of the Ray cluster, as its GCS describes it."""

    host: str
    alive: bool
    death: str = ""  # why it is dead, in Ray's words
    silent: str = ""  # why it sent no evidence when asked
    total: Resources = ()  # its resources
    free: Resources = ()  # those that nobody holds


@dataclass(frozen=True)
class RayGroup:
    """A placement group of the Ray cluster."""

    group_id: str
    name: str
    state: str  # PENDING, PREPARED, CREATED, RESCHEDULING
    bundles: tuple[Resources, ...] = ()
    age_s: Number | None = None  # seconds since it was asked for


@dataclass(frozen=True)
class Gpu:
    host: str
    index: int
    name: str
    used_bytes: int
    total_bytes: int
    utilization: Number  # 0 to 1
    pids: tuple[int, ...] = ()


@dataclass(frozen=True)
class FileLock:
    """A lock of a whole file, by the kernel's list. `waiters`: who waits for it without trying again.

    What its holder does is looked at only if that one is no process of the job.
    """

    host: str
    path: str
    pid: int  # of its holder; 0 if that is not known, as in another container
    command: str = ""  # argv of its holder, secrets taken out
    waiters: tuple[int, ...] = ()
    tries: int = -1  # times that its file was opened while it was looked at; -1 if nobody counted
    works: str = ""  # what its holder and all below it used between two looks, in words
    idle: bool = False  # these did not even wake up, and have no TCP connections
    abandoned: bool = False  # the parent of its holder has ended
    spent_s: Number = 0.0  # CPU seconds of the holder and all below it since they were started


@dataclass(frozen=True)
class Maker:
    """A process that may make a file for which a process of the job looks.

    `by`: how that is known, as the verb of a sentence. `exact`: it is known by that very file, not by its folder.
    `sleeps_s`: for how long a `sleep` below it still sleeps.
    """

    host: str
    path: str
    pid: int
    command: str = ""  # argv, secrets taken out
    by: str = ""
    exact: bool = False
    works: str = ""  # what it and all below it used between two looks, in words
    sleeps_s: Number | None = None


@dataclass(frozen=True)
class Starter:
    """A Python program that started a process of the evidence, and was not looked at itself."""

    host: str
    pid: int
    child: int  # pid of the process that it started
    command: str = ""  # argv, secrets taken out


@dataclass(frozen=True)
class RayDemand:
    """What `ray status` or a log of Ray says is asked for: the resources of one request, and how many requests, in
    Ray's words. `lacking`: what the whole cluster has too little of, `in_use`: of what too little is free now, as
    sentences; empty if nothing says so."""

    resources: str  # {'GPU': 1.0}
    pending: str  # 2+ pending tasks/actors
    lacking: str = ""
    in_use: str = ""


@dataclass(frozen=True)
class LogError:
    """A line of a log that says that a process failed.

    file: the log's name.
    line: the line's number, from 1.
    what: what happened to the process, as the verb of a sentence.
    text: the line, without secrets.
    rank, host, pid, role: whom the line is of, as far as it says.
    fix: what to do first.
    echo: whether it tells of another process's end.
    at: its time as (month, day, seconds), as far as the line or the one before it has one; the clock is its host's.
    survived: whether the process went on with its work after it.
    stalled_s: seconds in which the process had made no progress, by a watchdog that counts them; 0 for other lines.
    """

    file: str
    line: int
    what: str
    text: str
    rank: Ranks | None = None
    host: str = ""
    pid: int = 0
    role: str = ""
    fix: str = ""
    echo: bool = False
    at: tuple[int, int, Number] | None = None
    survived: bool = False
    stalled_s: Number = 0.0

    @property
    def of(self) -> str:
        """The process that it is of, in words."""
        name = f"rank {self.rank}" if self.rank is not None else self.role
        pid = f"pid {self.pid}" if self.pid else ""
        if name and self.host and not pid and self.rank is None:
            name = f"{name} {self.host}"
        unnamed = f"a process of {self.host}" if self.host else "a process"
        return f"{name} ({pid})" if name and pid else name or pid or unnamed


@dataclass(frozen=True)
class DumpSignal:
    """A rank that was told to dump its recorder, since another rank had given up a collective: by a log.

    of: the rank that gave up. group: the process group by its description. enqueued, completed: the numbers of the last
    operations of the signalled rank in it, -1 for none.
    """

    rank: Ranks
    of: Ranks
    group: str
    enqueued: int
    completed: int


@dataclass(frozen=True)
class RecorderFinding:
    """What torch's own analysis of recorders said of an operation, in a text that was pasted.

    kind: "missing" (ranks have not come), "differs" (ranks differ from the first one), "sizes" (the sizes do not fit
    each other), "no dump" (of these ranks), or "table", of which nothing was read. seq: the operation's number in its
    group. ranks: those of whom it says so. expected: the members. state: the operation's, of the first rank in it.
    error: what differs, in its words.
    """

    file: str
    line: int
    kind: str
    op: str = ""
    seq: int = -1
    group: str = ""
    ranks: tuple[Ranks, ...] = ()
    expected: tuple[Ranks, ...] = ()
    state: str = ""
    error: str = ""


@dataclass(frozen=True)
class LogEnd:
    """The last line of processes in a log that was pasted.

    file: the log's name. lines: how many it has.
    line: the number of the line, from 1. text: its words, without secrets, time and rank.
    who: the processes, as far as its lines name them; empty if they name nobody. processes: how many.
    at: its time, as in `LogError`.
    """

    file: str
    lines: int
    line: int
    text: str
    who: str = ""
    processes: int = 1
    at: tuple[int, int, Number] | None = None


@dataclass(frozen=True)
class Peak:
    """What a process of a watched job held in memory at most, and how it ended, as far as the watch knows.

    peak_bytes: resident, as the kernel counts them (VmHWM); memory that several share counts in each of them.
    killed: whether the kernel's log says that it killed the process for memory.
    rank, exit_code, first_by_launcher: as its launcher's table has them.
    gone_s: how long before the watch's last look it was seen last; 0 if that look saw it, or if it ended soon after its
    start, as a tool does that a program calls.
    """

    host: str
    pid: int
    name: str
    peak_bytes: int
    killed: bool = False
    exit_code: int | None = None
    rank: Ranks | None = None
    first_by_launcher: bool = False
    gone_s: Number = 0.0


@dataclass(frozen=True)
class EndedBy:
    """The signal by which a user or a scheduler asked a watch to end its command. `age_s`: None on another host."""

    signal: int
    age_s: Number | None = None

    @property
    def words(self) -> str:
        try:
            name = signal.Signals(self.signal).name
        except ValueError:
            return f"signal {self.signal}"
        return f"Ctrl-C ({name})" if self.signal == signal.SIGINT else name


@dataclass(frozen=True)
class LogPhase:
    """A phase of work of which a progress bar in a log that was pasted says how long it took.

    file: the log's name. line: the number of the bar's line, from 1. name: the words before the bar, without secrets.
    finished: whether the bar is full. took_s: seconds since the bar began.
    """

    file: str
    line: int
    name: str
    finished: bool
    took_s: Number

    @property
    def words(self) -> str:
        """What it was and how long it took."""
        minutes, seconds = divmod(int(self.took_s), 60)
        hours, minutes = divmod(minutes, 60)
        took = f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
        return f"{self.name or 'a progress bar'} {'took' if self.finished else 'has taken'} {took}"


@dataclass(frozen=True)
class Silence:
    """Why a watch gave no evidence, in words that follow a colon. `up`: its host answered, if only to refuse."""

    why: str
    up: bool = False


@dataclass(frozen=True)
class Evidence:
    """Everything that was collected at one moment. `path`: the directory that holds it."""

    path: str
    source: str  # watch, live, directory, dumps, pasted
    taken: str  # ISO 8601, UTC
    stall_s: Number  # seconds without progress before it was taken; 0 if nobody watched
    processes: tuple[Process, ...] = ()
    ray_actors: tuple[RayActor, ...] = ()
    ray_tasks: tuple[RayTask, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    ras: dict[str, Any] = field(default_factory=dict)  # NCCL RAS, host -> answer
    dumps: dict[str, str] = field(default_factory=dict)  # dumps of processes that were not seen: name -> relative path
    expected_world: Ranks | None = None  # number of ranks that the launcher was asked for
    threshold_s: Number = 0.0  # seconds without progress after which the watch looks; 0 if nobody watched
    notes: tuple[str, ...] = ()
    ray_nodes: tuple[RayNode, ...] = ()
    ray_lost: str = (
        ""  # the Ray cluster's address and why it accepts no connection; empty if it does, or no cluster is known
    )
    ray_groups: tuple[RayGroup, ...] = ()
    ray_fixed: bool = False  # no autoscaler adds nodes to the Ray cluster; False if that is not known
    unreached: dict[str, Silence] = field(default_factory=dict)  # by the address of the watch
    locks: tuple[FileLock, ...] = ()  # of files, whoever holds them
    makers: tuple[Maker, ...] = ()  # of files for which processes of the job look
    starters: tuple[Starter, ...] = ()  # whose children alone were looked at
    errors: tuple[LogError, ...] = ()  # in logs that were pasted, in the order of their lines
    ray_demands: tuple[RayDemand, ...] = ()  # of `ray status` that was pasted
    log_ends: tuple[LogEnd, ...] = ()  # of logs that were pasted, the rarest first
    peaks: tuple[Peak, ...] = ()  # memory of the processes of a watched command that failed, the largest first
    log_phases: tuple[LogPhase, ...] = ()  # of logs that were pasted, the longest of each first
    timed_out_s: Number = 0.0  # seconds that a collective had run when NCCL's watchdog gave it up, by a pasted log
    dump_signals: tuple[DumpSignal, ...] = ()  # in a pasted log
    recorder_findings: tuple[RecorderFinding, ...] = ()  # of torch's fr_trace, in texts that were pasted
    watchdog_ended: tuple[Ranks, ...] = ()  # ranks that NCCL's watchdog ended, by a pasted log
    rank_hosts: tuple[tuple[Ranks, str], ...] = ()  # by the prefixes of lines of a pasted log
    pasted_files: tuple[str, ...] = ()  # files and folders that were pasted, as they were named
    command_exit_code: int | None = None  # of the command that was watched, if it ended and the watch saw how
    ended_by: EndedBy | None = None  # the signal by which the watch was asked to end that command
    watched: bool = False  # its processes run, or ran, under a watch; see `is_watched`
    directories: tuple[str, ...] = ()  # of united nodes, so that no ages of two hosts are compared; of pasted jobs

    @property
    def never_met(self) -> list[Process]:
        """The processes of which nothing but the pid is known: a user named it, and it was not there."""
        return [
            process
            for process in self.processes
            if {look.state for look in process.samples} == {"gone"}
            and not (process.command or process.beat or process.journal or process.rank is not None)
        ]

    @property
    def is_watched(self) -> bool:
        """Whether a watch took it, or a look at processes that a watch has: then no advice is to watch them."""
        return self.watched or self.source == "watch" or any(process.beat for process in self.processes)
