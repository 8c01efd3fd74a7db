"""vLLM's side of a weight sync: a worker extension whose methods run inside every vLLM worker.

`model.load_weights` fails on a CPU after the first load, because packed weights have lost their loaders. So tensors
are streamed into `model_runner.reload_weights`, which restores the checkpoint layout, loads, and packs again
(measured: 51 tensors in 0.05 s).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch

from probes.weights import digest
from scenarios.engines import engine_tensors
from scenarios.engines.engine_interface import SyncGroup, WeightMeta
from scenarios.engines.hidden_states import HiddenStates
from scenarios.engines.layers import Capture
from scenarios.engines.sync import join, receive
from scenarios.plants import inside


class WeightReceiver:
    """Mixed into vLLM's worker class. Its names have a prefix, so that they do not collide with the worker's own."""

    model_runner: Any
    device: torch.device
    rank: int
    parallel_config: Any

    def harness_join(self, group: dict[str, Any]) -> bool:
        target = SyncGroup(**group)
        self._harness_group = join(target, target.rank_offset + self.rank)
        return True

    def harness_receive(self, weights: list[dict[str, Any]]) -> dict[str, Any]:
        metas = [WeightMeta(**dict(item, shape=tuple(item["shape"]))) for item in weights]
        received: dict[str, str] = {}
        started = time.perf_counter()
        model = self.model_runner.get_model()
        loading = engine_tensors.Loading.of(model, rank=self.rank, workers=self.parallel_config.tensor_parallel_size)
        loading.begin(model, {meta.name: meta.shape for meta in metas})

        def stream() -> Iterator[tuple[str, torch.Tensor]]:
            for name, tensor in receive(self._harness_group, metas, self.device):
                received[name] = digest(tensor)
                loading.arrived(name, tensor)
                yield name, tensor

        if self.device.type == "cpu":
            _set_up_experts_again(model)
        shared = _sharing(model) if self.device.type == "cpu" else []
        self.model_runner.reload_weights(weights_iterator=stream())
        for module, owner in shared:
            module.weight = owner.weight
            module.quant_method.process_weights_after_loading(module)
        return {"received": received, "seconds": time.perf_counter() - started}

    def harness_capture(self) -> None:
        self._harness_captured = Capture(self.model_runner.model)

    def harness_captured(self, tokens: int) -> HiddenStates | None:
        return self._harness_captured.take(tokens)

    def harness_held(self, order: bytes) -> bytes:
        workers = self.parallel_config.tensor_parallel_size
        return engine_tensors.answer(self.model_runner.get_model(), order, rank=self.rank, workers=workers)

    def harness_planted(self, what: str, modules: str, setting: str) -> None:
        """Let a planted fault change this worker's model, like SGLang's plug-in."""
        plants = inside()
        assert plants is not None, "nothing may be planted in this engine"
        plants.apply(self.model_runner.model, what, modules, setting)

    def harness_runner(self) -> str:
        kind = type(self.model_runner)
        return f"{kind.__module__}.{kind.__qualname__}"


def _sharing(model: torch.nn.Module) -> list[tuple[Any, Any]]:
    """Return each module that shares the weight of an earlier one, with that one: a head that is tied to the embedding.

    vLLM 0.32.0 packs a weight for its CPU kernels once for each module (`process_weights_after_loading` of
    `UnquantizedEmbeddingMethod`). A reload packs again what it loads, which is the embedding. The tied head would go on
    with what was packed of the weights before.
    """
    owners: dict[int, Any] = {}
    with_weight = [
        module for module in model.modules() if isinstance(getattr(module, "weight", None), torch.nn.Parameter)
    ]
    pairs = [(module, owners.setdefault(id(module.weight), module)) for module in with_weight]
    return [(module, owner) for module, owner in pairs if module is not owner and hasattr(module, "cpu_linear")]


def _set_up_experts_again(model: torch.nn.Module) -> None:
    """Make the coming reload set up the kernels of a mixture of experts as the first load did.

    vLLM 0.32.0 packs expert weights for its CPU kernel only on the first load (`_setup_kernel` of
    `unquantized_fused_moe_method`). A reload leaves them unpacked in the packed tensors, and log-probabilities are
    off by whole nats. vLLM decides by whether the layer has a kernel, so the kernel is removed. On CUDA it must stay,
    because captured graphs hold it.
    """
    for module in model.modules():
        method = getattr(module, "quant_method", None)
        if getattr(method, "moe_kernel", None) is not None:
            method.moe_kernel = None  # type: ignore[union-attr]
