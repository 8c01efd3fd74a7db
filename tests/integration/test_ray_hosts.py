"""A Ray cluster of a node on each of two to four hosts: whose fault a hang is, which host was lost, and a comparison
whose learner is on one host and whose engines are on others.

The hosts are network namespaces with processes of their own (harness/planted/hangs/hosts.py): real raylets and
real sockets.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ray_hosts import RAY_RESOURCES, ray_cluster
from waiting import until

from harness.planted.hangs import hosts as lab

pytestmark = [pytest.mark.timeout(400), pytest.mark.skipif(bool(lab.why_not()), reason=lab.why_not() or "-")]

HARNESS = [sys.executable, "-m", "harness.cli"]
UNDER_WAY = 50  # steps
LEARNER = ("trainer", "actor", "critic", "reward", "reference")
JOB = f"""\
import datetime, json, os, socket, sys, time
from pathlib import Path
import ray

address, mode, folder, *places = sys.argv[1:]

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
        dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=len(places), timeout=wait)
        for step in range(1_000_000):
            if step == {UNDER_WAY}:
                Path(folder, f"rank-{{rank}}").touch()
            if (mode, rank, step) == ("absent", 1, {UNDER_WAY}):
                keep_alive()
            dist.all_reduce(torch.ones(10))
            time.sleep(0.02)

ray.init(address=address, log_to_driver=False)
ranks = [Rank.options(resources={{name: 1}}).remote() for name in places]
Path(folder, "who").write_text(json.dumps(ray.get([rank.who.remote() for rank in ranks])))
ray.get([rank.train.remote(number) for number, rank in enumerate(ranks)])
"""


@pytest.fixture(scope="module")
def hosts() -> Iterator[lab.Hosts]:
    with lab.laboratory() as made:
        yield made


@pytest.fixture(scope="module")
def four() -> Iterator[lab.Hosts]:
    with lab.laboratory(4) as made:
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
    """One job of a rank on each host, with its driver on `host`."""

    def __init__(self, hosts: lab.Hosts, root: Path, address: str, mode: str, *, watched: bool, host: int = 0) -> None:
        self.hosts, self.root, self.address, self.watch = hosts, root, address, root / "watch"
        (root / "job.py").write_text(JOB)
        self.watch.mkdir()
        ranks = len(hosts.names)
        for other in {*range(ranks)} - {host}:
            hosts.hide(other, self.watch)
        watch = [*HARNESS, "watch", "--stall", "4s", "--out", str(self.watch), "--"] if watched else []
        command = [sys.executable, str(root / "job.py"), address, mode, str(root), *RAY_RESOURCES[:ranks]]
        self.process = hosts.start(host, [*watch, *command], root / "job.log")
        until(lambda: len(list(root.glob("rank-?"))) == ranks, 60, self.log)
        self.who = [tuple(one) for one in json.loads((root / "who").read_text())]
        assert [host for host, _ in self.who] == list(hosts.names)

    def log(self) -> str:
        return (self.root / "job.log").read_text(errors="replace")[-3000:]

    def verdict(self) -> Told:
        """What the watch came to, once it did; of a HUNG or an INSUFFICIENT."""
        path = self.watch / "verdict.json"
        until(path.exists, 90, self.log)
        return Told.of(path)

    def triage(self, name: str) -> Told:
        """Of the cluster by its address, from the first host."""
        log = self.root / f"{name}.log"
        self.hosts.start(0, [*HARNESS, "triage", self.address, "--out", str(self.root / name)], log).wait(600)
        path = self.root / name / "verdict.json"
        assert path.exists(), log.read_text()
        return Told.of(path)


@pytest.mark.night
def test_an_actor_that_is_stopped_is_named_with_its_host(hosts: lab.Hosts, tmp_path: Path) -> None:
    with ray_cluster(hosts, tmp_path) as address:
        job = Job(hosts, tmp_path, address, "works", watched=False)
        sound = job.triage("sound")
        assert sound.verdict != "HUNG" and not sound.culprits, sound.reason
        hosts.start(1, ["kill", "-STOP", str(job.who[1][1])], tmp_path / "kill.log").wait(600)
        verdict = job.triage("stopped")
    assert verdict.verdict == "HUNG" and verdict.culprits == [(None, *job.who[1])], verdict.reason
    assert "hostb" in verdict.reason and "SIGSTOP" in verdict.reason


@pytest.mark.night
def test_a_rank_that_joins_no_collective_is_named_by_the_watch_of_the_other_host(
    hosts: lab.Hosts, tmp_path: Path
) -> None:
    with ray_cluster(hosts, tmp_path) as address:
        verdict = Job(hosts, tmp_path, address, "absent", watched=True).verdict()
    assert verdict.verdict == "HUNG" and "rank 1 (Rank) on hostb" in verdict.reason, verdict.reason
    assert [(rank, host) for rank, host, _ in verdict.culprits] == [(1, "hostb")]


@pytest.mark.night
def test_a_host_that_is_cut_off_is_named_and_none_of_its_ranks_is_blamed(hosts: lab.Hosts, tmp_path: Path) -> None:
    """And a job that works is not called hung before that, though its watch sees the driver alone stand still."""
    with ray_cluster(hosts, tmp_path) as address:
        job = Job(hosts, tmp_path, address, "works", watched=True)
        hosts.cut(1)
        try:
            verdict = job.verdict()
        finally:
            hosts.mend(1)
    assert verdict.verdict == "INSUFFICIENT" and not verdict.culprits, verdict.reason
    assert "a node of the Ray cluster is lost: hostb" in verdict.reason, verdict.reason


@pytest.mark.night
def test_an_actor_of_four_that_is_stopped_is_named_with_its_host(four: lab.Hosts, tmp_path: Path) -> None:
    with ray_cluster(four, tmp_path) as address:
        job = Job(four, tmp_path, address, "works", watched=False)
        sound = job.triage("sound")
        assert sound.verdict != "HUNG" and not sound.culprits, sound.reason
        four.start(2, ["kill", "-STOP", str(job.who[2][1])], tmp_path / "kill.log").wait(600)
        verdict = job.triage("stopped")
    assert verdict.verdict == "HUNG" and verdict.culprits == [(None, *job.who[2])], verdict.reason
    assert "hostc" in verdict.reason and "hostb" not in verdict.reason and "hostd" not in verdict.reason


@pytest.mark.night
@pytest.mark.parametrize("cut", [False, True])
def test_a_head_that_is_lost_is_named_by_the_watch_of_the_other_host(
    hosts: lab.Hosts, tmp_path: Path, cut: bool
) -> None:
    with ray_cluster(hosts, tmp_path) as address:
        job = Job(hosts, tmp_path, address, "works", watched=True, host=1)
        (hosts.cut if cut else hosts.kill)(0)
        try:
            verdict = job.verdict()
        finally:
            hosts.mend(0)
    assert verdict.verdict == "INSUFFICIENT" and not verdict.culprits, verdict.reason
    assert f"the head of the Ray cluster is lost: {address}" in verdict.reason, verdict.reason


class Comparison:
    """`harness parity` from the first host: the learner is placed there, the engines on the second, or on the one of
    `candidate` that of the candidate."""

    def __init__(
        self,
        hosts: lab.Hosts,
        root: Path,
        address: str,
        *,
        engine: str = "engine",
        learner: str = "learner",
        candidate: str = "",
        pair: tuple[str, str] = ("hf", "hf"),
        steps: int = 2,
    ) -> None:
        self.out, self.log = root / "run", root / "parity.log"
        placed = ["--set", f"placement.learner={learner}", "--set", f"placement.engine={engine}"]
        placed += ["--candidate-set", f"placement.engine={candidate}"] if candidate else []
        short = ["--steps", str(steps), "--no-native", "--no-attribution", "--set", "sampling.max_tokens=8"]
        command = ["parity", *pair, *short, *placed, "--address", address, "--out", str(self.out)]
        self.process = hosts.start(0, [*HARNESS, *command], self.log)

    def draws(self) -> None:
        """Wait until an engine has drawn."""
        until(lambda: any((self.out / "baseline" / "tokens").glob("rollout-*")), 240, self.said)

    def hosts_of(self, side: str) -> dict[str, str]:
        """Role -> the host that it recorded on."""
        opened = [next(iter(path.open())) for path in (self.out / side / "events").glob("*.jsonl")]
        return {event["role"]: event["host"] for event in map(json.loads, opened)}

    def said(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]

    def verdict(self) -> dict[str, Any]:
        self.process.wait(300)
        path = self.out / "verdict.json"
        assert path.exists(), self.said()
        told: dict[str, Any] = json.loads(path.read_text())
        return told


@pytest.mark.night
def test_a_token_that_the_cluster_does_not_have_is_refused_in_one_sentence(hosts: lab.Hosts, tmp_path: Path) -> None:
    """Ray itself says that all references to the actor were removed."""
    with ray_cluster(hosts, tmp_path) as address:
        command = [*HARNESS, "run", "ppo-tiny", "--backend", "hf", "--address", address, "--out", str(tmp_path / "run")]
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef" * 4}
        ended = hosts.start(0, command, tmp_path / "run.log", **token).wait(600)
    said = (tmp_path / "run.log").read_text()
    assert ended == 2 and "has no token" in said and "export RAY_AUTH_MODE=disabled" in said, said


@pytest.mark.night
@pytest.mark.parametrize(
    ("pair", "by", "steps"),
    [(("hf", "hf"), "resource", 2), (("vllm", "sglang"), "label", 8)],
)
def test_learner_and_engines_on_two_hosts_are_equivalent(
    hosts: lab.Hosts, tmp_path: Path, pair: tuple[str, str], by: str, steps: int
) -> None:
    engine, learner = ("role=engine", "role=learner") if by == "label" else ("engine", "learner")
    with ray_cluster(hosts, tmp_path) as address:
        compared = Comparison(hosts, tmp_path, address, engine=engine, learner=learner, pair=pair, steps=steps)
        verdict = compared.verdict()
    assert verdict["verdict"] == "EQUIVALENT", verdict["reason"]
    [told] = [one for one in verdict["parity"]["checks"] if one["name"] == "placement"]
    assert told["state"] == "ruled out" and "candidate, engine: hostb" in told["evidence"], told
    for side in ("baseline", "candidate"):
        asked = json.loads((compared.out / side / "run.json").read_text())["placement"]
        assert asked["engine"] == {by: engine, "hosts": ["hostb"]}
        assert compared.hosts_of(side) == {"rollout": "hostb", **dict.fromkeys(LEARNER, "hosta")}


@pytest.mark.night
@pytest.mark.parametrize(("pair", "steps"), [(("hf", "hf"), 2), (("vllm", "sglang"), 8)])
def test_learner_and_the_engine_of_each_side_on_three_hosts_are_equivalent(
    tmp_path: Path, pair: tuple[str, str], steps: int
) -> None:
    with lab.laboratory(3) as three, ray_cluster(three, tmp_path) as address:
        compared = Comparison(three, tmp_path, address, candidate="candidate", pair=pair, steps=steps)
        verdict = compared.verdict()
    assert verdict["verdict"] == "EQUIVALENT", verdict["reason"]
    [told] = [one for one in verdict["parity"]["checks"] if one["name"] == "placement"]
    assert told["state"] == "ruled out" and "baseline, engine: hostb" in told["evidence"], told
    assert "candidate, engine: hostc" in told["evidence"], told
    for side, host in (("baseline", "hostb"), ("candidate", "hostc")):
        assert compared.hosts_of(side) == {"rollout": host, **dict.fromkeys(LEARNER, "hosta")}


@pytest.mark.night
def test_a_placement_that_cannot_be_is_one_sentence(hosts: lab.Hosts, tmp_path: Path) -> None:
    with ray_cluster(hosts, tmp_path) as address:
        unknown = Comparison(hosts, tmp_path, address, engine="h100")
        assert unknown.process.wait(600) == 2 and "offers the resource 'h100'" in unknown.said(), unknown.said()
        unknown = Comparison(hosts, tmp_path, address, engine="role=critic")
        assert unknown.process.wait(600) == 2 and "has the label 'role=critic'" in unknown.said(), unknown.said()
        assert "role=engine, role=learner" in unknown.said() and "--labels role=critic" in unknown.said()
        assert not list(unknown.out.rglob("*.jsonl")), "nothing was started"
        unknown.out.mkdir(exist_ok=True)
        hosts.hide(1, unknown.out)
        unshared = Comparison(hosts, tmp_path, address)
        assert unshared.process.wait(600) == 2, unshared.said()
    assert f"{unshared.out} is not shared with hostb" in unshared.said(), unshared.said()
    assert not list(unshared.out.rglob(".shared-*")), "what was looked for is gone"


@pytest.mark.night
@pytest.mark.parametrize("partition", [False, True])
def test_a_run_that_loses_the_engines_host_names_it(hosts: lab.Hosts, tmp_path: Path, partition: bool) -> None:
    with ray_cluster(hosts, tmp_path) as address:
        compared = Comparison(hosts, tmp_path, address)
        compared.draws()
        (hosts.cut if partition else hosts.kill)(1)
        try:
            verdict = compared.verdict()
        finally:
            hosts.mend(1)
    assert verdict["verdict"] == "INCONCLUSIVE", verdict["reason"]
    assert "hostb" in verdict["reason"] and "lost" in verdict["reason"], verdict["reason"]


@pytest.mark.night
def test_a_run_that_loses_one_of_four_hosts_names_it_alone(four: lab.Hosts, tmp_path: Path) -> None:
    """The one with the engine of the candidate, while that of the baseline on another host draws."""
    with ray_cluster(four, tmp_path) as address:
        compared = Comparison(four, tmp_path, address, candidate="candidate", steps=8)
        compared.draws()
        four.kill(2)
        verdict = compared.verdict()
    assert verdict["verdict"] == "INCONCLUSIVE", verdict["reason"]
    assert "hostc" in verdict["reason"] and "lost" in verdict["reason"], verdict["reason"]
    assert not any(host in verdict["reason"] for host in ("hosta", "hostb", "hostd")), verdict["reason"]
