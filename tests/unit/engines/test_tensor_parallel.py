"""Tensor parallelism: a core for each rank, and a place in the weight sync for each process that there is."""

from __future__ import annotations

import os

import pytest

from scenarios.engines import engine_processes, registry
from scenarios.engines.engine_interface import ParameterRefused
from scenarios.settings import Engine

VARIABLE = "VLLM_CPU_OMP_THREADS_BIND"


@pytest.mark.parametrize(
    ("ranks", "allowed", "shares"),
    [(2, [0, 1], "0|1"), (2, [5, 3, 2, 0, 7], "0,2|3,5"), (1, [0, 1], "0,1"), (3, [1, 2, 3], "1|2|3")],
)
def test_each_rank_has_an_equal_share_of_the_cores(ranks: int, allowed: list[int], shares: str) -> None:
    assert engine_processes.cores(ranks, allowed) == shares


def test_more_ranks_than_cores_are_refused() -> None:
    with pytest.raises(ParameterRefused, match=r"tensor_parallel=3: each rank needs a core .* may use 2"):
        engine_processes.cores(3, [0, 1])


def test_cores_are_bound_while_an_engine_starts_unless_the_user_bound_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    with engine_processes.bound_to_cores(VARIABLE, 32):  # more than there are NUMA nodes
        assert os.environ[VARIABLE].startswith("0,1|2,3|")
    assert VARIABLE not in os.environ
    with engine_processes.bound_to_cores(VARIABLE, 1):
        assert VARIABLE not in os.environ
    monkeypatch.setenv(VARIABLE, "0|1")
    with engine_processes.bound_to_cores(VARIABLE, 32):
        assert os.environ[VARIABLE] == "0|1"
    assert os.environ[VARIABLE] == "0|1"


@pytest.mark.parametrize(("name", "workers"), [("vllm", 4), ("sglang", 4), ("hf", 2)])
def test_a_sync_reaches_the_processes_that_an_engine_has(name: str, workers: int) -> None:
    assert registry.get(name).workers(Engine(tensor_parallel=2, engines=2)) == workers
