from __future__ import annotations

import sys
from pathlib import Path

import pytest
from bisect_support import PLAYER

from harness.nightly import cells


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HARNESS_HOME", str(tmp_path / "home"))  # what environments this machine has says nothing here
    (tmp_path / "player.py").write_text(PLAYER)
    monkeypatch.setattr(cells, "COMMAND", (sys.executable, str(tmp_path / "player.py"), str(tmp_path / "script.json")))
    monkeypatch.setattr(cells, "GRACE_S", 2.0)
    (tmp_path / "a.toml").write_text("[sampling]\ntemperature = 1.0\n[engine]\nseed = 1\n")
    (tmp_path / "b.toml").write_text(
        "steps = 4\n[sampling]\ntemperature = 0.7\ntop_p = 0.9\nstop_token_ids = [5, 7]\n[engine]\nseed = 2\n"
    )
    return tmp_path
