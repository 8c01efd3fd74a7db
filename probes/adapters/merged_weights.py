"""A learner's weights as TRL sends them to vLLM: by vLLM's names, with an adapter of PEFT merged into its base.

What is sent is computed here from the base and the adapter, and not read after TRL's own merge. So weights that were
merged twice, or not at all, differ from it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

# What TRL takes out of a name (`_fix_param_name_to_vllm`), beside PEFT's own parts.
_WRAPPER, _SAVED = "_checkpoint_wrapped_module.", "modules_to_save.default."
_BASE, _LAYER = "base_model.model.", ".base_layer"


@dataclass(frozen=True)
class SentWeight:
    """One tensor of a sync. `layer`: the layer whose adapter is merged into it; None without an adapter. `field`: its
    name in that layer.
    """

    name: str
    parameter: Any
    layer: Any
    field: str

    @property
    def merged(self) -> Any:
        """Return the tensor as it is sent; None where that cannot be computed here."""
        if self.layer is None:
            return self.parameter
        additions = [self._addition(adapter) for adapter in self.layer.active_adapters]
        if any(addition is None for addition in additions):
            return None
        merged = self.parameter.detach().clone()
        for addition in additions:
            merged += addition  # in place, as PEFT does it: the result has the type of the base
        return merged

    def _addition(self, adapter: str) -> Any:
        """Return what PEFT's `Linear.merge` adds for an adapter; None for layers and variants that merge otherwise."""
        layer = self.layer
        plain = adapter in getattr(layer, "lora_A", ()) and adapter not in getattr(layer, "lora_variant", ())
        if not plain or adapter in layer.merged_adapters:
            return None
        if self.field == "weight":
            return layer.get_delta_weight(adapter)
        if self.field == "bias":
            return layer.lora_B[adapter].bias * layer.scaling[adapter] if layer.lora_bias.get(adapter) else 0
        return None


def is_adapted(model: Any) -> bool:
    """Whether a model is one of PEFT's, which TRL merges for each sync."""
    return hasattr(model, "peft_config")


def sent_weights(model: Any) -> Iterator[SentWeight]:
    """Yield what a sync of the model sends, in its order."""
    adapted = is_adapted(model)
    layers = dict(model.named_modules()) if adapted else {}
    for full_name, parameter in model.named_parameters():
        name, layer, field = full_name, None, ""
        if adapted:
            above, _, field = full_name.rpartition(_LAYER + ".")
            layer = layers.get(above) if above else None
            name = name.removeprefix(_BASE).replace(_LAYER, "")
            if model.prefix in name or "original_module" in name:
                continue
            name = name.replace(_SAVED, "")
        yield SentWeight(name.replace(_WRAPPER, ""), parameter, layer, field)


def merged_weights(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield (name, tensor) of each weight of a sync whose value can be computed here."""
    torch: Any = sys.modules["torch"]
    with torch.no_grad():
        for weight in sent_weights(model):
            if (merged := weight.merged) is not None:
                yield weight.name, merged
