"""A laboratory of two to four simulated hosts on this machine.

Each host is a network namespace with an address, a host name, processes and temporary files of its own, and a cable
to a switch. Everything is removed at the end. An optional second link delays and loses packets. It consists of two
TUN devices and a thread between them, because not every kernel has netem.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import itertools
import os
import random
import select
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.errors import HarnessError
from probes.files import open_new

ROOT = Path(__file__).parents[3]
NAMES = ("hosta", "hostb", "hostc", "hostd")
INTERFACE = "rlhf0"
GATEWAY = "10.213.77.254"  # the address of the switch, which forwards nothing
ADDRESSES = ("10.213.77.1", "10.213.77.2", "10.213.77.3", "10.213.77.4")
SLOW, SLOW_ADDRESSES = "rlhf1", ("10.213.78.1", "10.213.78.2")
BRIDGE = "cni0"
TUNSETIFF, IFF_TUN_NO_PI = 0x400454CA, 0x1001


def why_not() -> str:
    """Return why the laboratory cannot be built here; empty where it can."""
    lacking = [program for program in ("ip", "unshare", "nsenter", "hostname") if shutil.which(program) is None]
    if os.geteuid() != 0:
        return "needs root, to make network namespaces"
    if lacking:
        return f"needs {', '.join(lacking)}: apt install iproute2 util-linux hostname"
    tried = f"rh{os.getpid()}t{next(_NUMBERS)}"
    if subprocess.run(["ip", "netns", "add", tried], capture_output=True).returncode:
        return "network namespaces cannot be made here"
    bridge = subprocess.run(["ip", "-n", tried, "link", "add", "tried", "type", "bridge"], capture_output=True)
    subprocess.run(["ip", "netns", "del", tried], check=True)
    return "this kernel has no bridges" if bridge.returncode else ""


@dataclass
class Hosts:
    """The hosts, numbered from 0, and the processes that were started on them.

    namespaces: the network namespace of each host.
    switch: the network namespace of the switch.
    started: the started processes.
    """

    namespaces: tuple[str, ...]
    switch: str
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)
    inits: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)  # host -> its init process

    @property
    def names(self) -> tuple[str, ...]:
        return NAMES[: len(self.namespaces)]

    def start(self, host: int, command: Sequence[str], log: Path, **environ: str) -> subprocess.Popen[bytes]:
        """Start a process on a host, in a session of its own. Its output goes to `log`."""
        entered = ["nsenter", "--target", str(self._running(host)), "--net", "--uts", "--pid", "--mount"]
        words = [*entered, f"--wd={log.parent}", *command]
        # No variable of Ray is inherited: a process that finds a token in the home cannot join a cluster without one.
        bare = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        environment = {
            **bare, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": INTERFACE,
            "TP_SOCKET_IFNAME": INTERFACE, "RAY_AUTH_MODE": "disabled", **environ,
        }  # fmt: skip
        with open_new(log) as stream:
            process = subprocess.Popen(
                words, env=environment, cwd=log.parent, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream,
                start_new_session=True,
            )  # fmt: skip
        self.started.append(process)
        return process

    def _running(self, host: int) -> int:
        """Return the pid of a host's first process, as seen from this machine. A host that is off is started."""
        init = self.inits.get(host)
        if init is None or init.poll() is not None:
            names = "".join(f"{address} {name}\\n" for address, name in zip(ADDRESSES, NAMES, strict=True))
            script = (
                f"hostname {NAMES[host]} && mount -t tmpfs tmpfs /dev/shm && "
                f"printf '127.0.0.1 localhost\\n{names}' > /dev/shm/hosts && mount --bind /dev/shm/hosts /etc/hosts && "
                "echo up && exec sleep infinity"
            )
            init = self.inits[host] = subprocess.Popen(
                ["ip", "netns", "exec", self.namespaces[host], "unshare", "--uts", "--pid", "--fork", "--mount-proc",
                 "--kill-child", "sh", "-c", script],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True,
            )  # fmt: skip
            if init.stdout is None or init.stdout.readline() != b"up\n":
                raise HarnessError(
                    f"{NAMES[host]} of the laboratory does not start", fix="run as root, outside a container"
                )
        [first] = Path(f"/proc/{init.pid}/task/{init.pid}/children").read_text().split()
        return int(first)

    def inside(self, host: int, command: str) -> None:
        """Run an `ip` command in a host's network."""
        _ip(f"netns exec {self.namespaces[host]} ip {command}")

    def hide(self, host: int, folder: Path) -> None:
        """Mount an empty folder of its own on a host over a folder that all hosts share."""
        self.start(host, ["mount", "-t", "tmpfs", "tmpfs", str(folder)], folder.parent / "mount.log").wait(20)

    def cut(self, host: int) -> None:
        """Disconnect the cable: packets are lost, and no connection is closed."""
        self.inside(host, f"link set {INTERFACE} down")

    def cut_all(self) -> None:
        """Switch off the switch."""
        subprocess.run(["ip", "-n", self.switch, "link", "set", "switch", "down"], check=True)

    def astray(self, host: int, target_host: int) -> None:
        """Route the packets from one host to another through a gateway that forwards nothing: an asymmetric route."""
        self.inside(host, f"route add {ADDRESSES[target_host]}/32 via {GATEWAY} dev {INTERFACE}")

    def firewall(self, host: int, source_host: int, port: int) -> None:
        """Drop the packets from another host, except to and from one port.

        This uses IPsec policies, which iproute2 can set even where nft and iptables are not installed. They drop
        packets as silently as a firewall.
        """
        source, target = (f"{ADDRESSES[endpoint]}/32" for endpoint in (source_host, host))
        between = f"xfrm policy add src {source} dst {target}"
        self.inside(host, f"{between} dir in action block priority 9")
        for end in ("sport", "dport"):
            self.inside(host, f"{between} proto tcp {end} {port} dir in action allow priority 1")

    def bridge(self, host: int) -> None:
        """Give a host a bridge for containers, as k3s does, which no other host can reach.

        The other hosts have a route to it through the gateway, so that a packet is lost and not refused. The bridge's
        address is below theirs, because of two ranks gloo lets the one with the lower address listen.
        """
        for other_host in set(range(len(self.names))) - {host}:
            self.inside(other_host, f"route add 10.42.0.0/24 via {GATEWAY}")
        self.inside(host, f"link add {BRIDGE} type bridge")
        self.inside(host, f"addr add 10.42.0.1/24 dev {BRIDGE}")
        self.inside(host, f"link set {BRIDGE} up")

    def mend(self, host: int) -> None:
        self.inside(host, f"link set {INTERFACE} up")

    def kill(self, host: int) -> None:
        """Kill every process on a host at once, as a power cut does."""
        if init := self.inits.pop(host, None):
            init.kill()  # its child ends with it, and then the kernel ends all processes of the host
            init.wait(20)

    def end(self) -> None:
        """End every process on all hosts."""
        for host in range(len(self.names)):
            self.kill(host)
        for process in self.started:
            # A process that has just started may not be on its host yet. Its pid is still ours, because only we can
            # wait for it.
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(20)
        self.started.clear()


_NUMBERS = itertools.count()


def _ip(command: str) -> None:
    subprocess.run(["ip", *shlex.split(command)], check=True, capture_output=True)


@contextlib.contextmanager
def laboratory(count: int = 2) -> Iterator[Hosts]:
    number = next(_NUMBERS)
    switch, *names = (f"rh{os.getpid()}{letter}{number}" for letter in "sabcd"[: count + 1])
    hosts = Hosts(tuple(names), switch)

    try:
        for name in (switch, *names):
            _ip(f"netns add {name}")
        _ip(f"-n {switch} link add switch type bridge")
        _ip(f"-n {switch} addr add {GATEWAY}/24 dev switch")
        _ip(f"-n {switch} link set switch up")
        _ip(f"netns exec {switch} sh -c 'echo 0 > /proc/sys/net/ipv4/ip_forward'")
        for host, (name, address) in enumerate(zip(names, ADDRESSES, strict=False)):
            port = f"port{host}"
            _ip(f"-n {name} link add {INTERFACE} type veth peer name {port} netns {switch}")
            _ip(f"-n {switch} link set {port} master switch up")
            hosts.inside(host, f"addr add {address}/24 dev {INTERFACE}")
            for device in ("lo", INTERFACE):
                hosts.inside(host, f"link set {device} up")
        yield hosts
    finally:
        hosts.end()
        for name in (switch, *names):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


@contextlib.contextmanager
def slow_link(hosts: Hosts, *, delay_s: float, loss: float) -> Iterator[Counter[str]]:
    """Add a second link SLOW between the hosts, on which each packet takes `delay_s` and is lost with probability
    `loss`.

    Yields the counts of carried and lost packets.
    """
    packets = Counter[str]()
    ends: list[int] = []
    over = threading.Event()
    relay = threading.Thread(target=_relay, args=(ends, delay_s, loss, over, packets), daemon=True)
    try:
        for host, address in enumerate(SLOW_ADDRESSES):
            ends.append(os.open("/dev/net/tun", os.O_RDWR))
            made = f"{hosts.namespaces[host]}t"[-15:]
            fcntl.ioctl(ends[-1], TUNSETIFF, struct.pack("16sH", made.encode(), IFF_TUN_NO_PI))
            subprocess.run(["ip", "link", "set", made, "netns", hosts.namespaces[host], "name", SLOW], check=True)
            hosts.inside(host, f"addr add {address}/24 dev {SLOW}")
            hosts.inside(host, f"link set {SLOW} up")
        relay.start()
        yield packets
    finally:
        over.set()
        if relay.is_alive():
            relay.join(5)
        for end in ends:
            os.close(end)  # the device is removed with its descriptor


def _relay(ends: Sequence[int], delay_s: float, loss: float, over: threading.Event, packets: Counter[str]) -> None:
    """Carry packets from each end to the other with a delay, and drop some of them."""
    chance, order, flying = random.Random(0), itertools.count(), list[tuple[float, int, int, bytes]]()
    while not over.is_set():
        wait_s = max(0.0, min(flying[0][0] - time.monotonic(), 0.2)) if flying else 0.2
        for end in select.select(ends, [], [], wait_s)[0]:
            packet, opposite_end = os.read(end, 1 << 16), ends[1 - ends.index(end)]
            carried = chance.random() >= loss
            packets["carried" if carried else "lost"] += 1
            if carried:
                heapq.heappush(flying, (time.monotonic() + delay_s, next(order), opposite_end, packet))
        while flying and flying[0][0] <= time.monotonic():
            os.write(flying[0][2], flying[0][3])
            heapq.heappop(flying)


def torchrun(host: int, script: Path, *words: str, master: str, nodes: int = 2, ranks: int = 2) -> list[str]:
    """Return the command for one node of a job of `nodes` x `ranks`, as the Slurm launcher starts it."""
    return [
        sys.executable, "-m", "torch.distributed.run", "--nnodes", str(nodes), "--node-rank", str(host),
        "--nproc-per-node", str(ranks), "--master-addr", master, "--master-port", "29500", str(script), *words,
    ]  # fmt: skip
