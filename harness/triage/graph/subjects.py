"""A node of the wait graph: what one process does, by its samples, its stacks, its heartbeat and its recorder.

Two looks decide whether it *advances*. A loop that polls is idle however much it runs: its place in the user's code
stays the same, so a changed line in the innermost function alone is no progress.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from harness.triage import source, stacks
from harness.triage import wchan as kernel_waits
from harness.triage.evidence import ENDED, NO_PROCESS, Frame, Process, Thread
from harness.triage.flight.model import Collective
from harness.triage.graph import motion, polling
from harness.triage.places import IDLE, plain
from scenarios.engines.registry import specs

BUSY_STALE_S = 60.0  # C code that computes with the interpreter lock held may end within this; C code that sleeps won't
STALE_PERIODS, STALE_S = 4.0, 4.0  # a heartbeat older than both: the interpreter runs no thread
LAUNCHERS = frozenset({"launcher", "torchrun", "watch"})
TRANSITIONS = re.compile("|".join([
    "sleep|wake_up|wakeup|pause|resume|offload|onload",
    *(frame.function for spec in specs().values() for frame in spec.frames if frame.kind == "transition"),
]))  # fmt: skip


@dataclass(frozen=True)
class Blocked:
    """What holds a process: a signal or a tracer, the kernel, or the interpreter lock."""

    by: Literal["stop", "sleep", "lock"]
    words: str

    def __str__(self) -> str:
        return self.words


@dataclass(frozen=True, eq=False)
class Subject:
    """One node of the wait graph: a process, or a member of a group of which only a peer's recorder knows.

    Rules call it an end, or a sink, where waiting ends at it (`Graph.sinks`). `blocked`: held by a signal, the kernel
    or the interpreter lock.
    """

    key: str
    process: Process = NO_PROCESS
    rank: int | None = None
    doing: stacks.Doing = stacks.UNKNOWN
    before: stacks.Doing = stacks.UNKNOWN  # at the first look
    progress: str = ""  # what moved between the looks, in words with its rate; empty if nothing did
    moved: bool = False  # the progress is its own, not that of a process that it started
    blocked: Blocked | None = None
    ended: bool = False
    pending: Collective | None = None  # its oldest operation that is not done
    observed: bool = True  # False: a member of a group of which nothing was seen
    frame: str = ""
    alone: bool = True  # no other process has the same label or bare rank
    loop: tuple[Frame, ...] = ()  # where it polls: the stack from the loop outwards

    @property
    def has_process(self) -> bool:
        """Whether its process is in the evidence. That of another member of a group is `NO_PROCESS`."""
        return self.process is not NO_PROCESS

    @property
    def role(self) -> str:
        return self.process.role

    @property
    def launcher(self) -> bool:
        return self.role in LAUNCHERS

    @property
    def label(self) -> str:
        """Its name for people: "rank 1 (actor)", a role, a title, or host and pid.

        If another process of the evidence has the same name, as in a second engine, host and pid are added.
        """
        name = f"rank {self.rank}" if self.rank is not None else ""
        role = self.role or self.process.title
        if role == "process" and not name:
            role = _program(self.process.command) or role
        key = self.key.removesuffix(":0") if self.has_process and not self.process.pid else self.key
        if name:
            details = [role] if role and role not in ("process", "rank") else []
            details += [] if self.alone else [key]
            return f"{name} ({', '.join(details)})" if details else name
        return f"{role} ({key})" if role else key

    @property
    def rests(self) -> bool:
        """Whether it lives, nothing holds it, and nothing of it moved between the looks."""
        return not (self.ended or self.blocked or self.progress)

    @property
    def stuck(self) -> bool:
        """Whether it waits for another process or its device, by its recorder or its stack."""
        if self.finished:
            return False
        return self.pending is not None or (not self.loop and (self.doing.waiting or self.doing.kind == "device"))

    @property
    def finished(self) -> bool:
        """Whether it ended by its own last word, and nothing is known to have gone wrong."""
        return finished(self.process)

    @property
    def polls(self) -> bool:
        """Whether it looks again and again for something that another process has to make, and nothing says which."""
        return bool(self.loop) and self.rests and self.pending is None

    def state(self, group: str = "") -> str:
        """What it does, in words."""
        if not self.observed:
            return "never seen"
        if self.ended:
            return _end_text(self.process)
        if self.blocked:
            return str(self.blocked)
        if self.pending is not None:
            named = group if group.startswith("group ") else f"group {group}"
            of = f" of {named}" if group else ""
            where = f", {self.frame}" if self.frame else ""
            return f"in {self.pending.op} #{self.pending.seq}{of}{where}"
        if self.progress:
            return f"works: {self.progress}"
        words = {
            "user": "in its own code" if self.doing.frame else "in library code",
            "unknown": _without_stack(self.process),
            "ray_idle": "idle: waits for a Ray task",
            "scheduler": "idle in its scheduler loop",
            "orders": "idle in its scheduler loop",
            "store": f"waits in {self.doing.op}",
            "sleep": "asleep",
            "device": "waits for its device",
            "build_lock": "waits for the lock file of a build",
        }.get(self.doing.kind, self.doing.kind + (f": {self.doing.op}" if self.doing.op != self.doing.kind else ""))
        return f"{words}, {self.doing.frame}" if self.doing.frame else words


def load(process: Process) -> str:
    """How busy its engine was when the heartbeat last asked, in words; empty if no engine said it."""
    state = process.beat.states.get("engine", {}) if process.beat is not None else {}
    parts = [
        f"{state[key]:g} requests {key}" for key in ("running", "waiting") if isinstance(state.get(key), (int, float))
    ]
    if isinstance(state.get("kv_usage"), (int, float)):
        parts.append(f"KV cache {state['kv_usage']:.0%} full")
    if not parts:
        return ""
    age = state.get("age_s")
    return f"engine: {', '.join(parts)}" + (f", {age:.0f} s ago" if isinstance(age, (int, float)) else "")


def subject(
    process: Process,
    pending: Collective | None,
    children: Mapping[str, tuple[Process, ...]],
    around: motion.Surroundings = motion.ANY,
) -> Subject:
    """Build the node of one process. `children`: key -> processes that it started."""
    now = stacks.doing(process)
    once = len(process.samples) == 1 and not process.native  # then the first look is the last
    before = now if once else stacks.doing(process, 0)
    # `.item()` and the like wait for the device without a frame of torch: the source line has to say it.
    if around.gpu and now.kind == "user" and not process.native and _at_device(process):
        now = replace(now, kind="device", op="synchronize")
    has_ended = ended(process)
    if has_ended:
        pending = None
    blocked = None if has_ended else _blocked(process)
    loop = polling.polled_in(process, now, before)
    if polling.from_children(loop) and not any(map(polling.woke, children.get(process.key, ()))):
        loop = ()  # its children make what it looks for, and do nothing: that wait has a known target
    # A process that waits for its child advances if the child does.
    below = "" if has_ended or blocked else _below(process, now, children)
    # A process that is held or has ended makes no progress, and an overdue operation outweighs anything else that it
    # does.
    kept = motion.is_overdue(pending, around.stall_s)
    mine = "" if has_ended or blocked else motion.progress_between_looks(
        process, now, before, around, pending=kept, loop=loop,
    )  # fmt: skip
    progress = below or mine
    frame = now.frame or (before.frame if not now.frame else "")
    if blocked and (holder := _holder(process)):
        frame = holder
    if not frame and pending is not None:
        frame = stacks.user_frame(pending.frames)
    return Subject(
        key=process.key,
        process=process,
        rank=process.rank,
        doing=now,
        before=before,
        progress=progress,
        moved=bool(progress) and not below,
        blocked=blocked,
        ended=has_ended,
        pending=pending,
        observed=True,
        frame=frame,
        loop=loop,
    )


def _end_text(process: Process) -> str:
    """How a process ended, in words: by its own call of `os._exit`, its exit code, or its last word."""
    beat, code = process.beat, process.exit_code
    if beat is not None and beat.exit_status is not None:
        place = f" at {stacks.describe(beat.raised_at)}" if beat.raised_at is not None else ""
        return f"ended itself by os._exit({beat.exit_status}){place}"
    if code is not None:
        return f"ended with {exit_text(code)}"
    if is_silent(process):
        return "ended without a last word, as by a signal"
    return "ended in good order" if finished(process) else "ended"


def _at_device(process: Process) -> bool:
    """Whether the source line at which its main thread stands waits for a device."""
    inner = stacks.trail(process.threads, process.pid)[:1]
    return any(source.waits_for_device(Frame(*place)) for place in inner)


def ended(process: Process) -> bool:
    """Whether the process was over when it was last looked at."""
    return process.last_look.state in ENDED or process.exit_code is not None


def is_silent(process: Process) -> bool:
    """Whether a process with a probe is over, and neither it nor an exit code says how."""
    is_told = process.has_last_word or process.error or process.exit_code is not None
    return ended(process) and process.is_recorded and not is_told


def finished(process: Process) -> bool:
    """Whether it ended by its own last word, and nothing is known to have gone wrong."""
    return ended(process) and process.has_last_word and not process.exit_code and not process.error


def transition(process: Process) -> tuple[str, float]:
    """The engine transition that a process stands in by its open spans, and for how many seconds; ("", 0.0) without
    one."""
    open_transitions = [
        (span.name, span.age_s) for span in process.open_spans if TRANSITIONS.fullmatch(plain(span.name))
    ]
    return open_transitions[-1] if open_transitions else ("", 0.0)


def stale(process: Process) -> bool:
    """Whether its heartbeat has stopped although the process lives.

    False without a look at it: another host has another monotonic clock, so the age of its beat means nothing here.
    """
    beat = process.beat
    return beat is not None and bool(process.samples) and beat.age_s > max(STALE_S, STALE_PERIODS * beat.period_s)


def _blocked(process: Process) -> Blocked | None:
    return _stopped(process) or _in_kernel(process) or _interpreter_locked(process)


def _stopped(process: Process) -> Blocked | None:
    states = {sample.state for sample in process.samples}
    if states == {"T"}:
        return Blocked("stop", "stopped (SIGSTOP)")
    return Blocked("stop", "stopped by a tracer (gdb, strace)") if states == {"t"} else None


def _in_kernel(process: Process) -> Blocked | None:
    """It is in uninterruptible sleep at every one of several looks; None otherwise."""
    states = [sample.state for sample in process.samples]
    if len(states) < 2 or {*states} != {"D"} or _moves(process):
        return None
    wchan = process.last_look.wchan
    locked = ", with the interpreter lock held" if stale(process) else ""
    waits = f": waits for {words}" if (words := kernel_waits.words(wchan)) else ""
    return Blocked("sleep", f"in uninterruptible sleep (state D{', ' + wchan if wchan else ''}{waits}){locked}")


def _without_stack(process: Process) -> str:
    """What a process without a stack does: by its error, or by the kernel."""
    if process.error:
        return f"failed: {process.error}"
    words = wait_by_kernel(process)
    return f"waits for {words}, by the kernel" if words else "not known"


def wait_by_kernel(process: Process) -> str:
    """What a process waits for, in words, by the kernel function in which its main thread sleeps at both looks; empty
    if that tells nothing."""
    functions = {sample.wchan for sample in process.samples}
    return kernel_waits.words(functions.pop()) if len(functions) == 1 else ""


def _interpreter_locked(process: Process) -> Blocked | None:
    """Its heartbeat has stopped, and neither work nor a busy host explains that; None otherwise."""
    beat = process.beat
    holder = next((thread for thread in process.threads if thread.gil), None)
    kept = _keeps_lock(process)
    if beat is None or not (stale(process) or (kept and _asleep_with_lock(process, holder))):
        return None
    if (beat.age_s < BUSY_STALE_S and motion.holder_works(process)) or motion.starved(process):
        return None
    silence = f"no heartbeat for {beat.age_s:.0f} s"
    if holder is None:
        return Blocked("lock", f"{silence}: none of its threads gets the interpreter lock")
    who = f" by thread {holder.name or holder.tid}" if kept else ""
    return Blocked("lock", f"the interpreter lock is held{who}: {silence}")


def _keeps_lock(process: Process) -> bool:
    """Whether one thread holds the interpreter lock at every one of several looks."""
    holders = [{thread.tid or thread.name for thread in sample.threads if thread.gil} for sample in process.samples]
    return len(holders) > 1 and bool(set.intersection(*holders))


def _asleep_with_lock(process: Process, holder: Thread | None) -> bool:
    """Whether it sleeps while it holds the lock, at all looks. No heartbeat will come, so two periods without one
    are proof."""
    asleep = holder is not None and not holder.active and all(sample.state == "S" for sample in process.samples)
    return asleep and process.beat is not None and process.beat.age_s > 2 * process.beat.period_s


def _moves(process: Process) -> bool:
    """Whether it advances in uninterruptible sleep: reading a checkpoint by page faults shows state D at nearly
    every look."""
    now = stacks.doing(process)
    return bool(motion.moved_bytes(process, now)) or motion.works(process, now) or motion.stack_moved(process)


def _holder(process: Process) -> str:
    """The user's frame of the thread that holds the interpreter lock."""
    for sample in reversed(process.samples):
        for thread in sample.threads:
            if thread.gil and (frame := stacks.user_frame(thread.frames)):
                return frame
    return ""


def _below(process: Process, now: stacks.Doing, children: Mapping[str, tuple[Process, ...]], depth: int = 0) -> str:
    """What a child does, in words, while its parent stands where it may wait for it; empty if nothing moves."""
    if depth >= 4 or not _may_wait_for_child(now):
        return ""
    for child in children.get(process.key, ()):
        if ended(child) or child.rank is not None:
            continue  # the progress of a rank is not that of its parent
        its = stacks.doing(child)
        own_progress = motion.progress_between_looks(child, its, stacks.doing(child, 0), pending=False)
        if deeper := _below(child, its, children, depth + 1):
            return deeper
        if own_progress:
            return f"its child {child.pid} ({_name(child)}) works, {own_progress}"
    return ""


def _may_wait_for_child(now: stacks.Doing) -> bool:
    if now.within("join", "compile", "user", "unknown", "lock"):
        return True
    # A pipe, a queue or a socket may lead to a child, but not in a loop that waits for requests.
    return now.kind in ("select", "queue") and not (IDLE - {"queue"}) & set(now.around)


def _name(process: Process) -> str:
    return process.title or process.command.split(" ", 1)[0].rsplit("/", 1)[-1] or "no name"


@lru_cache(maxsize=1_024)  # the processes of a job have few command lines
def _program(command: str) -> str:
    """What a command line runs: "cat", or the script of an interpreter; empty if that cannot be told."""
    words = command.split()
    if not words or words[0].startswith("[") or "::" in words[0]:  # a title
        return ""
    program = words[0].rsplit("/", 1)[-1]
    script = next((word for word in words[1:4] if not word.startswith("-")), "")
    return script.rsplit("/", 1)[-1] if program.startswith("python") and script.endswith(".py") else program


def exit_text(code: int) -> str:
    """An exit code as Python has it in words: "signal 9 (SIGKILL)", "exit code 1"."""
    if code >= 0:
        return f"exit code {code}"
    name = next((f" ({each.name})" for each in signal.Signals if each == -code), "")
    return f"signal {-code}{name}"
