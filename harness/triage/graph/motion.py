"""What moved in a process between two looks: its main thread, and the threads that work for it.

Threads that only live beside the work, such as a logger, a monitor or an exporter, are no progress however busy they
are. A wait for a device spins, so the processor time of a thread in such a wait says nothing. Nor does the processor
time of a process whose oldest operation has been pending for long.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from harness.triage import lock_text, source, stacks
from harness.triage.evidence import Frame, Process, Sample, Thread
from harness.triage.flight.model import Collective
from harness.triage.places import IDLE, inner_frame, plain, users

BUSY_CORES = 0.2  # of a core; a compiler on two cores with four busy jobs had 0.29
IO_BYTES_PER_S = 5_000  # beyond what the heartbeat writes
# Share of the time between the looks in which a thread was runnable without a processor. A thread that sleeps and polls
# waits for a moment at each wake-up. A heartbeat that is four periods late for want of a processor has waited for
# nearly all of that time.
STARVED = 0.5
BEAT_BYTES = 8_192  # of one heartbeat: a page, counted again when it goes to storage
NET_BYTES_PER_S = 20_000  # over TCP; processes of an idle Ray cluster exchanged 2,300
TRANSFER_BYTES_PER_S = 1_000_000  # in a process that waits in an operation: this much means that the operation moves
HELD_S = 3.0  # a younger pending operation may be on its way
# A long kernel and a hung device look alike from outside. The limit is half of NCCL's default timeout (600 s): no
# kernel of a training step runs that long.
DEVICE_S = 300.0
# A timer that fires shows that the event loop runs, but not that its tasks advance. So it counts as progress only for
# TIMERS thresholds of the watch. THRESHOLD_S, the default of `harness watch`, stands in for a missing one.
TIMERS, THRESHOLD_S = 3.0, 60.0
_SERVES = IDLE - {"queue"}
# Frames in which servers run a handler in a thread: the standard library's, starlette's and FastAPI's, an executor's.
_HANDLER = re.compile(r"/socketserver\.py$|/anyio/|/concurrent/futures/thread\.py$")
BETWEEN_RANKS = frozenset({"collective", "p2p"})
_FULL = re.compile("pipe_write|sock_alloc_send|sock_wait_for_wmem")  # kernel functions that wait for room
_INSIDE = frozenset({"lock", "queue", "select"})  # waits that another thread of the same process may end


def is_overdue(pending: Collective | None, stall_s: float) -> bool:
    """Whether an operation has been pending for so long that nothing else its process does is progress.

    The limit is half of the stall: the last rank may have come to the operation that much later than the first.
    """
    return pending is not None and (pending.age_s is None or pending.age_s >= max(HELD_S, stall_s / 2))


@dataclass(frozen=True)
class Surroundings:
    """Facts about the job and the host that hold whatever the process does.

    `stall_s`: for how long nothing moved in the job. `gpu`: the host has a GPU. `timers`: a timer that fires in an
    event loop counts as progress.
    """

    stall_s: float = 0.0
    gpu: bool = False
    timers: bool = True


ANY = Surroundings()


def progress_between_looks(
    process: Process, now: stacks.Doing, before: stacks.Doing, around: Surroundings = ANY, *, pending: bool,
    loop: Sequence[Frame] = (),
) -> str:  # fmt: skip
    """Say in words, with a rate, what the process advanced between the looks; empty if nothing moved.

    `pending`: see `is_overdue`. `loop`: the frames of a poll from its loop outwards; a move within them is no progress.
    If the loop only asks its condition, the main thread's processor time shows nothing.
    """
    gap = process.between_looks_s
    if gap <= 0:
        return ""
    if text := _serves(process, now, around, gap):
        return text
    # An idle process is at work only if a thread of its own fills the queue at which it waits.
    if now.idle and before.idle and not _fed(process, now, before):
        return ""
    # A waiting main thread spins or polls, so its processor time, and with a pending operation its wake-ups too, show
    # nothing.
    waits = pending or now.waiting or _only_spins(process, loop, gap)
    device = now.kind == "device"
    return (
        ("" if waits or device else _computes(process, now, gap, polls=bool(loop)))
        or _transfers(process, waits=waits or device)
        or ("" if pending else _goes_on(process, now, before, around))
        or ("its stack moved between the two looks" if not loop and stack_moved(process) else "")
        or (_launches(process, around.stall_s) if device and not waits else "")
    )


def _serves(process: Process, now: stacks.Doing, around: Surroundings, gap: float) -> str:
    """Say in words that its event loop ran tasks, or that it answered requests."""
    return (
        loop_runs(process, now, around.stall_s)
        or (loop_wakes(process, now) if around.timers else "")
        or (_answers(process, gap) if now.within("http_server") else "")
    )


def _goes_on(process: Process, now: stacks.Doing, before: stacks.Doing, around: Surroundings) -> str:
    """Say in words that the wait of its main thread went on: it got data, or came to the next wait."""
    if gets_on(process):
        return "data went through the pipe or socket at which it waits"
    if not around.stall_s and (text := _counted_lately(process)):
        return text
    return passes(process, now, before, gpu=around.gpu)


def _computes(process: Process, now: stacks.Doing, gap: float, *, polls: bool) -> str:
    """Say in words that it used a processor or the disk between the looks, or was queued for a processor. One that
    polls is queued at each of its wake-ups, which is no work."""
    first, last = process.first_look, process.last_look
    cores = _spent(process, now, "cpu_s") / gap
    if cores >= BUSY_CORES:
        return f"{cores:.0%} of a core"
    if first.state == last.state == "R" and not polls:
        return f"waits for a processor ({cores:.0%} of a core)"
    if (waited := _delayed(first, last, "main_delay_s") or 0.0) / gap >= STARVED and not polls:
        return f"waits for a processor, {waited / gap:.0%} of the time"
    rate = moved_bytes(process, now)
    return f"{rate / 1000:.0f} kB/s read and written" if rate else ""


def _only_spins(process: Process, loop: Sequence[Frame], gap: float) -> bool:
    """Whether a process only asks the condition of a loop, and no thread beside the main one used a processor between
    the looks."""
    threads = [thread for thread in process.threads if thread.tid != process.pid]
    busy = any(spent_s(process, thread) / gap >= BUSY_CORES for thread in threads)
    return bool(loop) and source.spins(loop[0]) and not busy


def _answers(process: Process, gap: float) -> str:
    """Say in words that a thread of a server works on a request. The main thread waits for the next one meanwhile."""
    for thread in handlers(process):
        if (cores := spent_s(process, thread) / gap) >= BUSY_CORES:
            return f"its thread {thread.name or thread.tid} answers a request, {cores:.0%} of a core"
    return ""


def handlers(process: Process) -> list[Thread]:
    """Its threads that stand in the user's code for a request, at the last look."""
    threads = process.threads
    return [
        thread
        for thread in threads
        if any(_HANDLER.search(frame.file) for frame in thread.frames) and any(map(users, _user_frames(thread)))
    ]


def _user_frames(thread: Thread) -> tuple[Frame, ...]:
    """The frames of a thread within its handler of requests, innermost first."""
    begin = next(at for at, frame in enumerate(thread.frames) if _HANDLER.search(frame.file))
    return thread.frames[:begin]


def _transfers(process: Process, *, waits: bool) -> str:
    """Say in words that data goes over the network. `waits`: it stands in an operation or at its device, so more is
    asked."""
    rate = over_net(process)
    least = TRANSFER_BYTES_PER_S if waits else NET_BYTES_PER_S
    return f"{rate / 1000:.0f} kB/s over the network" if rate >= least else ""


def gets_on(process: Process) -> bool:
    """Whether its main thread waited at the last two looks for data of one pipe or socket, or for room in it, and woke
    up in between: the kernel wakes nobody there before data moves.

    Between earlier looks a native stack may have been taken, which stops the process and so wakes it.
    """
    first, last = process.samples[-2:]
    if not wake_ups(first, last):
        return False
    writes = all(_FULL.search(look.wchan) for look in (first, last)) and first.writing == last.writing != ""
    return writes or (first.reading == last.reading != "" and not (first.timed or last.timed))


def _launches(process: Process, stall_s: float) -> str:
    """Say in words that a process at its device advances: it launches other work, or its kernel may run that long."""
    if _trail(process, 0) != _trail(process, -1):
        return "its stack moved between the two looks"
    return "waits for its device, whose kernel may run long" if stall_s < DEVICE_S else ""


def passes(process: Process, now: stacks.Doing, before: stacks.Doing, *, gpu: bool) -> str:
    """Say in words that a process in a collective went through other collectives between the looks.

    Its main thread woke up, and data went through its connections. It stood in a collective at one look, or its text
    shows that each round of its loop goes through one: short steps beside a long sleep are seldom met. This is used
    only where no better evidence exists: a heartbeat or a journal counts collectives, NCCL's waits poll, and Ray's
    workers talk to Ray. In a gloo collective that does not end, the main thread slept through 1.5 s without a wake-up,
    and no byte came (measured, torch 2.13).
    """
    if now.kind in BETWEEN_RANKS and before.kind in BETWEEN_RANKS and now.frame != before.frame:
        return "went from one collective to another between the looks"
    if gpu or process.is_recorded or process.title.startswith("ray::"):
        return ""
    first, last = process.first_look, process.last_look
    if {now.kind, before.kind}.isdisjoint(BETWEEN_RANKS) and not _in_training_loop(process):
        return ""
    woken, sent = wake_ups(first, last), last.net_bytes - first.net_bytes
    recent = last.net_quiet_s is not None and last.net_quiet_s < process.between_looks_s
    return f"its main thread woke up {woken} times, and {sent / 1000:.0f} kB came or went" if (
        woken > 1 and sent > 0 and recent
    ) else ""  # fmt: skip


def _counted_lately(process: Process) -> str:
    """Say in words that its heartbeat counted a collective, or other work, in the last part of the looks.

    For a job in which no watch saw a stall: there a rank that rests for most of each step is met in its rest alone.
    """
    beat = process.beat
    if beat is None or beat.ended or beat.age_s > 2 * beat.period_s:
        return ""
    recent = beat.progress_age_s < min(HELD_S, process.between_looks_s)
    return f"its heartbeat counted work {beat.progress_age_s:.1f} s ago" if recent else ""


def _in_training_loop(process: Process) -> bool:
    """Whether the innermost loop around the main thread, at the last look, trains in each of its rounds."""
    loops = (frame for frame in process.main_frames if source.loop_around(frame) is not source.Loop.NONE)
    return any(source.trains(frame) for frame in itertools.islice(loops, 1))


def loop_runs(process: Process, now: stacks.Doing, stall_s: float) -> str:
    """Say in words that the event loop in which a process waits has something to do: data went through its
    connections in the later half of the stall. A request sent just before the stall began says nothing."""
    # The first look comes at the end of the stall; the second shows data between the looks.
    quiet_s = min((look.net_quiet_s for look in process.samples if look.net_quiet_s is not None), default=None)
    if quiet_s is not None and quiet_s < max(stall_s / 2, HELD_S) and _in_loop(process, now):
        return f"data went through its connections {quiet_s:.1f} s ago"
    return ""


def _in_loop(process: Process, now: stacks.Doing) -> bool:
    """Whether it waits in an event loop whose traffic and timers mean something. Servers tick for ever, and Ray's
    workers talk to Ray."""
    if now.within(*_SERVES) or process.title.startswith("ray::"):
        return False
    return stacks.in_event_loop(process, process.last_look)


def loop_wakes(process: Process, now: stacks.Doing) -> str:
    """Say in words that the thread of an event loop woke up between the looks, for a timer or a callback."""
    woken = wake_ups(process.first_look, process.last_look)
    if not woken or not _in_loop(process, now):
        return ""
    return f"its event loop woke up {woken} times between the looks"


def wake_ups(first: Sample, last: Sample) -> int:
    """How often the main thread woke up between two looks; 0 if the kernel did not count that."""
    if first.main_switches is None or last.main_switches is None:
        return 0
    return max(0, last.main_switches - first.main_switches)


def works(process: Process, now: stacks.Doing) -> bool:
    """Whether the main thread, or a thread that works for it, used a processor between the looks."""
    gap = process.between_looks_s
    return gap > 0 and _spent(process, now, "cpu_s") / gap >= BUSY_CORES


def in_resting_backward(process: Process) -> bool:
    """Whether the main thread stands in a backward pass at each of several looks, and no thread of the process used a
    processor in between. DDP and FSDP wait there, in C++, for the gradients of the other ranks."""
    gap = process.between_looks_s
    stands = all(
        any(plain(frame.function) == "_engine_run_backward" for frame in look.main_frames) for look in process.samples
    )
    return stands and gap > 0 and (process.last_look.cpu_s - process.first_look.cpu_s) / gap < BUSY_CORES


def holder_works(process: Process) -> bool:
    """Whether the thread that holds the interpreter lock uses a processor, or waits for one on a busy host.

    Without a known holder the whole process counts. Two ranks that imported torch at load 40 had 0.1 of a core each.
    """
    if len(process.samples) < 2:
        return False
    first, last = process.first_look, process.last_look
    gap, spent = process.between_looks_s, last.cpu_s - first.cpu_s
    holder = next((thread for thread in last.threads if thread.gil), None)
    if holder is not None and holder.main and any(look.state == "R" for look in process.samples):
        return True
    if holder is not None and (its := _of_thread(process, holder, "cpu_s")) is not None:
        spent = its
    return gap > 0 and spent / gap >= BUSY_CORES


def starved(process: Process) -> str:
    """Say in words that a heartbeat is late because its host is busy and not because the interpreter lock is held.

    The thread that matters was runnable without a processor for most of the time between the looks. It is the thread
    that holds the lock; without one the main thread or the heartbeat's. The heartbeat may also wait for its disk.
    Without any stack, and if the kernel does not count waiting times, nothing tells a held lock from a busy host.
    """
    if len(process.samples) < 2:
        return ""
    first, last = process.first_look, process.last_look
    holder = next((thread for thread in last.threads if thread.gil and not thread.main), None)
    waits = [_delayed(first, last, "main_delay_s"), _delayed(first, last, "beat_delay_s")]
    if holder is not None:
        waits = [_of_thread(process, holder, "delay_s")]
    elif any(thread.gil for thread in last.threads):
        waits = waits[:1]
    gap = process.between_looks_s
    for waited in waits:
        if waited is not None and gap > 0 and waited / gap >= STARVED:
            return f"waits for a processor, {waited / gap:.0%} of the time"
    if first.beat_state == last.beat_state == "D":
        return "its heartbeat waits for its disk"
    if not any(look.threads for look in process.samples) and waits[0] is None:
        return "nothing is known of its threads"
    return ""


def _delayed(first: Sample, last: Sample, what: str) -> float | None:
    then, now = getattr(first, what), getattr(last, what)
    return None if then is None or now is None else now - then


def moved_bytes(process: Process, now: stacks.Doing) -> float:
    """Bytes per second that the main thread, or a thread that works for it, read and wrote; 0 for what a heartbeat
    writes.

    One more heartbeat may fall between two looks than its period suggests. The main thread writes the last one, and
    then the heartbeat's thread is not counted apart.
    """
    first, last = process.first_look, process.last_look
    gap = process.between_looks_s
    if gap <= 0:
        return 0.0
    apart = _told_apart(first, last, "io_bytes") and any(thread.frames for thread in last.threads)
    beats = gap / max(0.1, process.beat.period_s) + 1 if process.beat and not apart else 0.0
    rate = (_spent(process, now, "io_bytes") - beats * BEAT_BYTES) / gap
    return rate if rate >= IO_BYTES_PER_S else 0.0


def over_net(process: Process) -> float:
    """Bytes per second through the process's TCP connections between the looks; 0 below what idle processes
    exchange."""
    rate = net_rate(process)
    return rate if rate >= NET_BYTES_PER_S else 0.0


def net_rate(process: Process) -> float:
    """Bytes per second through the process's TCP connections between the looks."""
    first, last = process.first_look, process.last_look
    gap = process.between_looks_s
    return (last.net_bytes - first.net_bytes) / gap if gap > 0 else 0.0


def stack_moved(process: Process) -> bool:
    """Whether the stack changed by more than the line of a loop that polls inside one function."""
    first_trail, two = _trail(process, 0), _trail(process, -1)
    if not first_trail or not two or first_trail == two:
        return False
    return _outline(first_trail) != _outline(two)


def _trail(process: Process, sample: int) -> tuple[tuple[str, str, int], ...]:
    return stacks.trail(process.samples[sample].threads, process.pid)


def _outline(trail: tuple[tuple[str, str, int], ...]) -> tuple[tuple[str, str, int], ...]:
    """The user's frames, innermost first; the line of the innermost is left out."""
    mine = [place for place in trail if stacks.user_frame([Frame(*place)])]
    if not mine:
        return ()
    return ((mine[0][0], mine[0][1], 0), *mine[1:])


def _fed(process: Process, now: stacks.Doing, before: stacks.Doing) -> bool:
    """Whether it waits in a queue that a thread of its own fills: that thread computes at both looks, or downloads."""
    if any(doing.within(*_SERVES) or not doing.within("queue") for doing in (now, before)):
        return False
    looks = process.first_look, process.last_look
    busy = (any(stacks.beside(thread) and hands_on(thread) for thread in look.threads) for look in looks)
    return over_net(process) > 0 or all(busy)


def _spent(process: Process, now: stacks.Doing, what: str) -> float:
    """Processor seconds or bytes that the main thread, or the thread of a Ray task, spent between the looks.

    The thread that keeps the lock for which it waits is added, and if it waits inside its process, threads that may end
    that wait. If it is in compiled code, so are threads
    that are not Python's, such as a tokenizer's pool. If threads cannot be told apart, the figure is that of the whole
    process.
    """
    first, last = process.first_look, process.last_look
    total = float(getattr(last, what) - getattr(first, what))
    if what == "cpu_s":
        total -= last.service_cpu_s - first.service_cpu_s
    if not _told_apart(first, last, what):
        return total
    main = float(getattr(last, f"main_{what}") - getattr(first, f"main_{what}"))
    task = stacks.in_ray_task(last.threads) if not now.idle else None
    leading = {process.pid, task.tid if task is not None else 0}
    side_threads = [thread for thread in last.threads if not (thread.main or thread.tid in leading)]
    keepers = _keepers_of_awaited(process, side_threads)
    if now.kind in _INSIDE:
        joined = now.op in ("join", "_wait_for_tstate_lock")
        mine = [thread for thread in side_threads if thread in keepers or hands_on(thread, joined=joined)]
        return main + sum(_of_thread(process, thread, what) or 0.0 for thread in mine)
    if now.kind in ("sleep", "finished"):
        return main
    beside = [thread for thread in side_threads if thread not in keepers]
    return max(main, total - sum(_of_thread(process, thread, what) or 0.0 for thread in beside))


def _told_apart(first: Sample, last: Sample, what: str) -> bool:
    is_counted = all(getattr(look, f"main_{what}") is not None for look in (first, last))
    return is_counted and bool(last.threads)  # a process without a Python thread is another kind of program


def _of_thread(process: Process, thread: Thread, what: str) -> float | None:
    """What one thread spent between the looks; None if it was not counted by itself. A thread that is new began with
    0."""
    if thread.tid == 0 or (now := getattr(thread, what)) is None:
        return None
    then = next((earlier for earlier in process.first_look.threads if earlier.tid == thread.tid), None)
    return float(now - ((getattr(then, what) or 0) if then is not None else 0))


def spent_s(process: Process, thread: Thread) -> float:
    """Processor seconds of one thread between the looks; 0 if it was not counted by itself."""
    return _of_thread(process, thread, "cpu_s") or 0.0


def _keepers_of_awaited(process: Process, threads: Sequence[Thread]) -> list[Thread]:
    """Those that stand inside a `with` of the lock that the main thread waits for, in a body that has an end."""
    waiting = inner_frame(process.main_frames)
    lock = lock_text.lock_of(waiting) if waiting is not None and threads else ""
    if waiting is None or not lock:
        return []
    return [
        thread
        for thread in threads
        for frame in thread.frames
        if frame.file == waiting.file and lock_text.keeps_lock(frame, lock) and not source.endless_loop(frame)
    ]


def hands_on(thread: Thread, *, joined: bool = False) -> bool:
    """Whether what a thread does may end a wait of the main thread.

    It may if it runs a task of a pool or is a timer, or if its source text puts into a queue, sets an event or sends.
    If the main thread has `joined` it, it may if it has an end, as a function of a library has that a thread was
    started with. A thread whose source cannot be read counts as well. Else a library thread that runs no user code,
    such as DataLoader's pinning thread, only passes on what others make, and does not count.
    """
    pool = "/concurrent/futures/thread.py"
    if any(frame.file.endswith(pool) and plain(frame.function) == "run" for frame in thread.frames):
        return True
    if any(map(source.in_timer, thread.frames)):
        return True
    mine = [frame for frame in thread.frames if users(frame)]
    if joined:
        started_with = any(frame.file.endswith("/threading.py") and plain(frame.function) == "run"
                           for frame in thread.frames)  # fmt: skip
        return bool(mine or started_with) and not any(map(source.endless_loop, mine or thread.frames))
    return bool(mine) and any(map(source.hands_on, mine))
