"""TRL's colocated vLLM on a CPU: its linear layers stay as they were loaded, so that TRL can load into them again.

vLLM for CPUs packs each weight for oneDNN and drops the original with its loader; TRL's weight sync, which goes through
`model.load_weights`, then fails with "'Parameter' object has no attribute 'weight_loader'".

FRAMEWORKS_PLANT=engine-few lets the engine take three samples at a time, in batches of its own.
"""

from __future__ import annotations

import os
from typing import Any

from after_import import after


@after("vllm.model_executor.layers.utils")
def _unpacked(utils: Any) -> None:
    import torch

    def keep(layer: Any, remove_weight: bool) -> None:
        layer.cpu_linear = torch.nn.functional.linear

    utils.dispatch_cpu_unquantized_gemm = keep


@after("trl.generation.vllm_generation")
def _engine(module: Any) -> None:
    made = module.LLM
    if os.environ.get("FRAMEWORKS_PLANT") == "engine-few":
        module.LLM = lambda **options: made(**{**options, "max_num_seqs": 3})
