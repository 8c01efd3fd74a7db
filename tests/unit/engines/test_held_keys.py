"""How many keys and values attention is given for each token of a forward pass, by each engine's own arguments."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from scenarios.engines.engine_tensors import Witness, keys_read


def test_a_batch_of_sglang() -> None:
    extend = SimpleNamespace(seq_lens=torch.tensor([5, 3]), extend_seq_lens=torch.tensor([5, 2], dtype=torch.int32))
    assert keys_read((None, extend), None, 7).tolist() == [1, 2, 3, 4, 5, 2, 3]  # type: ignore[union-attr]
    decode = SimpleNamespace(seq_lens=torch.tensor([6, 4]), extend_seq_lens=None)
    assert keys_read((decode,), None, 2).tolist() == [6, 4]  # type: ignore[union-attr]


def test_the_metadata_of_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = SimpleNamespace(seq_lens=torch.tensor([5, 3, 0]), query_start_loc=torch.tensor([0, 1, 4]))
    module = ModuleType("vllm.forward_context")
    module.is_forward_context_available = lambda: True  # type: ignore[attr-defined]
    module.get_forward_context = lambda: SimpleNamespace(attn_metadata={"layer": metadata})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm.forward_context", module)
    assert keys_read((), None, 4).tolist() == [5, 1, 2, 3]  # type: ignore[union-attr]
    module.get_forward_context = lambda: SimpleNamespace(attn_metadata=None)  # type: ignore[attr-defined]
    assert keys_read((), None, 4) is None


def test_the_mask_of_transformers() -> None:
    mask = torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]])
    assert keys_read((), mask, 2).tolist() == [2, 3, 3, 4]  # type: ignore[union-attr]
    assert keys_read((), mask[:, None, None], 2) is None and keys_read((), None, 2) is None


class PastHooks(torch.nn.Module):
    """A decoder as vLLM's are: called past the hooks of a module (`support_torch_compile` of 0.32.0)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = torch.nn.Embedding(9, 2)

    def __call__(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.forward(*inputs)

    def forward(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        states: torch.Tensor = self.embed_tokens(ids)
        return states


def test_a_decoder_that_is_called_past_its_hooks_is_watched() -> None:
    decoder = PastHooks()
    witness = Witness(SimpleNamespace(model=decoder))
    decoder(torch.tensor([3, 5]), torch.tensor([0, 1]))
    assert witness.take() == {"ids": [3, 5], "positions": [0, 1], "keys": []}
    assert "forward" not in decoder.__dict__
