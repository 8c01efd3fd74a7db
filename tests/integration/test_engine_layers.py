"""What the real engines show of a forward pass. Hidden states, against Transformers on the same weights: all layers
agree, and where a module inside the engine computes otherwise, its layer is the first that differs. The ids, positions
and lengths of keys of a request that is drawn."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from harness import envs
from scenarios.bench.bench import LAYER_APART
from scenarios.engines.hf.engine import HFEngine
from scenarios.engines.layers import projections
from scenarios.planted.differences.fault import READY
from scenarios.plants import INSIDE
from scenarios.settings import Scenario

IDS = [1, *range(40, 90)]
LAYER = 2
SHOW = """
import json, os, sys
from pathlib import Path
from scenarios.planted.differences import inside
from scenarios.engines import engine_tensors
from scenarios.engines.engine_interface import Request
from scenarios.engines.make import make_engine
from scenarios.settings import Sampling, Scenario

if __name__ == "__main__":  # SGLang's children import this file
    name, model, out, ids, module = *sys.argv[1:4], tuple(json.loads(sys.argv[4])), sys.argv[5]
    engine = make_engine(name, model, Scenario(), device="cpu")
    shown = [engine.layers(ids)]
    inside.reach(engine, inside.bend, [module], by=1.01)
    shown.append(engine.layers(ids))
    engine.held(engine_tensors.packed({"watch": True}))
    drawn = engine.generate([Request(0, ids, max_tokens=4, salt="apart")], Sampling(min_tokens=4), seed=0)[0].output_ids
    watched = engine_tensors.unpacked(engine.held(engine_tensors.packed({"watch": False}))[0])
    Path(out).write_text(json.dumps({"layers": shown, "drawn": drawn, "watched": watched}), encoding="utf-8")
    engine.close()
    os._exit(0)
"""


def shown(backend: str, policy: str, folder: Path) -> dict[str, Any]:
    environment, out, script = envs.resolve(backend), folder / f"{backend}.json", folder / "show.py"
    script.write_text(SHOW, encoding="utf-8")
    variables = {
        **os.environ, **environment.env, "PYTHONPATH": str(envs.bundle(plugins=True)),
        INSIDE: READY.inside, "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    module = f"model.layers.{LAYER - 1}.mlp.down_proj"
    command = [str(environment.python), str(script), backend, policy, str(out), json.dumps(IDS), module]
    done = subprocess.run(command, env=variables, cwd=folder, capture_output=True, text=True, timeout=300)
    assert out.exists(), done.stdout[-2000:] + done.stderr[-2000:]
    return json.loads(out.read_text())  # type: ignore[no-any-return]


def apart(one: list[list[float]], two: list[list[float]]) -> list[float]:
    return [
        max(abs(x - y) for x, y in zip(p, q, strict=True)) / max(map(abs, p)) for p, q in zip(one, two, strict=True)
    ]


@pytest.mark.night
@pytest.mark.parametrize("backend", ["vllm", "sglang"])
def test_what_a_real_engine_shows_of_its_forward_passes(backend: str, built_in: dict[str, str], tmp_path: Path) -> None:
    """The layer that computes otherwise is the first that differs; attention reads each token and those before it."""
    own = HFEngine(built_in["policy"], Scenario(), mode="coupled", device="cpu").layers(tuple(IDS)).layers
    found = shown(backend, built_in["policy"], tmp_path)
    (sound, last), (bent, _) = found["layers"]
    assert max(apart(own, sound)) <= LAYER_APART / 10
    assert apart([projections(torch.tensor(last)).flatten().tolist()], sound[-1:]) == pytest.approx([0.0], abs=1e-6)
    differs = [one > LAYER_APART for one in apart(own, bent)]
    assert differs == [layer >= LAYER for layer in range(len(own))]
    watched, tokens = found["watched"], len(IDS) + 3
    assert watched["ids"] == [*IDS, *found["drawn"][:3]]
    assert watched["positions"] == list(range(tokens))
    assert watched["keys"] == [[position, position + 1] for position in range(tokens)]
