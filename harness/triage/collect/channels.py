"""Which process is at the other end of the pipe or socket that a process reads from or writes to.

/proc/PID/syscall names the descriptor of a thread's blocking call. Both ends of a pipe have the same inode. The other
end of a Unix socket is found with sock_diag(7), that of a TCP connection within the host in the socket tables. A call
that waits for several descriptors at once (poll, epoll) names none of them, and is not read here.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import re
import socket
import struct
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from harness.triage.collect.connections import PROC, Sockets
from harness.triage.collect.traffic import BY_FAMILY, DONE, DUMP, ERROR, HEADER, SOCK_DIAG

# read, readv, recvfrom and recvmsg: arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h
_READS = {"x86_64": (0, 19, 45, 47), "aarch64": (63, 65, 207, 212)}.get(platform.machine(), ())
# write, writev, sendto and sendmsg
_WRITES = {"x86_64": ("1", "20", "44", "46"), "aarch64": ("64", "66", "206", "211")}.get(platform.machine(), ())
# Calls that return early, with a part done or with EINTR, once the process was stopped and continued (signal(7)); all
# others go on as if nothing had been. Not here is epoll_wait: what calls it takes EINTR for no event and calls again.
_CUT_SHORT = {
    "x86_64": {1: "write", 20: "writev", 18: "pwrite", 296: "pwritev", 44: "sendto", 46: "sendmsg", 307: "sendmmsg",
               299: "recvmmsg", 40: "sendfile", 275: "splice", 276: "tee", 278: "vmsplice", 326: "copy_file_range",
               65: "semop", 220: "semtimedop", 69: "msgsnd", 70: "msgrcv", 128: "rt_sigtimedwait",
               208: "io_getevents", 333: "io_pgetevents", 426: "io_uring_enter"},
    "aarch64": {64: "write", 66: "writev", 68: "pwrite", 70: "pwritev", 206: "sendto", 211: "sendmsg", 269: "sendmmsg",
                243: "recvmmsg", 71: "sendfile", 76: "splice", 77: "tee", 75: "vmsplice", 285: "copy_file_range",
                193: "semop", 192: "semtimedop", 189: "msgsnd", 188: "msgrcv", 137: "rt_sigtimedwait",
                4: "io_getevents", 292: "io_pgetevents", 426: "io_uring_enter"},
}.get(platform.machine(), {})  # fmt: skip
# Calls that receive -> the position of their flags. With MSG_WAITALL they wait for the rest of what came in part.
_RECEIVES = {"x86_64": {45: 3, 47: 2}, "aarch64": {207: 3, 212: 2}}.get(platform.machine(), {})  # recvfrom, recvmsg
# Kernel functions in which a thread waits for room in a pipe or a Unix socket.
_FULL = re.compile("pipe_write|sock_alloc_send|sock_wait_for_wmem")
# Calls that wait -> the position of the argument that limits the wait. It is a pointer (0: no limit) or, for
# _MILLISECONDS, a number of milliseconds (-1: no limit).
_TIMEOUT_AT = {
    "x86_64": {202: 3, 7: 2, 271: 2, 23: 4, 270: 4, 232: 3, 281: 3, 441: 3, 220: 3, 242: 4, 243: 4},
    "aarch64": {98: 3, 73: 2, 72: 4, 22: 3, 441: 3, 192: 3, 182: 4, 183: 4},
}.get(
    platform.machine(), {}
)  # futex, poll, ppoll, select, pselect6, epoll_wait, epoll_pwait, epoll_pwait2, semtimedop,
# mq_timedsend, mq_timedreceive
_EPOLLS = {"x86_64": (232, 281), "aarch64": (22,)}.get(platform.machine(), ())  # epoll_wait, epoll_pwait
# A wait this long is no pause: NCCL's default timeout in torch, after which those who wait fail.
LONG_MS = 600_000
_SLEEP = {"x86_64": 35, "aarch64": 101}.get(platform.machine(), -1)  # nanosleep
_CLOCK_SLEEP = {"x86_64": 230, "aarch64": 115}.get(platform.machine(), -1)  # clock_nanosleep
_MILLISECONDS = {"x86_64": (7, 232, 281), "aarch64": (22,)}.get(platform.machine(), ())
# restart_syscall(2): how a poll, and a sleep or a futex with a limit, goes on after its process was stopped and
# continued, as py-spy does it. Its arguments are those of the call that it goes on with.
_RESTARTED = {"x86_64": 219, "aarch64": 128}.get(platform.machine(), -1)
_WAIT4 = {"x86_64": 61, "aarch64": 260}.get(platform.machine(), -1)
FIRST_NEGATIVE = 1 << 31  # of a pid as an argument: -1 is any child
_PIDFD_GETFD = 438  # of include/uapi/asm-generic/unistd.h, on every architecture
_ENDS = ("pipe:[", "socket:[")  # links of /proc/PID/fd
_WATCHED = re.compile(r"^tfd:\s+(\d+)", re.MULTILINE)  # a descriptor that an epoll watches, in its fdinfo
_TIMER_LEFT = re.compile(r"^it_value: \((\d+), (\d+)\)", re.MULTILINE)  # of a timerfd, in its fdinfo
_POLLS = {"x86_64": (7, 271), "aarch64": (73,)}.get(platform.machine(), ())
# open and openat -> the position of the path. AT_FDCWD of linux/fcntl.h: relative to the current folder.
_OPENS = {"x86_64": {2: 1, 257: 2}, "aarch64": {56: 2}}.get(platform.machine(), {})
AT_FDCWD, MAX_PATH = 0xFFFFFF9C, 4096
_SERVER = "pt_workerserver"  # name of the threads of torch's worker server
MAX_POLLED = 64  # descriptors of one poll that are read
SHOW_PEER, PEER = 4, 2  # UDIAG_SHOW_PEER, UNIX_DIAG_PEER of linux/unix_diag.h
MESSAGE = 16  # size of struct unix_diag_msg, whose inode is its second word


class Reading(NamedTuple):
    """The pipe or socket from which a thread waits to read, as "pipe:[7]", and whether that wait has no time limit."""

    link: str = ""
    unlimited: bool = False


NOT_READING = Reading()


def reading(pid: int) -> Reading:
    """What the main thread waits to read from; NOT_READING if it does something else or may not be inspected.

    A poll for one socket alone is such a wait: Python's sockets with a timeout poll before they read.
    """
    try:
        call, arguments = _call(pid)
        if call in _READS:
            link = os.readlink(PROC / str(pid) / "fd" / str(arguments[0]))
            return Reading(link, _never_gives_up(pid, arguments[0], link)) if link.startswith(_ENDS) else NOT_READING
        if call in _POLLS and arguments[1] == 1:
            link = "".join(_polled(pid, arguments[0], 1))
            timed = _has_limit(call, arguments)
            return Reading(link, unlimited=not timed) if link.startswith("socket:[") else NOT_READING
    except (OSError, ValueError):  # it ended, it runs, or it is another user's
        pass
    return NOT_READING


def _call(pid: int) -> tuple[int, list[int]]:
    """The number and the arguments of the system call in which the main thread waits. Raises ValueError if it runs, or
    is in none."""
    words = (PROC / str(pid) / "syscall").read_text().split()
    if len(words) < 7:
        raise ValueError("it runs")
    call = int(words[0])
    if call == _RESTARTED and _POLLS and "poll" in (PROC / str(pid) / "wchan").read_text():
        call = _POLLS[0]
    return call, [int(word, 16) for word in words[1:7]]


def _has_limit(call: int, arguments: Sequence[int]) -> bool:
    """Whether a call of _TIMEOUT_AT waits for a limited time."""
    limit = arguments[_TIMEOUT_AT[call]]
    return limit & 0xFFFFFFFF != 0xFFFFFFFF if call in _MILLISECONDS else bool(limit)


def _never_gives_up(pid: int, descriptor: int, link: str) -> bool:
    """Whether a read waits for ever: from a pipe it does, from a socket unless SO_RCVTIMEO limits it, which no table of
    the kernel shows. A copy of the socket's descriptor is asked for it (pidfd_getfd(2), Linux 5.6)."""
    if link.startswith("pipe:["):
        return True
    try:
        process = os.pidfd_open(pid)
    except (OSError, AttributeError):
        return False
    try:
        copy = ctypes.CDLL(None, use_errno=True).syscall(_PIDFD_GETFD, process, descriptor, 0)
        if copy < 0:  # the kernel is older, or a sandbox forbids it
            return False
        with socket.socket(fileno=copy) as end:
            return not any(end.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, 16))
    except OSError:
        return False
    finally:
        os.close(process)


class Waiting(NamedTuple):
    """How a thread waits in its system call.

    `timed`: the wait has a time limit, as a sleep does. `polled`: links of the descriptors of a poll, as "socket:[7]".
    `sleeps_s`: seconds that a sleep still lasts, at most; None for another wait. `child`: the one for whose end it
    waits in wait4(2); 0 for any or none.
    """

    timed: bool = False
    polled: tuple[str, ...] = ()
    sleeps_s: float | None = None
    child: int = 0


def waiting(pid: int) -> Waiting:
    """How the main thread of a process waits; `Waiting()` if it runs or may not be inspected."""
    try:
        call, arguments = _call(pid)
        if call == _RESTARTED:
            return Waiting(timed=True)  # calls other than a poll go on so only if they have a limit
        if call == _SLEEP:
            return Waiting(timed=True, sleeps_s=_sleeps_s(pid, 0, 0, arguments[0]))
        if call == _CLOCK_SLEEP:
            return Waiting(timed=True, sleeps_s=_sleeps_s(pid, *arguments[:3]))
        if call in _READS and (left_s := _timer_s(pid, arguments[0])) is not None:
            return Waiting(timed=True, sleeps_s=left_s)
        if call == _WAIT4:
            child = arguments[0] & 0xFFFFFFFF
            return Waiting(child=child if child < FIRST_NEGATIVE else 0)
        if call not in _TIMEOUT_AT:
            return Waiting()
        if call in _EPOLLS and not _has_limit(call, arguments) and (timers := _timers_s(pid, arguments[0])):
            return Waiting(timed=True, sleeps_s=min(timers))
        return Waiting(_has_limit(call, arguments), _polled(pid, arguments[0], arguments[1]) if call in _POLLS else ())
    except (OSError, ValueError):  # it ended, or it is another user's
        return Waiting()


def _timer_s(pid: int, descriptor: int) -> float | None:
    """Seconds until the timer goes off that a read waits for, by the kernel's fdinfo (proc(5)); None if the descriptor
    is no timer, or one that is not set."""
    if os.readlink(PROC / str(pid) / "fd" / str(descriptor)) != "anon_inode:[timerfd]":
        return None
    left = _TIMER_LEFT.search((PROC / str(pid) / "fdinfo" / str(descriptor)).read_text())
    return (int(left[1]) + int(left[2]) / 1e9 or None) if left else None


def _timers_s(pid: int, epoll: int) -> list[float]:
    """Seconds until each set timer goes off that an epoll watches: so C++ event loops, such as Asio's, keep time."""
    watched = _WATCHED.findall((PROC / str(pid) / "fdinfo" / str(epoll)).read_text())[:MAX_POLLED]
    return [left_s for number in watched if (left_s := _timer_s(pid, int(number))) is not None]


def _sleeps_s(pid: int, clock: int, absolute: int, address: int) -> float | None:
    """Seconds that a sleep still lasts, at most, by the arguments of clock_nanosleep(2): the clock, whether the time is
    absolute, and the address of the time; None if its memory cannot be read."""
    try:
        seconds, nanoseconds = struct.unpack("=qq", _memory(pid, address, 16))
        ends_s = float(seconds + nanoseconds / 1e9)
        return max(0.0, ends_s - (time.clock_gettime(clock) if absolute else 0.0))
    except (OSError, OverflowError, struct.error):
        return None


def _memory(pid: int, address: int, size: int) -> bytes:
    with open(PROC / str(pid) / "mem", "rb", buffering=0) as memory:
        memory.seek(address)
        return memory.read(size)


def _polled(pid: int, address: int, count: int) -> tuple[str, ...]:
    """Links of the descriptors of a poll, read from the memory of the process that called it."""
    data = _memory(pid, address, 8 * min(count, MAX_POLLED))
    numbers = [number for number, _, _ in struct.iter_unpack("=ihh", data[: len(data) // 8 * 8])]
    links = (os.readlink(PROC / str(pid) / "fd" / str(number)) for number in numbers if number >= 0)
    return tuple("file" if link.startswith("/") else link for link in links)


def opening(pid: int) -> str:
    """The named pipe that the main thread waits to open, as a path: the kernel lets it wait until somebody opens the
    other end. Empty if it does something else or may not be inspected."""
    try:
        if "wait_for_partner" not in (PROC / str(pid) / "wchan").read_text():
            return ""
        words = (PROC / str(pid) / "syscall").read_text().split()
        at = _OPENS.get(int(words[0]))
        if at is None:
            return ""
        path = _memory(pid, int(words[at], 16), MAX_PATH).partition(b"\0")[0].decode(errors="replace")
        folder = PROC / str(pid) / "cwd"
        if at == 2 and int(words[1], 16) & 0xFFFFFFFF != AT_FDCWD:
            folder = PROC / str(pid) / "fd" / str(int(words[1], 16))
        return os.path.normpath(os.path.join(os.readlink(folder), path))
    except (OSError, ValueError, IndexError):  # it ended, or it is another user's
        return ""


def looping(pid: int, beat: int = 0) -> tuple[str, ...]:
    """Links of the descriptors for which the only thread of a process, beside its heartbeat's, waits in epoll for
    LONG_MS at least, as an event loop without a timer does; empty if it does something else.

    `beat`: thread id of the heartbeat.
    """
    try:
        words = (PROC / str(pid) / "syscall").read_text().split()
        if len(words) < 7 or int(words[0]) not in _EPOLLS or int(words[4], 16) & 0xFFFFFFFF < LONG_MS:
            return ()
        if any(side_tids(pid, beat)):
            return ()
        info = (PROC / str(pid) / "fdinfo" / str(int(words[1], 16))).read_text()
        return tuple(os.readlink(PROC / str(pid) / "fd" / number) for number in _WATCHED.findall(info))
    except (OSError, ValueError):  # it ended, or it is another user's
        return ()


class Writing(NamedTuple):
    """A full pipe or Unix socket to which a thread waits to write: its link, "pipe:[7]", and the number of its
    descriptor."""

    link: str = ""
    descriptor: int = -1


NOT_WRITING = Writing()


def writing(pid: int) -> Writing:
    """The full pipe or Unix socket to which a thread of a process waits to write; NOT_WRITING if there is none."""
    with contextlib.suppress(OSError):  # it ended, or it is another user's
        for tid in os.listdir(PROC / str(pid) / "task"):
            task = PROC / str(pid) / "task" / tid
            if not _FULL.search((task / "wchan").read_text()):
                continue
            words = (task / "syscall").read_text().split()
            if len(words) > 1 and words[0] in _WRITES:
                descriptor = int(words[1], 16)
                link = os.readlink(PROC / str(pid) / "fd" / str(descriptor))
                return Writing(link, descriptor) if link.startswith(_ENDS) else NOT_WRITING
    return NOT_WRITING


def cut_short(pid: int) -> str:
    """The call of a thread of a process that a stop of the process would end early, such as "write"; empty if it is in
    none, or may not be inspected."""
    with contextlib.suppress(OSError):  # it ended, or it is another user's
        for tid in os.listdir(PROC / str(pid) / "task"):
            with contextlib.suppress(OSError, ValueError):  # the thread ended, or it runs
                words = (PROC / str(pid) / "task" / tid / "syscall").read_text().split()
                call = int(words[0]) if words else -1
                if call in _CUT_SHORT:
                    return _CUT_SHORT[call]
                if (at := _RECEIVES.get(call)) is not None and int(words[1 + at], 16) & socket.MSG_WAITALL:
                    return "recv with MSG_WAITALL"
    return ""


def side_tids(pid: int, beat: int) -> Iterator[int]:
    """The threads of a process beside its main one, its heartbeat's and torch's worker server. Each costs a read."""
    beside = {*os.listdir(PROC / str(pid) / "task")} - {str(pid), str(beat)}
    return (int(tid) for tid in beside if (PROC / str(pid) / "task" / tid / "comm").read_text().strip() != _SERVER)


def readers(written: Mapping[int, str], sockets: Sockets) -> dict[int, set[int]]:
    """Writer -> the other processes of this host that can read what it writes. `written`: pid -> the result of
    `writing`."""
    holding = _at_other_end(written, sockets, besides=os.O_WRONLY)
    return {pid: its - {pid} for pid, its in holding.items()}


def writers(read: Mapping[int, str], sockets: Sockets) -> dict[int, int]:
    """Reader -> the one process of this host that can write what it reads.

    Left out if several processes can, if the reader itself can, or if none is known. `read`: pid -> link of `reading`.
    """
    return alone(feeders(read, sockets))


def alone(feeding: Mapping[int, Collection[int]]) -> dict[int, int]:
    """Reader -> its only possible writer, for readers with exactly one that is not the reader itself."""
    return {pid: next(iter(its)) for pid, its in feeding.items() if len(its) == 1 and pid not in its}


def feeders(read: Mapping[int, str], sockets: Sockets) -> dict[int, set[int]]:
    """Reader -> all processes of this host that can write what it reads, itself included."""
    return _at_other_end(read, sockets, besides=os.O_RDONLY)


def common_feeders(polled: Mapping[int, Sequence[str]]) -> dict[int, set[int]]:
    """Reader -> all processes of this host that can write to the pipes for which it polls, itself included; without
    those of which the pipes have different writers. `polled`: pid -> links of pipes."""
    holders: dict[str, set[int]] = {link: set() for links in polled.values() for link in links}
    for pid, link in _holders(set(holders), os.O_RDONLY):
        holders[link].add(pid)
    return {
        pid: holders[links[0]]
        for pid, links in polled.items()
        if all(holders[link] == holders[links[0]] for link in links)
    }


def _at_other_end(links: Mapping[int, str], sockets: Sockets, *, besides: int) -> dict[int, set[int]]:
    """Process -> those of this host that have the other end of its pipe or socket open in a mode other than
    `besides`; without those of which the other end is not known."""
    unix = _unix_peers() if any(link.startswith("socket:") for link in links.values()) else {}
    ends = {pid: end for pid, link in links.items() if (end := _other_end(pid, link, unix, sockets))}
    holders: dict[str, set[int]] = {end: set() for end in ends.values()}
    for pid, link in _holders(set(holders), besides):
        holders[link].add(pid)
    return {pid: holders[end] for pid, end in ends.items()}


def wakers(loops: Mapping[int, Collection[str]], sockets: Sockets) -> dict[int, set[int]]:
    """Process in an event loop -> the other processes of this host whose data can wake it.

    Left out if it is not known who has the other end of a descriptor. Who may still connect is not counted. `loops`:
    pid -> the result of `looping`.
    """
    unix = _unix_peers() if loops else {}
    ends: dict[int, set[str]] = {}
    for pid, links in loops.items():
        connected = [link for link in links if not sockets.listens(pid, link[8:-1])]
        its = {_other_end(pid, link, unix, sockets) for link in connected}
        if "" not in its:
            ends[pid] = its
    holders: dict[str, set[int]] = {end: set() for its in ends.values() for end in its}
    for pid, link in _holders(set(holders), os.O_RDONLY):
        holders[link].add(pid)
    return {
        pid: {holder for end in its for holder in holders[end]} - {pid}
        for pid, its in ends.items()
        if all(holders[end] for end in its)  # nobody has accepted it, or another user's process has it
    }


def _other_end(pid: int, link: str, unix: Mapping[str, str], sockets: Sockets) -> str:
    """The link of the other end of a pipe or socket that a process has open; empty if it is not known."""
    if link.startswith("pipe:["):
        return link  # both ends have one inode
    inode = link.partition("[")[2].rstrip("]")
    peer = unix.get(inode) or sockets.other_end(pid, inode) if link.startswith("socket:[") else ""
    return f"socket:[{peer}]" if peer else ""


def _holders(wanted: set[str], besides: int) -> Iterator[tuple[int, str]]:
    """Yield (pid, link) of each process of this host that has one of `wanted` open in a mode other than `besides`
    (O_RDONLY or O_WRONLY)."""
    for name in os.listdir(PROC) if wanted else ():
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError):  # it ended, or it is another user's
            for number in os.listdir(PROC / name / "fd"):
                with contextlib.suppress(OSError):  # closed meanwhile
                    link = os.readlink(f"{PROC}/{name}/fd/{number}")
                    if link in wanted and _mode(f"{PROC}/{name}/fdinfo/{number}") != besides:
                        yield int(name), link


def _mode(info: str) -> int:
    with open(info) as lines:
        flags = next((line.split()[1] for line in lines if line.startswith("flags:")), "0")
    return int(flags, 8) & os.O_ACCMODE


def _unix_peers() -> dict[str, str]:
    """Inode of each connected Unix socket of this network namespace -> inode of its other end."""
    # unix_diag_req of linux/unix_diag.h: family, protocol, padding, states, inode, what to show, and no cookie.
    fields = (socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, SHOW_PEER, 0xFFFFFFFF, 0xFFFFFFFF)
    request = struct.pack("=BBHIIIII", *fields)
    peer_inodes: dict[str, str] = {}
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, SOCK_DIAG) as link:
            link.settimeout(0.5)
            link.send(struct.pack("=IHHII", HEADER + len(request), BY_FAMILY, DUMP, 1, 0) + request)
            while _read_answers(link.recv(1 << 16), peer_inodes):
                pass
    except (OSError, AttributeError, struct.error):  # a sandbox that forbids it
        return {}
    return peer_inodes


def _read_answers(data: bytes, peer_inodes: dict[str, str]) -> bool:
    """Parse one datagram of answers. Returns whether more are to come."""
    while len(data) >= HEADER:
        length, kind = struct.unpack_from("=IH", data)
        if kind in (DONE, ERROR) or length < HEADER:
            return False
        at = HEADER + MESSAGE
        while at + 8 <= length:
            size, attribute = struct.unpack_from("=HH", data, at)
            if attribute == PEER:
                peer_inodes[str(struct.unpack_from("=I", data, HEADER + 4)[0])] = str(
                    struct.unpack_from("=I", data, at + 4)[0]
                )
            at += max(4, (size + 3) & ~3)
        data = data[(length + 3) & ~3 :]
    return True
