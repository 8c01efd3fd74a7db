"""Traps of environments, planted on one host of two and told by `harness doctor` before a job starts; and a control.

The hosts are network namespaces (harness/planted/hangs/hosts.py).
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from interpreters import python
from ray_hosts import ray_cluster

from harness import cli
from harness.planted.hangs import hosts as lab

pytestmark = [pytest.mark.timeout(300), pytest.mark.skipif(bool(lab.why_not()), reason=lab.why_not() or "-")]


@pytest.fixture
def hosts() -> Iterator[lab.Hosts]:
    with lab.laboratory() as made:
        yield made


def told(hosts: lab.Hosts, host: int, root: Path, *words: str, **environ: str) -> dict[tuple[str, str], str]:
    """What `harness doctor` finds wrong from a host: check and place -> what it measured and the fix, a line each."""
    log = root / f"doctor-{host}.json"
    command = [sys.executable, "-m", "harness.cli", "doctor", "--no-imports", "--format", "json", *words]
    hosts.start(host, command, log, **environ).wait(600)
    said = log.read_text()
    hazards = json.loads(said[said.index("{") :])["hazards"]
    lines: dict[tuple[str, str], str] = {}
    for hazard in hazards:
        for where in hazard["where"]:
            # One check may find several disks: this machine's own may be nearly full beside the planted one.
            earlier = lines.get((hazard["check"], where), "")
            lines[hazard["check"], where] = f"{earlier}{hazard['measured']}; {hazard['fix']}\n"
    return lines


@pytest.mark.night
def test_variables_that_a_nodes_workers_lost_are_told_with_its_host(hosts: lab.Hosts, tmp_path: Path) -> None:
    """Planted: a second host whose Ray was started without LD_LIBRARY_PATH, and with an interface that it has not."""
    path = {"LD_LIBRARY_PATH": "/opt/libraries"}
    with ray_cluster(hosts, tmp_path, path, {"GLOO_SOCKET_IFNAME": "nic9"}) as address:
        found = told(hosts, 0, tmp_path, "--address", address, **path)
    lost, interface = found["worker-libraries", "worker on hostb"], found["interfaces", "worker on hostb"]
    assert "LD_LIBRARY_PATH: shell /opt/libraries, worker not set" in lost and "--runtime-env-json" in lost
    assert "nic9" in interface and f"export GLOO_SOCKET_IFNAME={lab.INTERFACE}" in interface
    planted = {"worker-libraries", "interfaces"}
    assert {where for check, where in found if check in planted} == {"worker on hostb"}, "the control: the first host"


def test_a_disk_that_logs_have_filled_is_told_on_its_host(hosts: lab.Hosts, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    hosts.start(1, ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(small)], tmp_path / "mount.log").wait(600)
    hosts.start(1, ["dd", "if=/dev/zero", f"of={small}/job.log", "bs=1M"], tmp_path / "dd.log").wait(600)
    here, there = (told(hosts, host, tmp_path, RAY_TMPDIR=str(small)) for host in (0, 1))
    full = there["disk-space", "this shell"]
    assert f"{small}: 0 B of 8 MiB free" in full and f"du -xh -d2 {small}" in full
    assert str(small) not in here.get(("disk-space", "this shell"), ""), "the control: the same folder elsewhere"


BARE = "/usr/bin:/bin"
MINE = f"{Path(sys.executable).parent}:{BARE}"


def started(hosts: lab.Hosts, root: Path, *paths: str) -> list[tuple[int, str]]:
    """Exit codes and logs of the rendered script of a job of two nodes, each with a PATH of its own."""
    shared = root / "shared"
    options = ["--nodes", "2", "--shared", str(shared), "--doctor=--no-imports", "--out", str(root)]
    assert cli.main(["render", "torchrun", *options, "--", "touch", str(root / "ran")]) == 0
    given = {"RUN_ID": "x", "MASTER_ADDR": lab.ADDRESSES[0], "MASTER_PORT": "29500"}
    logs = [root / f"{name}.log" for name in hosts.names]
    nodes = [
        hosts.start(host, ["bash", str(root / "touch.torchrun.sh")], log, **given, NODE_RANK=str(host), PATH=path)
        for host, (path, log) in enumerate(zip(paths, logs, strict=True))
    ]
    return [(node.wait(600), log.read_text()) for node, log in zip(nodes, logs, strict=True)]


def test_a_node_whose_environment_is_not_active_keeps_all_from_starting(hosts: lab.Hosts, tmp_path: Path) -> None:
    """As in a step of srun, whose shell has read no file that activates one. The control: the first host."""
    (here, _), (there, said) = started(hosts, tmp_path, MINE, BARE)
    assert (here, there) == (1, 1) and not (tmp_path / "ran").exists()
    assert "node-1: no harness is in PATH" in said and "--setup 'source ENVIRONMENT/bin/activate'" in said, said
    assert "no harness" not in (tmp_path / "shared" / "harness-x" / "doctor-node-0.txt").read_text()


@pytest.mark.night
def test_another_python_on_a_node_keeps_all_from_starting(hosts: lab.Hosts, tmp_path: Path) -> None:
    mine = ".".join(map(str, sys.version_info[:2]))
    other = next((found for version in ("3.11", "3.12") if version != mine and (found := python(version))), None)
    if other is None:
        pytest.skip("no other Python on this machine")
    uv, env = str(Path(sys.executable).with_name("uv")), tmp_path / "env"
    subprocess.run([uv, "venv", "--quiet", "--python", other, str(env)], check=True)
    asked = ["--python", str(env / "bin" / "python"), "-r", str(lab.ROOT / "pyproject.toml")]
    subprocess.run([uv, "pip", "install", "--quiet", *asked], check=True)
    (env / "bin" / "harness").write_text(f'#!/bin/sh\nexec {env}/bin/python -m harness.entry "$@"\n')
    (env / "bin" / "harness").chmod(0o755)
    codes = started(hosts, tmp_path, MINE, f"{tmp_path}/env/bin:{BARE}")
    assert {code for code, _ in codes} == {1} and not (tmp_path / "ran").exists(), codes
    said = "".join(log for _, log in codes)
    assert "Python is another one there than in this shell" in said and f"{sys.version.split()[0]}" in said, said


@pytest.mark.night
def test_nodes_that_are_alike_start(hosts: lab.Hosts, tmp_path: Path) -> None:
    codes = started(hosts, tmp_path, MINE, MINE)
    assert [code for code, _ in codes] == [0, 0] and (tmp_path / "ran").exists(), codes
