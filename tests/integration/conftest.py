"""Fixtures of the slow tests: the helpers beside the unit tests, and the built-in models, made once a session."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))


@pytest.fixture(scope="session")
def built_in(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The built-in policy and reward model of seed 0, as settings of a role: about 15 s on one core."""
    from scenarios import models

    home = tmp_path_factory.mktemp("models")
    return {"policy": str(models.build(0, home)), "reward": str(models.build_reward(0, home))}
