"""A Ray cluster of two nodes on two hosts that share no directory but the code: whose fault a hang is, and which host
was lost.

The hosts are network namespaces with processes of their own (tests/support/hosts.py): real raylets and real sockets.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import hosts as lab
import pytest

pytestmark = [pytest.mark.timeout(240), pytest.mark.skipif(bool(lab.why_not()), reason=lab.why_not() or "-")]

HARNESS = [sys.executable, "-m", "harness.cli"]
UNDER_WAY = 50  # steps
JOB = f"""\
import datetime, json, os, socket, sys, time
from pathlib import Path
import ray

address, mode, folder = sys.argv[1:]

def keep_alive():
    time.sleep(3600)

@ray.remote(num_cpus=1)
class Rank:
    def who(self):
        return socket.gethostname(), os.getpid()

    def train(self, rank):
        import torch
        import torch.distributed as dist
        wait = datetime.timedelta(minutes=30)
        meet = "tcp://{lab.ADDRESSES[0]}:29511"
        dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=2, timeout=wait)
        for step in range(1_000_000):
            if step == {UNDER_WAY}:
                Path(folder, f"rank-{{rank}}").touch()
            if (mode, rank, step) == ("absent", 1, {UNDER_WAY}):
                keep_alive()
            dist.all_reduce(torch.ones(10))
            time.sleep(0.02)

ray.init(address=address, log_to_driver=False)
ranks = [Rank.options(resources={{name: 1}}).remote() for name in {lab.RAY_RESOURCES}]
Path(folder, "who").write_text(json.dumps(ray.get([rank.who.remote() for rank in ranks])))
ray.get([rank.train.remote(number) for number, rank in enumerate(ranks)])
"""


@pytest.fixture(scope="module")
def hosts() -> Iterator[lab.Hosts]:
    with lab.laboratory() as made:
        yield made


@dataclass(frozen=True)
class Told:
    """What a verdict.json says. `culprits`: rank, host and pid of each."""

    verdict: str
    reason: str
    culprits: list[tuple[int | None, str, int]]

    @staticmethod
    def of(path: Path) -> Told:
        fields = json.loads(path.read_text())
        named = [(one["rank"], one["host"], one["pid"]) for one in fields["triage"]["culprits"]]
        return Told(fields["verdict"], fields["reason"], named)


class Job:
    """One job of two ranks, one on each host; its driver is on the first."""

    def __init__(self, hosts: lab.Hosts, root: Path, address: str, mode: str, *, watched: bool) -> None:
        self.hosts, self.root, self.address, self.watch = hosts, root, address, root / "watch"
        (root / "job.py").write_text(JOB)
        self.watch.mkdir()
        hosts.hide(1, self.watch)
        watch = [*HARNESS, "watch", "--stall", "4s", "--out", str(self.watch), "--"] if watched else []
        command = [sys.executable, str(root / "job.py"), address, mode, str(root)]
        self.process = hosts.start(0, [*watch, *command], root / "job.log")
        lab.wait_for(lambda: len(list(root.glob("rank-?"))) == 2, 60, self.log)
        self.who = [tuple(one) for one in json.loads((root / "who").read_text())]
        assert [host for host, _ in self.who] == list(lab.NAMES)

    def log(self) -> str:
        return (self.root / "job.log").read_text(errors="replace")[-3000:]

    def verdict(self) -> Told:
        """What the watch came to, once it did; of a HUNG or an INSUFFICIENT."""
        path = self.watch / "verdict.json"
        lab.wait_for(path.exists, 90, self.log)
        return Told.of(path)

    def triage(self, name: str) -> Told:
        """Of the cluster by its address, from the first host."""
        log = self.root / f"{name}.log"
        self.hosts.start(0, [*HARNESS, "triage", self.address, "--out", str(self.root / name)], log).wait(120)
        path = self.root / name / "verdict.json"
        assert path.exists(), log.read_text()
        return Told.of(path)


def test_an_actor_that_is_stopped_is_named_with_its_host(hosts: lab.Hosts, tmp_path: Path) -> None:
    with lab.ray_cluster(hosts, tmp_path) as address:
        job = Job(hosts, tmp_path, address, "works", watched=False)
        sound = job.triage("sound")
        assert sound.verdict != "HUNG" and not sound.culprits, sound.reason
        hosts.start(1, ["kill", "-STOP", str(job.who[1][1])], tmp_path / "kill.log").wait(10)
        verdict = job.triage("stopped")
    assert verdict.verdict == "HUNG" and verdict.culprits == [(None, *job.who[1])], verdict.reason
    assert "hostb" in verdict.reason and "SIGSTOP" in verdict.reason


def test_a_rank_that_joins_no_collective_is_named_by_the_watch_of_the_other_host(
    hosts: lab.Hosts, tmp_path: Path
) -> None:
    with lab.ray_cluster(hosts, tmp_path) as address:
        verdict = Job(hosts, tmp_path, address, "absent", watched=True).verdict()
    assert verdict.verdict == "HUNG" and "rank 1 (Rank) on hostb" in verdict.reason, verdict.reason
    assert [(rank, host) for rank, host, _ in verdict.culprits] == [(1, "hostb")]


@pytest.mark.night
def test_a_host_that_is_cut_off_is_named_and_none_of_its_ranks_is_blamed(hosts: lab.Hosts, tmp_path: Path) -> None:
    """And a job that works is not called hung before that, though its watch sees the driver alone stand still."""
    with lab.ray_cluster(hosts, tmp_path) as address:
        job = Job(hosts, tmp_path, address, "works", watched=True)
        hosts.cut(1)
        try:
            verdict = job.verdict()
        finally:
            hosts.mend(1)
    assert verdict.verdict == "INSUFFICIENT" and not verdict.culprits, verdict.reason
    assert "a node of the Ray cluster is lost: hostb did not answer" in verdict.reason, verdict.reason
    assert "or the network to it is cut" in verdict.reason
