"""A SIGTERM in torchrun's table: of whoever ended the first rank, or of torchrun, which ends the others then."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from harness.triage.run import triage
from harness.triage.watch.deaths import failed_ranks
from reports.model import Verdict

CLOSED = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:13727"
READ = "RuntimeError: [gloo/transport/tcp/pair.cc:537] Read error [10.0.0.2]:1442: Connection reset by peer"
AGENT = "1130 10:02:10.1 4100 torch/distributed/elastic/multiprocessing/api.py"
SENDING = f"W{AGENT}:1028] Sending process {{0}} closing signal SIGTERM"
FAILED = f"E{AGENT}:1002] failed (exitcode: {{1}}) local_rank: {{0}} (pid: 410{{0}}) of binary: /usr/bin/python3"


def raised(rank: int, error: str) -> list[str]:
    return [f"[rank{rank}]: {line}" for line in ("Traceback (most recent call last):", '  File "t.py", line 12', error)]


def row(number: int, rank: int, code: int, second: int) -> list[str]:
    message = (
        f"Signal {-code} received by PID 410{rank}" if code < 0 else "To enable traceback see: https://pytorch.org"
    )
    return [f"[{number}]:", f"  time      : 2026-11-30_10:02:{second}", "  host      : nodea",
            f"  rank      : {rank} (local_rank: {rank})", f"  exitcode  : {code} (pid: 410{rank})  (SIGTERM)",
            "  error_file: <N/A>", f"  traceback : {message}"]  # fmt: skip


def table(root: tuple[int, int, int], *later: tuple[int, int, int]) -> list[str]:
    """Torchrun's table of (rank, exit code, second)."""
    rows = [line for number, failure in enumerate(later, 1) for line in row(number, *failure)]
    return ["=" * 60, "train.py FAILED", "-" * 60, "Failures:", *(rows or ["  <NO_OTHER_FAILURES>"]), "-" * 60,
            "Root Cause (first observed failure):", *row(0, *root), "=" * 60]  # fmt: skip


def judged(folder: Path, *lines: str) -> Verdict:
    (folder / "job.log").write_text("\n".join(lines) + "\n")
    verdict = triage([str(folder / "job.log")])
    assert verdict.verdict == "INSUFFICIENT"
    return verdict


@pytest.mark.parametrize("error", [CLOSED, READ])
@pytest.mark.parametrize(("code", "second"), [(1, 11), (-15, 10), (-15, 11)])
def test_a_sigterm_that_is_the_root_cause_comes_before_those_that_lost_the_connection(
    tmp_path: Path, error: str, code: int, second: int
) -> None:
    verdict = judged(tmp_path, *raised(0, error), *table((5, -15, 10), (0, code, second)))
    assert "rank 5 ended with signal 15" in verdict.reason and "rank 0" not in verdict.reason
    assert any(line.startswith("after it rank 0 ended with") for line in verdict.evidence)


@pytest.mark.parametrize(
    ("root", "error"), [((0, 1, 10), "ValueError: bad reward"), ((0, -9, 10), ""), ((0, 1, 10), CLOSED)]
)
@pytest.mark.parametrize("second", [10, 12])
def test_a_sigterm_that_torchrun_sent_after_the_first_failure_is_no_first_death(
    tmp_path: Path, root: tuple[int, int, int], error: str, second: int
) -> None:
    """The look-alike."""
    lines = raised(0, error) if error else []
    verdict = judged(tmp_path, *lines, SENDING.format(4105), *table(root, (5, -15, second)))
    assert "rank 0" in verdict.reason and "rank 5" not in verdict.reason


def test_of_ranks_that_somebody_else_ended_all_at_once_none_is_the_first(tmp_path: Path) -> None:
    """A scheduler ends all: torchrun's first look finds them dead, and it sends no signal to any of them."""
    rows = table((0, -15, 10), (1, -15, 10))
    verdict = judged(tmp_path, FAILED.format(0, -15), *rows)
    assert "rank 1 and rank 0" in verdict.reason and any("which of them first" in line for line in verdict.evidence)
    # The control: torchrun itself ended rank 1.
    control = judged(tmp_path, SENDING.format(4101), FAILED.format(0, -15), *rows)
    assert "rank 0 ended with signal 15" in control.reason and "rank 1" not in control.reason


def test_what_ends_a_rank_by_sigterm_is_looked_for_at_its_sender(tmp_path: Path) -> None:
    verdict = judged(tmp_path, *raised(0, CLOSED), *table((5, -15, 10), (0, 1, 11)))
    assert verdict.triage is not None and "who" in verdict.triage.next[0] and "SIGTERM" in verdict.triage.next[0]


def test_a_watch_keeps_which_failure_its_launcher_saw_first() -> None:
    failed = failed_ranks("\n".join([SENDING.format(4100), *table((5, -15, 10), (0, -15, 10))]))
    assert {pid: process.first_by_launcher for pid, process in failed.items()} == {4105: True, 4100: False}
    assert dataclasses.replace(failed[4105], first_by_launcher=False).exit_code == -15
