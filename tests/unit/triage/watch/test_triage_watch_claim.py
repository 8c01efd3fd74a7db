"""The lock of a watch directory: one watch has it, whatever happens between two calls of another."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from harness.errors import BadInput
from harness.triage.watch.claim import NAME, Claim


def test_a_lock_file_that_its_owner_removes_meanwhile_is_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, real = Claim(tmp_path), fcntl.flock
    released = []

    def flock(descriptor: int, operation: int) -> Any:
        if not released:  # the second watch has opened the lock file and not locked it yet
            released.append(first.release())
        return real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    second = Claim(tmp_path)
    assert (tmp_path / NAME).exists()
    with pytest.raises(BadInput):
        Claim(tmp_path)
    second.release()
    assert not (tmp_path / NAME).exists()


def test_a_release_leaves_the_lock_of_another_watch(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    first = Claim(folder)
    shutil.rmtree(folder)
    folder.mkdir()
    second = Claim(folder)
    first.release()
    with pytest.raises(BadInput):
        Claim(folder)
    second.release()


def test_a_link_in_the_place_of_the_lock_is_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("kept")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / NAME).symlink_to(precious)
    with pytest.raises(BadInput):
        Claim(tmp_path / "out")
    assert precious.read_text() == "kept"
    (tmp_path / "out" / NAME).unlink()
    os.mkfifo(tmp_path / "out" / NAME)
    with pytest.raises(BadInput):
        Claim(tmp_path / "out")
