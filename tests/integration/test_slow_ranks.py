"""Real gloo ranks of which one is slow in its own way are named by their recorders, and balanced ones are not.

The planted rank has ten times the work of the others, or more. What is decided is who came last how often, which no
load of this machine turns round.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from waiting import until

from harness.triage.evidence import Evidence, Group
from harness.triage.flight.compare import compare
from harness.triage.flight.loading import load_directory
from harness.triage.judge import triage

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "cases" / "slow" / "straggler.py"
WORLD = Group("0", (0, 1, 2), "gloo", "default_pg")
STRAGGLER, STEPS = 1, "40"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    ("kind", "slow"),
    [
        pytest.param("network", {STRAGGLER}, marks=pytest.mark.night),
        pytest.param("processor", {STRAGGLER}, marks=pytest.mark.night),
        pytest.param("disk", {STRAGGLER}, marks=pytest.mark.night),
        pytest.param("sleep", {STRAGGLER}, marks=pytest.mark.night),
        pytest.param("garbage", {STRAGGLER}, marks=pytest.mark.night),
        pytest.param("once", set(), marks=pytest.mark.night),
        pytest.param("balanced", set(), marks=pytest.mark.night),
    ],
)
def test_dumps_name_the_rank_that_is_slow(kind: str, slow: set[int], tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(PROGRAM), kind, str(tmp_path), STEPS], check=True, capture_output=True)
    verdict = triage(Evidence("", "dumps", "", 0.0), compare(load_directory(tmp_path), [WORLD]))
    assert verdict.triage is not None
    rows = [row for row in verdict.triage.lateness if row.slow]
    assert {rank for row in rows for rank in row.ranks} == slow, verdict.evidence
    assert verdict.verdict == ("SLOW" if slow else "HEALTHY")
    assert len(verdict.triage.lateness) == 3 and not verdict.triage.culprits


def watched(kind: str, folder: Path, looks: int) -> list[dict[str, Any]]:
    """Watch a job until its verdict is handed on, or it was looked at so often. Returns what was handed on."""
    hand_on = f"told={folder}/told-$$; cat > $told.half; mv $told.half $told.json"
    words = ["--slow", "--stall", "2s", "--out", str(folder / "out"), "--on-verdict", hand_on]
    job = [sys.executable, str(PROGRAM), kind, str(folder), "0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    watch = subprocess.Popen([sys.executable, "-m", "harness.cli", "watch", *words, "--", *job], cwd=folder,
                             env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)  # fmt: skip
    seen: set[str] = set()

    def enough() -> bool:
        seen.update(path.parent.name for path in folder.glob("out/evidence/*/recorder"))
        return any(folder.glob("told-*.json")) or len(seen) >= looks or watch.poll() is not None

    try:
        until(enough, what=lambda: f"{len(seen)} looks")
    finally:
        (folder / "stop").touch()
        _, said = watch.communicate(timeout=300)
    assert watch.returncode == 0, said
    return [json.loads(path.read_text()) for path in folder.glob("told-*.json")]


@pytest.mark.night
@pytest.mark.parametrize("kind", ["network", "sleep"])
def test_a_watch_names_the_rank_that_stays_slow(kind: str, tmp_path: Path) -> None:
    told = watched(kind, tmp_path, looks=10_000)
    assert told and {verdict["verdict"] for verdict in told} == {"SLOW"}
    assert {rank for verdict in told for row in verdict["triage"]["lateness"] if row["slow"] for rank in row["ranks"]} \
        == {STRAGGLER}  # fmt: skip


@pytest.mark.night
def test_a_watch_names_nobody_of_a_balanced_job(tmp_path: Path) -> None:
    told = watched("balanced", tmp_path, looks=8)
    assert not [row for verdict in told for row in verdict["triage"]["lateness"] if row["slow"]]
