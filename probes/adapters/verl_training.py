"""Readers of verl's training workers (WorkerDict): shapes of training batches, and weights that are sent."""

from __future__ import annotations

import sys
from itertools import islice
from typing import Any

from probes import weights
from probes.adapters.calls import Call


def receiving(call: Call) -> None:
    """Take the step from the version that the worker is asked to send. A training worker learns it from nothing
    else.
    """
    version = call.arguments.get("global_steps")
    call.job.memory["unversioned"] = version is None
    if version is not None:
        call.job.step = int(version) - 1


def sent(call: Call) -> None:
    """Record digests of the actor's weights after a sync, where they were asked for and one process holds all
    weights.
    """
    if call.job.memory.pop("unversioned", False):  # the weights that were sent last are sent again
        return
    version = call.job.step + 1
    actor = getattr(call.owner, "actor", None)
    torch: Any = sys.modules.get("torch")
    if call.job.digests and actor is not None and torch.distributed.get_world_size() == 1:
        named = ((name, _local(parameter)) for name, parameter in actor.engine.module.named_parameters())
        digests = weights.digests(named)
        call.recorder.weights(step=version - 1, version=version, digests=digests, source="learner")
        if version:
            call.recorder.event("learner", step=version - 1, actor=weights.combine(digests))
    call.job.step = version  # what follows belongs to the next step


def inferring(call: Call) -> None:
    """Name the forward pass by its model, and record the shapes of its inputs."""
    kind = getattr(call.owner.config, "model_type", "")
    forward_only = bool(getattr(getattr(call.owner, "engine_config", None), "forward_only", False))
    if kind == "value_model":
        call.name = "critic_forward"
    else:
        call.name = "reference_forward" if forward_only else "actor_forward"
    _shapes(call, call.name)


def training(call: Call) -> None:
    """Record the shapes of one mini-batch."""
    kind = getattr(call.owner.config, "model_type", "")
    call.name = "critic_minibatch" if kind == "value_model" else call.name
    _shapes(call, "critic_minibatch" if kind == "value_model" else "actor_minibatch")


def _shapes(call: Call, phase: str) -> None:
    data = call.arguments["data"]
    names = list(data.keys())  # iterating a TensorDict yields its rows
    values = {name: data.get(name) for name in names}
    jagged = _lengths({name: column for name, column in values.items() if getattr(column, "is_nested", False)})
    tensors = {
        name: _Outline(column, jagged.get(name))
        for name, column in values.items()
        if hasattr(column, "dtype") and hasattr(column, "device")
    }
    ids = values.get("input_ids")
    lengths: list[int] = []
    if ids is not None:
        lengths = jagged["input_ids"] if "input_ids" in jagged else [ids.shape[-1]] * len(ids)
    call.recorder.shapes(
        phase, tensors, step=call.step, real_tokens=sum(lengths) or None, longest=max(lengths, default=None),
        samples=len(lengths) or None,
    )  # fmt: skip


def _lengths(columns: dict[str, Any]) -> dict[str, list[int]]:
    """Return the row lengths of jagged columns. verl keeps them on the host; for a device they are one transfer."""
    torch: Any = sys.modules.get("torch")
    homes: dict[str, dict[str, Any]] = {}
    for name, column in columns.items():
        homes.setdefault(str(column.device), {})[name] = column.offsets().diff()
    lengths_by_name: dict[str, list[int]] = {}
    for diffs in homes.values():
        lengths = iter(torch.cat(list(diffs.values())).tolist())
        lengths_by_name |= {name: list(islice(lengths, len(diff))) for name, diff in diffs.items()}
    return lengths_by_name


class _Outline:
    """Shape, dtype and device of a tensor. The shape of a jagged tensor is [rows, longest row], not torch's symbolic
    size.
    """

    def __init__(self, tensor: Any, lengths: list[int] | None) -> None:
        self.dtype, self.device = tensor.dtype, tensor.device
        if lengths is not None:
            self.shape = [len(lengths), max(lengths, default=0)]
        else:
            self.shape = [int(size) for size in tensor.shape]


def _local(tensor: Any) -> Any:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
