"""TCP connections of a process: its listening addresses and its peers, from /proc/PID/net/tcp and its descriptors."""

from __future__ import annotations

import ipaddress
import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from harness.triage.collect.traffic import kept_s

PROC = Path("/proc")
ESTABLISHED, CONNECTING, LISTEN = "01", "02", "0A"  # include/net/tcp_states.h
RETRANSMITS = "01"  # timer code of a socket that waits for an acknowledgement, of net/ipv4/tcp_ipv4.c
# Retransmissions without an acknowledgement. The third comes 1.4 s after the first try, with Linux's first timeout of
# 0.2 s, doubled each time (RFC 6298). On a link that loses one packet in a hundred each way it happens once in 100,000
# packets.
SENT_AGAIN = 3
CONNECT_AGAIN = 2  # the same for connection requests: 3 s, with Linux's first timeout of 1 s
MAX_SHOWN = 200  # per process, so that evidence stays small


@dataclass
class _Tables:
    """All TCP sockets of one network namespace, when they were read, and how long reading took."""

    rows: dict[str, list[str]] = field(default_factory=dict)  # inode -> its row
    clients: dict[str, dict[str, None]] = field(default_factory=dict)  # port -> local addresses with a connection
    served: dict[str, set[str]] = field(default_factory=dict)  # port -> inodes of its listeners
    here: dict[tuple[str, str], str] = field(default_factory=dict)  # (local, remote) of every connection -> inode
    read_s: float = 0.0
    took_s: float = 0.0


class Connections(NamedTuple):
    """Connections of one process, each end as "host:port".

    `served`: where it listens. `peers`: to whom it is connected. `unanswered`: "local remote" of connections whose data
    the other end does not acknowledge. `retried`: to whom it keeps asking for a connection.
    """

    served: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()
    unanswered: tuple[str, ...] = ()
    retried: tuple[str, ...] = ()


class Sockets:
    """Socket tables of this host for the time of one look.

    The tables of a network namespace list the sockets of all its processes, so they are read once for all.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._tables: dict[str, _Tables] = {}

    def of(self, pid: int) -> Connections:
        """The connections of a process; empty if it may not be inspected.

        Of connections within the host, only those to a listener are peers: the other end of an accepted connection is a
        client's. If the process listens on every address (0.0.0.0), addresses with a connection are listed as well, so
        that a client's peer can be matched. IPv6 addresses are in brackets; IPv4 addresses mapped into IPv6 are shown
        as IPv4.
        """
        socket_inodes = inodes(pid)
        if not socket_inodes:
            return Connections()
        tables = self._read(pid)
        mine = [tables.rows[inode] for inode in socket_inodes if inode in tables.rows]
        served = [row[1] for row in mine if row[3] == LISTEN]
        at = (local_address for row in served for local_address in tables.clients.get(row.rpartition(":")[2], ()))
        connected = [row for row in mine if row[3] == ESTABLISHED]
        peers = (
            row[2] for row in connected
            if (row[2], row[1]) not in tables.here or row[2].rpartition(":")[2] in tables.served
        )  # fmt: skip
        unanswered = (f"{address(row[1])} {address(row[2])}" for row in connected if _is_sent_again(row, SENT_AGAIN))
        retried_peers = (row[2] for row in mine if row[3] == CONNECTING and _is_sent_again(row, CONNECT_AGAIN))
        return Connections(
            _decoded((*served, *at)), _decoded(peers), tuple(unanswered)[:MAX_SHOWN], _decoded(retried_peers)
        )

    def servers(self, pids: Iterable[int]) -> set[str]:
        """Inodes of the sockets of this host that serve these processes, without those of their own: the listeners to
        which they are connected, and where a listener has been closed, the other end of the connection."""
        mine: set[str] = set()
        asked_inodes: set[str] = set()
        for pid in pids:
            socket_inodes = inodes(pid)
            mine |= socket_inodes
            tables = self._read(pid)
            for row in (tables.rows[inode] for inode in socket_inodes if inode in tables.rows):
                if row[3] == ESTABLISHED and (other_end := tables.here.get((row[2], row[1]))):
                    ports = row[1].rpartition(":")[2], row[2].rpartition(":")[2]
                    none_listens = {other_end} if ports[0] not in tables.served else set()
                    asked_inodes |= tables.served.get(ports[1], none_listens)
        return asked_inodes - mine

    def listens(self, pid: int, inode: str) -> bool:
        """Whether a socket of a process waits for connections."""
        row = self._read(pid).rows.get(inode)
        return row is not None and row[3] == LISTEN

    def other_end(self, pid: int, inode: str) -> str:
        """The inode of the other end of a process's TCP connection within this host; empty for any other socket."""
        rows = self._read(pid).rows
        mine = rows.get(inode)
        if mine is None or mine[3] != ESTABLISHED:
            return ""
        ends = address(mine[2]), address(mine[1])
        port = mine[1].rpartition(":")[2]
        return next(
            (peer_inode for peer_inode, row in rows.items()
             if row[3] == ESTABLISHED and row[2].endswith(port) and (address(row[1]), address(row[2])) == ends),
            "",
        )  # fmt: skip

    def _read(self, pid: int) -> _Tables:
        try:
            space = os.readlink(PROC / str(pid) / "ns" / "net")
        except OSError:  # it ended, or belongs to another user: its tables are not shared
            space = ""
        with self._lock:
            cached_tables, now = self._tables.get(space) if space else None, self._clock()
            if cached_tables is not None and now - cached_tables.read_s <= kept_s(cached_tables.took_s):
                return cached_tables
            rows = [row for table in ("tcp", "tcp6") for row in _rows(pid, table)]
            if not rows and cached_tables is not None:  # it ended while its tables were read
                return cached_tables
            tables = self._tables[space] = _Tables({row[9]: row for row in rows}, read_s=now)
            for row in rows:
                if row[3] == LISTEN:
                    tables.served.setdefault(row[1].rpartition(":")[2], set()).add(row[9])
                elif row[3] == ESTABLISHED:
                    tables.here[row[1], row[2]] = row[9]
                    ends = tables.clients.setdefault(row[1].rpartition(":")[2], {})
                    if len(ends) < MAX_SHOWN:
                        ends[row[1]] = None
            tables.took_s = self._clock() - now
            return tables


def _is_sent_again(row: list[str], times: int) -> bool:
    return row[5].partition(":")[0] == RETRANSMITS and int(row[6], 16) >= times


def _decoded(coded: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(map(address, dict.fromkeys(coded))))[:MAX_SHOWN]


def address(coded: str) -> str:
    """Decode `0100007F:1F90` to 127.0.0.1:8080. Each 32-bit word of the address is in the host's byte order."""
    host, _, port = coded.partition(":")
    words = [bytes.fromhex(host[at : at + 8])[::-1] for at in range(0, len(host), 8)]
    ip = ipaddress.ip_address(b"".join(words))
    ip = getattr(ip, "ipv4_mapped", None) or ip
    return f"{f'[{ip}]' if ip.version == 6 else ip}:{int(port, 16)}"


def inodes(pid: int) -> set[str]:
    """Inodes of the sockets that a process has open; empty if it may not be inspected."""
    socket_inodes = set()
    folder = f"{PROC}/{pid}/fd"
    try:
        for name in os.listdir(folder):
            try:
                target = os.readlink(f"{folder}/{name}")
            except OSError:  # closed meanwhile
                continue
            if target.startswith("socket:["):
                socket_inodes.add(target[8:-1])
    except OSError:  # it ended, or it is another user's
        return set()
    return socket_inodes


def _rows(pid: int, table: str) -> list[list[str]]:
    try:
        lines = (PROC / str(pid) / "net" / table).read_text().splitlines()
    except OSError:  # it ended, or the kernel has no IPv6
        return []
    return [row for line in lines[1:] if len(row := line.split()) >= 10]
