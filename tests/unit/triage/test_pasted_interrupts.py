"""Ctrl-C of a hang: the traceback of each KeyboardInterrupt says where its rank stood."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.triage.pasted import evidence
from harness.triage.run import triage

TORCH = "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
AGENT = "torch/distributed/elastic/agent/server/api.py:719"
SIGNALLED = f"W1130 10:00:00.1 7 {AGENT}] Received 2 death signal, shutting down workers"


def traceback(line: int, call: str, end: str = "KeyboardInterrupt") -> list[str]:
    frames = [f'  File "/app/train.py", line {line}, in main', f"    dist.{call}(x)",
              f'  File "{TORCH}", line 3252, in {call}', "    work.wait()", "    ^^^^^^^^^^^"]  # fmt: skip
    return ["Traceback (most recent call last):", *frames, end]


def of_rank(rank: int, lines: list[str]) -> list[str]:
    return [f"[rank{rank}]: {line}" for line in lines]


def places(folder: Path, *lines: str, name: str = "job.log") -> dict[int | None, list[int]]:
    """Rank -> the lines of its stack, innermost first."""
    (folder / name).write_text("\n".join(lines) + "\n")
    read = evidence([str(folder / name)])
    processes = read.processes if read else ()
    return {process.rank: [frame.line for thread in process.threads for frame in thread.frames]
            for process in processes}  # fmt: skip


def test_where_each_rank_stood_is_told(tmp_path: Path) -> None:
    lines = *of_rank(1, traceback(12, "all_reduce")), *of_rank(0, traceback(14, "broadcast")), SIGNALLED
    assert places(tmp_path, *lines) == {1: [3252, 12], 0: [3252, 14]}
    verdict = triage([str(tmp_path / "job.log")])
    assert verdict.verdict == "INSUFFICIENT" and verdict.triage is not None
    words = " ".join((verdict.reason, *verdict.evidence))
    assert all(place in words for place in ("all_reduce", "broadcast", "train.py:12", "train.py:14"))
    assert "no first failure" not in verdict.reason and any("Ctrl-C" in line for line in verdict.missing)


def test_tracebacks_without_the_frames_of_torch_are_told_too(tmp_path: Path) -> None:
    lines = [line for line in traceback(12, "all_reduce") if TORCH not in line]
    assert places(tmp_path, *of_rank(1, lines), *of_rank(0, traceback(14, "barrier")))[1] == [12]


def test_a_file_of_one_rank_names_it(tmp_path: Path) -> None:
    assert places(tmp_path, *traceback(12, "all_reduce"), name="rank_3.log") == {3: [3252, 12]}


def test_of_several_interrupts_of_one_end_the_first_counts_and_of_several_runs_the_last(tmp_path: Path) -> None:
    first, later = traceback(12, "all_reduce"), traceback(90, "destroy_process_group")
    during = ["", "During handling of the above exception, another exception occurred:", ""]
    assert places(tmp_path, *of_rank(0, [*first, *during, *later])) == {0: [3252, 12]}
    assert places(tmp_path, *of_rank(0, [*first, "step 0 loss 0.3", *later])) == {0: [3252, 90]}


@pytest.mark.parametrize(
    "lines",
    [
        of_rank(0, traceback(12, "all_reduce", "ValueError: bad reward")),
        of_rank(0, [*traceback(12, "all_reduce", "ValueError: x"), "KeyboardInterrupt"]),
        traceback(12, "all_reduce"),  # of whom, nothing says
        of_rank(0, ["KeyboardInterrupt"]),
    ],
)
def test_what_is_no_stack_of_an_interrupted_rank(tmp_path: Path, lines: list[str]) -> None:
    """The look-alikes."""
    assert not any(places(tmp_path, *lines).values())


def test_the_first_failure_stays_first_beside_those_that_were_interrupted(tmp_path: Path) -> None:
    lines = *of_rank(1, traceback(9, "barrier", "ValueError: bad reward")), *of_rank(0, traceback(12, "all_reduce"))
    (tmp_path / "job.log").write_text("\n".join(lines) + "\n")
    assert triage([str(tmp_path / "job.log")]).reason.startswith("first failure: rank 1 ended with ValueError")
