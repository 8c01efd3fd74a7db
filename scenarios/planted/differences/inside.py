"""Planted faults inside an engine's model.

Modules compute with a copy of old weights, or wrongly; tensors are loaded in another form than they arrived; a rotary
cache is corrupted.
"""

from __future__ import annotations

import copy
import functools
import json
import math
from typing import Any

from scenarios.engines.engine_interface import SyncGroup, SyncReport, WeightMeta
from scenarios.planted.differences.plant import Plant, Receive, Setting

KEPT, HOOKED, TURNED, BASE = "_harness_kept", "_harness_hooked", "_harness_turned", "_harness_base"
SPLIT_BY_COLUMNS = ("o_proj.weight", "down_proj.weight")  # divided along inputs; others along outputs
ROTARY = ("cos_sin_cache", "inv_freq")  # buffers of vLLM and SGLang, and of Transformers


class KeptCopy(Plant):
    """Modules compute with copies of themselves from before a sync: every parameter is right, the computation uses
    old ones.

    Setting: {"modules": [names], "from": weight version}. A restart of the engine reverts it, a sync does not.
    """

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._version = -1

    def receive(self, receive: Receive, group: SyncGroup, weights: list[WeightMeta]) -> SyncReport:
        self._version += 1
        if self._version == int(self.value["from"]):
            reach(self.setting.engine, keep, self.value["modules"])
        return receive(group, weights)

    def remove(self) -> None:
        reach(self.setting.engine, release, self.value["modules"])


class Misloaded(Plant):
    """A tensor is loaded in another form than it arrived, or not at all, while its digest is right.

    Setting: {"names": [tensors], "how": "permuted" (its rows), "scaled" (by 1.02), "refused", "shard" (another
    tensor-parallel rank's part), or "late" (at the next sync; only the embedded engine), "from": weight version,
    "until": the first version that is loaded correctly again, "rank": the tensor-parallel rank at fault; by default
    all}.
    """

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._version = -1
        self._waiting: dict[str, Any] = {}

    def receive(self, receive: Receive, group: SyncGroup, weights: list[WeightMeta]) -> SyncReport:
        self._version += 1
        names, how = self.value["names"], self.value["how"]
        engine: Any = self.setting.engine
        if self._version < int(self.value.get("from", 0)):
            return receive(group, weights)
        if engine.name != "hf":
            if self._version == self.value.get("until"):
                reach(engine, release, [])
            elif self._version < self.value.get("until", math.inf):
                reach(engine, misload, names, how=how, rank=self.value.get("rank"))
            return receive(group, weights)
        # The embedded engine's model is in this process, so its tensors are put back after the load. Another engine's
        # loader has to be changed in its workers (`misload`).
        state = engine.model.state_dict()
        before = {name: state[name].clone() for name in names}
        report = receive(group, weights)
        if how == "late":
            for name in {weight.name for weight in weights}.intersection(names):
                arrived = state[name].clone()
                state[name].copy_(self._waiting.get(name, before[name]))
                self._waiting[name] = arrived
            return report
        for name in {weight.name for weight in weights}.intersection(names):
            state[name].copy_(before[name] if how == "refused" else misread(state[name], how))
        return report

    def remove(self) -> None:
        engine: Any = self.setting.engine
        if engine.name != "hf":
            reach(engine, release, [])


class RotarySpoilt(Plant):
    """After a sync, the rotary cache is not what the model's configuration computes.

    Setting: {"by": factor, "from": weight version}. A restart reverts it until the next sync.
    """

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._version = -1

    def receive(self, receive: Receive, group: SyncGroup, weights: list[WeightMeta]) -> SyncReport:
        report = receive(group, weights)
        self._version += 1
        if self._version >= int(self.value.get("from", 0)):
            reach(self.setting.engine, turn, [], by=float(self.value["by"]))
        return report

    def remove(self) -> None:
        reach(self.setting.engine, release, [])


class Bent(Plant):
    """Modules return a multiple of the right result, like a wrong kernel: neither a sync nor a restart reverts it.

    Setting: {"modules": [names], "by": factor}.
    """

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        reach(setting.engine, bend, self.value["modules"], by=float(self.value["by"]))

    def remove(self) -> None:
        reach(self.setting.engine, release, self.value["modules"])


class Rebased(Plant):
    """Rotary embeddings use another base than the model's, as with a wrong default. Setting: {"by": factor}."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        reach(setting.engine, rebase, [], by=float(self.value["by"]))

    def remove(self) -> None:
        reach(self.setting.engine, rebase, [], by=1.0)


class RowAltered(Plant):
    """After each sync, one row of a module's weight is a multiple of what was sent; the digests are those of what was
    sent.

    Setting: {"module": name, "row": index, "by": factor}. The next sync reverts it.
    """

    def receive(self, receive: Receive, group: SyncGroup, weights: list[WeightMeta]) -> SyncReport:
        report = receive(group, weights)
        setting = {name: float(self.value[name]) for name in ("row", "by")}
        reach(self.setting.engine, scale_row, [self.value["module"]], **setting)
        return report


class Coarse(Plant):
    """Modules return fewer bits than their type has, in half precision only, like a kernel that rounds once too
    often.

    Setting: {"modules": [names], "bits": explicit bits of the mantissa; bfloat16 has 7}.
    """

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        reach(setting.engine, coarsen, self.value["modules"], bits=float(self.value["bits"]))

    def remove(self) -> None:
        reach(self.setting.engine, release, self.value["modules"])


def coarsen(model: Any, modules: list[str], bits: float) -> None:
    """From now on, round what these modules return in half precision to this many bits of mantissa."""

    def rounded(value: Any) -> Any:
        if value.element_size() > 2:
            return value
        mantissa, exponent = value.float().frexp()
        scale = 2.0 ** (bits + 1)  # frexp's mantissa is below 1: its first bit is the implicit one
        return ((mantissa * scale).round() / scale).ldexp(exponent).to(value.dtype)

    def coarse(module: Any, inputs: Any, output: Any) -> Any:
        return (rounded(output[0]), *output[1:]) if isinstance(output, tuple) else rounded(output)

    for name in modules:
        module = model.get_submodule(name)
        object.__setattr__(module, HOOKED, module.register_forward_hook(coarse))


def rebase(model: Any, modules: list[str], by: float) -> None:
    """From now on, let rotary embeddings use `by` times the model's own base."""
    for module in model.modules():
        if hasattr(module, "inv_freq"):  # Transformers
            first = module.__dict__.setdefault(BASE, module.inv_freq.clone())
            steps = len(first)
            powers = [by ** (-step / steps) for step in range(steps)]
            module.inv_freq.copy_(first * first.new_tensor(powers))
        elif hasattr(module, "cos_sin_cache"):  # vLLM and SGLang
            first = module.__dict__.setdefault(BASE, module.base)
            module.base = first * by
            turned = module._compute_cos_sin_cache()  # SGLang's cache may have grown beyond what this computes
            module.cos_sin_cache[: len(turned)].copy_(turned[: len(module.cos_sin_cache)])


def scale_row(model: Any, modules: list[str], row: float, by: float) -> None:
    """Multiply one row of these modules' weights."""
    for name in modules:
        model.get_submodule(name).weight.data[int(row)] *= by


def keep(model: Any, modules: list[str]) -> None:
    """From now on, let these modules compute with copies of their present weights."""
    for name in modules:
        module = model.get_submodule(name)
        kept = copy.deepcopy(module)
        object.__setattr__(module, KEPT, kept)  # not a submodule: a copy's weights must not be the model's parameters
        module.forward = kept.forward


def bend(model: Any, modules: list[str], by: float) -> None:
    """From now on, let these modules return `by` times what they compute."""

    def bent(module: Any, inputs: Any, output: Any) -> Any:
        return (output[0] * by, *output[1:]) if isinstance(output, tuple) else output * by

    for name in modules:
        module = model.get_submodule(name)
        object.__setattr__(module, HOOKED, module.register_forward_hook(bent))


def misload(model: Any, modules: list[str], how: str, rank: int | None) -> None:
    """From now on, load these tensors in another form, or not at all, on this rank or on all."""
    model.__dict__.pop("load_weights", None)
    if rank not in (None, torch_rank()[0]):
        return
    load = model.load_weights

    def loading(weights: Any, *args: Any, **kwargs: Any) -> Any:
        wrong = (
            (name, misread(tensor, how, name) if name in modules else tensor)
            for name, tensor in weights
            if name not in modules or how != "refused"
        )
        return load(wrong, *args, **kwargs)

    model.__dict__["load_weights"] = loading


def torch_rank() -> tuple[int, int]:
    """Return this process's rank in its engine and the number of ranks. Only tensor-parallel ranks exist here."""
    import torch.distributed as dist

    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def misread(tensor: Any, how: str, name: str = "") -> Any:
    """Return `tensor` in a wrong form: its rows permuted, 2 % larger, or moved so that each rank gets the previous
    rank's shard.
    """
    if how == "shard":
        dim = 1 if name.endswith(SPLIT_BY_COLUMNS) else 0
        return tensor.roll(tensor.shape[dim] // torch_rank()[1], dims=dim)
    return tensor.roll(3, dims=0) if how == "permuted" else tensor * 1.02


def turn(model: Any, modules: list[str], by: float) -> None:
    """Set the rotary caches to `by` times their first values."""
    buffers = {name: buffer for name, buffer in model.named_buffers() if name.endswith(ROTARY)}
    first = model.__dict__.setdefault(TURNED, {name: buffer.clone() for name, buffer in buffers.items()})
    for name, buffer in buffers.items():
        buffer.copy_(first[name] * by)


def release(model: Any, modules: list[str]) -> None:
    """Revert what was planted. `modules`: those of `keep`, `bend` and `coarsen`."""
    model.__dict__.pop("load_weights", None)
    buffers = dict(model.named_buffers())
    for name, first in model.__dict__.pop(TURNED, {}).items():
        buffers[name].copy_(first)
    for name in modules:
        module = model.get_submodule(name)
        if hasattr(module, HOOKED):
            getattr(module, HOOKED).remove()
            object.__delattr__(module, HOOKED)
        if hasattr(module, KEPT):
            del module.forward
            object.__delattr__(module, KEPT)


def reach(engine: Any, change: Any, modules: list[str], **setting: Any) -> None:
    """Apply `change` to the live model of an engine, whichever engine it is and in whichever process it lives."""
    match engine.name:
        case "hf":
            change(engine.model, modules, **setting)
        case "vllm":
            order = change.__name__, json.dumps(modules), json.dumps(setting)
            engine._llm.collective_rpc("harness_planted", args=order)
        case "sglang":
            engine._engine.collective_rpc(
                "harness_planted", what=change.__name__, modules=json.dumps(modules), setting=json.dumps(setting)
            )


def open_scheduler(scheduler: Any) -> None:
    """Give SGLang's scheduler the method that `reach` calls."""
    scheduler.harness_planted = functools.partial(planted, scheduler)


def draw(**values: Any) -> Any:
    """Return the draw of a request with these fields, in an engine's own process."""
    from scenarios.planted.differences.coupled_draw import draw

    return draw(**values)


def planted(scheduler: Any, what: str, modules: str, setting: str) -> None:
    """Apply a change in SGLang: the scheduler's side of `reach`."""
    apply(scheduler.tp_worker.model_runner.model, what, modules, setting)


def apply(model: Any, what: str, modules: str, setting: str) -> None:
    """Apply the change of that name to a model in one of its engine's own processes."""
    changes: dict[str, Any] = {
        change.__name__: change for change in (keep, release, bend, misload, turn, coarsen, rebase, scale_row)
    }
    changes[what](model, json.loads(modules), **json.loads(setting))
