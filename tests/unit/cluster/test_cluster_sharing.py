"""How the processes of a run share GPUs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import envs
from harness.cluster.experiment import Experiment
from harness.cluster.launch import LaunchFailed, placed_at
from harness.cluster.sharing import check_memory, shares
from harness.cluster.side import Side
from scenarios.engines import registry
from scenarios.remote import Local
from scenarios.settings import Engine, Scenario


@pytest.mark.parametrize(
    ("gpus", "workers", "expected"),
    [
        (0, [1, 1, 2], [0, 0, 0]),
        (1, [1] * 7, [0.14] * 7),
        (4, [1] * 7, [0.5] * 7),  # not 4 / 7: of 0.57 only one fits on each GPU
        (8, [1] * 7, [1] * 7),
        (8, [1] * 5 + [2, 2], [0.5] * 5 + [2, 2]),
        (4, [2, 2], [2, 2]),
    ],
)
def test_a_share_is_such_that_all_find_room(gpus: int, workers: list[int], expected: list[float]) -> None:
    assert shares(gpus, workers) == expected


@given(st.integers(1, 64), st.lists(st.sampled_from([1, 1, 1, 2, 4]), min_size=1, max_size=100))
def test_no_gpu_is_asked_for_more_than_it_has(gpus: int, workers: list[int]) -> None:
    try:
        found = shares(gpus, workers)
    except LaunchFailed:
        assert sum(count for count in workers if count > 1) > gpus - (1 in workers)
        return
    whole = sum(int(share) for share in found if share >= 1)
    part = [share for share in found if share < 1]
    assert all(share > 0 for share in found)
    assert not part or -(-len(part) // int(1 / part[0])) <= gpus - whole


@pytest.mark.parametrize(("gpus", "workers"), [(1, [1, 2]), (2, [1, 2]), (2, [4])])
def test_too_few_gpus_for_tensor_parallel_ranks_is_one_sentence(gpus: int, workers: list[int]) -> None:
    with pytest.raises(LaunchFailed, match="tensor-parallel ranks need") as refused:
        shares(gpus, workers)
    assert refused.value.fix


def test_engines_that_ask_for_more_memory_than_there_is_are_refused_before_they_start() -> None:
    vllm, hf, greedy = registry.get("vllm"), registry.get("hf"), Engine(memory_fraction=0.6)
    check_memory(1, [(vllm, Engine()), (vllm, Engine())])
    check_memory(0, [(vllm, greedy)] * 3)
    check_memory(1, [(hf, greedy)] * 3)  # takes no fraction
    with pytest.raises(LaunchFailed, match=r"1\.2 GPUs") as refused:
        check_memory(1, [(vllm, greedy)] * 2)
    assert "--set engine.memory_fraction=0.4 " in str(refused.value.fix)


class Starting:
    def become_pure(self, policy: str, scenario: dict[str, object]) -> None:
        """It is up."""


class Reserved(Exception):
    pass


class Counting:
    """A cluster of 16 GPUs that is asked for bundles, and gives none."""

    actor_cpus = 0.1

    def gpus(self) -> float:
        return 16.0

    def reserve(self, bundles: list[dict[str, float]], places: Sequence[str], say: Callable[[str], None]) -> None:
        raise Reserved([bundle["GPU"] for bundle in bundles])


@pytest.mark.parametrize(("engine", "expected"), [
    (Engine(engines=2), [1.0] * 7), (Engine(engines=2, tensor_parallel=2), [1.0] * 5 + [2.0, 2.0]),
])  # fmt: skip
def test_each_of_several_engines_has_the_gpus_of_its_own_ranks(
    engine: Engine, expected: list[float], tmp_path: Path
) -> None:
    environment = dataclasses.replace(envs.resolve("hf"), name="vllm", engine="vllm", device="cuda")
    side = Side("run", "vllm", environment, dataclasses.replace(Scenario(), engine=engine), tmp_path)
    with pytest.raises(Reserved) as asked:
        Experiment(Counting(), [side], progress=lambda event: None).begin()  # type: ignore[arg-type]
    assert asked.value.args == (expected,)


def test_engines_that_share_a_gpu_start_one_after_another(tmp_path: Path) -> None:
    side = Side("run", "hf", envs.resolve("hf"), Scenario(), tmp_path)
    experiment = Experiment(Counting(), [side], progress=lambda event: None)  # type: ignore[arg-type]
    waited: list[str] = []
    experiment._wait = lambda future, side, doing, step=None: waited.append(doing)  # type: ignore[method-assign]
    for shares_, expected in (([1.0, 1.0], []), ([0.5, 1.0], ["starting hf"])):
        experiment._seats.shares = shares_
        experiment._running["run"].session = Local(Starting)
        experiment.begin_native(side, "policy")
        assert waited == expected


@pytest.mark.parametrize(("place", "expected"), [
    ("", {"CPU": 0.1, "GPU": 1.0}), ("role=engine", {"CPU": 0.1, "GPU": 1.0}),
    ("engines", {"CPU": 0.1, "GPU": 1.0, "engines": 0.001}),
    ("CPU", {"CPU": 0.1, "GPU": 1.0}), ("GPU", {"CPU": 0.1, "GPU": 1.0}),
])  # fmt: skip
def test_a_placement_takes_nothing_of_what_a_process_asks_for(place: str, expected: dict[str, float]) -> None:
    assert placed_at({"CPU": 0.1, "GPU": 1.0}, place) == expected
