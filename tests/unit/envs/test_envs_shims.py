"""The CPU shims, with stand-ins of torch and torchvision: quiet until needed, never in the way of the real thing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.envs import recipe

TORCH = """
from types import SimpleNamespace as N
defined, loaded = [], []
def load_library(path):
    if "cuda" in open(path).read():
        raise OSError("libcudart.so.13: cannot open shared object file")
    loaded.append(path)
ops = N(load_library=load_library)
library = N(define=lambda name, schema: defined.append(name))
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A path as the environment has it: the shims, and a torchvision whose library is a CUDA build."""
    (tmp_path / f"{recipe.SHIMS_MODULE}.py").write_text(recipe.shims_source())
    (tmp_path / "torch.py").write_text(TORCH)
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text("import torch; seen = list(torch.defined)")
    (tmp_path / "torchvision" / "_C.so").write_text("cuda")
    return tmp_path


def ask(site: Path, script: str) -> object:
    """What the script leaves in `answer`, in an interpreter that started with the shims, as from the .pth file."""
    whole = f"import json, sys\nimport rlhf_harness_cpu_shims as shims\n{script}\nprint(json.dumps(answer))"
    environ = {**os.environ, "PYTHONPATH": str(site)}
    environ.pop("RLHF_HARNESS_CPU_SHIMS", None)
    process = subprocess.run([sys.executable, "-S", "-c", whole], env=environ, capture_output=True, text=True, cwd="/")
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


def test_they_import_nothing_and_are_inactive_until_needed(site: Path) -> None:
    script = "import importlib.util\nfound = importlib.util.find_spec('torchvision') is not None\n"
    script += "answer = [found, 'torch' in sys.modules, shims.ACTIVE, shims.INSTALLED]"
    assert ask(site, script) == [True, False, [], ["torchvision-ops", "sgl-kernel"]]


def test_the_operators_are_declared_before_torchvision_runs(site: Path) -> None:
    script = "import os, torchvision\nanswer = [torchvision.seen, shims.ACTIVE, os.environ['RLHF_HARNESS_CPU_SHIMS']]"
    assert ask(site, script) == [["torchvision::nms", "torchvision::qnms"], ["torchvision-ops"], "torchvision-ops"]


def test_operators_that_torchvision_brings_itself_win(site: Path) -> None:
    (site / "torchvision" / "_C.so").write_text("cpu")
    script = "import torch, torchvision\nanswer = [torchvision.seen, len(torch.loaded), shims.ACTIVE]"
    assert ask(site, script) == [[], 1, []]


def test_a_second_import_declares_nothing_twice(site: Path) -> None:
    script = "import torch, torchvision\ndel sys.modules['torchvision']\nimport torchvision\n"
    script += "answer = len(torch.defined)"
    assert ask(site, script) == 2


def test_kernels_can_be_imported_and_say_what_they_are_when_called(site: Path) -> None:
    script = """
import sgl_kernel
from sgl_kernel import silu_and_mul
from sgl_kernel.flash_attn import flash_attn_with_kvcache as attention
answer = []
for kernel in (silu_and_mul, attention, sgl_kernel.ops.inner):
    try:
        kernel(1, 2)
    except RuntimeError as error:
        answer.append(str(error).partition(" is a CUDA kernel")[0])
answer += [hasattr(sgl_kernel, "__version__"), list(shims.ACTIVE)]
"""
    names = ["sgl_kernel.silu_and_mul", "sgl_kernel.flash_attn.flash_attn_with_kvcache", "sgl_kernel.ops.inner"]
    assert ask(site, script) == [*names, False, ["sgl-kernel"]]


def test_a_real_kernel_package_wins(site: Path) -> None:
    (site / "sgl_kernel").mkdir()
    (site / "sgl_kernel" / "__init__.py").write_text("def silu_and_mul(x): return x")
    assert ask(site, "import sgl_kernel\nanswer = [sgl_kernel.silu_and_mul(3), shims.ACTIVE]") == [3, []]


def test_other_missing_modules_stay_missing(site: Path) -> None:
    script = "import importlib.util\nanswer = importlib.util.find_spec('sgl_kernel_npu') or 'missing'"
    assert ask(site, script) == "missing"
