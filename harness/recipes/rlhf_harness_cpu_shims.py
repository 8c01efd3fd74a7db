"""Stand-ins that let SGLang be imported on a CPU without AMX.

Written by `harness env create sglang` into its own environment only. A `.pth` file imports it when any interpreter of
this environment starts, so in spawned processes too; it costs two import hooks and imports nothing by itself.
`INSTALLED` names the shims of this environment, `ACTIVE` those that have stood in for something in this process; the
variable RLHF_HARNESS_CPU_SHIMS holds ACTIVE, so that child processes and recordings see it.

    torchvision-ops   torchvision from PyPI cannot load its C++ operators beside a CPU torch, yet registers fake kernels
                      for two of them on import. They are declared beforehand, not implemented. Real operators win.
    sgl-kernel        SGLang imports names of its CUDA kernels. They exist, and raise when called. A real package wins.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from types import ModuleType
from typing import Any

INSTALLED = ("torchvision-ops", "sgl-kernel")
ACTIVE: tuple[str, ...] = ()

_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def _activate(name: str) -> None:
    global ACTIVE
    if name not in ACTIVE:
        ACTIVE += (name,)
        os.environ["RLHF_HARNESS_CPU_SHIMS"] = ",".join(ACTIVE)


def _declare_torchvision_operators(folder: str) -> None:
    """Declare nms and qnms, unless torchvision's own library in that folder loads and registers them."""
    if "torchvision-ops" in ACTIVE:
        return  # a second attempt at an import that failed half-way
    import torch

    for file in os.listdir(folder):
        if file.startswith("_C") and file.endswith(".so"):
            try:
                torch.ops.load_library(os.path.join(folder, file))
            except (ImportError, OSError):
                continue  # the very case this shim is for: a CUDA build beside a CPU torch
            return
    for name in ("nms", "qnms"):
        torch.library.define("torchvision::" + name, _SCHEMA)
    _activate("torchvision-ops")


class _BeforeTorchvision(importlib.abc.MetaPathFinder):
    """Declares the operators just before torchvision runs; being looked for, as transformers does, is no reason."""

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> Any:
        if fullname != "torchvision":
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None or not spec.submodule_search_locations:
            return None
        run, folder = spec.loader.exec_module, next(iter(spec.submodule_search_locations))

        def exec_module(module: ModuleType) -> None:
            _declare_torchvision_operators(folder)
            run(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


class AbsentKernel:
    """Stands where a CUDA kernel of sgl_kernel would be."""

    def __init__(self, name: str) -> None:
        self.__name__ = self.__qualname__ = name

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        raise RuntimeError(
            self.__name__ + " is a CUDA kernel, and in this CPU environment a shim of rlhf-harness stands in for it: "
            "use attention_backend='torch_native' and sampling_backend='pytorch', or a CUDA environment."
        )

    def __getattr__(self, name: str) -> AbsentKernel:
        if name.startswith("__"):
            raise AttributeError(name)
        return AbsentKernel(self.__name__ + "." + name)


class _AbsentSglKernel(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes `sgl_kernel` and its submodules importable. Last of all finders, so that a real package wins."""

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> Any:
        if fullname.partition(".")[0] != "sgl_kernel":
            return None
        return importlib.machinery.ModuleSpec(fullname, self, origin=__file__, is_package=True)

    def create_module(self, spec: Any) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        def attribute(name: str) -> AbsentKernel:
            if name.startswith("__"):
                raise AttributeError(name)
            return AbsentKernel(module.__name__ + "." + name)

        vars(module)["__getattr__"] = attribute
        _activate("sgl-kernel")


sys.meta_path.insert(0, _BeforeTorchvision())
sys.meta_path.append(_AbsentSglKernel())
