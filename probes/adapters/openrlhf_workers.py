"""Readers of OpenRLHF's model actors and engines: shapes of inputs, weights that are sent, vLLM's resolved
configuration.
"""

from __future__ import annotations

import os
import sys
from dataclasses import fields
from typing import Any

from probes import weights
from probes.adapters.adapter_values import (
    driver_event,
    engine_version,
    is_new_mode,
    plain,
    record_sampling,
    request_draw,
    resumed_at,
    vllm_requested,
    vllm_resolved,
)
from probes.adapters.calls import Call
from probes.adapters.loaders import check_digested, record_received, restore_loader, wrap_loader


def started(call: Call) -> None:
    """Record the initial weights of a policy rank that is ready. A resumed run continues at its checkpoint's step."""
    states = getattr(call.owner, "checkpoint_states", None) or {}
    call.job.step = int(states.get("global_step", 0))
    call.job.memory["resumed"] = call.job.step > 0
    digests = _actor_digests(call)
    if digests:
        call.recorder.weights(step=call.job.step - 1, version=call.job.step, digests=digests, source="learner")


def forwarding(call: Call) -> None:
    """Record the shapes of one forward pass. OpenRLHF passes the mask on the host, so reading it does not wait for a
    device.
    """
    tensors = {name: argument for name, argument in call.arguments.items() if hasattr(argument, "shape")}
    mask = call.arguments.get("attention_mask")
    lengths = mask.sum(dim=-1).tolist() if mask is not None else []
    sequences = tensors.get("sequences")
    call.recorder.shapes(
        call.name, tensors, step=call.step, padded_tokens=None if sequences is None else sequences.numel(),
        real_tokens=sum(lengths) or None, longest=max(lengths, default=None), samples=len(lengths) or None,
    )  # fmt: skip


def training(call: Call) -> None:
    """Record the shapes of one mini-batch. Its mask is on the device: reading the lengths is one transfer and one
    wait.
    """
    experience = call.arguments["experience"]
    named = {field.name: getattr(experience, field.name) for field in fields(experience)}
    tensors = {name: value for name, value in named.items() if hasattr(value, "shape")}
    lengths = experience.attention_mask.sum(dim=-1).tolist()
    call.recorder.shapes(
        call.name, tensors, step=call.step, padded_tokens=experience.sequences.numel(), real_tokens=sum(lengths),
        longest=max(lengths, default=0), samples=len(lengths),
    )  # fmt: skip


def stepped(call: Call) -> None:
    """Count the critic's update of a step."""
    call.job.step += 1


def sent(call: Call) -> None:
    """Record digests of the actor's weights after a sync, where they were asked for and one process holds all
    weights.

    The first sync of a resumed run sends the weights that it began with, which `started` has recorded.
    """
    if call.job.memory.pop("resumed", False):
        return
    version = call.job.step + 1
    digests = _actor_digests(call)
    if digests:
        call.recorder.weights(step=version - 1, version=version, digests=digests, source="learner")
        call.recorder.event("learner", step=version - 1, actor=weights.combine(digests))
    call.job.step = version  # what follows belongs to the next step


def _actor_digests(call: Call) -> dict[str, str]:
    """Return digests of the actor's weights, from the rank that sends them; {} where they were not asked for or no
    process holds all weights.
    """
    torch: Any = sys.modules.get("torch")
    ds = call.owner.strategy.args.ds
    if not call.job.digests or torch.distributed.get_rank() or ds.zero_stage == 3 or ds.tensor_parallel_size > 1:
        return {}
    return weights.digests(call.owner.actor.model.module.named_parameters())


def receiving(call: Call) -> None:
    """Wrap the model's loader before a tensor reaches the engine, however it comes, so that its digest is taken as it
    passes. Only with digests.
    """
    memory = call.job.memory
    if not call.job.digests:
        return
    model = call.owner.model_runner.model
    if memory.get("hand", (None,))[0] is not model:
        restore_loader(memory)
        wrap_loader(call, model)


def received(call: Call) -> None:
    """Record, after the last tensor of a sync, the digests of all that passed the loader."""
    memory = call.job.memory
    check_digested(memory)
    passed = memory.get("passed")
    if passed and call.arguments["empty_cache"]:  # OpenRLHF sets it for the last tensor only
        before = memory["received"] if "received" in memory else resumed_at(call, 1) - 1
        memory["received"] = before + 1
        record_received(call, before + 1, dict(passed))
        passed.clear()


def generating(call: Call) -> None:
    """Record what the first request carries, beside what the driver was asked for."""
    request = call.arguments["sampling_params"]
    if is_new_mode(call, mode := "coupled" if request_draw(request) is not None else "native"):
        settings = (driver_event(call, "configuration").get("scenario") or {}).get("sampling") or {}
        record_sampling(call, settings, request, mode)


def engine_started(call: Call) -> None:
    """Record the engine's configuration as vLLM resolved it."""
    kwargs = {name: value for name, value in call.owner.kwargs.items() if name != "hf_tokenizer"}
    call.recorder.event(
        "engine_info", engine="vllm", version=engine_version("vllm"), asked=plain(kwargs),
        canonical=vllm_requested(kwargs), resolved=vllm_resolved(call.owner.llm.vllm_config), replaced=[],
        pids=[os.getpid()],
    )  # fmt: skip
    call.recorder.environment()
