"""Fixtures of the integration tests: which real engines, and where recordings go."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for recordings that several tests of a session judge; HARNESS_TEST_RECORDINGS keeps them."""
    kept = os.environ.get("HARNESS_TEST_RECORDINGS")
    return Path(kept) if kept else tmp_path_factory.mktemp("recordings")
