"""verl 0.9 on a CPU, for our tests: a platform, its training engine, and weight loading that vLLM on a CPU can do.

Loaded by verl itself: VERL_USE_EXTERNAL_MODULES=verl_cpu VERL_PLATFORM=cpu. Ray's logical GPU stands for the CPU, so
that placement is verl's own; no function that an adapter hooks is replaced.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import patient_ray  # noqa: F401
import torch
from after_import import after
from safetensors.torch import save_file
from verl.plugin.platform import PlatformBase, PlatformRegistry


class Device:
    """What verl asks of `torch.<device>`; memory figures are zero, the rest does nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if "memory" in name:
            return lambda *args, **kwargs: 0
        found = getattr(torch.cpu, name, None)
        return found if found is not None else lambda *args, **kwargs: None

    def get_device_name(self, *args: Any) -> str:
        return "CPU"

    def mem_get_info(self, *args: Any) -> tuple[int, int]:
        return 1 << 30, 1 << 30

    def get_rng_state(self, *args: Any) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, *args: Any) -> None:
        torch.set_rng_state(state)


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    device_name = "cpu"
    vendor_name = "cpu"
    device_module = Device()

    def is_available(self) -> bool:
        return True

    def current_device(self) -> Any:
        return torch.device("cpu")  # verl passes it to Tensor.to

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None: ...
    def synchronize(self, device_index: int | None = None) -> None: ...
    def set_allocator_settings(self, settings: str) -> None: ...
    def empty_cache(self) -> None: ...
    def profiler_start(self) -> None: ...
    def profiler_stop(self) -> None: ...

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None


def _one_gloo(init: Any) -> Any:
    def init_process_group(backend: str | None = None, *args: Any, **kwargs: Any) -> Any:
        """verl asks for `cpu:gloo,<device>:<backend>`, and torch refuses a device that is named twice."""
        return init("gloo" if backend == "cpu:gloo,cpu:gloo" else backend, *args, **kwargs)

    return init_process_group


torch.distributed.init_process_group = _one_gloo(torch.distributed.init_process_group)


@after("verl.workers.engine.fsdp.transformer_impl")
def _fsdp(module: Any) -> None:
    """The FSDP engines for this device, without pinned memory."""
    registry = module.EngineRegistry
    for kind, engine in (
        ("language_model", module.FSDPEngineWithLMHead),
        ("value_model", module.FSDPEngineWithValueHead),
    ):
        registry.register(model_type=kind, backend=["fsdp2"], device="cpu")(engine)
    offload = module.CPUOffloadPolicy
    module.CPUOffloadPolicy = lambda pin_memory=True: offload(pin_memory=False)


@after("verl.workers.rollout.vllm_rollout.utils")
def _vllm_weights(module: Any) -> None:
    """vLLM on a CPU packs its weights after loading and then knows their loaders no more; `reload_weights` does."""

    extension = module.vLLMColocateWorkerExtension
    prepare = extension.monkey_patch_model  # called once, when the engine is up

    def monkey_patch_model(self: Any, *args: Any, **kwargs: Any) -> None:
        prepare(self, *args, **kwargs)
        model, busy = self.model_runner.model, []
        load = model.load_weights

        def load_weights(weights: Any) -> Any:
            if busy:  # reload_weights calls it again
                return load(weights)
            busy.append(True)
            try:
                return self.model_runner.reload_weights(weights_iterator=iter(weights))
            finally:
                busy.clear()

        model.load_weights = load_weights

    extension.monkey_patch_model = monkey_patch_model
    extension._iter_all_models_with_config = lambda self: iter(())


@after("verl.workers.rollout.sglang_rollout.sglang_rollout")
def _sglang_weights(module: Any) -> None:
    """verl hands its tensors over by CUDA IPC; here they go through a checkpoint on disk, which SGLang then loads."""

    async def update_weights(engine: Any, params_batch: Any, device_mesh_key: str, device_mesh: Any) -> None:
        folder = engine.__dict__.get("_cpu_checkpoint")
        if folder is None:
            folder = engine._cpu_checkpoint = tempfile.mkdtemp(prefix="verl-cpu-")
            for file in os.listdir(engine.server_args.model_path):
                if not file.endswith((".safetensors", ".bin")):
                    shutil.copy(os.path.join(engine.server_args.model_path, file), folder)
            engine._cpu_tensors = {}
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
        engine._cpu_tensors |= {name: tensor.detach().cpu().contiguous().clone() for name, tensor in params_batch}
        save_file(engine._cpu_tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
        # verl starts its engines with load_format=dummy, whose loader can load nothing later.
        asked = {"model_path": folder, "load_format": "safetensors"}
        answer = await engine._make_async_request("update_weights_from_disk", asked)
        if not answer.get("success"):
            raise RuntimeError(f"SGLang did not load the weights: {answer}")

    module.sgl_update_weights = update_weights


@after("verl.workers.rollout.sglang_rollout.async_sglang_server")
def _sglang_arguments(module: Any) -> None:
    """verl 0.9.1 asks `dataclasses` for SGLang's arguments, which are a struct of msgspec in SGLang 0.5.23."""
    import msgspec

    theirs = module.dataclasses

    class Dataclasses:
        def __getattr__(self, name: str) -> Any:
            return getattr(theirs, name)

        @staticmethod
        def fields(kind: Any) -> Any:
            return theirs.fields(kind) if theirs.is_dataclass(kind) else msgspec.structs.fields(kind)

    module.dataclasses = Dataclasses()


@after("verl.workers.rollout.sglang_rollout.http_server_engine")
def _sglang_interface(module: Any) -> None:
    """SGLang 0.5.23 asks its engines for two methods more than verl 0.9.1 knows; neither calls them here."""
    for name in ("HttpServerAdapter", "AsyncHttpServerAdapter"):
        getattr(module, name).__abstractmethods__ = frozenset()


os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
