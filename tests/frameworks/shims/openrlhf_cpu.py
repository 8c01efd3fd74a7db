"""OpenRLHF 0.11 on a CPU, for our tests: what it takes from CUDA without asking, and weights that reach vLLM.

Asked for with FRAMEWORKS_CPU=openrlhf DS_ACCELERATOR=cpu. `WorkerWrap.update_weight` keeps its signature and its
meaning; the broadcast is the store's instead of NCCL's. Names of `flash_attn` exist and raise when called: with `eager`
attention and without packing nothing calls them.

FRAMEWORKS_PLANT=engine-stops or engine-sleeps hangs the job in its first weight sync: the engine, at its second tensor.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import signal
import sys
import time
from types import ModuleType
from typing import Any

import patient_ray  # noqa: F401
from after_import import after


class _Absent:
    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        raise RuntimeError(f"{self.__name__} is a CUDA kernel; a stand-in for the tests on a CPU was called")


class _FlashAttention(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname.partition(".")[0] != "flash_attn" or fullname.startswith("flash_attn.ops"):
            return None  # of what lies below ops OpenRLHF knows that it may be absent
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: Any) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        def attribute(name: str) -> _Absent:
            if name.startswith("__"):
                raise AttributeError(name)
            return _Absent(f"{module.__name__}.{name}")

        vars(module)["__getattr__"] = attribute


@after("ray")
def _logical_gpus(module: Any) -> None:
    """OpenRLHF starts Ray without resources; a logical GPU for each of its five models stands for the CPU."""
    start = module.init

    def init(*args: Any, **kwargs: Any) -> Any:
        if os.environ.get("RAY_ADDRESS"):  # a cluster that is there has its own
            return start(*args, **kwargs)
        return start(*args, **{"num_cpus": 16, "num_gpus": 5, "include_dashboard": False, **kwargs})

    module.init = init


@after("openrlhf")
def _cuda(module: Any) -> None:
    import torch

    sys.meta_path.append(_FlashAttention())
    cpu = torch.device("cpu")
    torch.cuda.current_device = lambda: cpu
    for name in ("set_device", "synchronize", "empty_cache", "current_stream", "manual_seed_all"):
        setattr(torch.cuda, name, lambda *args, **kwargs: None)


@after("openrlhf.trainer.ppo_utils.replay_buffer")
def _buffer(module: Any) -> None:
    """It writes `cuda:{current_device()}`."""

    class Torch:
        cuda = module.torch.cuda

        def __getattr__(self, name: str) -> Any:
            return getattr(_torch, name)

        @staticmethod
        def device(name: Any) -> Any:
            return _torch.device("cpu" if str(name).startswith("cuda") else name)

    _torch = module.torch
    module.torch = Torch()


@after("openrlhf.utils.deepspeed.deepspeed")
def _mesh(module: Any) -> None:
    make = module.init_device_mesh
    module.init_device_mesh = lambda kind, *args, **kwargs: make("cpu", *args, **kwargs)


@after("vllm.distributed.device_communicators.pynccl")
def _communicator(module: Any) -> None:
    class StoreCommunicator:
        """A broadcast through the TCP store of the group that PyNccl would have been built on."""

        def __init__(self, group: Any, device: Any) -> None:
            self.group = group

        def broadcast(self, tensor: Any, src: int, stream: Any = None) -> None:
            import torch

            raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
            got = self.group.broadcast_obj(raw.numpy().tobytes() if self.group.rank == src else None, src)
            if self.group.rank != src:
                raw.copy_(torch.frombuffer(bytearray(got), dtype=torch.uint8))

    module.PyNcclCommunicator = StoreCommunicator


@after("openrlhf.trainer.ray.vllm_worker_wrap")
def _weights(module: Any) -> None:
    """vLLM on a CPU packs its weights after loading and then knows their loaders no more; `reload_weights` does."""

    planted = os.environ.get("FRAMEWORKS_PLANT", "")

    def hang() -> None:
        if planted == "engine-stops":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif planted == "engine-sleeps":
            time.sleep(1e6)

    def update_weight(self: Any, name: str, dtype: Any, shape: Any, empty_cache: bool = False) -> None:
        import torch

        if self.__dict__.get("_arrived"):
            hang()

        assert dtype == self.model_config.dtype, f"mismatch dtype: src {dtype}, dst {self.model_config.dtype}"
        weight = torch.empty(shape, dtype=dtype)
        self._model_update_group.broadcast(weight, src=0, stream=None)
        self.__dict__.setdefault("_arrived", []).append((name, weight))
        if empty_cache:  # the last one
            arrived = self.__dict__.pop("_arrived")
            self.model_runner.reload_weights(weights_iterator=iter(arrived))

    module.WorkerWrap.update_weight = update_weight
