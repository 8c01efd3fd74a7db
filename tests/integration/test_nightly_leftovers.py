"""A cell that is killed in the middle of a real Ray cluster leaves none of its processes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from harness.nightly import cells
from scenarios.engines.engine_processes import descendants, title

CELL = """
import os, sys
from pathlib import Path
from harness.cluster.launch import Cluster, driver_seat
from scenarios.engines.engine_processes import descendants, title
with Cluster() as cluster:
    actor = cluster.actor("collections:Counter", driver_seat())
    import ray
    ray.get(ray.remote(num_cpus=0)(lambda: os.getpid()).remote())
    titles = [title(pid) for pid in descendants(os.getpid())]
    Path(sys.argv[1]).write_text("\\n".join(titles))
    os.kill(os.getpid(), 9)
"""


@pytest.mark.night
def test_a_killed_cell_takes_its_ray_cluster_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(descendants(os.getpid()))
    monkeypatch.setattr(cells, "COMMAND", (sys.executable, "-c", CELL))
    code, _ = cells.launch([str(tmp_path / "titles")], tmp_path / "cell", 300.0)
    assert code == -9, (tmp_path / "cell" / "log.txt").read_text()
    titles = (tmp_path / "titles").read_text()
    assert "raylet" in titles and "gcs_server" in titles and "ray::" in titles
    assert [title(pid) for pid in descendants(os.getpid()) if pid not in before] == []
