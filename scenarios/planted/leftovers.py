"""State that an earlier comparison may leave behind in an engine that stays up, planted on purpose in a live session.

Each function takes the actor's `Host` and changes something in its process. It runs there through Ray's
`__ray_call__`.
"""

from __future__ import annotations

import functools
import os
import threading
from typing import Any


def adapter(host: Any) -> None:
    """Put a low-rank adapter around one projection of the model, as peft does."""
    import torch

    layer = _model(host).model.layers[0].self_attn
    layer.q_proj = torch.nn.Sequential(layer.q_proj, torch.nn.Linear(*[layer.q_proj.out_features] * 2))


def hook(host: Any) -> None:
    """Leave a forward hook that was never removed."""
    _model(host).model.layers[0].register_forward_hook(lambda module, inputs, output: output)


def buffer(host: Any) -> None:
    """Leave a rotary cache of another base, which no weight sync sends."""
    _model(host).model.rotary_emb.inv_freq.mul_(1.01)


def patched_function(host: Any) -> None:
    """Replace a function of a module, as a monkey patch does."""
    from scenarios.engines.hf import engine

    module: Any = engine
    original = module.choose
    module.choose = functools.wraps(original)(lambda *arguments: original(*arguments))


def patched_method(host: Any) -> None:
    """Replace a method of a model's class."""
    attention = type(_model(host).model.layers[0].self_attn)
    original = attention.forward
    attention.forward = lambda self, *args, **kwargs: original(self, *args, **kwargs)


def sampler(host: Any) -> None:
    """Change the seed of the engine's own sampler."""
    host._object._bare._seed += 1


def stale_cache(host: Any) -> None:
    """Cache answers by prompt, and serve them whatever the weights are."""
    engine = host._object._bare
    original = engine._model.forward
    kept: dict[Any, Any] = {}

    def forward(*args: Any, **kwargs: Any) -> Any:
        key = tuple(kwargs["input_ids"].flatten().tolist())
        return kept.setdefault(key, original(*args, **kwargs))

    engine._model.forward = forward


def running_request(host: Any) -> None:
    """Leave a batch of an aborted run in the engine."""
    started = threading.Event()

    def generate() -> None:
        with host._object._bare.load.generating():
            started.set()
            threading.Event().wait()

    threading.Thread(target=generate, daemon=True).start()
    started.wait()


def variable(host: Any) -> None:
    """Set an environment variable that a later start would read."""
    os.environ["HF_HUB_OFFLINE"] = "leftover"


def precision(host: Any) -> None:
    """Lower the precision of matrix products."""
    import torch

    torch.set_float32_matmul_precision("medium")


def another_start(host: Any) -> None:
    """Restart the engine with other parameters, as an intervention does."""
    host._object.set("engine.max_num_seqs", 2)


def death(host: Any) -> None:
    """End the process: the caller sees that the actor died."""
    os._exit(1)


def weights(host: Any) -> None:
    """Change the weights, as every run does: a control, because a sync replaces them."""
    import torch

    with torch.no_grad():
        next(iter(_model(host).parameters())).mul_(1.5)


def moved_generator(host: Any) -> None:
    """Draw random numbers, as every run may: a control, because the generators' states are restored."""
    import torch

    torch.rand(7)


LEFT = {
    plant.__name__: words
    for plant, words in (
        (adapter, "the model's module"), (hook, "the model's module model.layers.0"), (buffer, "the model's buffer"),
        (patched_function, "code scenarios.engines.hf.engine.choose"), (patched_method, "Attention.forward"),
        (sampler, "the engine's setting _seed"), (stale_cache, "the model's module itself"),
        (running_request, "still running"), (variable, "the variable HF_HUB_OFFLINE"),
        (precision, "precision of products"), (another_start, "other parameters"),
        (death, "it "),
    )
}  # fmt: skip
CONTROLS = (weights, moved_generator)


def _model(host: Any) -> Any:
    return host._object._bare.model
