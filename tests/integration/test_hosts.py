"""A torch.distributed job on two hosts that share nothing, watched on each, and judged from both directories.

The hosts are network namespaces (harness/planted/hangs/hosts.py): real gloo over a real
link that can be cut and delayed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from triage_evidence import wording
from waiting import until

from harness.errors import BadInput
from harness.planted.hangs import across
from harness.planted.hangs import hosts as lab
from harness.planted.hangs.lab import outcomes
from harness.triage import directory, run
from reports.model import Verdict
from scenarios.planted.hangs.catalog import HANGS, PROGRAMS

pytestmark = [pytest.mark.timeout(180), pytest.mark.skipif(bool(lab.why_not()), reason=lab.why_not() or "-")]

SERVED = 7700  # the port at which each watch serves its evidence
SUPPORT = Path(__file__).parents[1] / "support"
PROGRAM = PROGRAMS / "across_hosts.py"
# In pairs of a hang and a control; all of them: harness faults run hosts-
CASES = ("hosts-stops", "hosts-cut", "hosts-dead", "hosts-wrong-nic", "hosts-right-nic")
BY_DAY = ("hosts-cut",)


@pytest.mark.by_day(1)
@pytest.mark.parametrize(
    "name", [name if name in BY_DAY else pytest.param(name, marks=pytest.mark.night) for name in CASES]
)
def test_each_case_of_the_lab_is_judged_as_it_is(name: str, tmp_path: Path) -> None:
    [outcome] = outcomes([hang for hang in HANGS if hang.name == name], out=tmp_path)
    assert outcome.right, (outcome.to_dict(), outcome.verdict and outcome.verdict.reason)


@pytest.fixture(scope="module")
def hosts() -> Iterator[lab.Hosts]:
    with lab.laboratory() as made:
        yield made


@pytest.fixture(autouse=True)
def ended(hosts: lab.Hosts) -> Iterator[None]:
    yield
    hosts.end()


class Job(across.Job):
    """A job under `harness watch` on each host, which serves its evidence."""

    def __init__(
        self, hosts: lab.Hosts, root: Path, mode: str, steps: int, stall: str, ranks: int = 2, **own: str
    ) -> None:
        """`own`: variables of the last host."""
        (root / "token").write_text("the token of this job's nodes")
        words = ["--phase", mode, "--steps", str(steps)]
        started, last = across.Ranks(PROGRAM, words, ranks), len(hosts.names) - 1
        variables = lambda host: own if host == last else {}  # noqa: E731
        super().__init__(hosts, root, started, stall, served=self.served, variables=variables)

    def wait_until_under_way(self) -> None:
        until(lambda: self.under_way, 60, self.log)

    def wait_for_a_look_at(self, *hosts: int) -> None:
        until(lambda: all(map(self.looked_at, hosts)), 60 * len(hosts), self.log)

    def served(self, host: int) -> list[str]:
        """The options by which the watch of a host serves its evidence."""
        return ["--serve", f"{lab.ADDRESSES[host]}:{SERVED}", "--token-file", str(self.root / "token")]

    def gather(self, name: str, token: str = "token") -> tuple[int, str]:
        """`harness triage` of all hosts' watches, from the first host: its exit code, and what it printed."""
        urls = [f"http://{address}:{SERVED}" for address in lab.ADDRESSES[: len(self.folders)]]
        words = [*urls, "--token-file", str(self.root / token), "--out", str(self.root / name), "--format", "json"]
        code = self.hosts.start(0, [*across.HARNESS, "triage", *words], self.root / f"{name}.log").wait(600)
        return code, (self.root / f"{name}.log").read_text()

    def ranks(self, host: int) -> dict[int, int]:
        """rank -> pid, by the heartbeats."""
        beats = [
            json.loads(file.read_text().rstrip(" \0\n")) for file in (self.folders[host] / "beats").glob("[0-9]*.json")
        ]
        return {beat["rank"]: beat["pid"] for beat in beats if beat.get("rank") is not None}


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


@pytest.mark.night
@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")
@pytest.mark.parametrize("hours", [1, -2])
def test_a_rank_that_stops_is_named_where_the_clocks_of_its_host_are_wrong(
    hosts: lab.Hosts, tmp_path: Path, hours: int
) -> None:
    """Of every process of that host, its watch included."""
    library = tmp_path / "clock.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, SUPPORT / "clock.c", "-ldl"], check=True)
    clock = {"LD_PRELOAD": str(library), "CLOCK_WRONG_BY_S": str(3600 * hours)}
    job = Job(hosts, tmp_path, "stops", 1000, "4s", **clock)
    job.wait_until_under_way()
    culprit = job.ranks(1)[3]
    job.wait_for_a_look_at(0, 1)
    said = job.gather("gathered")[1]
    hosts.end()
    here, there = (datetime.fromisoformat(directory.read(run.newest(folder)).taken) for folder in job.folders)
    assert abs((there - here).total_seconds() - 3600 * hours) < 600, "the control: the clocks are apart"
    for verdict in (run.triage(list(map(str, job.folders))), Verdict.from_dict(json.loads(said))):
        assert verdict.verdict == "HUNG" and culprits(verdict) == [(3, "hostb", culprit)], verdict.reason


@pytest.mark.night
def test_a_rank_that_stops_is_named_with_its_host_whatever_the_clocks_say(hosts: lab.Hosts, tmp_path: Path) -> None:
    job = Job(hosts, tmp_path, "stops", 1000, "4s")
    job.wait_until_under_way()
    culprit = job.ranks(1)[3]
    job.wait_for_a_look_at(0, 1)
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


@pytest.mark.night
def test_a_partition_is_the_networks_and_no_ranks(hosts: lab.Hosts, tmp_path: Path) -> None:
    """Judged from the directory above both, as it is on a shared file system."""
    job = Job(hosts, tmp_path, "works", 100_000, "4s")
    job.wait_until_under_way()
    sound = Verdict.from_dict(json.loads(job.gather("sound")[1]))
    assert sound.verdict != "HUNG" and not culprits(sound), f"the control: {sound.reason}"
    shutil.rmtree(tmp_path / "sound")
    hosts.cut(0)
    try:
        job.wait_for_a_look_at(0, 1)
        hosts.end()
    finally:
        hosts.mend(0)
    verdict = run.triage([str(tmp_path)])
    assert verdict.verdict == "HUNG" and not culprits(verdict), verdict.reason
    assert "the network between hosta and hostb, not a rank" in verdict.reason, verdict.reason


@pytest.mark.night
def test_a_rank_that_stops_is_named_by_evidence_that_each_watch_serves(hosts: lab.Hosts, tmp_path: Path) -> None:
    """From the first host, which reads no file of the other one; then that one is cut off."""
    job = Job(hosts, tmp_path, "stops", 1000, "4s")
    job.wait_until_under_way()
    culprit = job.ranks(1)[3]
    job.wait_for_a_look_at(0)
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
    assert f"http://{lab.ADDRESSES[1]}:{SERVED} gave no evidence (no answer within 5 s)" in wording(verdict)
    assert "rank 2-3 of 4" in wording(verdict)


@pytest.mark.night
def test_of_four_hosts_the_one_whose_rank_stops_is_named(tmp_path: Path) -> None:
    with lab.laboratory(4) as four:
        job = Job(four, tmp_path, "stops", 1000, "4s", ranks=1)
        job.wait_until_under_way()
        culprit = job.ranks(3)[3]
        job.wait_for_a_look_at(0)
        said = job.gather("gathered")[1]
    verdict = Verdict.from_dict(json.loads(said))
    assert verdict.verdict == "HUNG" and culprits(verdict) == [(3, "hostd", culprit)], said


@pytest.mark.night
def test_of_four_hosts_the_one_that_is_cut_off_is_named_and_none_is_blamed(tmp_path: Path) -> None:
    """Whenever the cut falls: in the middle of an operation there may be data on one of its links alone."""
    with lab.laboratory(4) as four:
        job = Job(four, tmp_path, "works", 100_000, "4s", ranks=1)
        job.wait_until_under_way()
        four.cut(2)
        job.wait_for_a_look_at(0, 1, 2, 3)
        said = job.gather("gathered")[1]
    verdict = Verdict.from_dict(json.loads(said))
    assert verdict.verdict == "INSUFFICIENT" and not culprits(verdict), said
    assert f"http://{lab.ADDRESSES[2]}:{SERVED} gave no evidence" in verdict.reason and "rank 2 of 4" in wording(
        verdict
    )
    together = run.triage(list(map(str, job.folders)))
    assert together.verdict == "HUNG" and not culprits(together), together.reason
    named = ("the network of hostc", "the network between hostb and hostc", "the network between hostc and hostd")
    assert any(f"{one}, not a rank" in together.reason for one in named), together.reason


@pytest.mark.night
def test_of_four_hosts_none_is_named_where_the_network_between_all_is_down(tmp_path: Path) -> None:
    """Between two operations, so that every rank has still to send."""
    with lab.laboratory(4) as four:
        job = Job(four, tmp_path, "rests", 100_000, "4s", ranks=1)
        job.wait_until_under_way()
        four.cut_all()
        job.wait_for_a_look_at(0, 1, 2, 3)
    verdict = run.triage(list(map(str, job.folders)))
    assert not culprits(verdict), verdict.reason
    assert "the network between 4 hosts, not a rank" in verdict.reason, verdict.reason


@pytest.mark.night
def test_a_route_on_which_answers_are_lost_is_the_networks_and_no_ranks(tmp_path: Path) -> None:
    """Packets from the first host arrive, and those to it do not."""
    with lab.laboratory() as hosts:
        job = Job(hosts, tmp_path, "works", 100_000, "4s")
        job.wait_until_under_way()
        hosts.astray(1, 0)
        job.wait_for_a_look_at(0, 1)
    verdict = run.triage(list(map(str, job.folders)))
    assert not culprits(verdict) and "the network between hosta and hostb" in verdict.reason, verdict.reason


@pytest.mark.night
def test_a_firewall_that_drops_what_ranks_send_to_one_another_is_the_networks(tmp_path: Path) -> None:
    """All but the port of the rendezvous: the group never forms."""
    with lab.laboratory() as hosts:
        hosts.firewall(1, 0, 29500)
        job = Job(hosts, tmp_path, "works", 100_000, "4s")
        job.wait_for_a_look_at(0, 1)
    verdict = run.triage(list(map(str, job.folders)))
    assert verdict.verdict == "INSUFFICIENT" and not culprits(verdict), verdict.reason
    assert "every rank has come to init_process_group of 4 ranks" in verdict.reason, verdict.reason
    assert "ranks of hosta and hostb do not reach one another" in wording(verdict)


def test_an_interface_that_is_not_there_is_told_before_the_start(hosts: lab.Hosts, tmp_path: Path) -> None:
    log = tmp_path / "doctor.log"
    code = hosts.start(1, [*across.HARNESS, "doctor"], log, GLOO_SOCKET_IFNAME="nic9").wait(600)
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
