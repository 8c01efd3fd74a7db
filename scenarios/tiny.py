"""The sizes of the built-in models, for code that makes no model itself. Standard library only."""

from __future__ import annotations

CONTEXT = 256  # tokens
POLICY = {
    "hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 256,
}  # fmt: skip
REWARD = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
    "intermediate_size": 128,
}  # fmt: skip
