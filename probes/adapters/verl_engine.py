"""Readers inside the processes of verl's engines: the prompt ids with which a request arrived, the weights that were
loaded.

They read the engine's own request in the scheduler's process, below verl, after everything that could have changed a
prompt on its way. A request is identified by the id that verl's client gave it (`request_key`); by that number a
reader of the recording finds its sample.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

from probes import weights
from probes.adapters.adapter_values import plain, record_failed_sync, resumed_at
from probes.adapters.calls import Call
from probes.adapters.loaders import check_digested, record_received, restore_loader, wrap_loader
from probes.frames import Flat, Ragged

_RANDOM = re.compile(r"-[0-9a-f]{8}$")  # vLLM appends eight random characters to make ids unique


def request_key(name: str) -> int:
    """Return the number by which both ends record a request: 63 bits of a hash of its id."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little") >> 1


def vllm_saw(call: Call) -> None:
    """Record the prompt of a request that reached vLLM's scheduler."""
    request = call.arguments["request"]
    if request.prompt_token_ids is not None:  # None: a prompt of embeddings
        _saw(call, _RANDOM.sub("", str(request.request_id)), request.prompt_token_ids)


def sglang_saw(call: Call) -> None:
    """Record the prompt of a request in SGLang's queue, after any allowed truncation. A retracted request was
    recorded before.
    """
    request = call.arguments["req"]
    if not call.arguments.get("is_retracted"):
        _saw(call, str(request.rid), request.origin_input_ids)


def _saw(call: Call, name: str, ids: Iterable[int]) -> None:
    arrays: dict[str, Flat | Ragged] = {
        "request": Flat.of([request_key(name)], "i8"), "prompt_seen": Ragged.of([list(ids)], "i4"),
    }  # fmt: skip
    call.recorder.frame("seen", step=-1, arrays=arrays)  # an engine does not know the step


def syncing(call: Call) -> None:
    """Count a version: vLLM's worker is about to receive weights, in one or more buckets."""
    call.job.memory["received"] = _next(call)


def arrived(call: Call) -> None:
    """Record digests of the tensors of one bucket as they reached vLLM's worker."""
    tensors = call.arguments["weights"]
    if call.job.digests and isinstance(tensors, (list, tuple)):  # verl passes a list; an iterator must stay unread
        record_received(call, call.job.memory.get("received", 0), weights.digests(iter(tensors)))


def loading(call: Call) -> None:
    """Wrap the model's loader before SGLang's scheduler loads tensors, so that each tensor's digest is taken as it
    passes.
    """
    memory = call.job.memory
    restore_loader(memory)  # left over from a call that raised
    if not call.job.digests or call.arguments.get("load_format") in _PAST_THE_LOADER:
        return
    wrap_loader(call, call.owner.get_model())


def loaded(call: Call) -> None:
    """Keep the digests if the load was accepted; record a refusal, with SGLang's own message."""
    memory = call.job.memory
    passed = restore_loader(memory)
    if not call.result[0]:
        record_failed_sync(call, _next(call), plain(call.result[1]))
        return
    check_digested(memory)
    memory.setdefault("arrived", {}).update(passed)


def flushed(call: Call) -> None:
    """Record what has arrived since the last flush as one version: verl flushes SGLang's cache at the end of a sync."""
    memory = call.job.memory
    arrived_digests = memory.pop("arrived", None)
    if arrived_digests:
        memory["received"] = version = _next(call)
        record_received(call, version, arrived_digests)


def _next(call: Call) -> int:
    """Return the version that arrives. Engines are not told it, so they count from the version that the run began
    with.
    """
    memory = call.job.memory
    return int(memory["received"]) + 1 if "received" in memory else resumed_at(call, 0)


_PAST_THE_LOADER = ("direct",)
