"""The directory of a recording: for its owner alone."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from harness.errors import BadInput
from harness.parity.runs import recording
from harness.parity.runs.recording import recording_in


def test_only_its_owner_may_enter_it(tmp_path: Path) -> None:
    with recording_in(tmp_path / "runs" / "pair", "pair") as folder:
        (folder / "checkpoints").mkdir()
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, folder.parent)] == [0o700, 0o700]


def test_one_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput), recording_in(tmp_path / "file" / "pair", "pair"):
        pass


def test_of_two_that_begin_at_once_one_gets_it(tmp_path: Path) -> None:
    with recording_in(tmp_path / "run", "run") as folder:
        with pytest.raises(BadInput, match="not empty") as refused, recording_in(tmp_path / "run", "run"):
            pass
        assert refused.value.fix == f"--out {tmp_path / 'run-2'}" and folder.exists()
        (folder / "run.json").write_text("{}")
    assert [file.name for file in folder.iterdir()] == ["run.json"]


def test_one_that_another_command_claims_between_the_look_and_the_start_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "_folder", lambda out, name: Path(out))  # it looked before the other had begun
    for name in (recording.CLAIM, "run.json"):
        (folder := tmp_path / name.strip(".")).mkdir()
        (folder / name).write_text("")
        with pytest.raises(BadInput, match="not empty"), recording_in(folder, "run"):
            pass
        assert [file.name for file in folder.iterdir()] == [name]
