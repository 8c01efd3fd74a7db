"""Whether an engine that is up is the one that a run would start: both are described by the same facts, which must be
equal."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import sys
from pathlib import Path

from harness.cluster.launch import driver_seat
from harness.cluster.side import Side
from scenarios.engines import registry

# Variables that engines and torch read. Only digests are kept: a token may be among them.
VARIABLES = (
    *registry.variables(), "TORCH", "PYTORCH_", "CUDA_", "CUBLAS_", "NVIDIA_", "NCCL_", "GLOO_", "OMP_", "MKL_",
    "KMP_", "HF_", "TRANSFORMERS_", "TOKENIZERS_", "TRITON_", "FLASHINFER_", "LD_", "HARNESS_HOME",
)  # fmt: skip


def facts(side: Side, device: str) -> dict[str, str]:
    """What the engine of this side is made from, by the name under which a difference is told."""
    scenario, environment = side.scenario, side.environment
    embedded = side.spec.embedded
    facts_by_name = {
        "the harness's code": _code(),
        "the harness's interpreter": sys.executable,
        "the cores of the process": ",".join(map(str, sorted(os.sched_getaffinity(0)))),
        "the environment": _digest(environment.to_json()),
        "the packages of the environment": _packages(environment.python),
        "the device": device if embedded else environment.device,
        "rollout.mode": scenario.rollout.mode,
        "the model's files": _files(scenario.model.path),
    }
    for section in ("engine", "model"):
        settings = dataclasses.asdict(getattr(scenario, section))
        facts_by_name |= {
            f"{section}.{name}": json.dumps(value) for name, value in settings.items() if name != "reward"
        }
    if scenario.model.path.startswith("builtin:"):
        facts_by_name["seed"] = str(scenario.seed)  # from which the model is made
    names = [name for name in os.environ if name.startswith(VARIABLES)]
    return facts_by_name | {f"the variable {name}": _digest(os.environ[name]) for name in names}


def difference(kept: dict[str, str], wanted: dict[str, str]) -> str:
    """The first fact that differs, in words; empty where the engine fits."""
    for name in [*wanted, *kept]:
        kept_value, wanted_value = kept.get(name), wanted.get(name)
        if kept_value == wanted_value:
            continue
        if name == "seed" or "." in name:
            return f"{name} is {wanted_value} here and {kept_value} there"
        return f"{name} changed"
    return ""


@functools.cache
def _code() -> str:
    root, digest = Path(driver_seat().env["PYTHONPATH"]), hashlib.blake2b(digest_size=16)
    for package in ("probes", "scenarios", "harness"):
        for file in sorted((root / package).rglob("*.py")):
            digest.update(f"{file}\n".encode() + file.read_bytes())
    return digest.hexdigest()


def _packages(python: str) -> str:
    """Names and times of the distributions beside an interpreter: they change with every installation."""
    places = sorted((Path(python).parent.parent / "lib").glob("python*/site-packages"))
    return _digest([
        (folder.name, folder.stat().st_mtime_ns) for place in places for folder in sorted(place.glob("*.dist-info"))
    ])  # fmt: skip


def _files(path: str) -> str:
    model = Path(path).expanduser()
    if not model.is_dir():
        return path
    return _digest([
        (str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in sorted(model.iterdir())
    ])  # fmt: skip


def _digest(value: object) -> str:
    return hashlib.blake2b(json.dumps(value, sort_keys=True, default=str).encode(), digest_size=16).hexdigest()
