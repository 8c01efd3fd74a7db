"""Who is at the other end of the pipe or socket that a process reads from.

/proc/PID/syscall names the descriptor of a thread's blocking call. The other end of a pipe has the same inode; that of
a Unix socket is told by sock_diag(7), that of a TCP connection within the host stands in the tables of sockets. A call
that waits for several at once (poll, epoll) names none of them and is not read.
"""

from __future__ import annotations

import contextlib
import os
import platform
import socket
import struct
from collections.abc import Iterator, Mapping

from harness.triage.collect.connections import PROC, Sockets
from harness.triage.collect.traffic import BY_FAMILY, DONE, DUMP, ERROR, HEADER, SOCK_DIAG

# read, readv, recvfrom and recvmsg: arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h
_READS = {"x86_64": ("0", "19", "45", "47"), "aarch64": ("63", "65", "207", "212")}.get(platform.machine(), ())
SHOW_PEER, PEER = 4, 2  # UDIAG_SHOW_PEER, UNIX_DIAG_PEER of linux/unix_diag.h
MESSAGE = 16  # struct unix_diag_msg, whose inode is its second word


def reading(pid: int) -> str:
    """The pipe or socket that the main thread waits to read from, "pipe:[7]"; empty where it does something else, or
    nobody may know."""
    try:
        words = (PROC / str(pid) / "syscall").read_text().split()
        if len(words) < 2 or words[0] not in _READS:
            return ""
        link = os.readlink(PROC / str(pid) / "fd" / str(int(words[1], 16)))
    except OSError:  # it ended, or it is another user's
        return ""
    return link if link.startswith(("pipe:[", "socket:[")) else ""


def writers(read: Mapping[int, str], sockets: Sockets) -> dict[int, int]:
    """Who reads -> the one process seen on this host that can write what it reads; left out where several can, it could
    itself, or none is known. `read`: pid -> what `reading` says of it."""
    unix = _unix_peers() if any(link.startswith("socket:") for link in read.values()) else {}
    ends = {}
    for pid, link in read.items():
        inode = link.partition("[")[2].rstrip("]")
        peer = inode if link.startswith("pipe:") else unix.get(inode) or sockets.other_end(pid, inode)
        if peer:
            ends[pid] = f"{link.partition('[')[0]}[{peer}]"
    holders: dict[str, set[int]] = {end: set() for end in ends.values()}
    for pid, link in _writable(set(holders)):
        holders[link].add(pid)
    alone = {pid: next(iter(holders[end])) for pid, end in ends.items() if len(holders[end]) == 1}
    return {pid: writer for pid, writer in alone.items() if writer != pid}


def _writable(wanted: set[str]) -> Iterator[tuple[int, str]]:
    """Every process of this host that holds one of these for writing."""
    for name in os.listdir(PROC) if wanted else ():
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError):  # it ended, or it is another user's
            for number in os.listdir(PROC / name / "fd"):
                with contextlib.suppress(OSError):  # closed meanwhile
                    link = os.readlink(f"{PROC}/{name}/fd/{number}")
                    if link in wanted and _for_writing(f"{PROC}/{name}/fdinfo/{number}"):
                        yield int(name), link


def _for_writing(info: str) -> bool:
    with open(info) as lines:
        flags = next((line.split()[1] for line in lines if line.startswith("flags:")), "0")
    return int(flags, 8) & os.O_ACCMODE != os.O_RDONLY


def _unix_peers() -> dict[str, str]:
    """The inode of every connected Unix socket of this network namespace -> that of its other end."""
    request = struct.pack("=BBHIIIII", socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, SHOW_PEER, 0xFFFFFFFF, 0xFFFFFFFF)
    found: dict[str, str] = {}
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, SOCK_DIAG) as link:
            link.settimeout(0.5)
            link.send(struct.pack("=IHHII", HEADER + len(request), BY_FAMILY, DUMP, 1, 0) + request)
            while _taken(link.recv(1 << 16), found):
                pass
    except (OSError, AttributeError, struct.error):  # a sandbox that forbids it
        return {}
    return found


def _taken(data: bytes, found: dict[str, str]) -> bool:
    """One datagram of answers; whether more are to come."""
    while len(data) >= HEADER:
        length, kind = struct.unpack_from("=IH", data)
        if kind in (DONE, ERROR) or length < HEADER:
            return False
        at = HEADER + MESSAGE
        while at + 8 <= length:
            size, attribute = struct.unpack_from("=HH", data, at)
            if attribute == PEER:
                found[str(struct.unpack_from("=I", data, HEADER + 4)[0])] = str(
                    struct.unpack_from("=I", data, at + 4)[0]
                )
            at += max(4, (size + 3) & ~3)
        data = data[(length + 3) & ~3 :]
    return True
