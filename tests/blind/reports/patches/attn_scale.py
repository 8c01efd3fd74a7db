"""The engine scales Gemma 2's attention scores by the head's size where the configuration has another query_pre_attn_scalar."""
import plant as b
def change(model, on):
    c = model.config
    for layer in model.model.layers:
        layer.self_attn.scaling = (c.head_dim if on else c.query_pre_attn_scalar) ** -0.5
    if on: b.once("scaled by the head's size")
PATCH = {"scenarios.engines.hf.engine": lambda m: b.on_model(m, change)}
