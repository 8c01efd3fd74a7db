"""A night over a Ray cluster of two hosts: a folder that they do not share, and a host that is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import nightly_support as support
import pytest
from ray_hosts import ray_cluster
from waiting import until

from harness.planted.hangs import hosts as lab

pytest.importorskip("sqlalchemy", reason="the extra [nightly] is not installed")
pytestmark = [pytest.mark.timeout(240), pytest.mark.skipif(bool(lab.why_not()), reason=lab.why_not() or "-")]


@pytest.fixture(scope="module")
def hosts() -> Iterator[lab.Hosts]:
    with lab.laboratory() as made:
        yield made


def nightly(hosts: lab.Hosts, folder: Path, address: str, *words: str) -> subprocess.Popen[bytes]:
    """`harness nightly` on the first host, with cells that a script plays."""
    command = [sys.executable, "-c", support.PLAYED, "player.py", "script.json", "nightly", "matrix.toml"]
    return hosts.start(0, [*command, "--address", address, *words], folder / "log.txt")


def statuses(folder: Path) -> dict[str, tuple[str, str]]:
    night = json.loads((folder / "runs/nightly/night-00001/night.json").read_text())
    return {one["cell"].partition("/")[0]: (one["status"], one["reason"]) for one in night["results"]}


@pytest.mark.night
def test_each_host_runs_a_cell_and_one_that_lacks_the_folder_is_named(hosts: lab.Hosts, tmp_path: Path) -> None:
    support.play(tmp_path, hf_hf="meet", hf_vllm="meet")
    hidden = tmp_path / "own"
    hidden.mkdir()
    hosts.hide(1, hidden)
    with ray_cluster(hosts, tmp_path) as address:
        assert nightly(hosts, tmp_path, address, "--out", "own").wait(600) == 2
        log = (tmp_path / "log.txt").read_text()
        assert f"harness: --out own is not shared: node hostb ({lab.ADDRESSES[1]}) does not write into it\n" in log
        assert nightly(hosts, tmp_path, address).wait(600) == 0, (tmp_path / "log.txt").read_text()
    assert {status for status, _ in statuses(tmp_path).values()} == {"NEW"}


@pytest.mark.night
def test_a_host_that_is_lost_costs_the_cell_that_it_ran(hosts: lab.Hosts, tmp_path: Path) -> None:
    support.play(tmp_path, hf_hf="hang", hf_vllm="hang")
    (tmp_path / "matrix.toml").write_text(support.MATRIX.replace("60s", "100s"))
    with ray_cluster(hosts, tmp_path) as address:
        process = nightly(hosts, tmp_path, address)
        until(lambda: len(list(tmp_path.rglob("attempt-1"))) == 2, 60, lambda: (tmp_path / "log.txt").read_text())
        hosts.kill(1)
        assert process.wait(600) == 2
    lost = statuses(tmp_path)
    reasons = sorted(lost[name][1].partition(":")[0] for name in ("hf-hf", "hf-vllm"))
    assert reasons == ["Ray lost it", "ended at its limit of 100s"], lost
    assert lost["hf-sglang"][0] == "NEW"
