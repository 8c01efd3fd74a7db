"""Two dumps of one rank: the dumps of the other ranks decide between them, never the order of their names."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from harness.triage import run
from harness.triage.flight.synthesis import Fault, Job, encoded, simulate
from reports.model import Verdict

REAL = "nccl_trace_rank_{}.json"
NAMES = ["nccl_trace_rank_{} (1).json", "nccl_trace_rank_{} copy.json", "nccl_trace_rank_0{}.json",
         "nccl_trace_rank_0{}", "a_rank_{}.json"]  # fmt: skip
SECOND = 1_000_000_000
HEALTHY = simulate(4, 50, tensor_parallel=2)
SKIPPED = simulate(4, 50, Fault("skip", 1, 30), tensor_parallel=2)
DEAD = simulate(4, 50, Fault("dead", 0, 30), tensor_parallel=2)
LONGER = simulate(4, 400, tensor_parallel=2)
SHORTER = simulate(4, 20, tensor_parallel=2)


def dump(job: Job, rank: int, *, later_s: float = 0, **changes: Any) -> bytes:
    content = json.loads(encoded(job, rank, "json")) | changes
    for entry in content["entries"]:
        entry["time_created_ns"] += int(later_s * SECOND)
    return json.dumps(content).encode()


def folder_of(folder: Path, job: Job) -> Path:
    folder.mkdir()
    for rank in range(job.ranks):
        (folder / REAL.format(rank)).write_bytes(dump(job, rank))
    return folder


def answer(verdict: Verdict) -> tuple[str, str, list[int | None]]:
    assert verdict.triage is not None
    return verdict.verdict, verdict.triage.hang, [party.rank for party in verdict.triage.culprits]


@pytest.mark.by_day(8)
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("job", "rank", "stray"),
    [(SKIPPED, 1, LONGER), (SKIPPED, 0, SHORTER), (DEAD, 0, HEALTHY), (HEALTHY, 2, SKIPPED), (DEAD, 3, SHORTER)],
)
def test_the_dump_of_another_job_changes_nothing(tmp_path: Path, job: Job, rank: int, stray: Job, name: str) -> None:
    control = answer(run.triage([str(folder_of(tmp_path / "alone", job))]))
    folder = folder_of(tmp_path / "with", job)
    (folder / name.format(rank)).write_bytes(dump(stray, rank, later_s=-120))
    verdict = run.triage([str(folder)])
    assert answer(verdict) == control
    assert any(name.format(rank) in item for item in verdict.missing if item.startswith("left out"))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_real_dump_is_used_whatever_it_is_called(tmp_path: Path, name: str) -> None:
    folder = folder_of(tmp_path / "with", SKIPPED)
    (folder / REAL.format(1)).rename(folder / name.format(1))
    (folder / REAL.format(1)).write_bytes(dump(HEALTHY, 1, later_s=-120))
    verdict = run.triage([str(folder)])
    assert answer(verdict) == ("HUNG", "K1", [1])


@pytest.mark.slow
@pytest.mark.parametrize("job", [HEALTHY, DEAD])
@pytest.mark.parametrize("rank", range(4))
def test_a_rank_is_missing_where_nothing_decides(tmp_path: Path, job: Job, rank: int) -> None:
    """The second dump differs by five seconds only, and clocks of hosts may."""
    folder = folder_of(tmp_path / "with", job)
    names = REAL.format(rank), NAMES[0].format(rank)
    (folder / names[1]).write_bytes(dump(job, rank, later_s=5))
    verdict = run.triage([str(folder)])
    assert verdict.triage is not None
    assert rank not in [party.rank for party in verdict.triage.culprits] and verdict.verdict != "HEALTHY"
    reason = next(item for item in verdict.missing if item.startswith(f"no recorder data from rank {rank} "))
    assert all(name in reason for name in names)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["json", "pickle"])
def test_copies_are_one_dump(tmp_path: Path, form: Any) -> None:
    folder = folder_of(tmp_path / "with", SKIPPED)
    for rank in range(4):
        (folder / f"nccl_trace_rank_{rank} (1){'.json' if form == 'json' else ''}").write_bytes(
            encoded(SKIPPED, rank, form)
        )
    assert answer(run.triage([str(folder)])) == ("HUNG", "K1", [1])


@pytest.mark.slow
def test_two_forms_of_two_moments_are_one_job(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "with", SKIPPED)
    for rank in range(4):
        content = json.loads(dump(SKIPPED, rank))
        content["entries"].pop()
        (folder / f"nccl_trace_rank_{rank}.pkl").write_bytes(json.dumps(content).encode())
    assert answer(run.triage([str(folder)]))[2] == [1]


@pytest.mark.slow
def test_a_second_set_of_a_restarted_job_is_another_job(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "with", SKIPPED)
    for rank in range(4):
        (folder / NAMES[0].format(rank)).write_bytes(dump(HEALTHY, rank, later_s=-300))
    verdict = run.triage([str(folder)])
    assert answer(verdict) == ("INSUFFICIENT", "", []) and "2 jobs" in verdict.reason


@pytest.mark.slow
@pytest.mark.parametrize("number", [7, 10**12])
def test_a_dump_of_no_rank_of_the_world_is_told(tmp_path: Path, number: int) -> None:
    folder = folder_of(tmp_path / "with", HEALTHY)
    world = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}}
    (folder / REAL.format(number)).write_bytes(dump(HEALTHY, 2, pg_config=world))
    verdict = run.triage([str(folder)])
    assert verdict.verdict == "INSUFFICIENT" and any(REAL.format(number) in item for item in verdict.missing)


@pytest.mark.slow
def test_what_is_no_regular_file_is_told(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "with", HEALTHY)
    os.mkfifo(folder / "pipe")
    (folder / "zero").symlink_to("/dev/zero")
    verdict = run.triage([str(folder)])
    assert (
        verdict.verdict == "INSUFFICIENT" and len([item for item in verdict.missing if "no regular file" in item]) == 2
    )
    (folder / REAL.format(2)).unlink()
    os.mkfifo(folder / REAL.format(2))
    verdict = run.triage([str(folder)])
    assert verdict.verdict == "INSUFFICIENT"
    assert any(item.startswith("no recorder data from rank 2 (") for item in verdict.missing)


@pytest.mark.slow
def test_several_jobs_say_what_is_missing_and_how_to_judge_one(tmp_path: Path) -> None:
    """The dump of another job beside those of two ranks: no job has most of the dumps."""
    folder = folder_of(tmp_path / "two ranks", simulate(2, 50, Fault("skip", 1, 30)))
    for rank in range(2):
        (folder / NAMES[0].format(rank)).write_bytes(dump(HEALTHY, rank, later_s=-300))
    verdict = run.triage([str(folder)])
    assert answer(verdict) == ("INSUFFICIENT", "", [])
    assert verdict.triage is not None
    assert all(any(name in item for item in verdict.missing) for name in (REAL.format(0), NAMES[0].format(1)))
    command = verdict.triage.next[0].partition(" && harness triage ")
    assert command[0] in verdict.missing[0]
    subprocess.run(command[0], shell=True, check=True)
    alone = run.triage(shlex.split(command[2]))
    assert alone.verdict != "INSUFFICIENT" or "jobs" not in alone.reason


@pytest.mark.slow
@pytest.mark.parametrize("job", [HEALTHY, SKIPPED])
def test_an_unreadable_dump_of_no_rank_of_the_world_is_one_missing_file(tmp_path: Path, job: Job) -> None:
    control = answer(run.triage([str(folder_of(tmp_path / "alone", job))]))
    folder = folder_of(tmp_path / "with", job)
    (folder / REAL.format(9)).write_bytes(b"\x80garbage")
    verdict = run.triage([str(folder)])
    assert answer(verdict) == control
    assert [REAL.format(9) in item for item in verdict.missing if item != "stacks of the ranks"] == [True]
