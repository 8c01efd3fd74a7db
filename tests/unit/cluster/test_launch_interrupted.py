"""Ctrl-C while a Ray cluster starts: `__exit__` does not run then, and what was started must not stay."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import NoReturn

import pytest

from harness.cluster.launch import Cluster
from scenarios.engines.engine_processes import alive


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        process.kill()


def test_an_interrupt_while_the_cluster_starts_leaves_no_process(
    monkeypatch: pytest.MonkeyPatch, started: list[subprocess.Popen[bytes]]
) -> None:
    def interrupted(self: Cluster) -> NoReturn:
        started.append(subprocess.Popen(["sleep", "60"]))
        raise KeyboardInterrupt

    monkeypatch.setattr(Cluster, "_begin", interrupted)
    with pytest.raises(KeyboardInterrupt), Cluster():
        pass
    assert len(started) == 1 and not alive(started[0].pid)
