"""Where a night's cells run: what fits side by side, in which order they start, and what ends with its keeper."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nightly_support as support
import pytest
from waiting import until

pytest.importorskip("sqlalchemy", reason="the extra [nightly] is not installed")

from harness.nightly import nodes
from harness.nightly.cells import Attempt
from harness.nightly.history import History, Seen
from harness.nightly.matrix import Cell, Comparison, Needs
from harness.nightly.night import Nightly
from harness.nightly.observation import Observation, failed
from harness.nightly.place import Here
from harness.nightly.plan import plan

GIB = 2.0**30
SMALL, LARGE = {"CPU": 4.0, "memory": 8 * GIB}, {"CPU": 16.0, "GPU": 2.0, "memory": 64 * GIB}


def cell(name: str, limit_s: float = 60.0, **needs: object) -> Cell:
    return Cell(name, Comparison(pair=("hf", "hf"), needs=Needs.model_validate(needs)), limit_s)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> nodes.Nodes:
    monkeypatch.setattr(nodes, "_resources", lambda: [SMALL, LARGE])
    return nodes.Nodes(print)


@pytest.mark.parametrize(
    ("needs", "at_once", "lacking"),
    [
        ({}, 5, ""),  # four CPUs: all of the small node
        ({"cpus": 2}, 10, ""),
        ({"gpus": 1}, 2, ""),
        ({"cpus": 16, "memory": "32G"}, 1, ""),
        ({"memory": "10G"}, 4, ""),
        ({"gpus": 4}, 0, "it needs 4 GPUs, which no node has"),
        ({"cpus": 17}, 0, "it needs 17 CPUs, which no node has"),
        ({"gpus": 2, "memory": "65G"}, 0, "it needs 65G of memory, which no node has"),
    ],
)
def test_what_fits_on_the_nodes(cluster: nodes.Nodes, needs: dict[str, object], at_once: int, lacking: str) -> None:
    wanted = Needs.model_validate(needs)
    assert (cluster.at_once(wanted), cluster.lacking(wanted)) == (at_once, lacking)


def test_a_budget_counts_cells_that_run_side_by_side(cluster: nodes.Nodes) -> None:
    chosen = [cell(f"c{number}", 100.0) for number in range(12)]
    assert len(plan(chosen, {}, Here(), 250.0).chosen) == 2
    tonight = plan(chosen, {}, cluster, 200.0)
    assert len(tonight.chosen) == 10 and tonight.estimate_s == 200.0
    assert len(plan(chosen, {}, cluster, 60.0).chosen) == 1  # the first always; none other ends within the budget
    assert plan(chosen[:1], {"c0": Seen(1, "OK", 7.0)}, cluster).estimate_s == 7.0


@pytest.mark.parametrize(
    ("last", "estimate_s"),
    [
        (Seen(2, "COULD NOT RUN", 3.0, judged_s=59.0), 59.0),  # refused in its first seconds
        (Seen(2, "COULD NOT RUN", 90.0, judged_s=59.0), 90.0),  # ended late
        (Seen(2, "COULD NOT RUN", 3.0), 100.0),
        (Seen(2, "REGRESSED", 61.0, judged_s=61.0), 61.0),
    ],
)
def test_a_cell_that_could_not_run_is_expected_to_take_what_it_took_before(last: Seen, estimate_s: float) -> None:
    assert plan([cell("c0", 100.0)], {"c0": last}, Here()).estimate_s == estimate_s


class Two:
    """A place with two seats. `order`: of the starts."""

    def __init__(self) -> None:
        self.threads, self.started, self.order = ThreadPoolExecutor(2), [], []  # type: ignore[var-annotated]

    def lacking(self, needs: Needs) -> str:
        return ""

    def at_once(self, needs: Needs) -> int:
        return 2

    def room(self, waiting: Sequence[Cell]) -> tuple[Cell, Attempt]:
        return waiting[0], self._attempt

    def start(self, cell: Cell, work: Callable[[], None]) -> None:
        self.order.append(cell.name)
        self.started.append(self.threads.submit(work))

    def wait(self) -> None:
        for one in self.started:
            one.result()

    def _attempt(self, cell: Cell, place: Path, pair: object) -> Observation:
        return failed("it died") if cell.name == "c3" else support.observation()


@pytest.mark.slow
def test_cells_side_by_side_are_kept_by_one_history(tmp_path: Path) -> None:
    place, chosen = Two(), [cell(f"c{number}") for number in range(20)]
    with History.at(str(tmp_path / "h.db")) as past:
        night = Nightly(past, tmp_path, place=place)
        number = past.begin("m", [one.name for one in chosen], ())
        budget = iter([True] * 15)
        late = night.cells(number, chosen, lambda: next(budget, False))
        assert [one.name for one in late] == [f"c{number}" for number in range(16, 20)]
        assert place.order == [f"c{number}" for number in range(16)]
        assert past.unfinished("m") == (number, [one.name for one in late])
        results = {one.cell: one.status for one in night.finish(number, ()).results}
        assert results.pop("c3") == "COULD NOT RUN" and set(results.values()) == {"NEW"} and len(results) == 15


def test_two_cells_whose_names_make_one_folder_have_two(tmp_path: Path) -> None:
    names = ["c" * 120 + str(number) for number in range(2)]
    with History.at(str(tmp_path / "h.db")) as past:
        Nightly(past, tmp_path, place=Two()).cells(past.begin("m", names, ()), [cell(name) for name in names])
    assert sorted(path.name for path in tmp_path.glob("night-*/*")) == ["c" * 120, "c" * 120 + ".2"]


def keeper(tmp_path: Path, **played: object) -> subprocess.Popen[bytes]:
    """A keeper with a cell that a script plays."""
    (tmp_path / "player.py").write_text(support.PLAYER)
    support.script(tmp_path / "script.json", **played)  # type: ignore[arg-type]
    process = subprocess.Popen(
        [sys.executable, "-m", "harness.nightly.keeper"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    command = (sys.executable, str(tmp_path / "player.py"), str(tmp_path / "script.json"))
    assert process.stdin is not None
    pickle.dump((cell("hf-hf"), tmp_path / "attempt-1", None, command), process.stdin)
    process.stdin.flush()
    return process


@pytest.mark.slow
def test_a_keeper_is_no_child_and_hands_over_what_its_cell_showed(tmp_path: Path) -> None:
    process = keeper(tmp_path, hf_hf=support.verdict())
    assert process.stdout is not None and process.wait(600) == 0  # the keeper goes on
    observation = pickle.loads(process.stdout.read())
    assert observation.verdict == "EQUIVALENT" and Path(observation.recording) == tmp_path / "attempt-1" / "recording"


@pytest.mark.slow
def test_a_cell_ends_with_all_its_processes_once_nobody_waits_for_its_keeper(tmp_path: Path) -> None:
    process = keeper(tmp_path, hf_hf="hang")
    assert process.stdin is not None and process.stdout is not None
    until(lambda: len(support.running(str(tmp_path / "player.py"))) >= 2)  # the cell and its child
    process.stdin.close()
    assert process.stdout.read() == b""  # at its end
    assert support.running(str(tmp_path)) == []
    process.wait(600)
