"""A long comparison says where it is; a short one says nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from recordings import make, scenario

from harness import cli
from harness.parity import judge
from harness.parity.facts import progress_messages
from harness.parity.facts.progress_messages import Patience


def test_nothing_at_first_and_then_now_and_then() -> None:
    now, said = [0.0], []
    tell = Patience(said.append, clock=lambda: now[0])
    for tenth in range(130):
        now[0] = tenth / 10
        tell(f"step {tenth}")
    assert said == ["step 20", "step 70", "step 120"]


@pytest.mark.slow
def test_a_comparison_tells_each_journal_and_each_step(tmp_path: Path) -> None:
    for side in ("baseline", "candidate"):
        make(side, scenario(steps=3, prompts=4, group=2), native=False).write(tmp_path / side)
    told: list[str] = []
    judge(tmp_path / "baseline", tmp_path / "candidate", tell=told.append)
    assert [text for text in told if text.startswith("comparing")] == [f"comparing step {k} of 3" for k in (1, 2, 3)]
    assert sum(text.startswith("reading") for text in told) == 12  # six processes a side
    assert "looking for what differs" in told


@pytest.mark.slow
def test_a_slow_diff_says_so_on_stderr(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for side in ("baseline", "candidate"):
        make(side, scenario(steps=3, prompts=4, group=4), native=False).write(tmp_path / side)
    arguments = ["diff", str(tmp_path / "baseline"), str(tmp_path / "candidate"), "--format", "json"]
    monkeypatch.setattr(progress_messages, "FIRST_S", 1e9)  # however busy the machine is
    assert cli.main(arguments) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(progress_messages, "FIRST_S", 0.0)
    monkeypatch.setattr(progress_messages, "EVERY_S", 0.0)
    assert cli.main(arguments) == 0
    shown = capsys.readouterr()
    assert "comparing step 2 of 3" in shown.err and shown.out.startswith("{")
