"""Bytes that went through a process's TCP connections, by the kernel's socket diagnostics (sock_diag(7)).

No counter of /proc/PID/io counts recv(2), so a model download, which may take an hour, would look like a process that
does nothing. The kernel counts the bytes of each connection and knows when data last went through it. That tells a
client of a slow service, which waits seconds between two answers, from a client that nobody answers any more. Asking
takes 0.2 ms for ten connections.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
import threading
import time
from collections.abc import Collection
from typing import NamedTuple

SOCK_DIAG, BY_FAMILY, DUMP = 4, 20, 0x301  # NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST | NLM_F_DUMP
DONE, ERROR = 3, 2
ESTABLISHED, LISTEN = 1, 10  # TCP_ESTABLISHED and TCP_LISTEN of net/tcp_states.h
STATE, QUEUED = 1, 56  # idiag_state and idiag_rqueue of struct inet_diag_msg
INFO = 2  # INET_DIAG_INFO: struct tcp_info of linux/tcp.h
PORTS = 4  # idiag_sport and idiag_dport of struct inet_diag_msg, in the network's byte order
SENT_MS, RECEIVED_MS = 44, 52  # tcpi_last_data_sent, tcpi_last_data_recv: milliseconds ago
ACKED, RECEIVED = 120, 128  # tcpi_bytes_acked, tcpi_bytes_received, each of 8 bytes (Linux 4.2)
DESTINATION = 24  # idiag_dst: 4 bytes of an IPv4 address, 16 of an IPv6 one
HEADER, MESSAGE = 16, 72  # struct nlmsghdr, struct inet_diag_msg, whose last word is the inode


KEPT_S = 0.2  # seconds for which one answer of the kernel serves all processes: each answer lists them all
KEPT_SHARE = 10  # an answer is kept at least this many times as long as it took, so that asking never fills a look
KEPT_MOST_S = 0.5  # upper limit: two looks, 1.5 s apart, never share an answer


class Connection(NamedTuple):
    """One connection.

    `total`: bytes received, and sent and acknowledged, so far. `quiet_s`: seconds since data last went through it.
    `heard_s`: seconds since data last came from `peer`; None if none ever did. `owed`: data was sent to `peer`, and
    none has come since. `unread`: bytes that came and that its process has not read; of a listener, connections that it
    has not accepted.
    """

    inode: int
    ports: tuple[int, int]
    total: int
    quiet_s: float
    peer: str = ""
    heard_s: float | None = None
    owed: bool = False
    unread: int = 0


class Unread(NamedTuple):
    """What clients of a process wait for. `clients`: address -> bytes of it that the process has not read;
    `unaccepted`: connections that it has not accepted."""

    clients: tuple[tuple[str, int], ...] = ()
    unaccepted: int = 0


NOTHING_UNREAD = Unread()


def unread(inodes: set[str]) -> Unread:
    """What the clients of a process have sent that it has not read, by its listeners and its connections at their
    ports."""
    mine = [listener for inode in inodes if (listener := _asked().listeners.get(int(inode))) is not None]
    if not mine:
        return NOTHING_UNREAD
    served = {listener.ports[0] for listener in mine}
    now = _now()
    connections = (now.get(int(inode)) for inode in inodes)
    clients = ((each.peer, each.unread) for each in connections if each and each.unread and each.ports[0] in served)
    return Unread(tuple(sorted(clients)), sum(listener.unread for listener in mine))


def heard(inodes: set[str]) -> dict[str, float]:
    """Peer of these connections -> seconds since data last came from it."""
    age_by_peer: dict[str, float] = {}
    now = _now() if inodes else {}
    for inode in inodes:
        mine = now.get(int(inode))
        if mine is not None and mine.heard_s is not None:
            age_by_peer[mine.peer] = min(mine.heard_s, age_by_peer.get(mine.peer, mine.heard_s))
    return age_by_peer


def owed(inodes: set[str]) -> tuple[str, ...]:
    """Peers of these connections to which data was sent and from which none has come since: requests without an
    answer."""
    now = _now() if inodes else {}
    mine = (now.get(int(inode)) for inode in inodes)
    return tuple(sorted({connection.peer for connection in mine if connection is not None and connection.owed}))


def peers(inodes: set[str]) -> dict[str, str]:
    """Inode -> peer, for those that are established TCP connections."""
    now = _now() if inodes else {}
    return {inode: now[int(inode)].peer for inode in inodes if int(inode) in now}


def of(inodes: set[str], besides: Collection[int] = ()) -> tuple[int, float | None]:
    """Bytes through these connections so far, and for how many seconds none of them has had data; (0, None) if the
    kernel does not tell.

    Connections at the ports `besides` do not count for the seconds.
    """
    if not inodes:
        return 0, None
    now = _now()
    mine = [entry for inode in inodes if (entry := now.get(int(inode))) is not None]
    quiet = [connection.quiet_s for connection in mine if not set(connection.ports) & set(besides)]
    return sum(connection.total for connection in mine), min(quiet, default=None)


def kept_s(took_s: float) -> float:
    """For how many seconds an answer that took `took_s` serves everybody."""
    return min(max(KEPT_S, KEPT_SHARE * took_s), KEPT_MOST_S)


class _Answer(NamedTuple):
    """Every established connection and every listener of this network namespace, by inode, and until when this answer
    serves."""

    until: float
    connections: dict[int, Connection]
    listeners: dict[int, Connection]


NO_ANSWER = _Answer(0.0, {}, {})


def _now() -> dict[int, Connection]:
    return _asked().connections


def _asked() -> _Answer:
    """The last answer that is still kept."""
    global _kept
    with _lock:
        if (began := time.monotonic()) >= _kept.until:
            entries = [entry for family in (socket.AF_INET, socket.AF_INET6) for entry in _all(family)]
            tables: tuple[dict[int, Connection], dict[int, Connection]] = ({}, {})
            for listens, connection in entries:
                tables[listens][connection.inode] = connection
            _kept = _Answer(began + kept_s(time.monotonic() - began), *tables)
        return _kept


_lock = threading.Lock()
_kept = NO_ANSWER


def _all(family: int) -> list[tuple[bool, Connection]]:
    """Each established connection and listener of a family, and whether it is a listener."""
    states = 1 << ESTABLISHED | 1 << LISTEN
    request = struct.pack("=BBBxI48x", family, socket.IPPROTO_TCP, 1 << (INFO - 1), states)
    connections: list[tuple[bool, Connection]] = []
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, SOCK_DIAG) as link:
            link.settimeout(0.5)
            link.send(struct.pack("=IHHII", HEADER + len(request), BY_FAMILY, DUMP, 1, os.getpid()) + request)
            while _read_answers(link.recv(1 << 16), connections):
                pass
    except (OSError, AttributeError, struct.error):  # no such family here, or a sandbox that forbids it
        return []
    return connections


def _read_answers(data: bytes, connections: list[tuple[bool, Connection]]) -> bool:
    """Parse one datagram of answers. Returns whether more are to come."""
    while len(data) >= HEADER:
        length, kind = struct.unpack_from("=IH", data)
        if kind in (DONE, ERROR) or length < HEADER:
            return False
        if length >= HEADER + MESSAGE:
            answer = data[HEADER:length]
            connections.append((answer[STATE] == LISTEN, _counted(answer)))
        data = data[(length + 3) & ~3 :]
    return True


def _counted(answer: bytes) -> Connection:
    inode = struct.unpack_from("=I", answer, MESSAGE - 4)[0]
    ports, unread = struct.unpack_from(">HH", answer, PORTS), struct.unpack_from("=I", answer, QUEUED)[0]
    peer = _address(answer, ports[1])
    at = MESSAGE
    while at + 4 <= len(answer):
        size, kind = struct.unpack_from("=HH", answer, at)
        if size < 4:
            break
        if kind == INFO and size >= 4 + RECEIVED + 8:
            sent_ms, received_ms = (struct.unpack_from("=I", answer, at + 4 + at_ms)[0]
                                    for at_ms in (SENT_MS, RECEIVED_MS))  # fmt: skip
            acked, received = struct.unpack_from("=QQ", answer, at + 4 + ACKED)
            quiet_s = min(sent_ms, received_ms) / 1000
            heard_s = received_ms / 1000 if received else None
            # Without any answer, the time of the last one is that of the connection, and the kernel counts its SYN.
            owes = acked > 1 and (sent_ms < received_ms or not received)
            return Connection(inode, ports, acked + received, quiet_s, peer, heard_s=heard_s, owed=owes, unread=unread)
        at += (size + 3) & ~3
    return Connection(inode, ports, 0, float("inf"), peer, unread=unread)


def _address(answer: bytes, port: int) -> str:
    """The peer of a connection, in the form of `connections.address`."""
    size = 4 if answer[0] == socket.AF_INET else 16
    ip = ipaddress.ip_address(answer[DESTINATION : DESTINATION + size])
    ip = getattr(ip, "ipv4_mapped", None) or ip
    return f"{f'[{ip}]' if ip.version == 6 else ip}:{port}"
