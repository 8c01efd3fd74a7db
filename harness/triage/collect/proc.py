"""What the kernel says about a process: /proc, read from outside, whatever state the process is in. Linux only.

Fields are those of proc(5). A process of another user shows its state and command line, but not its environment, its
I/O or its kernel stack. Notes say so.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from harness.triage.collect import channels, connections, futexes, redact, traffic
from harness.triage.collect.connections import PROC

TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
STDERR = 2  # the descriptor of standard error
OTHER_USER = "it belongs to another user: run harness as that user or as root"
MOST_WALKED_KB = 32 << 20  # resident memory; a walk through the page table of 32 GiB holds its lock for about 0.1 s
MORE_RIGHTS = "it has more rights than harness: run harness as root; a container needs --cap-add SYS_PTRACE"


# Names (of 15 characters) that CUDA, NCCL and torch give to their own threads, which poll and do no work of a step.
_SERVICE = re.compile(r"NCCL|ncclProxy|pt_nccl|cuda[-0]|pt_tcpstore")
# What others send so that a program does something. Left out is what Python and faulthandler handle by themselves.
_AWAITED = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGTERM)
_KERNEL_THREAD = 0x00200000  # PF_KTHREAD of linux/sched.h


class Spent(NamedTuple):
    """What one thread has used so far, and its state.

    CPU seconds; bytes of I/O, None if they may not be read; seconds in which it was runnable without a processor, None
    if the kernel does not count them. `service`: a thread of CUDA, NCCL or torch itself.
    """

    cpu_s: float
    io_bytes: int | None
    delay_s: float | None = None
    state: str = ""
    service: bool = False


@dataclass(frozen=True)
class Look:
    """One look at a process: the figures of an evidence.Sample, without its time and its Python threads."""

    state: str
    cpu_s: float = 0.0
    switches: int = 0
    io_bytes: int = 0
    wchan: str = ""
    net_bytes: int = 0
    start_ticks: int = 0  # since boot
    threads: dict[int, Spent] = field(default_factory=dict)  # by tid
    quiet_s: float | None = None
    main_switches: int | None = None
    reading: channels.Reading = channels.NOT_READING
    writing: channels.Writing = channels.NOT_WRITING
    locked_alone: bool = False
    locked_together: bool = False
    in_shared_lock: bool = False
    alone: bool = False
    opens: str = ""
    loop: tuple[str, ...] = ()
    timed: bool = False
    sleeps_s: float | None = None
    handles: tuple[str, ...] = ()
    polled: tuple[str, ...] = ()
    reads_from: str = ""
    heard: tuple[tuple[str, float], ...] = ()
    owed: tuple[str, ...] = ()
    unread: traffic.Unread = traffic.NOTHING_UNREAD
    exit_code: int | None = None  # of a zombie
    awaited_child: int = 0


@dataclass(frozen=True)
class Facts:
    """What does not change while a process is watched. `environ` is filtered by redact.variables."""

    pid: int
    ppid: int = 0
    argv: tuple[str, ...] = ()
    command: str = ""
    comm: str = ""
    title: str = ""  # if the process replaced its command line: sglang::scheduler, ray::Actor.step
    environ: dict[str, str] = field(default_factory=dict)
    age_s: float = 0.0
    exit_code: int | None = None  # of a zombie
    start_ticks: int = 0  # since boot
    forked: bool = False  # it runs the program of its parent, which it never replaced
    notes: tuple[str, ...] = ()


def look(pid: int, store: Collection[int] = (), beat: int = 0) -> Look:
    """State, CPU seconds, voluntary switches, bytes and kernel function of a process now; state "gone" if it does not
    exist.

    Each of its threads takes 80 µs. `store`: ports of its rendezvous store, which NCCL's monitor asks once a second.
    Their traffic is no sign of work. `beat`: thread id of its heartbeat.
    """
    stat = _stat(pid)
    if stat is None:
        return Look("gone")
    cpu = (int(stat[11]) + int(stat[12])) / TICKS  # utime and stime: fields 14 and 15 of proc(5); index 0 is field 3
    sockets = connections.inodes(pid)
    total, quiet_s = traffic.of(sockets, store)
    switches, waits = futexes.switches(pid), channels.waiting(pid)
    reading, locked = channels.reading(pid), futexes.locked_threads(pid, switches, beat)
    ends = traffic.peers({link[8:-1] for link in (*waits.polled, reading.link) if link.startswith("socket:[")})
    return Look(
        state=stat[0],
        cpu_s=cpu,
        switches=sum(switches.values()),
        io_bytes=_io(pid),
        wchan=wchan(pid, pid),
        net_bytes=total,
        start_ticks=int(stat[19]),
        threads=_threads(pid),
        quiet_s=quiet_s,
        main_switches=switches.get(pid),
        reading=reading,
        writing=channels.writing(pid),
        locked_alone=locked == 1,
        locked_together=locked > 1,
        in_shared_lock=futexes.in_shared_lock(pid),
        alone=futexes.single(pid, beat),
        opens=channels.opening(pid),
        loop=channels.looping(pid, beat),
        timed=waits.timed,
        sleeps_s=waits.sleeps_s,
        handles=_handles(pid),
        polled=tuple(ends.get(link[8:-1], link) for link in waits.polled),
        reads_from=ends.get(reading.link[8:-1], ""),
        heard=_heard(sockets),
        owed=traffic.owed(sockets)[: connections.MAX_SHOWN],
        unread=traffic.unread(sockets),
        exit_code=_exit_code(stat),
        awaited_child=waits.child,
    )


def _handles(pid: int) -> tuple[str, ...]:
    """The signals of _AWAITED for which a process has a handler (SigCgt of proc_pid_status(5))."""
    caught = re.search(r"^SigCgt:\s+([0-9a-f]+)$", _read(pid, "status"), re.MULTILINE)
    mask = int(caught[1], 16) if caught else 0
    return tuple(each.name for each in _AWAITED if mask >> (each - 1) & 1)


def _exit_code(stat: list[str]) -> int | None:
    """The exit code of a zombie, a signal as a negative number; None of a process that has not ended."""
    if stat[0] != "Z":
        return None
    status = int(stat[49])  # exit_code, field 52
    return -(status & 0x7F) if status & 0x7F else status >> 8


def _heard(sockets: set[str]) -> tuple[tuple[str, float], ...]:
    return tuple(sorted(traffic.heard(sockets).items())[: connections.MAX_SHOWN])


def facts(pid: int) -> Facts:
    """Everything about a process that does not change; for a process that is gone, only a note."""
    stat = _stat(pid)
    if stat is None:
        return Facts(pid, notes=(f"process {pid} is gone: it ended before it could be looked at",))
    notes = []
    argv = tuple(argument for argument in _read(pid, "cmdline").rstrip("\0 ").split("\0") if argument)
    name = comm(pid)
    title = argv[0] if argv and "::" in argv[0] else ""
    environ: dict[str, str] = {}
    try:
        raw = (PROC / str(pid) / "environ").read_bytes().decode(errors="replace")
        environ = redact.variables(
            dict(assignment.split("=", 1) for assignment in raw.split("\0") if "=" in assignment)
        )
    except PermissionError:
        notes.append(f"its environment cannot be read: {_whose(pid)}")
    except OSError:
        pass  # it ended meanwhile, and the samples say so
    if stat[0] == "Z":
        notes.append("it has ended and its parent has not collected it (a zombie)")
    return Facts(
        pid=pid,
        ppid=int(stat[1]),
        argv=argv,
        command=redact.command(argv) or f"[{name}]",
        comm=name,
        title=redact.text(title, 200),
        environ=environ,
        age_s=max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - int(stat[19]) / TICKS),
        exit_code=_exit_code(stat),
        start_ticks=int(stat[19]),
        forked=forked(pid, int(stat[1])),
        notes=tuple(notes),
    )


def _whose(pid: int) -> str:
    """Why the kernel does not let harness read it. A process of the same user has capabilities that harness lacks."""
    uids = next((line.split()[1:] for line in _read(pid, "status").splitlines() if line.startswith("Uid:")), [])
    return MORE_RIGHTS if set(uids) == {str(os.geteuid())} else OTHER_USER


def born(pid: int) -> tuple[int, float]:
    """When a process was started: (ticks since boot, seconds ago); (0, 0.0) if it is gone."""
    stat = _stat(pid)
    if stat is None:
        return 0, 0.0
    return int(stat[19]), max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - int(stat[19]) / TICKS)


def parents() -> dict[int, int]:
    """Pid -> parent pid of every visible process."""
    table = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit() and (stat := _stat(int(entry.name))):
            table[int(entry.name)] = int(stat[1])
    return table


def descendants(roots: tuple[int, ...], table: dict[int, int]) -> list[int]:
    """The roots and every process below them, oldest generation first, each once."""
    children: dict[int, list[int]] = {}
    for pid, parent in sorted(table.items()):
        children.setdefault(parent, []).append(pid)
    pids, queue = dict.fromkeys(roots), deque(roots)
    while queue:
        below = [pid for pid in children.get(queue.popleft(), []) if pid not in pids]
        pids |= dict.fromkeys(below)
        queue += below
    return list(pids)


def alive(pid: int) -> bool:
    """Whether it exists and is not a zombie."""
    stat = _stat(pid)
    return stat is not None and stat[0] not in ("Z", "X")


def started_wall_s(pid: int) -> float | None:
    """Unix time at which a process began; None if it is gone."""
    stat = _stat(pid)
    if stat is None:
        return None
    return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - int(stat[19]) / TICKS)


def environment(pid: int) -> dict[str, str]:
    """The environment unscrubbed: to decide to what a process belongs, never to be written down. Empty if it may not be
    read."""
    assignments = (text.split("=", 1) for text in _read(pid, "environ").split("\0") if "=" in text)
    return dict(assignments)


def process_group(pid: int) -> int:
    """The process group of a process: a shell gives one to each command line. 0 if it is gone."""
    stat = _stat(pid)
    return int(stat[2]) if stat is not None else 0


def forked(pid: int, parent: int) -> bool:
    """Whether a process was forked and never executed another program. Its auxiliary vector, which holds random
    addresses, is then that of its parent."""
    try:
        mine, theirs = ((PROC / str(each) / "auxv").read_bytes() for each in (pid, parent))
    except OSError:  # it ended, or it is another user's
        return False
    return bool(mine.strip(b"\0")) and mine == theirs


def arguments(pid: int) -> tuple[str, ...]:
    """The command line unscrubbed: to decide what a process is, never to be written down."""
    return tuple(argument for argument in _read(pid, "cmdline").rstrip("\0 ").split("\0") if argument)


def of_kernel(pid: int) -> bool:
    """Whether it is a thread of the kernel, which /proc lists like a process."""
    stat = _stat(pid)
    return stat is not None and bool(int(stat[6]) & _KERNEL_THREAD)  # flags, field 9


def comm(pid: int) -> str:
    """The name of a process's program, of at most 15 characters; empty if it is gone."""
    return _read(pid, "comm").strip()


def shared_memory(pid: int) -> set[str]:
    """The named files of shared memory that a process has mapped; empty if it may not be inspected."""
    return set(re.findall(r"^.* (/dev/shm/(?!sem\.)\S+)$", _read(pid, "maps"), re.MULTILINE))


def touched_memory(pid: int, names: Collection[str], seconds: float) -> tuple[str, ...]:
    """Those of these mapped files of shared memory that a process itself reads or writes within `seconds`.

    The kernel marks a page in the process's own page table when it is accessed. Only the marks of mapped files are
    cleared first (`3` in /proc/PID/clear_refs); the memory itself stays as it is. Empty if the process may not be
    inspected, is so large that its table takes long to walk, or its kernel keeps no such marks.
    """
    resident = re.search(r"^VmRSS:\s+(\d+) kB", _read(pid, "status"), re.MULTILINE)
    if resident is None or int(resident[1]) > MOST_WALKED_KB:
        return ()
    try:
        (PROC / str(pid) / "clear_refs").write_text("3")
    except OSError:  # it ended, it is another user's, or the kernel was built without
        return ()
    time.sleep(seconds)
    referenced = re.compile(r"^[0-9a-f]+-[0-9a-f]+ .* (/dev/shm/\S+)\n(?:[A-Z].*\n)*?Referenced: +[1-9]", re.MULTILINE)
    return tuple(sorted({match[1] for match in referenced.finditer(_read(pid, "smaps"))} & set(names)))


def _stat(pid: int, name: str = "stat") -> list[str] | None:
    """Fields of /proc/PID/stat from the state on (index 0 is field 3); None if there is no such process."""
    text = _read(pid, name)
    return text.rpartition(")")[2].split() if text else None


def _read(pid: int, name: str) -> str:
    try:
        return (PROC / str(pid) / name).read_text(errors="replace")
    except OSError:  # it ended, or it is another user's: the caller's other fields tell which
        return ""


def _threads(pid: int) -> dict[int, Spent]:
    spent_by_tid: dict[int, Spent] = {}
    with contextlib.suppress(OSError):  # it ended meanwhile
        for task in (PROC / str(pid) / "task").iterdir():
            name, _, stat_tail = _read(pid, f"task/{task.name}/stat").rpartition(")")
            if fields := stat_tail.split():
                service = bool(_SERVICE.match(name.partition("(")[2]))
                cpu_s, io_bytes = (int(fields[11]) + int(fields[12])) / TICKS, _io(pid, f"task/{task.name}/io")
                spent_by_tid[int(task.name)] = Spent(cpu_s, io_bytes, delay_s(pid, int(task.name)), fields[0], service)
    return spent_by_tid


def wchan(pid: int, tid: int) -> str:
    """The kernel function in which a thread sleeps; empty if it runs or may not be inspected."""
    return _read(pid, f"task/{tid}/wchan").strip("0 \n")


def delay_s(pid: int, tid: int) -> float | None:
    """Seconds in which a thread was runnable without a processor so far; None if the kernel does not count them."""
    words = _read(pid, f"task/{tid}/schedstat").split()
    return int(words[1]) / 1e9 if len(words) > 1 and words[1].isdigit() else None


def outer_tids(pid: int) -> dict[int, int]:
    """Thread id in the pid namespace of a process, such as a container's -> thread id here; empty if they are the
    same."""
    tids: dict[int, int] = {}
    with contextlib.suppress(OSError):  # it ended meanwhile
        for task in (PROC / str(pid) / "task").iterdir():
            line = next((line for line in _read(pid, f"task/{task.name}/status").splitlines()
                         if line.startswith("NSpid:")), "")  # fmt: skip
            if len(numbers := line.split()[1:]) > 1:
                tids[int(numbers[-1])] = int(task.name)
    return tids


def is_running(pid: int, tid: int) -> bool:
    """Whether a thread is on a processor or waits for one."""
    fields = _stat(pid, f"task/{tid}/stat")
    return fields is not None and fields[0] == "R"


def main_cpu_s(pid: int) -> float | None:
    """CPU seconds of the main thread of a process; None if it is gone."""
    fields = _stat(pid, f"task/{pid}/stat")
    return None if fields is None else (int(fields[11]) + int(fields[12])) / TICKS


def _io(pid: int, name: str = "io") -> int:
    """Bytes through read(2) and write(2), cached ones and pipes included, plus those that storage moved for the
    process.

    Both are needed: a page fault is no read(2), and a write(2) counts only once it returns. 0 for another user's
    process.
    """
    counters = dict(line.split(": ", 1) for line in _read(pid, name).splitlines() if ": " in line)
    return sum(int(counters.get(key, 0)) for key in ("rchar", "wchar", "read_bytes", "write_bytes"))
