"""How the processes of a run share GPUs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.cluster.launch import LaunchFailed
from harness.cluster.sharing import check_memory, shares
from scenarios.settings import Engine


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
    check_memory(1, [Engine(), Engine()])
    check_memory(0, [Engine(memory_fraction=0.9)] * 3)
    with pytest.raises(LaunchFailed, match=r"2 workers of engines ask for the memory of 1\.2 GPUs") as refused:
        check_memory(1, [Engine(memory_fraction=0.6)] * 2)
    assert "--set engine.memory_fraction=0.4 " in str(refused.value.fix)
