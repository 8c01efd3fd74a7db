"""A folder with the outputs of several jobs, or of several looks at one: each gets a command, and no pid is a rank."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from triage_evidence import rank

from harness.errors import BadInput
from harness.triage import directory, pasted
from harness.triage.evidence import Evidence
from harness.triage.flight import synthesis
from harness.triage.flight.loading import load_files
from harness.triage.run import triage

STACK = (
    'Process {pid}: python {program}\n\nThread {pid} (idle): "MainThread"\n'
    "    all_reduce (torch/distributed/distributed_c10d.py:3252)\n    step ({program}:12)\n"
)


def evidence(folder: Path, pid: int, taken: str = "", program: str = "a.py") -> Path:
    """A look at a process without a rank."""
    seen = dataclasses.replace(rank(0), pid=pid, rank=None, world_size=None, ppid=1, command=f"python {program}")
    directory.write(Evidence("", "live", taken, 0.0, processes=(seen,)), folder)
    return folder


def commands(error: BadInput) -> list[list[str]]:
    return [command.split()[2:] for command in (error.fix or "").partition("   #")[0].split("; ")]


def test_each_of_several_jobs_gets_a_command(tmp_path: Path) -> None:
    for number in range(3):
        evidence(tmp_path / "deep" / f"job{number}", 100 + number)
    with pytest.raises(BadInput, match="are 3 jobs") as refused:
        triage([str(tmp_path)])
    assert commands(refused.value) == [[str(tmp_path / "deep" / f"job{number}")] for number in range(3)]
    for command in commands(refused.value):
        assert triage(command).verdict


def test_each_of_several_looks_at_a_job_gets_a_command(tmp_path: Path) -> None:
    for number in range(3):
        evidence(tmp_path / f"look{number}", 100, taken=f"2026-11-29T20:45:0{number}")
    with pytest.raises(BadInput) as refused:
        triage([str(tmp_path)])
    assert commands(refused.value) == [[str(tmp_path / f"look{number}")] for number in (2, 1, 0)]


def test_looks_at_one_of_two_jobs_stay_together(tmp_path: Path) -> None:
    for number, pid in enumerate((100, 100, 101)):
        evidence(tmp_path / f"look{number}", pid)
    with pytest.raises(BadInput, match="two jobs") as refused:
        triage([str(tmp_path)])
    first, second, third = (str(tmp_path / f"look{number}") for number in range(3))
    assert commands(refused.value) == [[first, second], [third]]


def test_the_only_evidence_in_folders_is_judged(tmp_path: Path) -> None:
    evidence(tmp_path / "a" / "b" / "triage-1", 100)
    verdict = triage([str(tmp_path)])
    assert verdict.triage is not None and len(verdict.triage.nodes) == 1


def test_stacks_of_several_jobs_get_a_command_each(tmp_path: Path) -> None:
    for job in range(3):
        (tmp_path / f"job{job}").mkdir()
        for number in range(2):
            text = STACK.format(pid=10 * job + number + 1, program="train.py")
            (tmp_path / f"job{job}" / f"rank_{number}.txt").write_text(text)
    verdict = triage([str(tmp_path)])
    assert verdict.triage is not None
    assert verdict.triage.next[:3] == [f"harness triage {tmp_path}/job{job}" for job in range(3)]


def test_two_looks_at_one_job_are_no_two_jobs(tmp_path: Path) -> None:
    for look in range(2):
        (tmp_path / f"look{look}").mkdir()
        (tmp_path / f"look{look}" / "rank_0.txt").write_text(STACK.format(pid=5, program="train.py"))
    read = pasted.evidence([str(tmp_path)])
    assert read is not None and not read.directories and len(read.processes) == 1


LINES = '{"step": 1, "message": "begin"}\n{"step": 2, "message": "CUDA out of memory. Tried"}\n'


@pytest.mark.parametrize("name", ["actor-0-812.jsonl", "metrics_rank3.jsonl", "worker-9911"])
def test_json_lines_are_text(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(LINES)
    for word in (tmp_path, tmp_path / name):
        read = pasted.evidence([str(word)])
        assert read is not None and not read.dumps
        assert [(error.line, "memory" in error.what) for error in read.errors] == [(2, True)]
        assert not directory.is_dump(tmp_path / name)


@pytest.mark.slow
def test_a_number_that_may_be_a_pid_is_no_rank(tmp_path: Path) -> None:
    job = synthesis.simulate(4, 40, synthesis.Fault("dead", rank=2, at=20))
    files = {f"nccl_trace_rank_{number}": synthesis.encoded(job, number) for number in range(3)}
    files |= {"state-5521.json": b'{"cut', "nccl_trace_rank_3": b'{"cut', "lines.json": LINES.encode()}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    loaded = load_files({name: tmp_path / name for name in files})
    assert {flight.rank for flight in loaded.values()} == {0, 1, 2, 3}
    assert any("state-5521" in note for note in loaded.left_out) and any("lines.json" in note for note in loaded.notes)
