"""Recorded pairs of the golden corpus as today's commands would have recorded them: with an index."""

from __future__ import annotations

import tarfile
from pathlib import Path

from probes.format import FORMAT_VERSION, LIFTED, SIDES, encode_manifest, read_manifest, seal

INPUTS = Path(__file__).resolve().parents[1] / "golden" / "inputs"


def golden_pair(name: str, folder: Path) -> Path:
    """Unpack a pair, and end its runs as the command that owns them does today."""
    with tarfile.open(INPUTS / f"{name}.tar.xz") as packed:
        packed.extractall(folder, filter="data")
    for side in SIDES:
        for run in (folder / side / LIFTED, folder / side):
            if (run / "run.json").exists():
                manifest = {"records": [], **read_manifest(run), "format_version": FORMAT_VERSION, "index": True}
                (run / "run.json").write_bytes(encode_manifest(manifest))
                seal(run)
    return folder
