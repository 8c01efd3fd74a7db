"""The phase of a step, as the trainer's heartbeat tells it."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.triage.watch import phase
from probes import install
from probes.heartbeat import Heartbeat


@pytest.fixture
def beat(tmp_path: Path):
    with install.start(tmp_path, role="trainer") as recorder:
        heart = Heartbeat(tmp_path, identity=lambda: {"role": "trainer"}, recorders=lambda: [recorder])
        yield recorder, heart
        heart.close()


def test_the_innermost_span_names_the_phase(beat, tmp_path: Path) -> None:
    recorder, heart = beat
    with recorder.span("experience", step=3), recorder.span("advantages", step=3):
        heart.beat()
    assert phase.current(tmp_path, 3) == "experience"
    with recorder.span("proof", step=3):
        heart.beat()
    assert phase.current(tmp_path, 3) == "sync"


def test_a_beat_of_the_step_before_names_none(beat, tmp_path: Path) -> None:
    recorder, heart = beat
    with recorder.span("sync", step=2):
        heart.beat()
    assert phase.current(tmp_path, 3) == "" and phase.current(tmp_path, 2) == "sync"


def test_other_processes_and_other_spans_name_none(tmp_path: Path) -> None:
    assert phase.current(tmp_path, 0) == ""
    with install.start(tmp_path, role="actor") as recorder, recorder.span("train", step=0):
        heart = Heartbeat(tmp_path, identity=lambda: {"role": "actor"}, recorders=lambda: [recorder])
        heart.beat()
        heart.close()
    (tmp_path / "beats" / "1.json").write_text('{"role": "trainer", "open": [{"na')
    assert phase.current(tmp_path, 0) == ""
