"""vLLM's side of a weight sync: a worker extension whose methods run inside every vLLM worker.
 `model.load_weights` fails on a CPU after the first load (packed weights lost their loaders), so tensors stream into
`model_runner.reload_weights`, which restores the checkpoint layout, loads, and packs again (measured: 51 tensors in
0.05 s).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch

from probes.weights import digest
from scenarios.rollout.engine import SyncGroup, WeightMeta
from scenarios.rollout.layers import Capture
from scenarios.rollout.sync import join, receive


class WeightReceiver:
    """Mixed into vLLM's worker class; names are prefixed so that they never meet the worker's own."""

    model_runner: Any
    device: torch.device
    rank: int

    def harness_join(self, group: dict[str, Any]) -> bool:
        target = SyncGroup(**group)
        self._harness_group = join(target, target.rank_offset + self.rank)
        return True

    def harness_receive(self, weights: list[dict[str, Any]]) -> dict[str, Any]:
        metas = [WeightMeta(**dict(item, shape=tuple(item["shape"]))) for item in weights]
        received: dict[str, str] = {}
        started = time.perf_counter()

        def stream() -> Iterator[tuple[str, torch.Tensor]]:
            for name, tensor in receive(self._harness_group, metas, self.device):
                received[name] = digest(tensor)
                yield name, tensor

        self.model_runner.reload_weights(weights_iterator=stream())
        return {"received": received, "seconds": time.perf_counter() - started}

    def harness_capture(self) -> None:
        self._harness_captured = Capture(self.model_runner.model)

    def harness_captured(self, tokens: int) -> list[list[float]] | None:
        return self._harness_captured.take(tokens)

    def harness_runner(self) -> str:
        kind = type(self.model_runner)
        return f"{kind.__module__}.{kind.__qualname__}"
