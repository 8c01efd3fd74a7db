"""What one rank, one dump or one log alone shows: a line of the watchdog, a recorder, the last attempt of torchrun."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.errors import BadInput
from harness.triage import pasted
from harness.triage.flight import synthesis
from harness.triage.run import triage
from reports.model import Verdict

GAVE_UP = (
    "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7310, OpType=ALLREDUCE, NumelIn=1048576, "
    "NumelOut=1048576, Timeout(ms)=600000) ran for 600042 milliseconds before timing out."
)
COUNTERS = (
    "[E1129 10:00:00.5 ProcessGroupNCCL.cpp:1834] [PG ID {0} PG GUID {0}({1}) Rank 3] Exception (either an error or "
    "timeout) detected by watchdog at work: 7310, last enqueued work: 7313, last completed work: 7309"
)


def judged(folder: Path, *lines: str, name: str = "job.log") -> Verdict:
    (folder / name).write_text("\n".join(lines) + "\n")
    verdict = triage([str(folder / name)])
    assert verdict.triage is not None and not verdict.triage.culprits
    assert verdict.verdict == "INSUFFICIENT"
    return verdict


def test_one_rank_that_gave_up_is_told_with_its_sizes_and_counters(tmp_path: Path) -> None:
    verdict = judged(tmp_path, f"[rank3]:{GAVE_UP}", f"[rank3]:{COUNTERS.format(0, 'default_pg')}")
    [line] = [line for line in verdict.evidence if line.startswith("rank 3: ")]
    assert {"all_reduce", "#7310", "[1048576]", "#7313", "#7309", "default_pg;"} <= {*line.replace(",", "").split()}


@pytest.mark.parametrize(("group", "of"), [((2, "tp_pg"), "rank 3 of tp_pg"), (None, "a process")])
def test_a_line_that_names_no_global_rank_is_told(tmp_path: Path, group: tuple[int, str] | None, of: str) -> None:
    verdict = judged(
        tmp_path, f"[E1129 ProcessGroupNCCL.cpp:616] {GAVE_UP}", *([COUNTERS.format(*group)] if group else [])
    )
    evidence = pasted.evidence([str(tmp_path / "job.log")])
    assert evidence is not None and not evidence.dumps
    [error] = evidence.errors
    assert (
        error.of == of and error.echo and error.line == 1 and "all_reduce #7310" in error.what and "600 s" in error.what
    )
    assert bool(group) is ("#7313" in error.what and "#7309" in error.what)
    assert of in verdict.reason and "all_reduce" in verdict.reason


def test_the_name_of_a_file_says_the_rank_where_its_lines_do_not(tmp_path: Path) -> None:
    judged(tmp_path, GAVE_UP, COUNTERS.format(2, "tp_pg"), name="rank_9.log")
    evidence = pasted.evidence([str(tmp_path / "rank_9.log")])
    assert evidence is not None and list(evidence.dumps) == ["lines of a log: rank 9"] and not evidence.errors


@pytest.mark.slow
@pytest.mark.parametrize("form", ["json", "pickle"])
def test_one_recorder_dump_is_one_rank_of_many(tmp_path: Path, form: str) -> None:
    job = synthesis.simulate(4, 40, synthesis.Fault("dead", rank=2, at=20))
    file = tmp_path / "nccl_trace_rank_1"
    file.write_bytes(synthesis.encoded(job, 1, form))  # type: ignore[arg-type]
    verdict = triage([str(file)])
    assert verdict.verdict == "INSUFFICIENT" and verdict.triage is not None and not verdict.triage.culprits
    states = {node.label: node.state for node in verdict.triage.nodes}
    assert "all_reduce #" in states["rank 1"] and states["rank 2"] == "never seen"
    assert all(f"rank {rank}" in " ".join(verdict.missing) for rank in (0, 2, 3))


def test_a_file_of_json_that_is_no_dump_is_refused(tmp_path: Path) -> None:
    (tmp_path / "package.json").write_text(json.dumps({"name": "x"}))
    with pytest.raises(BadInput):
        triage([str(tmp_path / "package.json")])


FAILED = (
    "E1129 20:36:{0}.570000 18013 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) "
    "local_rank: {1} (pid: 180{0}) of binary: /usr/bin/python"
)
RAISED = "Traceback (most recent call last):", '  File "/job/train.py", line 2, in <module>'
TABLE = (
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ", "=" * 60, "train.py FAILED", "-" * 60,
    "Failures:", "  <NO_OTHER_FAILURES>", "-" * 60, "Root Cause (first observed failure):", "[0]:",
    "  time      : 2026-11-29_20:36:12", "  host      : node0", "  rank      : 0 (local_rank: 0)",
    "  exitcode  : 1 (pid: 18012)", "  error_file: <N/A>", "  traceback : To enable traceback see: ...", "=" * 60,
)  # fmt: skip


def errors(folder: Path, *lines: str) -> tuple[list[str], list[str]]:
    """What failed, and what is said of attempts."""
    (folder / "restart.log").write_text("\n".join(lines) + "\n")
    evidence = pasted.evidence([str(folder / "restart.log")])
    assert evidence is not None
    return [error.what for error in evidence.errors], [
        note for note in evidence.notes if "attempts of torchrun" in note
    ]


def test_the_last_attempt_of_torchrun_is_judged(tmp_path: Path) -> None:
    first = [*RAISED, "ValueError: first", FAILED.format("09", 1)]
    second = [*RAISED, "RuntimeError: second", FAILED.format("11", 0)]
    what, [note] = errors(tmp_path, *first, *second, *TABLE)
    assert not any("first" in line for line in what) and any("second" in line for line in what)
    assert "2 attempts" in note and "line 5 on" in note
    # The third attempt wrote no error: it may stand.
    what, [note] = errors(tmp_path, *first, *second, "step 1", "step 2")
    assert not what and "3 attempts" in note
    # The log ends with the failure of the second.
    what, [note] = errors(tmp_path, *first, *second)
    assert any("second" in line for line in what) and "2 attempts" in note


def test_the_agents_of_one_attempt_are_not_several_attempts(tmp_path: Path) -> None:
    other = FAILED.format("10", 0).replace(" 18013 ", " 18999 ")
    what, notes = errors(
        tmp_path, *RAISED, "ValueError: first", FAILED.format("09", 1), *RAISED, "KeyError: 'x'", other
    )
    assert len(what) == 2 and not notes


def test_timeouts_of_the_attempt_before_are_no_second_incident(tmp_path: Path) -> None:
    lines = f"[rank3]:{GAVE_UP}", FAILED.format("09", 1), f"[rank2]:{GAVE_UP.replace('7310', '12')}", "[rank2]: end"
    (tmp_path / "job.log").write_text("\n".join(lines))
    evidence = pasted.evidence([str(tmp_path / "job.log")])
    assert evidence is not None and list(evidence.dumps) == ["lines of a log: rank 2"]
