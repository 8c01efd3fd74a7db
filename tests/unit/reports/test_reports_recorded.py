"""What `harness run` prints of its recording."""

from __future__ import annotations

import json
from pathlib import Path

from probes.format import write_manifest
from probes.install import start
from reports import render as rendered
from reports.run_model import RecordedRun


def render(folder: Path, format: str) -> str:
    return rendered(RecordedRun.of(folder), format)


def test_each_format_of_a_recorded_run(tmp_path: Path) -> None:
    write_manifest(tmp_path, {"command": "harness run ppo-tiny", "backend": "hf"})
    with start(tmp_path, role="trainer") as recorder:
        for step in range(2):
            recorder.event("step", step=step, metrics={"reward_mean": step / 3, "seconds": 1.5, "tokens": 7})
    assert render(tmp_path, "text") == f"{tmp_path}\n"
    told = json.loads(render(tmp_path, "json"))
    assert (told["run"], told["backend"], told["complete"]) == (str(tmp_path), "hf", True)
    assert [(step["step"], step["tokens"]) for step in told["steps"]] == [(0, 7), (1, 7)]
    table = render(tmp_path, "md").splitlines()[2:]
    assert table[0] == "| step | reward_mean | seconds |"
    assert table[2:] == ["| 0 | 0 | 1.5 |", "| 1 | 0.3333 | 1.5 |"]


def test_a_run_without_a_step(tmp_path: Path) -> None:
    write_manifest(tmp_path, {"command": "c"})
    start(tmp_path, role="trainer").close()
    assert json.loads(render(tmp_path, "json"))["steps"] == []
    assert render(tmp_path, "md").startswith("`c` recorded in")
