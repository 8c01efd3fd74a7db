"""Run a hang across hosts: gloo over a link that is cut, slow or wrong, a watch on each host, and one verdict."""

from __future__ import annotations

import contextlib
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.planted.hangs import hosts as lab
from harness.planted.hangs.hang_outcome import Outcome, judged
from harness.triage import run
from scenarios.planted.hangs.catalog import Hang

HARNESS = [sys.executable, "-m", "harness.cli"]


@dataclass(frozen=True)
class Ranks:
    """The ranks that torchrun starts on each host.

    program: the script.
    words: its arguments.
    count: the number of ranks on each host.
    master: the address of the rendezvous.
    """

    program: Path
    words: list[str]
    count: int = 2
    master: str = lab.ADDRESSES[0]


class Job:
    """Ranks on each host under `harness watch`, started by torchrun, with their directories, processes and logs.

    `served` gives the options of a host's watch, and `variables` the environment variables of a host.
    """

    def __init__(
        self, hosts: lab.Hosts, root: Path, ranks: Ranks, stall: str, *,
        served: Callable[[int], list[str]] = lambda host: [],
        variables: Callable[[int], Mapping[str, str]] = lambda host: {},
    ) -> None:  # fmt: skip
        self.hosts, self.root, self.size = hosts, root, ranks.count * len(hosts.names)
        self.folders = [root / name for name in hosts.names]
        self.processes = []
        for host, folder in enumerate(self.folders):
            torchrun = lab.torchrun(
                host, ranks.program, *ranks.words, master=ranks.master, nodes=len(self.folders), ranks=ranks.count
            )
            watched = [*HARNESS, "watch", "--stall", stall, "--out", str(folder), *served(host), "--", *torchrun]
            self.processes.append(hosts.start(host, watched, root / f"{lab.NAMES[host]}.log", **variables(host)))

    @property
    def under_way(self) -> bool:
        """Whether every rank has done some steps."""
        return len(list(self.root.glob("rank-*"))) == self.size

    def looked_at(self, host: int) -> bool:
        """Whether the watch of a host has given its verdict."""
        newest = run.newest(self.folders[host])
        return newest is not None and (newest / "verdict.json").exists()

    def ended(self, host: int) -> bool:
        return self.processes[host].poll() is not None

    def log(self) -> str:
        return "\n".join(file.read_text(errors="replace")[-2000:] for file in self.root.glob("host?.log"))


def judge_hosts(hang: Hang, folder: Path, stall_s: float, limit_s: float, environ: Mapping[str, str]) -> Outcome:
    """Run the program on the hosts of `hang.network` until every watch has detected the stall or the program has
    ended.
    """
    why = lab.why_not()
    if why:
        return Outcome(hang, None, unrun=why)
    network = hang.network
    assert network is not None
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        hosts = stack.enter_context(lab.laboratory(network.hosts))
        master, packets = lab.ADDRESSES[0], Counter[str]()
        if network.event == "slow":
            packets = stack.enter_context(lab.slow_link(hosts, delay_s=0.1, loss=0.01))
            environ = {**environ, "GLOO_SOCKET_IFNAME": lab.SLOW, "TP_SOCKET_IFNAME": lab.SLOW}
            master = lab.SLOW_ADDRESSES[0]
        if network.event == "bridge":
            hosts.bridge(network.host)
        ranks = Ranks(Path(hang.program), list(hang.arguments), hang.world // network.hosts, master)

        def variables(host: int) -> dict[str, str]:
            return {**environ, **(network.env if host == network.host else {})}

        job = Job(hosts, folder, ranks, f"{stall_s:g}s", variables=variables)
        if network.event in ("cut", "dies") and _until(lambda: job.under_way, limit_s):
            hosts.cut(network.host)  # also before a power cut, because a host without power sends no last packet
            if network.event == "dies":
                hosts.kill(network.host)
        over = _until(lambda: all(job.looked_at(host) or job.ended(host) for host in range(network.hosts)), limit_s)
        codes = [process.poll() for process in job.processes]
    wall_s = time.monotonic() - began
    if network.event == "slow" and not packets["lost"]:
        return judged(hang, None, wall_s=wall_s, error="the slow link lost no packet")
    if not over:
        return judged(hang, None, wall_s=wall_s, error=f"no verdict and no end within {limit_s:.0f} s")
    if any(job.looked_at(host) for host in range(network.hosts)):
        return judged(hang, run.triage(list(map(str, job.folders))), wall_s=wall_s)
    error = "" if set(codes) == {0} else f"ended with {shlex.join(map(str, codes))}: {job.log()[-200:]}"
    return judged(hang, None, wall_s=wall_s, error=error)


def _until(condition: Callable[[], bool], limit_s: float) -> bool:
    """Whether the condition became true within that time."""
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True
