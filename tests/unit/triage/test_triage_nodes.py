"""The evidence of several nodes, a directory each, judged together: planted faults, and controls that blame nobody."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest
import triage_evidence as make
from triage_evidence import wording

from harness.errors import BadInput
from harness.triage import directory, judge, nodes, run
from harness.triage.evidence import Evidence, OpenSpan, Process, Silence
from harness.triage.flight import synthesis
from harness.triage.flight.synthesis import Fault
from reports.model import Verdict

HOUR_NS = 3600 * 10**9
HOSTS = ("a", "b")
WAIT = "main:10 step:42 all_reduce"
TAKEN = "2026-01-01T00:00:00+00:00"


@dataclasses.dataclass
class Cluster:
    """A job of 2 hosts x 2 ranks as it stands at #60, whose rank 3 does `stack` when `fault` strikes."""

    root: Path
    fault: Fault | None = dataclasses.field(default_factory=lambda: Fault("dead", rank=3, at=56))
    stack: str = "main:10 step:44 keep_alive"
    entries: int = 120
    port: str = "29500"
    world: int = 4
    beats: bool = False

    def process(self, rank: int, host: str, **more: object) -> Process:
        """The pids of both hosts are the same."""
        environ = {
            "MASTER_ADDR": "a", "MASTER_PORT": self.port, "WORLD_SIZE": str(self.world), "LOCAL_WORLD_SIZE": "2",
            "RANK": str(rank),
        }  # fmt: skip
        stack = self.stack if self.fault and rank == self.fault.rank else WAIT
        one = make.rank(rank, stack, world=self.world, environ=environ, **more)
        beat = dataclasses.replace(one.beat, sequences={"0": 50})
        return dataclasses.replace(one, host=host, pid=100 + rank % 2, beat=beat)

    def node(self, host: str, **more: object) -> Path:
        """The evidence directory of one host."""
        folder = self.root / f"node-{host}"
        (folder / "recorder").mkdir(parents=True)
        job = synthesis.simulate(self.world, self.entries, self.fault)
        processes = []
        for rank in (2 * HOSTS.index(host), 2 * HOSTS.index(host) + 1):
            one = self.process(rank, host)
            dump = f"recorder/{directory.file_name(host, one.pid)}"
            (folder / dump).write_bytes(synthesis.encoded(job, rank, "json"))
            processes.append(dataclasses.replace(one, dump=dump))
        fields = {"stall_s": 30.0, "expected_world": self.world, **more}
        directory.write(Evidence(str(folder), "watch", TAKEN, processes=tuple(processes), **fields), folder)  # type: ignore[arg-type]
        return folder


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., Cluster]:
    return lambda name="job", **more: Cluster(tmp_path / name, **more)


def triage(*folders: Path) -> Verdict:
    return run.triage([str(folder) for folder in folders])


def hang(verdict: Verdict) -> str:
    return verdict.triage.hang if verdict.triage else ""


def culprits(verdict: Verdict) -> list[tuple[int | None, str, int | None]]:
    assert verdict.triage is not None
    return [(one.rank, one.host, one.pid) for one in verdict.triage.culprits]


def test_the_culprit_on_another_node_is_named_with_its_host(job: Callable[..., Cluster]) -> None:
    cluster = job()
    here, there = cluster.node("a"), cluster.node("b")
    alone = triage(here)
    assert alone.verdict == "INSUFFICIENT" and not culprits(alone), "the control: its own node says nothing of rank 3"
    both = triage(here, there)
    assert (both.verdict, hang(both)) == ("HUNG", "K4"), both.reason
    assert culprits(both) == [(3, "b", 101)] and "rank 3 on b" in both.reason
    assert both.triage and {one.rank for one in both.triage.victims} == {0, 1, 2}, "a:100 and b:100 are two processes"
    assert both.coverage["hosts"] == 2 and both.coverage["with_recorder"] == 4


def test_the_directory_above_those_of_the_nodes_is_as_good(job: Callable[..., Cluster]) -> None:
    cluster = job()
    both = triage(cluster.node("a"), cluster.node("b"))
    assert dataclasses.replace(triage(cluster.root), reproduce="", figures={}) == dataclasses.replace(
        both, reproduce="", figures={}
    )


@pytest.mark.slow
def test_zips_of_nodes(job: Callable[..., Cluster]) -> None:
    cluster = job()
    assert culprits(triage(*map(directory.pack, (cluster.node("a"), cluster.node("b"))))) == [(3, "b", 101)]


@pytest.mark.parametrize("skew_ns", [HOUR_NS, -HOUR_NS])
def test_a_clock_that_is_an_hour_off_changes_nothing(job: Callable[..., Cluster], skew_ns: int) -> None:
    cluster = job()
    here, there = cluster.node("a"), cluster.node("b")
    sound = triage(here, there)
    skew(there, skew_ns)
    skewed = triage(here, there)
    assert culprits(skewed) == culprits(sound) == [(3, "b", 101)] and skewed.reason == sound.reason


def skew(folder: Path, by_ns: int) -> None:
    """Set the wall clock of a host: every time in its recorders, and the one at which its evidence was taken."""
    for dump in (folder / "recorder").iterdir():
        moved = re.sub(
            rb'"(time_\w+_ns)":([1-9]\d+)', lambda hit: b'"%s":%d' % (hit[1], int(hit[2]) + by_ns), dump.read_bytes()
        )
        dump.write_bytes(moved)
    index = json.loads((folder / "evidence.json").read_text())
    index["taken"] = "2026-01-01T01:00:00+00:00" if by_ns > 0 else "2025-12-31T23:00:00+00:00"
    (folder / "evidence.json").write_text(json.dumps(index))


def test_a_missing_directory_is_named_and_nobody_is_blamed(job: Callable[..., Cluster]) -> None:
    """Rank 3 of 6 would be blamed; ranks 4 and 5, of which nothing is known, may be why it is where it is."""
    cluster = job(world=6)
    verdict = triage(cluster.node("a"), cluster.node("b"))
    assert verdict.verdict == "INSUFFICIENT" and not culprits(verdict)
    assert "rank 4-5 of 6" in wording(verdict) and "a, b" in wording(verdict)
    assert any("rank 4-5" in item for item in verdict.missing)


def test_a_watch_that_gave_nothing_is_named_where_ranks_are_missing(job: Callable[..., Cluster]) -> None:
    cluster = job(world=6)
    parts = {path: directory.read(path) for path in (cluster.node("a"), cluster.node("b"))}
    verdict = judge.triage(nodes.unite(parts, {"http://c:7700": Silence("no answer within 5 s")}))
    assert verdict.verdict == "INSUFFICIENT" and not culprits(verdict)
    assert "http://c:7700" in wording(verdict), wording(verdict)
    assert "rank 4-5 of 6" in wording(verdict) and verdict.triage and "is c up?" in verdict.triage.next[0]


def test_a_host_that_answers_is_asked_for_its_watch_and_not_whether_it_is_up(job: Callable[..., Cluster]) -> None:
    cluster = job(world=6)
    parts = {path: directory.read(path) for path in (cluster.node("a"), cluster.node("b"))}
    refused, lost = {"http://c:7899": Silence("connection refused", up=True)}, {"http://d:7700": Silence("no answer")}
    verdict = judge.triage(nodes.unite(parts, refused))
    assert verdict.triage and "The host died" not in verdict.reason
    assert "the host c answers" in verdict.triage.next[0] and "at port 7899?" in verdict.triage.next[0]
    assert not any("is c up?" in step for step in verdict.triage.next)
    both = judge.triage(nodes.unite(parts, {**refused, **lost}))
    assert both.triage and "is d up?" in both.triage.next[1] and "the host died" in wording(both)


def test_a_watch_that_gave_nothing_and_whose_ranks_nobody_knows_is_named_before_what_is_unseen() -> None:
    waits = make.rank(0, "main train all_reduce", world=2)
    alone = make.evidence(waits, stall_s=30.0)
    assert judge.triage(alone).verdict == "INSUFFICIENT"
    silent = dataclasses.replace(alone, unreached={"http://c:7700": Silence("connection refused", up=True)})
    verdict = judge.triage(silent)
    assert verdict.verdict == "INSUFFICIENT" and "http://c:7700" in verdict.reason, verdict.reason


def test_a_watch_that_gave_nothing_takes_no_culprit_away_whose_ranks_are_all_there(job: Callable[..., Cluster]) -> None:
    cluster = job()
    parts = {path: directory.read(path) for path in (cluster.node("a"), cluster.node("b"))}
    verdict = judge.triage(nodes.unite(parts, {"http://c:7700": Silence("connection refused", up=True)}))
    assert culprits(verdict) == [(3, "b", 101)]
    assert any("http://c:7700: connection refused" in item for item in verdict.missing)


@pytest.mark.parametrize(
    ("hosts", "told"),
    [("aabb", True), ("aaaa", False), ("aab", False)],
    ids=["two hosts", "the control: one host", "the control: a rank has not come"],
)
def test_ranks_that_all_come_to_a_group_which_does_not_form_do_not_reach_one_another(hosts: str, told: bool) -> None:
    opening = (OpenSpan("init_process_group", 30.0, {"world_size": 4}),)
    ranks = [
        dataclasses.replace(make.rank(number, "main init_process_group", world=4, spans=opening), host=host)
        for number, host in enumerate(hosts)
    ]
    verdict = judge.triage(make.evidence(*ranks))
    assert ("do not reach one another" in wording(verdict)) is told, wording(verdict)
    assert not told or (
        verdict.verdict == "INSUFFICIENT" and "of a and b" in wording(verdict) and not culprits(verdict)
    )


@pytest.mark.parametrize("world_size", [6, None])
def test_a_missing_directory_of_ranks_that_did_not_note_where_they_meet(
    job: Callable[..., Cluster], world_size: int | None
) -> None:
    """As workers of Ray, which set MASTER_ADDR themselves. The groups in the recorders still have six members."""
    cluster = job(world=6)
    folders = cluster.node("a"), cluster.node("b")
    for folder in folders:
        unplaced(folder, world_size=world_size)
        index = json.loads((folder / "evidence.json").read_text())
        (folder / "evidence.json").write_text(json.dumps({**index, "expected_world": world_size}))
    verdict = triage(*folders)
    assert verdict.verdict == "INSUFFICIENT" and not culprits(verdict), verdict.reason
    assert "ranks 4-5" in wording(verdict)


def test_all_directories_of_ranks_that_did_not_all_note_where_they_meet(job: Callable[..., Cluster]) -> None:
    cluster = job()
    here, there = cluster.node("a"), cluster.node("b")
    for folder in (there, here):  # one node's first, then both
        unplaced(folder, world_size=4)
        assert culprits(triage(here, there)) == [(3, "b", 101)]


def test_engines_of_two_hosts_without_an_address_may_have_the_same_ranks(job: Callable[..., Cluster]) -> None:
    cluster = job()
    here, there = cluster.node("a"), cluster.node("b")
    for folder in (here, there):
        for file in (folder / "processes").iterdir():
            fields = json.loads(file.read_text())
            more = {"environ": {}, "engine": "vllm", "rank": fields["rank"] % 2, "world_size": 2, "dump": ""}
            file.write_text(json.dumps({**fields, **more}))
    assert "no directory holds" not in triage(here, there).reason


def unplaced(folder: Path, *, world_size: int | None) -> None:
    """The evidence of processes whose environment does not say where they meet."""
    for file in (folder / "processes").iterdir():
        file.write_text(json.dumps({**json.loads(file.read_text()), "environ": {}, "world_size": world_size}))


def test_a_host_of_which_only_heartbeats_are_left_is_named(job: Callable[..., Cluster]) -> None:
    cluster = job()
    here, there = cluster.node("a"), cluster.node("b")
    for file in (there / "processes").iterdir():
        file.write_text(json.dumps({**json.loads(file.read_text()), "samples": [], "dump": ""}))
    verdict = triage(here, there)
    assert verdict.verdict == "INSUFFICIENT" and not culprits(verdict)
    assert "on b" in verdict.reason and "b (rank 2-3)" in wording(verdict)


def test_evidence_of_two_moments_blames_nobody(job: Callable[..., Cluster]) -> None:
    """Host a was looked at during a pause early on, host b much later."""
    early, late = job("early", fault=Fault("dead", rank=3, at=20)), job("late", fault=Fault("dead", rank=3, at=110))
    here, there = early.node("a"), late.node("b")
    for one, other in ((here, there), (there, here)):
        verdict = triage(one, other)
        assert verdict.verdict == "INSUFFICIENT" and not culprits(verdict)
        assert "not of one moment" in verdict.reason and "older" in verdict.reason


def complete(dump: Path) -> None:
    """What was pending in it has ended."""
    done = dump.read_bytes().replace(b'"state":"started"', b'"state":"completed"')
    dump.write_bytes(done.replace(b'"retired":false', b'"retired":true'))


def test_an_operation_that_ended_on_one_host_alone_is_the_networks(job: Callable[..., Cluster]) -> None:
    """Everybody has come to it. Host b got what it waited for; host a's last packets were lost."""
    cluster = job(fault=Fault("wedge", rank=0, at=56), stack=WAIT)
    here, there = cluster.node("a"), cluster.node("b")
    wedged = triage(here, there)
    assert (wedged.verdict, hang(wedged)) == ("HUNG", "K12") and not culprits(wedged)
    assert "the network between a and b or a device, not a rank" in wedged.reason
    for dump in (there / "recorder").iterdir():
        complete(dump)
    lost = triage(here, there)
    assert lost.verdict == "INSUFFICIENT" and not culprits(lost)
    assert "ended on b and not on a" in lost.reason and "the network between them" in wording(lost)


def test_a_rank_that_computes_on_another_host_is_slow(job: Callable[..., Cluster]) -> None:
    cluster = job(stack="main:10 step:44 compute:7")
    here, there = cluster.node("a"), cluster.node("b")
    file = there / "processes" / "b-101.json"
    looks = make.samples("main:10 step:44 compute:7", "main:10 step:44 compute:9 inner:3", cpu_s=1.4)
    file.write_text(json.dumps({**json.loads(file.read_text()), "samples": msgspec.to_builtins(looks)}))
    verdict = triage(here, there)
    assert verdict.verdict == "SLOW" and not culprits(verdict) and "rank 3" in verdict.reason


def test_one_host_twice(job: Callable[..., Cluster]) -> None:
    one, again = job().node("a"), job("again").node("a")
    with pytest.raises(BadInput, match=r"node-a and .*node-a are both evidence of a \(process 100 is in both\)$"):
        triage(one, again)
    with pytest.raises(BadInput, match="is given twice"):
        triage(one, one)


def test_two_jobs(job: Callable[..., Cluster]) -> None:
    with pytest.raises(BadInput, match=r"two jobs: .*a:29500 and at a:29501$"):
        triage(job().node("a"), job("other", port="29501").node("b"))


def folder(path: Path, *processes: Process, **more: object) -> Path:
    path.mkdir(parents=True)
    directory.write(Evidence(str(path), "watch", TAKEN, 30.0, processes, **more), path)  # type: ignore[arg-type]
    return path


def program(pid: int, name: str, host: str = "a", **more: object) -> Process:
    one = make.process(pid, "process", "main:10 queue.get")
    return dataclasses.replace(one, host=host, ppid=1, command=f"python {name}", environ={}, **more)


def whole_world(port: str, host: str, **more: object) -> list[Process]:
    environ = {"MASTER_ADDR": host, "MASTER_PORT": port, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    ranks = [make.rank(number, WAIT, world=2, environ={**environ, "RANK": str(number)}) for number in range(2)]
    return [dataclasses.replace(one, host=host, **more) for one in ranks]


SERVER = {"listening": ("127.0.0.1:8000",)}


@pytest.mark.parametrize(
    ("first", "second", "apart"),
    [
        pytest.param([program(7, "a.py")], [program(8, "b.py")], True, id="two programs of one host"),
        pytest.param([program(7, "a.py")], [program(8, "b.py", host="b")], False, id="of two hosts"),
        pytest.param([program(7, "a.py", **SERVER)], [program(8, "b.py", peers=("127.0.0.1:8000",))], False,
                     id="a connection"),
        pytest.param([program(7, "a.py", **SERVER)], [program(8, "b.py", sought=("127.0.0.1:8000",))], False,
                     id="a server that is looked for"),
        pytest.param([program(7, "a.py")], [program(8, "b.py", writer=7)], False, id="a pipe"),
        pytest.param(whole_world("29500", "a"), whole_world("29501", "b"), True, id="two worlds"),
        pytest.param(whole_world("29500", "a", **SERVER), whole_world("29501", "b", peers=("a:8000",)), False,
                     id="two worlds of one job"),
    ],
)  # fmt: skip
def test_two_jobs_are_refused_by_name_and_parts_of_one_are_not(
    tmp_path: Path, first: list[Process], second: list[Process], apart: bool
) -> None:
    folders = folder(tmp_path / "one", *first), folder(tmp_path / "two", *second)
    if not apart:
        assert triage(*folders).coverage["processes"] == len(first) + len(second)
        return
    with pytest.raises(BadInput, match="two jobs") as refused:
        triage(*folders)
    assert all(str(each) in refused.value.message for each in folders)
    assert str(refused.value.fix).split("; ") == [f"harness triage {each}" for each in folders]


def test_an_older_attempt(job: Callable[..., Cluster]) -> None:
    """The job was started again and its node b is on another host: ranks 2 and 3 are on b and on c."""
    cluster = job()
    older, here = cluster.node("b"), cluster.node("a")
    newer = job("newer").node("b")
    for file in (newer / "processes").iterdir():
        file.write_text(json.dumps({**json.loads(file.read_text()), "host": "c"}))
    with pytest.raises(BadInput, match=r"rank 2 is process b:100 in .* and c:100 in .*: one of them is of another job"):
        triage(here, older, newer)


def test_ranks_that_meet_at_two_addresses_are_one_job_while_they_form(job: Callable[..., Cluster]) -> None:
    """What MASTER_PORT says differs by mistake: K5, and no bad input."""
    cluster, other = job(), job("other", port="29501")
    folders = cluster.node("a"), other.node("b")
    for folder in folders:
        for file in (folder / "processes").iterdir():
            fields = json.loads(file.read_text())
            forming = make.rank(fields["rank"], "main:5 init_process_group", world=4)
            fields |= {
                "samples": msgspec.to_builtins(forming.samples),
                "dump": "",
                "beat": msgspec.to_builtins(forming.beat),
            }
            file.write_text(json.dumps(fields))
    verdict = triage(*folders)
    assert not culprits(verdict) and verdict.verdict in ("HUNG", "INSUFFICIENT"), verdict.reason


def test_dumps_alone_do_not_say_of_which_node_they_are(job: Callable[..., Cluster], tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    list(synthesis.write(synthesis.simulate(2, 20), bare, "json"))
    with pytest.raises(BadInput, match="holds recorder dumps alone"):
        triage(job().node("a"), bare)
    with pytest.raises(BadInput, match="nowhere: no such file or directory"):
        run.triage([str(bare), str(tmp_path / "nowhere")])


def test_a_local_error_on_two_hosts_has_no_first_one(job: Callable[..., Cluster]) -> None:
    """An error that is older by its own host's clock is not the earlier one."""
    cluster = job()
    folders = cluster.node("a"), cluster.node("b")
    ages = {"a": 500.0, "b": 40.0}
    for folder in folders:
        for file in (folder / "processes").glob("*-101.json"):
            fields = json.loads(file.read_text())
            stack = make.samples("main:10 step:44 keep_alive")
            fields |= {
                "error": "ValueError: no loss",
                "error_age_s": ages[fields["host"]],
                "samples": msgspec.to_builtins(stack),
            }
            file.write_text(json.dumps(fields))
    verdict = triage(*folders)
    assert verdict.verdict == "HUNG" and {host for _, host, _ in culprits(verdict)} != {"a"}, verdict.reason


ADDRESSES = {host: f"10.0.0.{number}" for number, host in enumerate("abcd", 1)}
RING = (("a", "b"), ("b", "c"), ("c", "d"), ("d", "a"))  # gloo's, of a rank on each host


def wedged(job: Callable[..., Cluster], links: Sequence[tuple[str, str]], through: str = "") -> Verdict:
    """A rank on each of four hosts, all of them in one operation but those that are through with it; on these links
    data is not acknowledged."""
    cluster = job(fault=Fault("wedge", rank=0, at=56), stack=WAIT)
    folders = []
    for rank, host in enumerate("abcd"):
        folder = cluster.root / f"node-{host}"
        (folder / "recorder").mkdir(parents=True)
        (folder / "recorder" / "dump").write_bytes(
            synthesis.encoded(synthesis.simulate(4, 120, cluster.fault), rank, "json")
        )
        if host in through:
            complete(folder / "recorder" / "dump")
        sent = [f"{ADDRESSES[one]}:5000 {ADDRESSES[other]}:6000" for one, other in links if one == host]
        one = dataclasses.replace(
            cluster.process(rank, host), dump="recorder/dump", unanswered=tuple(sent),
            listening=(f"{ADDRESSES[host]}:6000", "127.0.0.1:1", "172.17.0.1:1"),
        )  # fmt: skip
        directory.write(Evidence("", "watch", TAKEN, 30.0, processes=(one,), expected_world=4), folder)
        folders.append(folder)
    return triage(*folders)


@pytest.mark.parametrize("cut", "abcd")
@pytest.mark.slow
def test_the_host_that_is_cut_off_is_named_and_no_rank(job: Callable[..., Cluster], cut: str) -> None:
    verdict = wedged(job, [link for link in RING if cut in link])
    assert (verdict.verdict, hang(verdict)) == ("HUNG", "K12") and not culprits(verdict)
    assert f"the network of {cut}, not a rank" in verdict.reason and "TCP data between it" in wording(verdict)


@pytest.mark.slow
@pytest.mark.parametrize("through", ["a", "d", "ab", "abd"])
def test_a_cut_in_the_middle_of_an_operation_is_as_well(job: Callable[..., Cluster], through: str) -> None:
    """Some ranks got what they waited for before it; without a proof of the cut the evidence may be older."""
    verdict = wedged(job, [link for link in RING if "c" in link], through)
    assert (verdict.verdict, hang(verdict)) == ("HUNG", "K12") and not culprits(verdict), verdict.reason
    assert "the network of c, not a rank" in verdict.reason and "between it and b and d" in wording(verdict)
    control = wedged(lambda **more: job("control", **more), [], through)
    assert control.verdict == "INSUFFICIENT" and not culprits(control), control.reason


def test_a_cut_between_hosts_without_a_rank_of_the_group_clears_nobody(job: Callable[..., Cluster]) -> None:
    """Of a job of two hosts, data to hosts of another one is not acknowledged."""
    cluster = job(fault=Fault("wedge", rank=0, at=56), stack=WAIT)
    here, there = cluster.node("a"), cluster.node("b")
    for dump in (there / "recorder").iterdir():
        complete(dump)
    for number, host in enumerate("cd"):
        file = next((here / "processes").glob("*-100.json"))
        fields = json.loads(file.read_text()) | {"host": host, "rank": None, "dump": "", "pid": 700 + number}
        fields |= {
            "listening": [f"10.0.0.{8 + number}:6000"],
            "unanswered": [f"10.0.0.{8 + number}:1 10.0.0.{9 - number}:6000"],
        }
        (here / "processes" / f"{host}-{700 + number}.json").write_text(json.dumps(fields))
    verdict = triage(here, there)
    assert verdict.verdict == "INSUFFICIENT" and "TCP data" not in verdict.reason, verdict.reason


def test_a_rank_beside_may_be_through_where_the_cut_shows(job: Callable[..., Cluster]) -> None:
    """In a ring, rank 0 passes on to rank 1 what rank 1 still lacked, and misses itself what comes from the cut."""
    cluster = job(fault=Fault("wedge", rank=0, at=56), stack=WAIT)
    here, there = cluster.node("a"), cluster.node("b")
    for dump in ((here / "recorder" / "a-101.json"), *(there / "recorder").iterdir()):
        complete(dump)
    control = triage(here, there)
    assert "network" not in control.reason and not culprits(control), control.reason
    for folder, link in ((here, "10.0.0.1:5000 10.0.0.2:6000"), (there, "10.0.0.2:6000 10.0.0.1:5000")):
        file = next((folder / "processes").glob("*-100.json"))
        file.write_text(json.dumps({**json.loads(file.read_text()), "unanswered": [link]}))
    verdict = triage(here, there)
    assert (verdict.verdict, hang(verdict)) == ("HUNG", "K12") and not culprits(verdict), verdict.reason
    assert "the network between a and b, not a rank" in verdict.reason, verdict.reason


@pytest.mark.parametrize(
    ("links", "named"),
    [
        (RING, "the network between 4 hosts, not a rank"),
        ([("b", "c"), ("c", "b")], "the network between b and c, not a rank"),
        ([("a", "b"), ("c", "d")], "the network between 4 hosts, not a rank"),
        ([], "the network between 4 hosts or a device, not a rank"),
    ],
)
@pytest.mark.slow
def test_where_no_host_is_alone_cut_off_none_is_named(
    job: Callable[..., Cluster], links: Sequence[tuple[str, str]], named: str
) -> None:
    verdict = wedged(job, links)
    assert (verdict.verdict, hang(verdict)) == ("HUNG", "K12") and not culprits(verdict)
    assert named in verdict.reason, verdict.reason


def test_a_connection_to_somebody_else_cuts_nobody_off(
    job: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tracker, and an address that every host has."""
    monkeypatch.setitem(ADDRESSES, "tracker", "192.0.2.1")
    monkeypatch.setitem(ADDRESSES, "bridge", "172.17.0.1")
    verdict = wedged(job, [("b", "tracker"), ("c", "bridge"), ("d", "bridge")])
    assert "the network between 4 hosts or a device, not a rank" in verdict.reason, verdict.reason


def test_worlds_of_a_file_size_no_list() -> None:
    """Two hundred worlds of nearly a million ranks, one process of each."""
    processes = tuple(
        dataclasses.replace(make.rank(0, WAIT, world=1_000_000 - number), host="a", pid=number) for number in range(200)
    )
    evidence = Evidence("", "directory", TAKEN, 0.0, processes)
    missing = nodes.missing_ranks(evidence)
    assert 0 < sum(map(len, missing.values())) <= 1_000_000
    # Control: a world of an ordinary size is complete in its list.
    [ranks] = nodes.missing_ranks(dataclasses.replace(evidence, processes=(make.rank(1, WAIT, world=4),))).values()
    assert ranks == [0, 2, 3]
