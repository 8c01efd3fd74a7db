"""Thin evidence: what was not seen, what is of another run, and what a name alone suggests, blames nobody."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from flight_support import entry
from triage_evidence import compared, evidence, frames, group, process, rank, wording
from triage_trial import WAIT

from harness.triage import directory
from harness.triage.evidence import Evidence, OpenSpan, Process
from harness.triage.flight.compare import DEFAULT, compare
from harness.triage.flight.loading import load_directory
from harness.triage.graph import build
from harness.triage.graph.edges import superseded
from harness.triage.judge import triage
from harness.triage.places import match
from reports.model import Verdict


def dump(
    at: int,
    *,
    pending: bool,
    mentions: Sequence[int] = (),
    later_ns: int = 0,
    odd: Mapping[int, str] | None = None,
) -> str:
    """What gloo's recorder writes of a rank that is in #`at`, or has done it; `odd`: other operations, by number."""
    entries = []
    for seq in range(1, at + 1):
        one = entry(seq, (odd or {}).get(seq, "all_reduce"), backend="gloo", done=not (pending and seq == at))
        entries.append({**one, "time_created_ns": 1_760_000_000_000_000_000 + seq * 1_000_000 + later_ns})
    config = {"": {"name": "", "desc": "", "ranks": str(list(mentions))}}
    return json.dumps({"version": "2.10", "pg_config": config, "entries": entries})


def dumped(folder: Path, files: Mapping[int, str]) -> Evidence:
    for number, text in files.items():
        (folder / f"rank{number}.json").write_text(text)
    return Evidence(str(folder), "dumps", "", 0.0)


def judged(folder: Path, files: Mapping[int, str]) -> Verdict:
    return triage(dumped(folder, files))


def nobody(verdict: Verdict, kind: str = "INSUFFICIENT") -> None:
    assert verdict.verdict == kind, verdict.reason
    assert verdict.triage is not None and not verdict.triage.culprits and not verdict.triage.cycle


# ---- a dump that is not there, or cannot be read, is no proof that everybody has come


def test_a_culprit_without_a_dump_is_no_fault_of_the_fabric(tmp_path: Path) -> None:
    verdict = judged(tmp_path, {n: dump(5, pending=True) for n in range(3)})  # of four: nobody says so
    nobody(verdict)
    assert any("members of group 0" in item for item in verdict.missing)


@pytest.mark.parametrize("third", ["", dump(5, pending=False)[:300], '{"pg_config": {}, "entries": 7}'])
def test_a_culprit_whose_dump_cannot_be_read_is_missing_by_name(tmp_path: Path, third: str) -> None:
    verdict = judged(tmp_path, {**{n: dump(5, pending=True) for n in range(3)}, 3: third})
    nobody(verdict)
    assert any(item.startswith("no recorder data from rank 3 (rank3.json is") for item in verdict.missing)
    assert "rank 3" in verdict.reason


def test_a_rank_that_the_other_dumps_mention_is_missing_by_name(tmp_path: Path) -> None:
    verdict = judged(tmp_path, {n: dump(5, pending=True, mentions=range(4)) for n in range(3)})
    nobody(verdict)
    assert str(tmp_path) in verdict.triage.next[0]
    assert any("rank 3" in item for item in verdict.missing) and "rank 3" in verdict.reason


def test_a_rank_that_is_behind_explains_the_wait_before_one_without_a_dump(tmp_path: Path) -> None:
    files = {n: dump(5, pending=True, mentions=range(4)) for n in range(2)} | {2: dump(4, pending=False)}
    verdict = judged(tmp_path, files)
    assert [party.rank for party in verdict.triage.culprits] == [2] and verdict.triage.hang == "K4"


def test_everybody_in_one_operation_is_still_the_fabric() -> None:
    at = compared(group("0", dict.fromkeys(range(3), (17, "all_reduce")), keyed=False))
    assert triage(evidence(source="dumps"), at).triage.hang == "K12"
    [state] = at.groups
    unknown = dataclasses.replace(state, group=dataclasses.replace(state.group, members=(), world_size=0))
    nobody(triage(evidence(source="dumps"), dataclasses.replace(at, groups=(unknown,))))


def test_what_the_dumps_mention_is_no_membership(tmp_path: Path) -> None:
    """gloo writes one entry for all its groups, the last one's: two of four may be all that a dump mentions."""
    dumped(tmp_path, {n: dump(5, pending=True, mentions=[n // 2 * 2, n // 2 * 2 + 1]) for n in range(4)})
    found = compare(load_directory(tmp_path))
    assert [state.group.members for state in found.groups if state.group.desc == DEFAULT] == [()] and not found.absent


# ---- a rank that was not looked at may run on another host


def joined(command: str = "", **environ: str) -> Evidence:
    span = (OpenSpan("init_process_group", 40.0, {"world_size": 4}),)
    ranks = [rank(n, "main init_process_group", spans=span, environ=environ, ppid=7) for n in (0, 1)]
    return evidence(*ranks, process(7, "launcher" if command else "shell", "", command=command), source="live")


@pytest.mark.parametrize(
    ("command", "environ"),
    [
        ("", {}),
        ("", {"WORLD_SIZE": "4"}),
        ("", {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}),
        ("/usr/bin/srun -n 4 python train.py", {"WORLD_SIZE": "4"}),
        ("mpirun -np 4 python train.py", {}),
        ("torchrun --nnodes=2 --nproc-per-node 2 train.py", {}),
        ("torchrun --nnodes 1:2 train.py", {}),
    ],
)
@pytest.mark.parametrize("source", ["live", "watch"])
def test_ranks_on_a_host_that_nobody_looked_at_are_not_blamed(command: str, environ: dict, source: str) -> None:
    verdict = triage(dataclasses.replace(joined(command, **environ), source=source))
    nobody(verdict)
    assert {"nothing from rank 2", "nothing from rank 3"} <= set(verdict.missing)


@pytest.mark.parametrize(
    ("command", "environ"),
    [
        ("", {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"}),
        ("torchrun --nproc-per-node 4 train.py", {}),
        ("python -m torch.distributed.run --nnodes 1 --nproc-per-node 4 train.py", {}),
    ],
)
def test_ranks_of_a_host_that_was_looked_at_never_started(command: str, environ: dict) -> None:
    verdict = triage(joined(command, **environ))
    assert verdict.triage.hang == "K5" and [party.rank for party in verdict.triage.culprits] == [2, 3]


def test_hosts_that_were_all_looked_at_hold_the_whole_world() -> None:
    span = (OpenSpan("init_process_group", 40.0, {"world_size": 4}),)
    environ = {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
    ranks = [rank(n, "main init_process_group", spans=span, environ=environ) for n in range(3)]
    both = evidence(ranks[0], ranks[1], dataclasses.replace(ranks[2], host="node1"), source="directory")
    assert [party.rank for party in triage(both).triage.culprits] == [3]


# ---- a difference that went through long ago


def test_a_difference_that_went_through_is_a_note_and_no_fault(tmp_path: Path) -> None:
    """Rank 1 differed at #5, and everybody has completed #6 to #20 since: rank 3 has not come to #21."""
    files = {n: dump(21, pending=True, odd={5: "broadcast"} if n == 1 else None) for n in range(3)}
    verdict = judged(tmp_path, files | {3: dump(20, pending=False)})
    assert verdict.triage.hang == "K4" and [party.rank for party in verdict.triage.culprits] == [3]
    assert any("#5" in one.summary and "broadcast on rank 1" in one.summary for one in verdict.findings)


def test_a_difference_with_nothing_equal_behind_it_counts(tmp_path: Path) -> None:
    files = {n: dump(6, pending=True, odd={5: "broadcast"} if n == 1 else None) for n in range(4)}
    assert [party.rank for party in judged(tmp_path, files).triage.culprits] == [1]


def test_the_difference_in_which_they_wait_counts_whatever_went_through_before(tmp_path: Path) -> None:
    """More than a recorder's summary keeps went through on rank 1; rank 2 is the one in another operation now."""
    old = dict.fromkeys(range(2, 40, 2), "broadcast")
    files = {n: dump(45, pending=True, odd=old if n == 1 else {45: "barrier"} if n == 2 else None) for n in range(4)}
    verdict = judged(tmp_path, files)
    assert verdict.triage.hang == "K1" and [party.rank for party in verdict.triage.culprits] == [2]
    assert any("the first of 19" in one.summary for one in verdict.findings)


# ---- a function may bear any name


@pytest.mark.parametrize("name", ["checkpointed_forward", "validate_batch", "save_checkpoint", "evaluate"])
@pytest.mark.parametrize("each", [1, 2])
def test_a_functions_name_breaks_no_tie(name: str, each: int) -> None:
    world = 2 * each
    stacks = [WAIT if n < each else f"main {name} all_gather" for n in range(world)]
    at = {n: (7, "all_reduce" if n < each else "all_gather") for n in range(world)}
    ranks = [rank(n, stack, world=world) for n, stack in enumerate(stacks)]
    verdict = triage(evidence(*ranks), compared(group("0", at)))
    nobody(verdict, "HUNG")
    assert verdict.triage.hang == "K1" and "nobody is named" in wording(verdict)


@pytest.mark.parametrize("name", ["save_experience", "save_checkpoint"])
def test_a_name_alone_makes_nobody_wait_alone(name: str) -> None:
    ranks = rank(0, f"main {name} all_reduce", world=2), rank(1, "main step all_gather", world=2)
    through = compared(group("0", {0: (7, "all_reduce"), 1: 6}), group("1", {1: (3, "all_gather"), 0: 3}))
    verdict = triage(evidence(*ranks), through)
    assert verdict.triage.hang != "K10" and [party.rank for party in verdict.triage.culprits] != [0]
    apart = compared(group("0", {0: (7, "all_reduce"), 1: 6}), group("1", {1: (3, "all_gather"), 0: 2}))
    assert triage(evidence(*ranks), apart).triage.hang == "K2"


@pytest.mark.parametrize("odd", [0, 1])
def test_the_programs_text_breaks_a_tie(tmp_path: Path, odd: int) -> None:
    program = tmp_path / "train.py"
    program.write_text("def main(rank):\n    if rank == 0:\n        report()\n")
    stack = [dataclasses.replace(one, file=str(program), line=3) if one.function == "main" else one for one in
             frames("main all_gather")]  # fmt: skip
    ranks = [rank(n, "main all_gather" if n == odd else WAIT, world=2) for n in range(2)]
    looks = [dataclasses.replace(one, threads=(dataclasses.replace(one.threads[0], frames=tuple(stack)),))
             for one in ranks[odd].samples]  # fmt: skip
    ranks[odd] = dataclasses.replace(ranks[odd], samples=tuple(looks))
    at = compared(group("0", {n: (7, "all_gather" if n == odd else "all_reduce") for n in range(2)}))
    verdict = triage(evidence(*ranks), at)
    assert verdict.triage.hang == "K10" and [party.rank for party in verdict.triage.culprits] == [odd]


def test_of_two_odd_sides_a_name_chooses_none() -> None:
    stacks = {0: "main save_checkpoint barrier", 1: "main metrics all_gather"}
    ops = {0: "barrier", 1: "all_gather"}
    ranks = [rank(n, stacks.get(n, WAIT), world=5) for n in range(5)]
    verdict = triage(evidence(*ranks), compared(group("0", {n: (7, ops.get(n, "all_reduce")) for n in range(5)})))
    assert verdict.triage.hang == "K1" and [party.rank for party in verdict.triage.culprits] == [0, 1]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("save_checkpoint", "checkpoint"), ("save_full_state", "checkpoint"), ("_save_hf_model", "checkpoint"),
        ("save", "checkpoint"), ("maybe_save_checkpoint", "checkpoint"), ("export_weights", "checkpoint"),
        ("do_checkpoint", "checkpoint"), ("checkpointed_forward", ""), ("save_experience", ""), ("save_to_buffer", ""),
        ("load_checkpoint", ""), ("evaluate", "evaluation"), ("evaluate_policy", "evaluation"),
        ("run_eval", "evaluation"), ("validate", "evaluation"),
        ("validate_batch", ""), ("validate_config", ""), ("evaluate_rewards", ""),
    ],
)  # fmt: skip
def test_which_names_are_of_a_checkpoint_or_an_evaluation(name: str, kind: str) -> None:
    entry = match(frames(name)[0])
    assert (entry.kind if entry else "") == kind


# ---- a file that another run left behind


@pytest.mark.parametrize("later_ns", [-86_400_000_000_000, -90_000_000_000, 90_000_000_000])
@pytest.mark.parametrize("stale", [[2], [2, 3]])
def test_a_dump_of_another_run_is_not_blamed(tmp_path: Path, stale: list[int], later_ns: int) -> None:
    old = {n: dump(20, pending=False, later_ns=later_ns) for n in stale}
    verdict = judged(tmp_path, {n: dump(21, pending=True) for n in range(4)} | old)
    nobody(verdict)
    assert "2 jobs" in wording(verdict) and all(f"rank{n}.json" in wording(verdict) for n in range(4))
    assert any("away from those of equal number" in one.summary for one in verdict.findings)


@pytest.mark.parametrize(("at", "later_ns"), [(20, 5_000_000_000), (20, -5_000_000_000), (4, 90_000_000_000)])
def test_clocks_that_differ_a_little_and_a_late_start_are_one_run(tmp_path: Path, at: int, later_ns: int) -> None:
    files = {n: slow(dump(at + 1, pending=True)) for n in range(3)}
    verdict = judged(tmp_path, files | {3: slow(dump(at, pending=False, later_ns=later_ns))})
    assert [party.rank for party in verdict.triage.culprits] == [3] and verdict.triage.hang == "K4"


def slow(text: str) -> str:
    return text.replace('"timeout_ms": 1000', '"timeout_ms": 1800000')


@pytest.mark.parametrize(("later_ns", "jobs"), [(0, 1), (7_200_000_000_000, 2)])
def test_rings_without_a_common_operation_are_of_one_run_if_near_in_time(
    tmp_path: Path, later_ns: int, jobs: int
) -> None:
    late = json.loads(dump(60, pending=True, later_ns=later_ns))
    late["entries"] = late["entries"][40:]
    dumped(tmp_path, {0: slow(dump(20, pending=False)), 1: slow(json.dumps(late))})
    assert compare(load_directory(tmp_path)).jobs == jobs


def test_a_dump_of_a_live_process_is_of_its_run_whatever_the_clock_says(tmp_path: Path) -> None:
    dumped(tmp_path, {n: dump(20, pending=False, later_ns=n * 86_400_000_000_000) for n in range(2)})
    flights = load_directory(tmp_path)
    assert compare(flights).jobs == 2
    live = {name: dataclasses.replace(one, taken_ns=1_760_000_000_000_000_000) for name, one in flights.items()}
    assert compare(live).jobs == 1


# ---- a rank of another world, and one of an earlier attempt


@pytest.mark.parametrize("local", [{"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}, {}])
def test_the_rank_of_another_world_is_not_the_one_that_has_not_come(local: dict) -> None:
    """A trainer and an engine of two ranks each: the trainer's rank 1 is not there, the engine's is idle."""
    span = (OpenSpan("init_process_group", 40.0, {"world_size": 2}),)
    mine = {"MASTER_ADDR": "a", "MASTER_PORT": "1111", **local}
    its = {"MASTER_ADDR": "a", "MASTER_PORT": "2222"}
    engine = [dataclasses.replace(rank(n, "event_loop_normal", world=2, environ=its), pid=500 + n) for n in range(2)]
    verdict = triage(evidence(rank(0, "main init_process_group", world=2, spans=span, environ=mine), *engine))
    assert not {party.key for party in verdict.triage.culprits} & {one.key for one in engine}
    assert [party.key for party in verdict.triage.culprits] == (["rank 1"] if local else [])


def corpse(last_beat_s: float) -> Process:
    dead = rank(0, gone=True, world=2, exit_code=None, stale_s=last_beat_s)
    return dataclasses.replace(dead, pid=90)


@pytest.mark.parametrize("waiting", ["all_reduce", "init_process_group", "lock.wait"])
def test_the_corpse_of_an_earlier_attempt_is_waited_for_by_nobody(waiting: str) -> None:
    again = {"TORCHELASTIC_RESTART_COUNT": "1"}
    ranks = [
        rank(0, "main idle", world=2, environ=again, age_s=20.0),
        rank(1, f"main {waiting}", world=2, environ=again, age_s=20.0),
    ]
    graph = build(evidence(*ranks, corpse(25.0)), None)
    assert not [wait for wait in graph.waits if wait.target == corpse(25.0).key]
    without = dataclasses.replace(corpse(25.0), beat=None)
    assert superseded(without, (*ranks, without)) and superseded(corpse(25.0), ranks)
    undated = dataclasses.replace(ranks[0], environ={}, age_s=0.0, ppid=7)
    assert superseded(corpse(25.0), (undated,))
    assert not superseded(dataclasses.replace(corpse(25.0), ppid=8), (undated,))  # of another launcher


def test_a_rank_that_ended_beside_its_namesake_is_no_earlier_attempt() -> None:
    """Two worlds of two ranks, started together: the other world's rank 0 lives, and says nothing of this one."""
    alive = rank(0, "main idle", world=2, age_s=60.0)
    assert not superseded(corpse(25.0), (alive,)) and not superseded(alive, (corpse(25.0),))
    waits = build(evidence(rank(1, "main lock.wait", world=2, age_s=60.0), alive, corpse(25.0)), None).waits
    assert corpse(25.0).key in {wait.target for wait in waits}


def test_files_that_are_too_large_are_left_out_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "MAX_PROCESS_BYTES", 400)
    monkeypatch.setattr(directory, "MAX_PROCESSES_BYTES", 500)
    (tmp_path / "processes").mkdir()
    (tmp_path / "evidence.json").write_text("{}")
    for pid in range(9):
        padded = json.dumps({"host": "h", "pid": pid, "command": "x" * (600 if pid == 0 else 200)})
        (tmp_path / "processes" / f"h-{pid}.json").write_text(padded)
    seen = directory.read(tmp_path)
    assert [one.pid for one in seen.processes] == [1, 2, 3]
    assert any("h-0.json" in note for note in seen.notes)
    assert any("h-4.json" in note for note in seen.notes)


def test_ranks_of_two_engines_that_bear_one_number_are_told_apart_wherever_they_are_named() -> None:
    """Two engines of two ranks each, whose second ranks wait for an order in a broadcast that nobody recorded."""
    engines = [
        dataclasses.replace(rank(number, stack, world=2), pid=100 * engine + number, role=role)
        for engine, role in ((1, "process"), (2, "process"), (3, "rollout"))
        for number, stack in ((0, "engine:19 queue.get"), (1, "engine:23 broadcast"))
    ]
    verdict = triage(evidence(process(10, "driver", "driver:43 queue.get"), *engines))
    assert verdict.verdict == "INSUFFICIENT" and verdict.triage is not None
    assert "rank 1 (node0:101), rank 1 (node0:201) and rank 1 (rollout)" in verdict.reason
    assert any("(node0:201)" in item for item in verdict.missing)
    assert len({node.label for node in verdict.triage.nodes}) == len(engines) + 1


# ---- no stack of any process: the reason leads


@pytest.mark.parametrize("lowered", ["", "sudo sysctl kernel.yama.ptrace_scope=0, or "])
def test_a_refused_ptrace_leads(lowered: str) -> None:
    note = f"ptrace is not permitted: no Python stacks from outside. To enable: {lowered}run harness as root"
    verdict = triage(evidence(process(7, "process", notes=(note,)), source="live"))
    nobody(verdict)
    assert verdict.reason.startswith("ptrace is not permitted") and "--cap-add SYS_PTRACE" in verdict.reason
    assert verdict.triage is not None
    assert verdict.triage.next[0].startswith("sudo sysctl" if lowered else "docker run --cap-add SYS_PTRACE")
    assert "less busy" not in " ".join(verdict.triage.next)


def test_what_is_no_python_process_is_called_so() -> None:
    note = "not a Python process: no Python stacks"
    verdict = triage(evidence(process(7, "process", notes=(note,)), source="live"))
    nobody(verdict)
    assert "7" in verdict.reason and "is not a Python process" in verdict.reason
    assert verdict.triage is not None and verdict.triage.next[0].startswith("pgrep -af python ")


@pytest.mark.parametrize("writer", [200, 0])
def test_a_launchers_wait_hides_no_rank_that_reads_from_its_child(writer: int) -> None:
    """Seen unwatched: rank 1 reads a pipe that its child alone can write, and a parent joins both ranks."""
    launcher = process(50, "process", "main join")
    child = process(200, "process", "main:3 sleep", ppid=101)
    ranks = [
        rank(0, "main:9 all_reduce", world=2, ppid=50),
        rank(1, "main:8 readline", world=2, ppid=50, fed=True, writer=writer),
    ]
    verdict = triage(evidence(launcher, *ranks, child, source="live", stall_s=0.0))
    assert verdict.verdict == "INSUFFICIENT" and not verdict.triage.culprits
    assert "rank 1" in verdict.reason and (child.key in wording(verdict)) is bool(writer)


def test_a_peer_that_is_through_says_nothing_where_another_one_was_not_recorded() -> None:
    """A sender of gloo's broadcast is done when each receiver has come: rank 1 has, and rank 2 may not have."""
    ranks = [rank(number, "load:5 broadcast", world=3) for number in (0, 1)]
    elsewhere = rank(2, "main:12 all_reduce", world=3)
    of_two = group("0", {0: (2, "broadcast"), 1: (3, "broadcast")}, members=(0, 1, 2), missing=(2,))
    verdict = triage(evidence(*ranks, elsewhere), compared(of_two, world=3))
    assert verdict.triage is not None and not verdict.triage.culprits
    of_all = group("0", {0: (2, "broadcast"), 1: (3, "broadcast")}, members=(0, 1))
    judged = triage(evidence(*(dataclasses.replace(each, world_size=2) for each in ranks)), compared(of_all, world=2))
    assert judged.triage is not None and [party.rank for party in judged.triage.culprits] == [0]


def _awaited(first: str, last: str, quiet_s: float | None = None) -> list[int | None]:
    """Who is blamed where ranks 1 and 2 wait in #5 and rank 0, with these looks at its stack, has done #4."""
    missing = rank(0, first, last, world=3)
    looks = tuple(dataclasses.replace(look, net_quiet_s=quiet_s) for look in missing.samples)
    others = [rank(number, "main:9 broadcast", world=3) for number in (1, 2)]
    recorded = compared(group("0", {0: 4, 1: (5, "broadcast"), 2: (5, "broadcast")}), world=3)
    verdict = triage(evidence(dataclasses.replace(missing, samples=looks), *others), recorded)
    assert verdict.triage is not None
    return [party.rank for party in verdict.triage.culprits]


@pytest.mark.parametrize(
    ("first", "last", "culprits"), [("step:5", "step:5", [0]), ("", "step:5", []), ("step:5", "", [])]
)
def test_a_look_at_a_stack_that_failed_shows_no_standstill(first: str, last: str, culprits: list[int]) -> None:
    assert _awaited(first, last) == culprits


@pytest.mark.parametrize(("quiet_s", "culprits"), [(None, [0]), (60.0, [0]), (1.0, [])])
def test_a_rank_without_a_stack_that_had_data_a_moment_ago_is_not_blamed(
    quiet_s: float | None, culprits: list[int]
) -> None:
    assert _awaited("", "", quiet_s) == culprits


def test_a_worker_without_a_stack_owes_no_answer_that_a_recorder_knows() -> None:
    core = process(40, "enginecore", "run_busy_loop get_response zmq.poll", engine="vllm")
    poll = "worker_busy_loop:1 zmq.poll"
    workers = [
        rank(number, stack, world=2, role="worker", engine="vllm", ppid=40) for number, stack in enumerate(("", poll))
    ]
    verdict = triage(evidence(core, *workers), compared(group("0", {0: 4, 1: 4}), world=2))
    assert verdict.triage is not None and not verdict.triage.culprits
    assert workers[0].key in {wait.target for wait in verdict.triage.waits}


@pytest.mark.parametrize(
    ("processes", "verdict", "who"),
    [
        ((process(5, "launcher", io_bytes=900_000),), "SLOW", "launcher"),
        ((process(5, "launcher"),), "INSUFFICIENT", ""),
        ((process(5, "launcher", io_bytes=900_000), process(6, "process", ppid=5)), "INSUFFICIENT", "launcher"),
        ((process(5, "process", io_bytes=900_000),), "INSUFFICIENT", "node0:5"),
    ],
)
def test_what_works_without_a_stack_is_said_to_work(processes: tuple[Process, ...], verdict: str, who: str) -> None:
    """A launcher that still starts: nothing but its bytes shows what it does."""
    verdict_now = triage(evidence(*processes, source="live", stall_s=0.0))
    assert verdict_now.verdict == verdict and ("work" in verdict_now.reason) is bool(who)
    assert who in verdict_now.reason and len(verdict_now.reason.split()) <= 15


@pytest.mark.parametrize(("read", "blind", "verdict"), [(2, 0, "HEALTHY"), (3, 1, "HEALTHY"), (1, 1, "INSUFFICIENT"),
                                                        (1, 4, "INSUFFICIENT")])  # fmt: skip
def test_little_that_was_read_is_not_healthy(read: int, blind: int, verdict: str) -> None:
    idle = [process(100 + n, "process", "main:5 serve_forever") for n in range(read)]
    judged = triage(evidence(*idle, *(process(200 + n, "process") for n in range(blind))))
    assert judged.verdict == verdict, judged.reason
    assert (f"{read} of {read + blind} processes" in judged.reason) is (blind > 0)
    assert bool(judged.missing) is (blind > 0)
