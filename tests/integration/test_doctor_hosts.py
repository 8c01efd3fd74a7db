"""Traps of environments, planted on one host of two and told by `harness doctor` before a job starts; and a control.

The hosts are network namespaces (tests/support/hosts.py).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import hosts as lab
import pytest

pytestmark = [pytest.mark.timeout(300), pytest.mark.skipif(bool(lab.why_not()), reason=lab.why_not() or "-")]


@pytest.fixture
def hosts() -> Iterator[lab.Hosts]:
    with lab.laboratory() as made:
        yield made


def told(hosts: lab.Hosts, host: int, root: Path, *words: str, **environ: str) -> dict[tuple[str, str], str]:
    """What `harness doctor` finds wrong from a host: check and place -> the fix."""
    log = root / f"doctor-{host}.json"
    command = [sys.executable, "-m", "harness.cli", "doctor", "--no-imports", "--format", "json", *words]
    hosts.start(host, command, log, **environ).wait(120)
    said = log.read_text()
    hazards = json.loads(said[said.index("{") :])["hazards"]
    return {(one["check"], where): f"{one['measured']}; {one['fix']}" for one in hazards for where in one["where"]}


def test_variables_that_a_nodes_workers_lost_are_told_with_its_host(hosts: lab.Hosts, tmp_path: Path) -> None:
    """Planted: a second host whose Ray was started without LD_LIBRARY_PATH, and with an interface that it has not."""
    path = {"LD_LIBRARY_PATH": "/opt/libraries"}
    with lab.ray_cluster(hosts, tmp_path, path, {"GLOO_SOCKET_IFNAME": "nic9"}) as address:
        found = told(hosts, 0, tmp_path, "--address", address, **path)
    lost, interface = found["worker-libraries", "worker on hostb"], found["interfaces", "worker on hostb"]
    assert "LD_LIBRARY_PATH: shell /opt/libraries, worker not set" in lost and "--runtime-env-json" in lost
    assert "nic9" in interface and f"export GLOO_SOCKET_IFNAME={lab.INTERFACE}" in interface
    planted = {"worker-libraries", "interfaces"}
    assert {where for check, where in found if check in planted} == {"worker on hostb"}, "the control: the first host"


def test_a_disk_that_logs_have_filled_is_told_on_its_host(hosts: lab.Hosts, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    hosts.start(1, ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(small)], tmp_path / "mount.log").wait(20)
    hosts.start(1, ["dd", "if=/dev/zero", f"of={small}/job.log", "bs=1M"], tmp_path / "dd.log").wait(20)
    here, there = (told(hosts, host, tmp_path, RAY_TMPDIR=str(small)) for host in (0, 1))
    full = there["disk-space", "this shell"]
    assert f"{small}: 0 B of 8 MiB free" in full and "--temp-dir" in full
    assert str(small) not in here.get(("disk-space", "this shell"), ""), "the control: the same folder elsewhere"
