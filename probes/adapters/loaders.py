"""Digests of the tensors that an engine's model loads, taken as they pass its `load_weights` in its own process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from probes import weights
from probes.adapters.calls import Call
from probes.spans import error_text


def wrap_loader(call: Call, model: Any) -> None:
    """Wrap a model's loader so that the digest of each tensor is taken as it passes, until `restore_loader`."""
    memory = call.job.memory
    memory["hand"], memory["passed"] = (model, vars(model).get("load_weights")), {}
    model.load_weights = _digesting(model.load_weights, memory, call)


def restore_loader(memory: dict[str, Any]) -> dict[str, str]:
    """Restore the model's own loader, and return the digests of the tensors that passed."""
    model, original_load = memory.pop("hand", (None, None))
    if model is not None:
        vars(model).pop("load_weights", None)
        if original_load is not None:
            model.load_weights = original_load
    return dict(memory.pop("passed", {}))


def record_received(call: Call, version: int, digests: dict[str, str]) -> None:
    """Record the digests of a weight version as an engine received it."""
    call.recorder.weights(step=version - 1, version=version, digests=digests, source="received")


def check_digested(memory: dict[str, Any]) -> None:
    """Raise where the digest of a tensor that passed could not be taken."""
    if failed := memory.pop("undigested", ""):
        raise RuntimeError(failed)


def _digesting(load: Callable[..., Any], memory: dict[str, Any], call: Call) -> Callable[..., Any]:
    passed = memory["passed"]

    def digested(item: Any) -> None:
        try:  # this runs inside the job's own call: nothing may be raised here
            with call.recorder.own_time():
                passed[str(item[0])] = weights.digest(item[1])
        except Exception as error:
            memory["undigested"] = error_text(error)

    def passing(tensors: Iterable[Any]) -> Iterator[Any]:
        for item in tensors:
            digested(item)
            yield item

    def load_weights(*args: Any, **kwargs: Any) -> Any:
        if "hand" not in memory:  # the recording was turned off during the load and has dropped its state
            return load(*args, **kwargs)
        # The tensors are the first argument, or the one named `weights`, as vLLM's models call it.
        tensors = args[0] if args else kwargs.get("weights")
        if isinstance(tensors, (list, tuple)):  # a loader may count the items or iterate twice, so a list stays a list
            for item in tensors:
                digested(item)
        # Any other iterable is passed on unchanged, and its tensors are not recorded.
        elif isinstance(tensors, Iterator):
            # An iterator can be read once: the digests are taken as the loader reads it.
            if args:
                args = (passing(tensors), *args[1:])
            else:
                kwargs = {**kwargs, "weights": passing(tensors)}
        return load(*args, **kwargs)

    return load_weights
