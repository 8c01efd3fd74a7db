"""The lab's trial, without a process: truth against verdict, the score, the catalogue, files of somebody else."""

from __future__ import annotations

import ast
import ctypes
import dataclasses
import errno
import json
import os
import re
import sys
import threading
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.cli import app
from harness.errors import BadInput, HarnessError
from harness.planted.hangs import hang_selection, lab, looks
from harness.planted.hangs.hang_outcome import Outcome, called, judged, score
from harness.triage import directory
from harness.triage.evidence import Evidence, Process
from reports.model import HANGS as KINDS
from reports.model import Node, Party, Triage, Verdict
from scenarios.planted.hangs import launch
from scenarios.planted.hangs.catalog import CONDITIONS, HANGS, PROGRAMS, VARIANTS, Hang

HANG = Hang("one", "K1", "rank 1 is odd", "one.py", world=2, culprits=frozenset({1}), frame="step")
RING = Hang("ring", "K2", "", "ring.py", world=2, cycle=frozenset({0, 1}))
CONTROL = Hang("slow", "K7", "", "slow.py", world=2, verdict="SLOW")


def verdict(
    said: str = "HUNG", kind: str = "K1", culprits: list[Party] | None = None, cycle: list[str] | None = None
) -> Verdict:
    body = Triage(kind, culprits or [], [], cycle or [], [Node("vm:1", "rank 1", "stands")], [], [])
    return Verdict("triage", said, 0, "because", triage=body)


def rank(number: int | None, key: str = "vm:1", frame: str = "train.py:4 in step", role: str = "") -> Party:
    return Party(key, "odd", number, role, frame=frame)


# --- truth against verdict


def test_the_right_rank_of_the_right_kind_is_right() -> None:
    found = judged(HANG, verdict(culprits=[rank(1)]), seconds=2.0)
    assert found.right and found.frame_right and found.detected and found.kind_right and found.culprits_right


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        (None, "detected"),
        (verdict("INSUFFICIENT", ""), "detected"),
        (verdict("SLOW", "K7"), "detected"),
        (verdict(kind="K10", culprits=[rank(1)]), "kind_right"),
        (verdict(culprits=[]), "culprits_right"),
        (verdict(culprits=[rank(0)]), "culprits_right"),
        (verdict(culprits=[rank(1), rank(0, "vm:2")]), "culprits_right"),
    ],
)
def test_each_way_to_be_wrong_is_seen(said: Verdict | None, wrong: str) -> None:
    found = judged(HANG, said)
    assert not found.right and not getattr(found, wrong)


def test_a_rank_outside_the_truth_is_false_blame() -> None:
    found = judged(HANG, verdict(culprits=[rank(1), rank(0, "vm:2")]))
    assert found.named == {1} and len(found.blamed) == 1 and "rank 0" in found.blamed[0]


@pytest.mark.parametrize("said", [None, verdict("SLOW", "K7"), verdict("HEALTHY", "")])
def test_slow_and_healthy_are_equally_right_of_a_control(said: Verdict | None) -> None:
    assert judged(CONTROL, said).right


@pytest.mark.parametrize("said", [verdict("HUNG", "K4", [rank(1)]), verdict("HUNG", ""), verdict("INSUFFICIENT", "")])
def test_a_control_must_not_be_called_anything_else(said: Verdict) -> None:
    found = judged(CONTROL, said)
    assert not found.right and bool(found.blamed) == bool(said.triage and said.triage.culprits)


def test_a_program_that_failed_is_neither_a_hang_found_nor_a_healthy_control() -> None:
    assert not judged(HANG, verdict(culprits=[rank(1)]), error="ended with 1").right
    assert not judged(CONTROL, None, error="ended with 1").right


def test_a_cycle_must_hold_its_parties_and_name_no_culprit(tmp_path: Path) -> None:
    processes = tuple(Process("vm", 10 + number, rank=number) for number in (0, 1))
    directory.write(Evidence(str(tmp_path), "watch", "2026-01-01T00:00:00+00:00", 5.0, processes), tmp_path)
    whole = verdict(kind="K2", cycle=["vm:10", "vm:11"])
    assert judged(RING, whole, evidence=str(tmp_path)).right
    assert not judged(RING, verdict(kind="K2", cycle=["vm:10"]), evidence=str(tmp_path)).right
    blaming = verdict(kind="K2", cycle=["vm:10", "vm:11"], culprits=[rank(0, "vm:10")])
    assert judged(RING, blaming, evidence=str(tmp_path)).blamed


def test_a_process_without_rank_is_called_by_role_title_or_a_word_of_its_command() -> None:
    known = {
        "vm:7": Process("vm", 7, command="python http.py --role engine", title="ray::Trainer.step", role="rollout")
    }
    words = called("vm:7", known)
    assert {"engine", "rollout", "trainer.step"} <= {word for word in words if isinstance(word, str)} | {"trainer.step"}
    hang = dataclasses.replace(HANG, culprits=frozenset({"rollout"}))
    assert judged(hang, verdict(culprits=[rank(None, "vm:7", role="rollout")])).right
    assert judged(hang, verdict(culprits=[rank(None, "vm:8", role="trainer")])).blamed
    assert called("rank 3", {}) == {3} and called("vm:9", {}) == set()


def test_what_was_not_run_is_in_no_count_and_never_passed() -> None:
    unrun = Outcome(HANG, None, unrun="needs root")
    assert not unrun.right and unrun.status == "NOT RUN"
    beside = score([unrun, judged(CONTROL, None)])
    assert (beside.hangs, beside.controls, beside.unrun) == (0, 1, 1) and beside.passed and "1 not run" in beside.line
    assert not score([unrun]).passed


def test_where_nobody_is_to_be_named_the_reason_must_say_why() -> None:
    hang = dataclasses.replace(HANG, culprits=frozenset(), reason="the network of hostc")
    said = verdict(culprits=[])
    assert judged(hang, dataclasses.replace(said, reason="the network of hostc, not a rank")).right
    assert not judged(hang, dataclasses.replace(said, reason="the network of hosta, not a rank")).detected


def test_slow_is_wrong_of_a_job_that_is_only_looked_at() -> None:
    watched = dataclasses.replace(HANG, kind="", culprits=frozenset(), verdict="HEALTHY", looks=0)
    looked = dataclasses.replace(watched, looks=10)
    for said, rights in (("HEALTHY", (True, True)), ("SLOW", (True, False)), ("INSUFFICIENT", (False, False))):
        found = dataclasses.replace(verdict(culprits=[]), verdict=said)
        assert (judged(watched, found).right, judged(looked, found).right) == rights


PROGRAM = """
import sys, time
print("under way" if len(sys.argv) < 2 else "no", flush=True)
time.sleep(float(sys.argv[1]) if len(sys.argv) > 1 else 600)
"""


@pytest.mark.parametrize("verdicts", [["HEALTHY"] * 3, ["HEALTHY", "SLOW", "HEALTHY"]])
def test_one_wrong_look_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verdicts: list[str]) -> None:
    hang = dataclasses.replace(HANG, kind="", culprits=frozenset(), verdict="HEALTHY", looks=3)
    said = iter(verdicts)

    def look(what: list[str], out: Path) -> Verdict:
        assert all(word.isdigit() for word in what)
        return dataclasses.replace(verdict(culprits=[]), verdict=next(said))

    monkeypatch.setattr(looks.run, "triage", look)
    environ = {**os.environ, lab.MARK: f"looks-{os.getpid()}"}
    try:
        words = [sys.executable, "-S", "-c", PROGRAM]
        outcome = looks.judge_looks(hang, tmp_path, words, 60.0, environ)
        assert outcome.right == ("SLOW" not in verdicts) and not outcome.error
        assert looks.judge_looks(hang, tmp_path, [*words, "0"], 60.0, environ).error
    finally:
        lab.end_marked(environ[lab.MARK])


# --- conditions


def test_every_program_runs_once_more_under_each_condition() -> None:
    names = {one.name for one in VARIANTS}
    programs = [
        hang for hang in HANGS if not (hang.dumps or hang.engine or hang.condition or hang.network or hang.looks)
    ]
    for hang in programs:
        assert {f"{hang.name}+helper", f"{hang.name}+logger"} <= names
        assert (f"{hang.name}+spin" in names) == bool(hang.world)
    assert {one.condition for one in VARIANTS} == set(CONDITIONS) and len(names) == len(VARIANTS)


def test_variants_are_run_when_they_are_asked_for() -> None:
    every = hang_selection.hangs()
    assert not any("+" in hang.name for hang in hang_selection.chosen(every, []))
    assert len(hang_selection.chosen(every, [], conditions=True)) > 3 * len(hang_selection.chosen(every, [])) - 100
    assert {hang.condition for hang in hang_selection.chosen(every, ["+spin"])} == {"spin"}
    assert [hang.name for hang in hang_selection.chosen(every, ["order-pair+spin"])] == ["order-pair+spin"]
    assert [hang.name for hang in hang_selection.chosen(every, ["order-pair"])] == ["order-pair"]


def test_a_stand_in_that_cannot_be_compiled_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HarnessError, match="cannot be compiled"):
        lab.build(tmp_path)


@pytest.mark.slow
def test_the_stand_in_spins_until_its_flag_is_set(tmp_path: Path) -> None:
    library = ctypes.CDLL(str(lab.build(tmp_path)))
    done = ctypes.c_int(0)
    threading.Timer(0.2, lambda: setattr(done, "value", 1)).start()
    spent = time.thread_time()
    assert library.cudaStreamSynchronize(ctypes.byref(done)) == 0
    assert done.value == 1 and time.thread_time() > spent


# --- score


def test_the_score_counts_and_names_what_is_wrong() -> None:
    rows = [
        judged(HANG, verdict(culprits=[rank(1)]), seconds=2.0),
        judged(dataclasses.replace(HANG, name="two"), verdict(culprits=[rank(0)]), seconds=4.0),
        judged(CONTROL, None),
        judged(dataclasses.replace(CONTROL, name="other"), verdict("HUNG", "K4", [rank(0)]), seconds=9.0),
    ]
    found = score(rows)
    assert (found.hangs, found.detected, found.kinds, found.culprits) == (2, 2, 2, 1)
    assert (found.controls, found.controls_right, found.blamed) == (2, 1, 2)
    assert found.slowest_s == 4.0 and found.wrong == ("two", "other") and not found.passed
    assert "2 hangs: 2 detected" in found.line and "4.0 s at most" in found.line


def test_a_perfect_score_passes_and_an_empty_one_has_no_times() -> None:
    assert score([judged(CONTROL, None)]).passed
    assert score([]).slowest_s is None and "in the median" not in score([]).line


def test_an_outcome_is_json() -> None:
    row = json.loads(json.dumps(judged(HANG, verdict(culprits=[rank(1)]), seconds=2.0).to_dict()))
    assert row["right"] is True and row["expected"] == row["named"] == ["1"] and row["false_blame"] == []


# --- the catalogue


def test_every_kind_that_can_hang_here_has_several_variants() -> None:
    kinds = [hang.kind for hang in HANGS if not hang.control and hang.dumps is None]
    for kind in ("K1", "K2", "K3", "K4", "K5", "K6", "K8", "K9", "K10", "K13"):
        assert kinds.count(kind) >= 3, kind
    assert set(kinds) <= set(KINDS)
    assert sum(hang.control for hang in HANGS if hang.dumps is None) >= 5
    assert {hang.kind for hang in HANGS if hang.dumps} >= {"K12"} and any(hang.world == 1024 for hang in HANGS)


@pytest.mark.slow
@pytest.mark.parametrize("hang", HANGS, ids=lambda hang: hang.name)
def test_the_truth_of_each_hang_is_whole(hang: Hang) -> None:
    assert hang_selection.problem(hang, Path("/")) == ""
    assert [one.name for one in HANGS].count(hang.name) == 1
    assert not (hang.control and (hang.culprits or hang.cycle)), "nobody may be blamed in a control"
    assert not (hang.culprits and hang.cycle), "who is in a cycle is no single culprit"
    if hang.kind in ("K2", "K6"):
        assert hang.cycle or hang.dumps or hang.culprits
    claimed = 1 if "--claim" in hang.launcher else 0
    assert all(party < hang.world + claimed for party in hang.culprits | hang.cycle if isinstance(party, int))


@pytest.mark.slow
@pytest.mark.parametrize("hang", [hang for hang in HANGS if hang.frame], ids=lambda hang: hang.name)
def test_the_function_in_which_a_culprit_stands_is_in_its_program(hang: Hang) -> None:
    texts = [Path(hang.program), PROGRAMS / "toy.py"]
    functions = {node.name for text in texts for node in ast.walk(ast.parse(text.read_text()))
                 if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}  # fmt: skip
    assert hang.frame in functions


@pytest.mark.parametrize("program", sorted(PROGRAMS.glob("*.py")), ids=lambda path: path.stem)
def test_a_program_knows_nothing_of_the_harness(program: Path) -> None:
    """Probes are switched on from outside; what a user's engine records of itself goes through `probes.install`."""
    imported: set[str] = set()
    for node in ast.walk(ast.parse(program.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module or "")
    assert not {name for name in imported if name.split(".")[0] in ("harness", "reports")}
    if program.stem not in ("engine_refusal",):
        assert not {name for name in imported if name.split(".")[0] == "scenarios"}


# --- launching


def test_the_command_of_a_hang() -> None:
    plain = lab.command(Hang("a", "K6", "", "a.py", ("--pause", "{stall}")), 7.5)
    assert plain[1:] == ["a.py", "--pause", "7.5"]
    ranks = lab.command(Hang("a", "K5", "", "a.py", world=2, launcher=("--claim", "3")), 5.0)
    assert ranks[1:] == [str(lab.LAUNCHER), "--world", "2", "--claim", "3", "a.py"]
    assert lab.command(Hang("a", "", "", "pack.age"), 5.0)[1:] == ["-m", "pack.age"]
    assert lab.command(Hang("a", "", "", "a.py", ("{engine}",)), 5.0, "/e/python")[2:] == ["/e/python"]


def test_ranks_that_share_a_gpu_are_told_that_they_are_on_different_hosts() -> None:
    shared = launch.environment(1, 2, 29500, gpus=1)
    assert shared["NCCL_HOSTID"] == "lab-1" and shared["NCCL_P2P_DISABLE"] == "1"
    for gpus in (0, 2):
        assert "NCCL_HOSTID" not in launch.environment(1, 2, 29500, gpus=gpus)
    assert (shared["RANK"], shared["WORLD_SIZE"], shared["MASTER_PORT"]) == ("1", "2", "29500")


def test_processes_are_found_by_their_mark(tmp_path: Path) -> None:
    for pid, environ in (("11", b"A=1\0RLHF_HARNESS_LAB=x-1\0"), ("12", b"RLHF_HARNESS_LAB=x-12\0"), ("self", b"")):
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "environ").write_bytes(environ)
    (tmp_path / "13").mkdir()  # it ended while we looked
    assert lab.marked("x-1", tmp_path) == [11]


# --- files of somebody else

GOOD = """
from scenarios.planted.hangs.catalog import Hang
HANGS = [Hang("mine", "K4", "rank 1 dies", "mine.py", world=2, culprits={1})]
"""


def test_hangs_of_a_file_are_loaded_with_their_programs_beside_it(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("")
    (tmp_path / "hangs.py").write_text(GOOD)
    (found,) = hang_selection.load(tmp_path / "hangs.py")
    assert found.program == str(tmp_path / "mine.py") and found.culprits == frozenset({1})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("HANGS = []", "its list HANGS is empty"),
        ("HANGS = {", "SyntaxError"),
        ("import nowhere_at_all", "No module named"),
        ("raise SystemExit(3)", "SystemExit: 3 (line 1)"),
        ("x = 1\nx / 0", "division by zero (line 2)"),
        ("HANGS = ['trip']", "is a str"),
        ("from scenarios.planted.hangs.catalog import Hang\nHANGS = [Hang('x', 'K99', '', 'mine.py')]", "kind 'K99'"),
        (
            "from scenarios.planted.hangs.catalog import Hang\nHANGS = [Hang('x', 'K1', '', 'no.py')]",
            "which is not a file",
        ),
        ("from scenarios.planted.hangs.catalog import Hang\nHANGS = [Hang('x', 'K1', '')]", "has no program"),
        (
            "from scenarios.planted.hangs.catalog import Hang\nHANGS = [Hang('a/b', 'K1', '', 'mine.py')]",
            "cannot name a folder",
        ),
        (
            "from scenarios.planted.hangs.catalog import Hang\nHANGS = [Hang('x', 'K1', '', 'mine.py', culprits='1')]",
            "culprits",
        ),
        (
            "from scenarios.planted.hangs.catalog import Hang\nHANGS = [Hang('x', 'K1', '', 'mine.py', verdict='BAD')]",
            "'BAD'",
        ),
        (
            "from scenarios.planted.hangs.catalog import Hang\nHANGS = [Hang('x', 'K1', '', 'a.b', world=2)]",
            "path of a script",
        ),
        (
            "from scenarios.planted.hangs.catalog import Hang\nHANGS = [Hang('x', 'K1', '', 'mine.py')] * 2",
            "several hangs",
        ),
    ],
)
def test_a_file_that_is_wrong_gets_one_sentence(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "mine.py").write_text("")
    path = tmp_path / "hangs.py"
    path.write_text(text)
    with pytest.raises(BadInput) as caught:
        hang_selection.load(path)
    assert said in caught.value.message and str(path) in caught.value.message and "\n" not in caught.value.message


def test_the_documented_file_is_one(tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / "docs" / "measurements" / "hang-lab.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", text, re.S)
    for name in ("hangs.py", "stale_lock.py", "load.py"):
        (tmp_path / name).write_text(example if name == "hangs.py" else "")
    assert [hang.name for hang in hang_selection.load(tmp_path / "hangs.py")] == ["stale-lock", "long-load"]
    told = set(re.findall(r"^\| `(\w+)` \|", text, re.M))
    shown = {"name", "kind", "summary", "program", "arguments", "world"}
    assert told | shown == {field.name for field in dataclasses.fields(Hang)}


def test_hangs_are_chosen_by_name_or_beginning() -> None:
    names = [hang.name for hang in hang_selection.chosen(HANGS, ["zero-", "healthy"])]
    assert names == ["zero-save", "zero-gather", "zero-evaluate", "healthy"]
    assert not any(hang.engine for hang in hang_selection.chosen(HANGS, []))
    assert any(hang.engine for hang in hang_selection.chosen(HANGS, [], engines=True))
    assert [hang.name for hang in hang_selection.chosen(HANGS, ["trip-micro"])] == ["trip-micro"]
    with pytest.raises(BadInput, match="'nope'"):
        hang_selection.chosen(HANGS, ["nope"])


# --- the command


@pytest.mark.slow
def test_the_list_holds_both_suites_in_every_format() -> None:
    runner = CliRunner()
    text = runner.invoke(app, ["faults", "list"]).output
    assert "trip-micro" in text and "stale-tensor" in text
    rows = json.loads(runner.invoke(app, ["faults", "list", "--format", "json"]).output)
    assert {row["suite"] for row in rows} == {"hang", "parity"}
    table = runner.invoke(app, ["faults", "list", "--suite", "parity", "--format", "md"]).output
    assert table.startswith("| name |") and "| stale-tensor |" in table and "trip-micro" not in table


@pytest.mark.slow
def test_a_run_prints_each_fault_and_a_score_and_leaves_with_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def outcomes(hangs: list[Hang], **options: object) -> list[Outcome]:
        return [judged(hang, right, seconds=3.0) for hang in hangs]

    right = verdict(culprits=[rank(1, frame="toy.py:39 in average_gradients")])
    monkeypatch.setattr(lab, "outcomes", outcomes)
    runner = CliRunner()
    good = runner.invoke(app, ["faults", "run", "trip-micro"])
    assert good.exit_code == 0
    for part in (
        "ok",
        "trip-micro",
        "detected yes",
        "3.0 s",
        "kind yes",
        "culprit yes",
        "false blame none",
        "1 hangs:",
    ):
        assert part in good.output
    right = verdict(kind="K10", culprits=[rank(0)])
    bad = runner.invoke(app, ["faults", "run", "trip-micro"])
    assert bad.exit_code == 1 and "WRONG" in bad.output and "expected HUNG K1, said HUNG K10" in bad.output
    assert "not named: rank 1" in bad.output
    data = json.loads(runner.invoke(app, ["faults", "run", "trip-micro", "--format", "json"]).output)
    assert data["score"]["wrong"] == ["trip-micro"] and data["outcomes"][0]["false_blame"]
    words = ["faults", "run", "trip-micro", "--format", "md", "--out", str(tmp_path)]
    table = runner.invoke(app, words).output
    assert "| trip-micro | K1 | HUNG | yes | 3.0 | no | no |" in table
    assert (tmp_path / "suite.md").read_text() == table


@pytest.mark.slow
def test_dumps_of_a_wedge_are_judged_without_a_process(tmp_path: Path) -> None:
    wedge = next(hang for hang in HANGS if hang.name == "dumps-wedge")
    small = dataclasses.replace(wedge, world=4, dumps=dataclasses.replace(wedge.dumps, entries=32, at=16))
    (found,) = lab.outcomes([small], out=tmp_path)
    assert found.right, found.verdict
    assert len(list((tmp_path / "dumps-wedge" / "dumps").iterdir())) == 4


def test_a_full_disk_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, *_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr("harness.planted.hangs.lab.write_whole", full)
    found = CliRunner().invoke(app, ["faults", "run", "order-ring", "--out", str(tmp_path)])
    assert isinstance(found.exception, HarnessError) and found.exception.exit_code == 2
    assert "No space left on device" in found.exception.message and "\n" not in found.exception.message
    assert str(tmp_path) in found.exception.message and found.exception.fix == f"df -h {tmp_path}"
