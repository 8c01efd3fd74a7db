"""vLLM's two model runners draw the same coupled samples: its V2 runner, the default on CUDA, here on a CPU.

V2's kernels are Triton's, and vLLM's check for Triton on a CPU asks for Triton's CPU backend, which no package index
has. Triton finds its backends by entry points, so one of that name is put on the path whose kernels are never compiled:
with TRITON_INTERPRET=1 Triton runs them in its own interpreter. Everything of vLLM is its own: the engine, the runner,
its request slots and input batches, the sampler, and the kernels around our logits processor.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from harness import envs
from scenarios.engines.engine_interface import Request
from scenarios.engines.hf.engine import HFEngine
from scenarios.settings import Engine, Sampling, Scenario

pytestmark = [pytest.mark.engines, pytest.mark.night, pytest.mark.timeout(2400)]
SAMPLING = Sampling(temperature=0.9, top_k=80, top_p=0.97, max_tokens=6, min_tokens=2)
# Three slots for seven requests, of which some go on from tokens that were drawn already: slots are handed on.
SCENARIO = Scenario(engine=Engine(max_model_len=128, max_num_seqs=3), sampling=SAMPLING)
REQUESTS = [
    Request(number, (1, *range(40 + number, 48 + 3 * number)), offset=number % 3, max_tokens=6 - number % 3)
    for number in range(7)
]
SEED = 11
NEAR = 1e-4  # nats; float32 on both, and another order of sums
BACKEND = {
    "__init__.py": "",
    "compiler.py": """
from triton.backends.compiler import BaseBackend

class Uncompiled(BaseBackend):
    @staticmethod
    def supports_target(target): return target.backend == "cpu"
    def hash(self): return "interpreted"
    def parse_options(self, options): raise NotImplementedError("kernels are interpreted")
    def add_stages(self, stages, options, language): raise NotImplementedError("kernels are interpreted")
    def load_dialects(self, context): raise NotImplementedError("kernels are interpreted")
    def get_module_map(self): return {}
""",
    "driver.py": """
import torch
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase

class Interpreter(DriverBase):
    @classmethod
    def is_active(cls): return True
    def map_python_to_cpp_type(self, ty): raise NotImplementedError("kernels are interpreted")
    def get_current_target(self): return GPUTarget("cpu", "interpreter", 0)
    def get_active_torch_device(self): return torch.device("cpu")
    def get_benchmarker(self): raise NotImplementedError("kernels are interpreted")
""",
}
DRAW = """
import dataclasses, json, os, sys
from pathlib import Path
from scenarios.engines.engine_interface import Request
from scenarios.engines.make import make_engine
from scenarios.settings import Scenario

asked = json.loads(sys.argv[1])
scenario = Scenario.from_json(asked["scenario"])
requests = [Request(**dict(one, prompt_ids=tuple(one["prompt_ids"]))) for one in asked["requests"]]
engine = make_engine("vllm", asked["model"], scenario, device="cpu")
drawn = engine.generate(requests, scenario.sampling, seed=asked["seed"])
scores = engine.rescore([tuple(one.prompt_seen) + tuple(one.output_ids) for one in drawn[:2]])
found = {
    "runner": engine.info().resolved["model_runner"], "drawn": list(map(dataclasses.asdict, drawn)), "scores": scores,
}
Path(asked["out"]).write_text(json.dumps(found), encoding="utf-8")
engine.close()
os._exit(0)
"""


def interpreted(folder: Path) -> dict[str, str]:
    """Variables under which vLLM takes its V2 runner on a CPU; the backend's files go into `folder`."""
    package, record = folder / "interpreted_triton", folder / "interpreted_triton-0.dist-info"
    package.mkdir(parents=True)
    record.mkdir()
    for name, text in BACKEND.items():
        (package / name).write_text(text, encoding="utf-8")
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: interpreted-triton\nVersion: 0\n", encoding="utf-8")
    (record / "entry_points.txt").write_text("[triton.backends]\ncpu = interpreted_triton\n", encoding="utf-8")
    return {"TRITON_INTERPRET": "1", "VLLM_USE_V2_MODEL_RUNNER": "1", "PYTHONPATH": str(folder)}


def drawn(model: str, folder: Path, variables: dict[str, str]) -> dict[str, Any]:
    """What vLLM drew for REQUESTS in a process of its own, with its model runner and the scores of two sequences."""
    environment, out, script = envs.resolve("vllm"), folder / "drawn.json", folder / "draw.py"
    folder.mkdir(exist_ok=True)
    script.write_text(DRAW, encoding="utf-8")
    path = os.pathsep.join(filter(None, [str(envs.bundle(plugins=True)), variables.get("PYTHONPATH")]))
    asked = {
        "scenario": SCENARIO.to_json(), "requests": [dataclasses.asdict(one) for one in REQUESTS], "model": model,
        "seed": SEED, "out": str(out),
    }  # fmt: skip
    done = subprocess.run(
        [str(environment.python), str(script), json.dumps(asked)], cwd=folder, capture_output=True, text=True,
        timeout=600, env={**os.environ, **environment.env, **variables, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert out.exists(), done.stdout[-2000:] + done.stderr[-2000:]
    return json.loads(out.read_text())  # type: ignore[no-any-return]


def test_both_runners_draw_what_the_reference_draws(built_in: dict[str, str], tmp_path: Path) -> None:
    model = built_in["policy"]
    one = drawn(model, tmp_path / "v1", {})
    two = drawn(model, tmp_path / "v2", interpreted(tmp_path / "triton"))
    assert one["runner"] == "vllm.v1.worker.cpu_model_runner.CPUModelRunner"
    assert two["runner"] == "vllm.v1.worker.cpu.model_runner.CPUModelRunner"
    reference = HFEngine(model, SCENARIO, mode="coupled", device="cpu").generate(REQUESTS, SAMPLING, seed=SEED)
    for own, first, second in zip(reference, one["drawn"], two["drawn"], strict=True):
        assert own.sample == first["sample"] == second["sample"]
        assert list(own.output_ids) == first["output_ids"] == second["output_ids"], own.sample
        assert second["logprobs"] == pytest.approx(first["logprobs"], abs=NEAR)
        assert second["logprobs"] == pytest.approx(list(own.logprobs), abs=NEAR)
    assert sum(len(own.output_ids) for own in reference) >= 20  # something was drawn
    for first, second in zip(one["scores"], two["scores"], strict=True):
        assert second == pytest.approx(first, abs=NEAR)
