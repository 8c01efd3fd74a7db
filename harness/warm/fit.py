"""Decide whether a warm engine is the one that a run would start. Both are described by facts, which must be equal."""

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

# Environment variables that engines and torch read. Only their digests are stored, because one may hold a token.
VARIABLES = (
    *registry.variables(), "TORCH", "PYTORCH_", "CUDA_", "CUBLAS_", "NVIDIA_", "NCCL_", "GLOO_", "OMP_", "MKL_",
    "KMP_", "HF_", "TRANSFORMERS_", "TOKENIZERS_", "TRITON_", "FLASHINFER_", "LD_", "HARNESS_HOME",
)  # fmt: skip


def facts(side: Side, device: str) -> dict[str, str]:
    """Return the facts from which this side's engine is started, by the name that a difference is reported under."""
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
        facts_by_name["seed"] = str(scenario.seed)  # the model is made from it
    names = [name for name in os.environ if name.startswith(VARIABLES)]
    return facts_by_name | {f"the variable {name}": _digest(os.environ[name]) for name in names}


def difference(kept: dict[str, str], wanted: dict[str, str]) -> str:
    """Return the first fact that differs, in words; empty where the engine fits."""
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
    """Return a digest of the names and times of the installed distributions, which every installation changes."""
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
