"""Pairs that commands have recorded, of the golden corpus."""

from __future__ import annotations

import tarfile
from pathlib import Path

INPUTS = Path(__file__).resolve().parents[1] / "golden" / "inputs"
WHOLE_RUN = "whole-run-bfloat16"  # with a lifted stage, a native stage and an index


def recorded_pair(folder: Path, name: str = WHOLE_RUN) -> Path:
    """Unpack a pair into a folder."""
    with tarfile.open(INPUTS / f"{name}.tar.xz") as packed:
        packed.extractall(folder, filter="data")
    return folder
