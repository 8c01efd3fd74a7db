"""Finds a free port for a rendezvous that begins later, and asks whether something listens at a port."""

from __future__ import annotations

import random
import socket
from pathlib import Path

LOWEST = 20_000  # a choice: above the ports of most services
RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port() -> int:
    """Return a free TCP port below the range from which the kernel assigns ports. Raises OSError where none is free.

    Ports in that range may be assigned to other processes in the seconds until ours has imported torch and binds its
    port.
    """
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
            except OSError:  # the port is in use
                continue
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def refused(host: str, port: int, timeout_s: float) -> str:
    """Return why no connection can be made; empty where one can. An IPv6 address may be in brackets."""
    try:
        socket.create_connection((host.strip("[]"), port), timeout=timeout_s).close()
    except (OSError, OverflowError, UnicodeError) as error:  # UnicodeError: an invalid host name, such as a..b
        return getattr(error, "strerror", None) or str(error)
    return ""


def speaks_http(host: str, port: int, timeout_s: float) -> bool:
    """Whether the listener speaks HTTP/1. gRPC does not, and a stopped process does not answer."""
    try:
        with socket.create_connection((host.strip("[]"), port), timeout=timeout_s) as connection:
            connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
            return connection.recv(5, socket.MSG_WAITALL) == b"HTTP/"
    except (OSError, OverflowError, UnicodeError):
        return False
