"""TCP connections of a process: what it serves and whom it talks to, from /proc/PID/net/tcp and its descriptors."""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path

PROC = Path("/proc")
ESTABLISHED, LISTEN = "01", "0A"  # include/net/tcp_states.h
MAX_SHOWN = 200


def of(pid: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """("host:port" that it serves, "host:port" at the other end of its connections); empty where nobody may look.

    Of one that listens on every address (0.0.0.0) those that somebody is connected to are listed as well, so that a
    client's peer is found among them. IPv6 addresses stand in brackets; IPv4 ones inside IPv6 as IPv4.
    """
    held = inodes(pid)
    rows = [row for table in ("tcp", "tcp6") if held for row in _rows(pid, table)]
    mine = [row for row in rows if len(row) >= 10 and row[9] in held]
    listening = dict.fromkeys(address(row[1]) for row in mine if row[3] == LISTEN)
    ports = {one.rpartition(":")[2] for one in listening}
    local = [address(row[1]) for row in rows if len(row) >= 10 and row[3] == ESTABLISHED]
    listening |= dict.fromkeys(one for one in local if one.rpartition(":")[2] in ports)
    peers = dict.fromkeys(address(row[2]) for row in mine if row[3] == ESTABLISHED)
    return tuple(listening)[:MAX_SHOWN], tuple(peers)[:MAX_SHOWN]


def address(coded: str) -> str:
    """`0100007F:1F90` as 127.0.0.1:8080: each 32-bit word of the address is in the host's byte order."""
    host, _, port = coded.partition(":")
    words = [bytes.fromhex(host[at : at + 8])[::-1] for at in range(0, len(host), 8)]
    found = ipaddress.ip_address(b"".join(words))
    found = getattr(found, "ipv4_mapped", None) or found
    return f"{f'[{found}]' if found.version == 6 else found}:{int(port, 16)}"


def inodes(pid: int) -> set[str]:
    """Of the sockets that a process has open; empty where nobody may look."""
    found = set()
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            try:
                target = os.readlink(f"/proc/{pid}/fd/{name}")
            except OSError:  # closed meanwhile
                continue
            if target.startswith("socket:["):
                found.add(target[8:-1])
    except OSError:  # it ended, or it is another user's
        return set()
    return found


def _rows(pid: int, table: str) -> list[list[str]]:
    try:
        lines = (PROC / str(pid) / "net" / table).read_text().splitlines()
    except OSError:  # it ended, or the kernel has no IPv6
        return []
    return [line.split() for line in lines[1:]]
