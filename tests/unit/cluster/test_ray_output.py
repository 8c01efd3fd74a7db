"""What Ray says by itself does not stand in a verdict."""

from __future__ import annotations

import contextlib
import os

import pytest
from ray._private import worker

from harness.cluster.ray_output import quiet_in_vain, warnings_aside, warnings_dropped


@pytest.fixture(autouse=True)
def _printer_of_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's own printer comes back afterwards."""
    monkeypatch.setattr(worker, "print_to_stdstream", worker.print_to_stdstream)


def _warn(line: str) -> None:
    """Print a line as Ray's `listen_error_messages` does. Of lines that only differ in numbers Ray prints the first."""
    worker.print_to_stdstream({"lines": [line], "pid": "raylet", "is_err": False}, ignore_prefix=False)


def test_a_warning_of_the_raylet_goes_to_the_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    for line in ("workers have been started on this node", "the object store is nearly full"):
        warnings_aside()
        _warn(line)
        out, err = capfd.readouterr()
        assert out == "" and line in err


def test_the_death_of_a_worker_that_we_kill_is_no_warning(capfd: pytest.CaptureFixture[str]) -> None:
    warnings_aside()
    warnings_dropped()
    _warn("A worker died or was killed")
    assert capfd.readouterr() == ("", "")
    warnings_aside()  # the next cluster of this process warns again
    _warn("a disk is nearly full")
    assert "a disk is nearly full" in capfd.readouterr().err


@pytest.mark.parametrize("joined", [True, False])
def test_a_cluster_that_is_not_joined_prints_no_lines_of_rays(joined: bool, capfd: pytest.CaptureFixture[str]) -> None:
    ray_line = b"[2026-11-29 07:14:46,138 W 23520 23520] gcs_client.cc:210: Failed to get cluster ID from GCS server\n"
    with contextlib.suppress(RuntimeError), quiet_in_vain():
        os.write(2, ray_line)
        os.write(2, b"step 1\n")
        if not joined:
            raise RuntimeError
    os.write(2, b"after\n")
    assert capfd.readouterr().err == (ray_line.decode() if joined else "") + "step 1\nafter\n"
