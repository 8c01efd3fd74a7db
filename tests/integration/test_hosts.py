"""A torch.distributed job on two hosts that share nothing, watched on each, and judged from both directories.

The hosts are network namespaces (tests/support/hosts.py): real gloo over a real link that can be cut and delayed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import hosts as lab
import pytest
from waiting import until

from harness.errors import BadInput
from harness.triage import run
from reports.model import Verdict

pytestmark = [pytest.mark.timeout(180), pytest.mark.skipif(bool(lab.why_not()), reason=lab.why_not() or "-")]

HARNESS = [sys.executable, "-m", "harness.cli"]
UNDER_WAY = 10  # steps
SERVED = 7700  # the port at which each watch serves its evidence
JOB = f"""\
import datetime, sys, time
from pathlib import Path
import torch
import torch.distributed as dist

def keep_alive():
    time.sleep(3600)

dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=30))
for step in range(int(sys.argv[2])):
    if sys.argv[1] == "stops" and dist.get_rank() == dist.get_world_size() - 1 and step == 2 * {UNDER_WAY}:
        keep_alive()
    dist.all_reduce(torch.ones(1000))
    if step == {UNDER_WAY}:
        Path(sys.argv[3], f"rank-{{dist.get_rank()}}").touch()
    time.sleep(0.5 if sys.argv[1] == "rests" else 0.02)
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def hosts() -> Iterator[lab.Hosts]:
    with lab.laboratory() as made:
        yield made


@pytest.fixture(autouse=True)
def ended(hosts: lab.Hosts) -> Iterator[None]:
    yield
    hosts.end()


class Job:
    """A job under `harness watch` on each host: its directories, its processes, its logs."""

    def __init__(
        self, hosts: lab.Hosts, root: Path, mode: str, steps: int, stall: str, master: str = lab.ADDRESSES[0],
        ranks: int = 2, **environ: str,
    ) -> None:  # fmt: skip
        self.root = root
        (root / "job.py").write_text(JOB)
        (root / "token").write_text("the token of this job's nodes")
        self.hosts, self.folders = hosts, [root / name for name in hosts.names]
        self.size = ranks * len(self.folders)
        self.processes = []
        for host, folder in enumerate(self.folders):
            words = lab.torchrun(
                host, root / "job.py", mode, str(steps), str(root), master=master, nodes=len(self.folders), ranks=ranks
            )
            watched = [*HARNESS, "watch", "--stall", stall, "--out", str(folder), *self.served(host), "--", *words]
            self.processes.append(hosts.start(host, watched, root / f"{lab.NAMES[host]}.log", **environ))

    def under_way(self) -> None:
        until(lambda: len(list(self.root.glob("rank-?"))) == self.size, 60, self.log)

    def looked_at(self, *numbers: int) -> None:
        for folder in (self.folders[number] for number in numbers):
            until(lambda at=folder: _complete(at), 60, self.log)  # type: ignore[misc]

    def served(self, host: int) -> list[str]:
        """The options by which the watch of a host serves its evidence."""
        return ["--serve", f"{lab.ADDRESSES[host]}:{SERVED}", "--token-file", str(self.root / "token")]

    def gather(self, name: str, token: str = "token") -> tuple[int, str]:
        """`harness triage` of all hosts' watches, from the first host: its exit code, and what it printed."""
        urls = [f"http://{address}:{SERVED}" for address in lab.ADDRESSES[: len(self.folders)]]
        words = [*urls, "--token-file", str(self.root / token), "--out", str(self.root / name), "--format", "json"]
        code = self.hosts.start(0, [*HARNESS, "triage", *words], self.root / f"{name}.log").wait(120)
        return code, (self.root / f"{name}.log").read_text()

    def log(self) -> str:
        return "\n".join(file.read_text(errors="replace")[-2000:] for file in self.root.glob("host?.log"))

    def ranks(self, host: int) -> dict[int, int]:
        """rank -> pid, by the heartbeats."""
        beats = [
            json.loads(file.read_text().rstrip(" \0\n")) for file in (self.folders[host] / "beats").glob("[0-9]*.json")
        ]
        return {beat["rank"]: beat["pid"] for beat in beats if beat.get("rank") is not None}


def _complete(folder: Path) -> bool:
    newest = run.newest(folder)
    return newest is not None and (newest / "verdict.json").exists()


def culprits(verdict: Verdict) -> list[tuple[int | None, str, int | None]]:
    assert verdict.triage is not None
    return [(one.rank, one.host, one.pid) for one in verdict.triage.culprits]


def skew(watch: Path, hours: int) -> None:
    """What a watch left, as if the wall clock of its host were wrong."""
    evidence = run.newest(watch)
    assert evidence is not None
    index = json.loads((evidence / "evidence.json").read_text())
    index["taken"] = (datetime.fromisoformat(index["taken"]) + timedelta(hours=hours)).isoformat()
    (evidence / "evidence.json").write_text(json.dumps(index))
    by_ns, moved = hours * 3600 * 10**9, 0
    for file in (evidence / "processes").iterdir():
        process = json.loads(file.read_text())
        if process["dump_taken_ns"]:
            file.write_text(json.dumps({**process, "dump_taken_ns": process["dump_taken_ns"] + by_ns}))
    for file in (evidence / "recorder").iterdir():
        dump = json.loads(file.read_text())
        for entry in dump.get("entries", ()):
            for key in ("time_created_ns", "time_discovered_started_ns", "time_discovered_completed_ns"):
                entry[key] = entry[key] + by_ns if entry.get(key) else entry.get(key)
            moved += 1
        file.write_text(json.dumps(dump))
    assert moved, "there were operations to move"


def test_a_rank_that_stops_is_named_with_its_host_whatever_the_clocks_say(hosts: lab.Hosts, tmp_path: Path) -> None:
    job = Job(hosts, tmp_path, "stops", 1000, "4s")
    job.under_way()
    culprit = job.ranks(1)[3]
    job.looked_at(0, 1)
    hosts.end()
    alone = run.triage([str(job.folders[0])])
    assert alone.verdict == "INSUFFICIENT" and not culprits(alone), "the control: its own host cannot see rank 3"
    verdict = run.triage(list(map(str, job.folders)))
    assert verdict.verdict == "HUNG" and culprits(verdict) == [(3, "hostb", culprit)], verdict.reason
    assert "rank 3 on hostb" in verdict.reason
    for hours in (1, -2):  # an hour ahead, then an hour behind
        skew(job.folders[1], hours)
        skewed = run.triage(list(map(str, job.folders)))
        assert (skewed.reason, culprits(skewed)) == (verdict.reason, culprits(verdict))
    again = run.newest(job.folders[1])
    with pytest.raises(BadInput, match="are both evidence of hostb"):
        run.triage([str(job.folders[1]), str(again)])


def test_a_partition_is_the_networks_and_no_ranks(hosts: lab.Hosts, tmp_path: Path) -> None:
    """Judged from the directory above both, as it is on a shared file system."""
    job = Job(hosts, tmp_path, "works", 100_000, "4s")
    job.under_way()
    sound = Verdict.from_dict(json.loads(job.gather("sound")[1]))
    assert sound.verdict != "HUNG" and not culprits(sound), f"the control: {sound.reason}"
    shutil.rmtree(tmp_path / "sound")
    hosts.cut(0)
    try:
        job.looked_at(0, 1)
        hosts.end()
    finally:
        hosts.mend(0)
    verdict = run.triage([str(tmp_path)])
    assert not culprits(verdict), verdict.reason
    assert verdict.verdict in ("HUNG", "INSUFFICIENT") and "the network between" in verdict.reason, verdict.reason


def test_a_host_that_dies_is_named_and_none_of_its_ranks_is_blamed(hosts: lab.Hosts, tmp_path: Path) -> None:
    """Its cable first: a power cut sends no last packet. Its directory holds the last heartbeats."""
    job = Job(hosts, tmp_path, "works", 100_000, "4s")
    job.under_way()
    hosts.cut(1)
    hosts.kill(1)
    try:
        job.looked_at(0)
        hosts.end()
    finally:
        hosts.mend(1)
    verdict = run.triage(list(map(str, job.folders)))
    assert verdict.verdict == "INSUFFICIENT" and not culprits(verdict), verdict.reason
    assert "no evidence was taken on hostb (rank 2-3)" in verdict.reason


def test_a_rank_that_stops_is_named_by_evidence_that_each_watch_serves(hosts: lab.Hosts, tmp_path: Path) -> None:
    """From the first host, which reads no file of the other one; then that one is cut off."""
    job = Job(hosts, tmp_path, "stops", 1000, "4s")
    job.under_way()
    culprit = job.ranks(1)[3]
    job.looked_at(0)
    code, said = job.gather("gathered")
    verdict = Verdict.from_dict(json.loads(said))
    assert (code, verdict.verdict) == (1, "HUNG") and culprits(verdict) == [(3, "hostb", culprit)], said
    (tmp_path / "other").write_text("the token of another job")
    code, said = job.gather("refused", "other")
    assert code == 2 and "it has another token" in said and not (tmp_path / "refused" / "verdict.json").exists(), said
    hosts.cut(1)
    try:
        code, said = job.gather("cut")
    finally:
        hosts.mend(1)
    verdict = Verdict.from_dict(json.loads(said))
    assert verdict.verdict == "INSUFFICIENT" and not culprits(verdict), said
    assert f"http://{lab.ADDRESSES[1]}:{SERVED} gave no evidence (no answer within 5 s)" in verdict.reason
    assert "rank 2-3 of 4" in verdict.reason


def test_of_four_hosts_the_one_whose_rank_stops_is_named(tmp_path: Path) -> None:
    with lab.laboratory(4) as four:
        job = Job(four, tmp_path, "stops", 1000, "4s", ranks=1)
        job.under_way()
        culprit = job.ranks(3)[3]
        job.looked_at(0)
        said = job.gather("gathered")[1]
    verdict = Verdict.from_dict(json.loads(said))
    assert verdict.verdict == "HUNG" and culprits(verdict) == [(3, "hostd", culprit)], said


@pytest.mark.night
def test_of_four_hosts_the_one_that_is_cut_off_is_named_and_none_is_blamed(tmp_path: Path) -> None:
    with lab.laboratory(4) as four:
        job = Job(four, tmp_path, "works", 100_000, "4s", ranks=1)
        job.under_way()
        four.cut(2)
        job.looked_at(0, 1, 2, 3)
        said = job.gather("gathered")[1]
    verdict = Verdict.from_dict(json.loads(said))
    assert verdict.verdict == "INSUFFICIENT" and not culprits(verdict), said
    assert f"http://{lab.ADDRESSES[2]}:{SERVED} gave no evidence" in verdict.reason and "rank 2 of 4" in verdict.reason
    together = run.triage(list(map(str, job.folders)))
    assert not culprits(together) and "the network of hostc, not a rank" in together.reason, together.reason


@pytest.mark.night
def test_of_four_hosts_none_is_named_where_the_network_between_all_is_down(tmp_path: Path) -> None:
    """Between two operations, so that every rank has still to send."""
    with lab.laboratory(4) as four:
        job = Job(four, tmp_path, "rests", 100_000, "4s", ranks=1)
        job.under_way()
        four.cut_all()
        job.looked_at(0, 1, 2, 3)
    verdict = run.triage(list(map(str, job.folders)))
    assert not culprits(verdict), verdict.reason
    assert "the network between hosta, hostb, hostc and hostd, not a rank" in verdict.reason, verdict.reason


def test_a_route_on_which_answers_are_lost_is_the_networks_and_no_ranks(tmp_path: Path) -> None:
    """Packets from the first host arrive, and those to it do not."""
    with lab.laboratory() as hosts:
        job = Job(hosts, tmp_path, "works", 100_000, "4s")
        job.under_way()
        hosts.astray(1, 0)
        job.looked_at(0, 1)
    verdict = run.triage(list(map(str, job.folders)))
    assert not culprits(verdict) and "the network between hosta and hostb" in verdict.reason, verdict.reason


def test_a_firewall_that_drops_what_ranks_send_to_one_another_is_the_networks(tmp_path: Path) -> None:
    """All but the port of the rendezvous: the group never forms."""
    with lab.laboratory() as hosts:
        hosts.firewall(1, 0, 29500)
        job = Job(hosts, tmp_path, "works", 100_000, "4s")
        job.looked_at(0, 1)
    verdict = run.triage(list(map(str, job.folders)))
    assert verdict.verdict == "INSUFFICIENT" and not culprits(verdict), verdict.reason
    assert "every rank has come to init_process_group of 4 ranks, on hosta and hostb" in verdict.reason, verdict.reason
    assert "do not reach one another" in verdict.reason


@pytest.mark.night
def test_a_link_that_is_slow_and_loses_packets_is_no_stall(hosts: lab.Hosts, tmp_path: Path) -> None:
    with lab.slow_link(hosts, delay_s=0.1, loss=0.01) as packets:
        interface = {"GLOO_SOCKET_IFNAME": lab.SLOW, "TP_SOCKET_IFNAME": lab.SLOW}
        job = Job(hosts, tmp_path, "works", 15, "8s", master=lab.SLOW_ADDRESSES[0], **interface)
        codes = [process.wait(120) for process in job.processes]
    assert codes == [0, 0], job.log()
    assert packets["carried"] > 300 and packets["lost"] > 0, packets
    assert not any((folder / "verdict.json").exists() for folder in job.folders), job.log()


def test_an_interface_that_is_not_there_is_told_before_the_start(hosts: lab.Hosts, tmp_path: Path) -> None:
    log = tmp_path / "doctor.log"
    code = hosts.start(1, [*HARNESS, "doctor"], log, GLOO_SOCKET_IFNAME="nic9").wait(60)
    said = log.read_text()
    assert code != 0 and "GLOO_SOCKET_IFNAME" in said and "nic9" in said, said
    assert lab.INTERFACE in said, "the one that is there is in the advice"


def test_nothing_of_the_laboratory_is_left() -> None:
    """Of one that fails as well."""
    with pytest.raises(RuntimeError), lab.laboratory() as made:
        process = made.start(0, ["sleep", "1000"], Path("/dev/null"))
        raise RuntimeError
    assert process.poll() is not None
    shown = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    assert not any(name in shown for name in made.namespaces)
