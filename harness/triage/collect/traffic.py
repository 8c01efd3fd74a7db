"""Bytes that went through a process's TCP connections, by the kernel's socket diagnostics (sock_diag(7)).

recv(2) is in no counter of /proc/PID/io: a download of a model, which may take an hour, looks from there like a process
that does nothing. The kernel counts each connection's bytes; asking takes 0.2 ms for ten connections.
"""

from __future__ import annotations

import os
import socket
import struct

SOCK_DIAG, BY_FAMILY, DUMP = 4, 20, 0x301  # NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST | NLM_F_DUMP
DONE, ERROR = 3, 2
ESTABLISHED = 1 << 1
INFO = 2  # INET_DIAG_INFO: struct tcp_info of linux/tcp.h
ACKED, RECEIVED = 120, 128  # tcpi_bytes_acked, tcpi_bytes_received, each of 8 bytes (Linux 4.2)
HEADER, MESSAGE = 16, 72  # struct nlmsghdr, struct inet_diag_msg, whose last word is the inode


def of(inodes: set[str]) -> int:
    """Bytes received and sent (and acknowledged) over these connections so far; 0 where the kernel does not tell."""
    if not inodes:
        return 0
    wanted = {int(one) for one in inodes}
    families = (socket.AF_INET, socket.AF_INET6)
    return sum(count for family in families for inode, count in _all(family) if inode in wanted)


def _all(family: int) -> list[tuple[int, int]]:
    """(inode, bytes) of every established connection of this network namespace."""
    request = struct.pack("=BBBxI48x", family, socket.IPPROTO_TCP, 1 << (INFO - 1), ESTABLISHED)
    found: list[tuple[int, int]] = []
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, SOCK_DIAG) as link:
            link.settimeout(0.5)
            link.send(struct.pack("=IHHII", HEADER + len(request), BY_FAMILY, DUMP, 1, os.getpid()) + request)
            while _taken(link.recv(1 << 16), found):
                pass
    except (OSError, AttributeError, struct.error):  # no such family here, or a sandbox that forbids it
        return []
    return found


def _taken(data: bytes, found: list[tuple[int, int]]) -> bool:
    """One datagram of answers; whether more are to come."""
    while len(data) >= HEADER:
        length, kind = struct.unpack_from("=IH", data)
        if kind in (DONE, ERROR) or length < HEADER:
            return False
        if length >= HEADER + MESSAGE:
            found.append(_counted(data[HEADER:length]))
        data = data[(length + 3) & ~3 :]
    return True


def _counted(answer: bytes) -> tuple[int, int]:
    inode = struct.unpack_from("=I", answer, MESSAGE - 4)[0]
    at = MESSAGE
    while at + 4 <= len(answer):
        size, kind = struct.unpack_from("=HH", answer, at)
        if size < 4:
            break
        if kind == INFO and size >= 4 + RECEIVED + 8:
            return inode, sum(struct.unpack_from("=QQ", answer, at + 4 + ACKED))
        at += (size + 3) & ~3
    return inode, 0
