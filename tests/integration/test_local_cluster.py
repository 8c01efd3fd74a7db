"""Our own Ray cluster: it listens on loopback only, and leaves no files behind."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.cluster import launch
from harness.cluster.launch import OWN_CLUSTER_CPUS, Cluster, LaunchFailed, driver_seat
from scenarios.engines.engine_processes import descendants

LISTENS = "0A"  # of /proc/net/tcp
LOOPBACK = {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}


def listening(pid: int) -> list[str]:
    """Local addresses, as /proc/net has them, of the listening TCP sockets of one process."""
    try:
        links = [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()]
        tables = [Path(f"/proc/{pid}/net/{name}").read_text() for name in ("tcp", "tcp6")]
    except OSError:  # it ended, as one that a worker started for a moment does
        return []
    inodes = {found[1] for link in links if (found := re.fullmatch(r"socket:\[(\d+)\]", link))}
    rows = [line.split() for table in tables for line in table.splitlines()[1:]]
    return [row[1] for row in rows if row[3] == LISTENS and row[9] in inodes]


@pytest.mark.parametrize("fails", [pytest.param(False, marks=pytest.mark.night), True])
def test_temporary_files_of_actors_go_with_the_cluster(fails: bool) -> None:
    """And Ray's logs do, but for those of a run that failed: SGLang and vLLM leave files of every start."""
    with contextlib.suppress(LaunchFailed), Cluster() as cluster:
        logs = Path(cluster._logs)
        maker = cluster.actor("subprocess:Popen", driver_seat(), ["mktemp", "-d"], stdout=subprocess.PIPE, text=True)
        made = Path(maker.submit("communicate").result()[0].strip())
        assert made.is_dir() and logs.is_dir()
        if fails:
            raise LaunchFailed("a run that failed")
    assert not made.parent.exists() and made.parent != Path(tempfile.gettempdir())
    assert logs.exists() == fails


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Our cluster, started from a folder whose modules nobody may import, after tests with one of their own."""
    folder = tmp_path_factory.mktemp("planted")
    for name in ("json", "scenarios", "harness", "tomllib", "planted"):
        (folder / f"{name}.py").write_text(f"raise RuntimeError('{name}.py of the current folder was imported')")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        with Cluster() as cluster:
            yield cluster


def test_every_socket_of_our_ray_is_on_loopback(own: Cluster) -> None:
    """And its workers import nothing from the folder that the harness was called in."""
    import ray

    class Actor:  # here, so that it travels by value: a worker cannot import this file
        def pid(self) -> int:
            return os.getpid()

        def path(self) -> list[str]:
            return sys.path

    decorate: Any = ray.remote
    actor = decorate(Actor).remote()
    pid = ray.get(actor.pid.remote())
    assert os.getcwd() not in ray.get(actor.path.remote())
    time.sleep(2)  # agents open their ports last
    found = {one: listening(one) for one in descendants(os.getpid())}
    names = {
        one: Path(f"/proc/{one}/cmdline").read_text().replace("\0", " ")[:80] for one, open_ in found.items() if open_
    }
    assert pid in found and sum(map(len, found.values())) >= 3, "nothing listens: the look is wrong"
    elsewhere = {
        names[one]: [where for where in open_ if where.split(":")[0] not in LOOPBACK]
        for one, open_ in found.items()
        if open_
    }
    assert not {name: where for name, where in elsewhere.items() if where}


def test_a_run_that_the_cluster_cannot_hold_is_refused_and_on_one_that_may_grow_told_first(
    own: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    most = int(OWN_CLUSTER_CPUS / own.actor_cpus)
    with pytest.raises(LaunchFailed, match=f"holds {most} processes, and this run has {most + 1}: each engine"):
        own.reserve([{"CPU": own.actor_cpus}] * (most + 1), [""] * (most + 1), said.append)
    assert said == []
    monkeypatch.setattr(launch, "PLACEMENT_S", 0.1)
    with pytest.raises(LaunchFailed, match=f"cannot hold {OWN_CLUSTER_CPUS + 1} processes") as refused:
        many = OWN_CLUSTER_CPUS + 1
        Cluster("somebody's").reserve([{"CPU": 1.0}] * many, [""] * many, said.append)
    [line] = said
    assert line.startswith("waiting for nodes") and f"the cluster has {OWN_CLUSTER_CPUS} cores" in line
    assert "ray status" in str(refused.value.fix)
