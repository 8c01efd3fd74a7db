"""Dumps of a gloo job that hangs here and now: JSON and torch's own pickle, which has frames."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from harness.triage.evidence import Evidence, Group
from harness.triage.flight.compare import compare
from harness.triage.flight.loading import load, load_directory
from harness.triage.judge import triage

RECORD = Path(__file__).resolve().parents[1] / "fixtures" / "flight" / "record_gloo.py"


def test_a_real_hang_is_named_from_its_dumps(tmp_path: Path) -> None:
    command = [sys.executable, str(RECORD), "late-start", str(tmp_path), "pickle"]
    subprocess.run(command, check=True, capture_output=True, timeout=600)
    flights = load_directory(tmp_path)
    assert sorted(flights) == [f"rank{rank}.pkl" for rank in range(4)]  # the JSON of each says the same, without frames
    members = json.loads((tmp_path / "groups.json").read_text())
    said = [Group(one["name"], tuple(one["members"]), one["backend"], one["desc"]) for one in members]
    found = triage(Evidence("", "dumps", "", 0.0), compare(flights, said)).triage
    assert found is not None and ([one.rank for one in found.culprits], found.hang) == ([3], "K4")
    pending = compare(flights, said).groups[0].ranks[0].pending
    assert pending is not None and (pending.op, pending.seq) == ("all_reduce", 5)
    assert [frame.function for frame in pending.frames if frame.file == str(RECORD)][:2] == ["act", "main"]
    plain = load(tmp_path / "rank0.json")
    assert plain.kinds == flights["rank0.pkl"].kinds and len(plain) == len(flights["rank0.pkl"])
