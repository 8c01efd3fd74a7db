"""The node's interfaces, its own name, and which process listens on which port."""

from __future__ import annotations

import os
import re
import socket
import struct
import threading
import time
from dataclasses import dataclass
from typing import Any

from harness.doctor.gather.files import pids, read, title


@dataclass(frozen=True)
class Interface:
    name: str
    up: bool
    loopback: bool
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True)
class Listener:
    port: int
    address: str
    pid: int = 0  # 0: of another user or in another container
    command: str = ""


@dataclass(frozen=True)
class Network:
    hostname: str
    interfaces: tuple[Interface, ...] = ()
    infiniband: tuple[str, ...] = ()
    resolved: tuple[str, ...] = ()  # addresses of the host's own name
    resolve_error: str = ""
    resolve_s: float = 0.0
    listening: tuple[Listener, ...] = ()
    ephemeral: tuple[int, int] = (32768, 60999)
    ray_address_open: bool | None = None  # whether something listens at $RAY_ADDRESS; None: not set
    ray_remembered: str = ""  # address of the last `ray start`, which ray.init() uses without an address
    ray_remembered_file: str = ""
    ray_remembered_open: bool | None = None


_LISTEN = "0A"
_PATIENCE_S = 5.0  # with a dead server a resolver takes 5 s per try, as gloo and torch's store then do


def network() -> dict[str, Any]:
    """Return the fields of `Network`. Sends nothing except a query for the host's own name."""
    name = socket.gethostname()
    resolved, error, seconds = _resolve(name)
    low, _, high = read("/proc/sys/net/ipv4/ip_local_port_range").replace("\t", " ").partition(" ")
    # ray/_common/utils.py, get_ray_address_file
    remembered = os.path.join(
        os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp", "ray", "ray_current_cluster"
    )
    fields: dict[str, Any] = {
        "hostname": name, "interfaces": _interfaces(), "resolved": resolved, "resolve_error": error,
        "resolve_s": seconds, "listening": _listening(), "infiniband": _names("/sys/class/infiniband"),
        "ray_address_open": _open(os.environ.get("RAY_ADDRESS", "")), "ray_remembered": read(remembered),
        "ray_remembered_file": remembered, "ray_remembered_open": _open(read(remembered)),
    }  # fmt: skip
    if low.isdigit() and high.strip().isdigit():
        fields["ephemeral"] = (int(low), int(high))
    return fields


def _resolve(name: str) -> tuple[list[str], str, float]:
    answer: dict[str, Any] = {}

    def ask() -> None:
        try:
            answer["found"] = sorted({str(item[4][0]) for item in socket.getaddrinfo(name, None)})
        except OSError as error:
            answer["error"] = error.strerror or str(error)

    began = time.monotonic()
    thread = threading.Thread(target=ask, daemon=True)  # getaddrinfo has no time limit
    thread.start()
    thread.join(_PATIENCE_S)
    seconds = time.monotonic() - began
    late = "" if answer else f"no answer within {_PATIENCE_S:.0f} s"
    return answer.get("found", []), answer.get("error", late), seconds


def _open(address: str) -> bool | None:
    """Whether something listens there; None if the text has no host and port (`auto`, `local`, empty)."""
    match = re.fullmatch(r"(?:ray://|https?://)?\[?([^/\[\]]+?)\]?:(\d+)/?", address)
    if not match:
        return None
    try:
        socket.create_connection((match[1], int(match[2])), timeout=3).close()
    except (OSError, OverflowError):  # refused, unreachable, or no port number at all
        return False
    return True


def _interfaces() -> list[dict[str, Any]]:
    addresses = _addresses()
    interfaces = []
    for name in _names("/sys/class/net"):
        flags = int(read(f"/sys/class/net/{name}/flags") or "0", 16)
        is_up, is_loopback = bool(flags & 1), bool(flags & 8)
        interfaces.append({"name": name, "up": is_up, "loopback": is_loopback, "addresses": addresses.get(name, [])})
    return interfaces


def _addresses() -> dict[str, list[str]]:
    """Interface -> its addresses: IPv4 by ioctl, IPv6 from /proc, without link-local ones."""
    import fcntl

    addresses: dict[str, list[str]] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as query_socket:
        for _, name in socket.if_nameindex():
            try:
                packed = fcntl.ioctl(query_socket, 0x8915, struct.pack("256s", name.encode()[:15]))  # SIOCGIFADDR
                addresses.setdefault(name, []).append(socket.inet_ntoa(packed[20:24]))
            except OSError:  # the interface has no IPv4 address
                continue
    for line in read("/proc/net/if_inet6").splitlines():
        words = line.split()
        if len(words) == 6 and words[3] != "20":  # the scope of link-local addresses (IPV6_ADDR_LINKLOCAL, net/ipv6.h)
            addresses.setdefault(words[5], []).append(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(words[0])))
    return addresses


def _listening() -> list[dict[str, Any]]:
    sockets: dict[str, tuple[int, str]] = {}
    for file, family in (("/proc/net/tcp", socket.AF_INET), ("/proc/net/tcp6", socket.AF_INET6)):
        for line in read(file).splitlines()[1:]:
            words = line.split()
            if words[3] == _LISTEN:
                # The kernel prints an address as 32-bit words in the machine's own byte order.
                packed, port = words[1].split(":")
                raw = b"".join(struct.pack("=I", int(packed[at : at + 8], 16)) for at in range(0, len(packed), 8))
                sockets[words[9]] = (int(port, 16), socket.inet_ntop(family, raw))
    owners = _owners(set(sockets))
    return [
        {"port": port, "address": address, "pid": owners.get(inode, 0),
         "command": title(owners[inode])[:120] if inode in owners else ""}
        for inode, (port, address) in sockets.items()
    ]  # fmt: skip


def _owners(inodes: set[str]) -> dict[str, int]:
    """Socket inode -> a process that has it, among the processes that we may inspect."""
    owners: dict[str, int] = {}
    for pid in pids():
        try:
            for name in os.listdir(f"/proc/{pid}/fd"):
                link = os.readlink(f"/proc/{pid}/fd/{name}")
                if link.startswith("socket:[") and link[8:-1] in inodes:
                    owners.setdefault(link[8:-1], pid)
        except OSError:  # another user's process, or one that has ended
            continue
    return owners


def _names(folder: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(folder) if os.path.isdir(os.path.join(folder, name)))
    except OSError:  # no such devices
        return []
