"""What `harness run` prints of its recording."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from probes.format import write_manifest
from probes.install import start
from reports import render as rendered
from reports.renderers.text import TextRenderer
from reports.run_model import RecordedRun
from reports.text import show


def render(folder: Path, format: str) -> str:
    return rendered(RecordedRun.of(folder), format)


@pytest.mark.slow
def test_each_format_of_a_recorded_run(tmp_path: Path) -> None:
    write_manifest(tmp_path, {"command": "harness run ppo-tiny", "backend": "hf"})
    with start(tmp_path, role="trainer") as recorder:
        for step in range(2):
            recorder.event("step", step=step, metrics={"reward_mean": step / 3, "seconds": 1.5, "tokens": 7})
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
    assert "unknown backend, 0 steps" in render(tmp_path, "text")


def test_a_run_that_is_still_written_says_so(tmp_path: Path) -> None:
    write_manifest(tmp_path, {"command": "c"})
    with start(tmp_path, role="trainer") as recorder:
        recorder.event("step", step=0, metrics={"loss": 0.5})
        for format in ("text", "md", "html"):
            assert "a process was ended, or still runs" in render(tmp_path, format)


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("verbose", [False, True])
def test_the_text_of_a_recorded_run_loses_nothing(width: int, verbose: bool) -> None:
    names = ["reward_mean", "kl_mean", "length_mean", "seconds", *(f"metric_{number}" for number in range(30))]
    steps = [{"step": step, **{name: step + index / 7 for index, name in enumerate(names)}} for step in range(2)]
    run = RecordedRun("runs/one", "hf", "harness run ppo-tiny --set a.b=c --steps 2 --out runs/one", True, steps)
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=True, color_system=None, legacy_windows=False)
    TextRenderer().show(run, console, verbose=verbose)
    text = file.getvalue()
    assert max(map(len, text.splitlines())) <= width
    words = text.replace(" \\\n", " ").split()
    shown = names if verbose else names[:4]
    assert {*shown, *(show(step[name]) for step in steps for name in shown)} <= {*words}
    assert run.command in " ".join(words) and run.run in words


def test_what_a_foreign_run_holds_cannot_drive_a_terminal() -> None:
    run = RecordedRun("a\x1b[2Jb", "h\u202ef", "c\x07", True, [{"step": 0, "\x1b[1mx": "\x1b[2K", "y": None}])
    for text in (rendered(run, format) for format in ("text", "md", "html")):
        assert all(char.isprintable() or char == "\n" for char in text)


@pytest.mark.parametrize(("rollouts", "command"), [(False, "harness triage"), (True, "harness audit")])
def test_a_record_of_a_watch_without_rollouts_is_judged_by_triage(rollouts: bool, command: str, tmp_path: Path) -> None:
    write_manifest(tmp_path, {"command": "c", "watch": True})
    if rollouts:
        (tmp_path / "tokens").mkdir()
    text = " ".join(render(tmp_path, "text").split())
    assert [word for word in ("harness triage", "harness audit") if word in text] == [command]
