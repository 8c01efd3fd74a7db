"""Two data-parallel ranks over gloo train as one process does: real processes, one group, gradients summed."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ppo_support import random_models, scenario

from probes import format as recording
from scenarios.ports import free_port
from scenarios.ppo.batches import Sample
from scenarios.ppo.role import MiniBatch

SAMPLES = [
    Sample(0, (1, 30, 40), (50, 60, 2)), Sample(1, (1, 31), (70, 71)), Sample(2, (1, 8, 9, 10), (12, 13, 14, 15, 2)),
]  # fmt: skip
COUNT = sum(len(sample.response) for sample in SAMPLES)


def shares(part: slice) -> list[MiniBatch]:
    rng = np.random.default_rng(0)
    old, target = ([rng.normal(size=len(s.response)).astype(np.float32) for s in SAMPLES] for _ in range(2))
    return [MiniBatch(SAMPLES[part], old[part], target[part], COUNT)] * 2


def rank(name: str, settings: dict[str, Any], part: slice, run_dir: str, answers: Any) -> None:
    """One process of a role: train, then score everything."""
    from scenarios.ppo import roles

    role = getattr(roles, f"{name.capitalize()}Role")(scenario().to_json(), settings)
    role.record_to(run_dir)
    trained = role.train(0, shares(part))
    rows = role.score(0, SAMPLES).logprob if name == "actor" else role.values(0, SAMPLES)
    role.close()
    answers.put((settings["rank"], trained.digest, trained.grad_norms, trained.sums, np.concatenate(rows)))


def trained(name: str, paths: dict[str, str], parts: list[slice], run_dir: Path) -> list[Any]:
    port = free_port()
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    settings = [paths | {"rank": r, "world_size": len(parts), "master_port": port} for r in range(len(parts))]
    processes = [
        context.Process(target=rank, args=(name, one, part, str(run_dir), answers))
        for one, part in zip(settings, parts, strict=True)
    ]
    for process in processes:
        process.start()
    found = sorted((answers.get(timeout=600) for _ in processes), key=lambda answer: answer[0])
    for process in processes:
        process.join()
    return found


@pytest.mark.night
def test_two_ranks_train_as_one(tmp_path: Path) -> None:
    paths = random_models(tmp_path)
    for name in ("actor", "critic"):
        alone = trained(name, paths, [slice(0, 3)], tmp_path / f"{name}-1")[0]
        # Shares of unequal size: a mean of means would differ from the mean over all tokens.
        both = trained(name, paths, [slice(0, 2), slice(2, 3)], tmp_path / f"{name}-2")
        assert both[0][1] == both[1][1]
        np.testing.assert_allclose(both[0][2], alone[2], rtol=1e-4)
        np.testing.assert_allclose(both[0][4], alone[4], atol=2e-4)
        for metric, total in alone[3].items():
            np.testing.assert_allclose(both[0][3][metric] + both[1][3][metric], total, rtol=1e-3, atol=1e-5)
        recording.write_manifest(tmp_path / f"{name}-2", {})
        run = recording.Run(tmp_path / f"{name}-2")
        sums = list(run.events(kind="collective"))
        assert [(one["name"], one["group"]) for one in sums] == [("all_reduce", name)] * 2 * len(both[0][2])
        assert all(one["bytes"] > 0 and one["dur_ns"] > 0 for one in sums)
        groups = list(run.events(kind="group"))
        assert [(group["backend"], group["world_size"], group["rank"]) for group in groups] == [
            ("gloo", 2, 0), ("gloo", 2, 1),
        ]  # fmt: skip
