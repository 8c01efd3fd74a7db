"""The directory of a recording: for its owner alone."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from harness.errors import BadInput
from harness.parity.runs.recording import recording_in


def test_only_its_owner_may_enter_it(tmp_path: Path) -> None:
    with recording_in(tmp_path / "runs" / "pair", "pair") as folder:
        (folder / "checkpoints").mkdir()
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, folder.parent)] == [0o700, 0o700]


def test_one_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput), recording_in(tmp_path / "file" / "pair", "pair"):
        pass
