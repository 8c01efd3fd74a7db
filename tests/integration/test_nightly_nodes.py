"""A night over a Ray cluster of two nodes on this host: real raylets, cells that a script plays, and real ones."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import nightly_support as support
import pytest
from waiting import until

from scenarios.engines.engine_processes import title

pytest.importorskip("sqlalchemy", reason="the extra [nightly] is not installed")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A Ray cluster of two nodes of one CPU each; the second has a GPU, as it says."""
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": 80_000_000, "memory": 2 << 30}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")  # whether the user's home holds a token or not
        cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
        cluster.add_node(**node, num_gpus=1)
        yield cluster.address
        cluster.shutdown()


@dataclass
class Nights:
    """`harness nightly` in a folder, on a cluster."""

    folder: Path
    address: str

    def start(self, *words: str, played: bool = True) -> subprocess.Popen[str]:
        player = ["-c", support.PLAYED, "player.py", "script.json"] if played else ["-m", "harness.entry"]
        command = [sys.executable, *player, "nightly", "matrix.toml", "--address", self.address, *words]
        with (self.folder / "log.txt").open("a") as log:
            return subprocess.Popen(command, cwd=self.folder, stdout=subprocess.PIPE, stderr=log, text=True)

    def run(self, *words: str, played: bool = True) -> tuple[int, str]:
        process = self.start(*words, played=played)
        printed, _ = process.communicate(timeout=300)
        return process.returncode, printed

    def log(self) -> str:
        return (self.folder / "log.txt").read_text()

    def results(self, number: int = 1) -> dict[str, dict[str, str]]:
        night = self.folder / f"runs/nightly/night-{number:05d}/night.json"
        return {one["cell"].partition("/")[0]: one for one in json.loads(night.read_text())["results"]}

    def until(self, process: subprocess.Popen[str], condition: Callable[[], bool]) -> None:
        until(condition, what=self.log, process=process)

    def until_nothing_is_left(self) -> None:
        until(lambda: not support.running(str(self.folder)), what=lambda: str(support.running(str(self.folder))))


@pytest.fixture
def nights(tmp_path: Path, address: str) -> Nights:
    support.play(tmp_path)
    return Nights(tmp_path, address)


@pytest.mark.night
def test_cells_run_side_by_side_and_one_that_is_killed_ends_itself_only(nights: Nights) -> None:
    """The first two wait for each other."""
    support.play(nights.folder, hf_hf="meet", hf_vllm="meet", hf_sglang="orphans")
    code, _ = nights.run()
    results = nights.results()
    assert code == 2, nights.log()
    assert {name: one["status"] for name, one in results.items()} == {
        "hf-hf": "NEW", "hf-vllm": "NEW", "hf-sglang": "COULD NOT RUN",
    }  # fmt: skip
    assert results["hf-sglang"]["reason"].startswith("ended by signal 9") and "EQUIVALENT" in nights.log()
    assert Path(results["hf-sglang"]["report"]).name == "log.txt" and Path(results["hf-sglang"]["report"]).is_file()
    assert support.running(str(nights.folder)) == []
    support.play(nights.folder)
    assert nights.run()[0] == 0 and nights.results(2)["hf-sglang"]["status"] == "FIXED"


@pytest.mark.night
def test_a_cell_over_its_limit_leaves_no_process_and_is_tried_again(nights: Nights) -> None:
    (nights.folder / "matrix.toml").write_text(support.MATRIX + 'limit = "2s"\nretries = 1\n')
    support.play(nights.folder, hf_sglang="hang")
    assert nights.run()[0] == 2
    result = nights.results()["hf-sglang"]
    assert result["reason"] == "ended at its limit of 2s" and "attempt-2" in result["report"]
    assert support.running(str(nights.folder)) == []


@pytest.mark.night
@pytest.mark.parametrize(
    "signum", [pytest.param(signal.SIGINT, id="Ctrl-C"), pytest.param(signal.SIGKILL, id="SIGKILL")]
)
def test_the_end_of_the_driver_ends_every_cell_and_the_night_is_resumed(nights: Nights, signum: int) -> None:
    support.play(nights.folder, hf_vllm="hang", hf_sglang="hang")
    process = nights.start()
    nights.until(process, lambda: len(list(nights.folder.rglob("attempt-1"))) == 3)
    process.send_signal(signum)
    code = process.wait(600)
    assert code == (130 if signum == signal.SIGINT else -9), nights.log()
    if signum == signal.SIGINT:
        assert support.running(str(nights.folder)) == []
    nights.until_nothing_is_left()
    support.play(nights.folder)
    assert nights.run("--resume")[0] == 0, nights.log()
    assert {name: one["status"] for name, one in nights.results().items()} == dict.fromkeys(
        ("hf-hf", "hf-vllm", "hf-sglang"), "NEW"
    )


@pytest.mark.night
def test_a_worker_that_is_killed_costs_its_cell_and_leaves_no_process(nights: Nights) -> None:
    support.play(nights.folder, hf_hf="hang")
    process = nights.start()
    nights.until(process, lambda: nights.log().count(": NEW (EQUIVALENT") == 2)
    [worker] = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if title(pid).startswith("ray::keep")]
    os.kill(worker, signal.SIGKILL)
    assert process.wait(600) == 2, nights.log()
    results = nights.results()
    assert results["hf-hf"]["status"] == "COULD NOT RUN" and results["hf-hf"]["reason"].startswith("Ray lost it: ")
    assert results["hf-sglang"]["status"] == results["hf-vllm"]["status"] == "NEW"
    nights.until_nothing_is_left()


@pytest.mark.night
def test_the_order_the_budget_and_the_needs_hold(nights: Nights) -> None:
    (nights.folder / "matrix.toml").write_text(
        support.MATRIX
        + 'needs = { gpus = 1 }\n[[include]]\npair = ["vllm", "sglang"]\nneeds = { gpus = 2 }\n'
        + '[[include]]\npair = ["vllm", "hf"]\nneeds = { memory = "999G" }\n'
    )
    support.play(nights.folder)
    code, printed = nights.run("--dry-run")
    assert code == 0 and "3 cells, about" in printed, nights.log()
    assert "vllm-sglang/ppo-tiny  not run: it needs 2 GPUs, which no node has" in printed
    assert "it needs 999G of memory, which no node has" in printed
    assert nights.run()[0] == 0
    text = nights.log()
    started = [text.index(f" hf-{engine}/ppo-tiny\n") for engine in ("hf", "vllm", "sglang")]
    assert started[0] < started[1]
    assert nights.run("--budget", "1ms")[0] == 0
    assert list(nights.results(2)) == ["hf-hf"]


def test_a_cluster_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    support.play(tmp_path)
    nights = Nights(tmp_path, "127.0.0.1:1")  # the fixture starts a cluster
    assert nights.run()[0] == 2
    assert "the Ray cluster at 127.0.0.1:1 could not be joined" in nights.log()
    assert not (nights.folder / "runs/nightly/history.db").exists()


@pytest.mark.night
def test_real_cells(nights: Nights) -> None:
    (nights.folder / "matrix.toml").write_text(
        'name = "real"\n[matrix]\npairs = [["hf", "hf"]]\nscenarios = ["rollout-tiny"]\ntopologies = [[], ["seed=3"]]\n'
    )
    code, _ = nights.run(played=False)
    assert code == 0, nights.log()
    assert "1/2 hf-hf/rollout-tiny: NEW (EQUIVALENT" in nights.log()
    assert "2/2 hf-hf/rollout-tiny/seed=3: NEW (EQUIVALENT" in nights.log()
    nights.until_nothing_is_left()
