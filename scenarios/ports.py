"""A port for a meeting that begins later, free now and handed to nobody else meanwhile; and what listens at one."""

from __future__ import annotations

import random
import socket
from pathlib import Path

LOWEST = 20_000  # chosen: above the ports of most services
RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port() -> int:
    """A free TCP port below those that the kernel gives to whoever asks for any: those are lent to other processes in
    the seconds until ours has imported torch and binds it. Raises OSError where none is free."""
    try:
        first = int(RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):  # another system: Linux's default
        first = 32_768
    below = range(LOWEST, max(first, LOWEST + 1))
    for port in random.SystemRandom().sample(below, k=min(100, len(below))):
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
                return port
            except OSError:  # somebody listens there
                continue
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def refused(host: str, port: int, timeout_s: float) -> str:
    """Why no connection to there can be made; empty where one can. An IPv6 address may be in brackets."""
    try:
        socket.create_connection((host.strip("[]"), port), timeout=timeout_s).close()
    except (OSError, OverflowError, UnicodeError) as error:  # UnicodeError: what can be the name of no host, as a..b
        return getattr(error, "strerror", None) or str(error)
    return ""


def speaks_http(host: str, port: int, timeout_s: float) -> bool:
    """Whether who listens there answers as HTTP/1 does: gRPC does not, and a process that is stopped says nothing."""
    try:
        with socket.create_connection((host.strip("[]"), port), timeout=timeout_s) as connection:
            connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
            return connection.recv(5, socket.MSG_WAITALL) == b"HTTP/"
    except (OSError, OverflowError, UnicodeError):
        return False
