"""The engine's sliding layers see one token more than the configuration says: its window counts the tokens before the current one."""
import plant as b
def change(model, on):
    config, own = model.config, getattr(model, "_own_window", None)
    if own is None:
        own = model._own_window = config.sliding_window
    config.sliding_window = own + 1 if on else own
    for layer in model.model.layers:
        if getattr(layer.self_attn, "sliding_window", None) is not None:
            layer.self_attn.sliding_window = config.sliding_window
    if on: b.once(f"window {config.sliding_window}")
PATCH = {"scenarios.engines.hf.engine": lambda m: b.on_model(m, change)}
