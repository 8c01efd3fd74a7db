"""Readers inside the processes of verl's engines: which prompt ids a request arrived with, which weights were loaded.

They look below verl, at the engine's own request in its scheduler's process, after everything that could have changed
a prompt on its way. A request is known by the id that verl's client gave it (`request_key`), which is how a reader of
the recording finds its sample.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from probes import weights
from probes.adapters.calls import Call
from probes.adapters.reading import resumed_at
from probes.frames import Flat, Ragged
from probes.spans import error_text

_RANDOM = re.compile(r"-[0-9a-f]{8}$")  # vLLM makes ids unique by eight random characters at their end


def request_key(name: str) -> int:
    """The number by which both ends of a request record its id: 63 bits of a hash."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little") >> 1


def vllm_saw(call: Call) -> None:
    """A request is with vLLM's scheduler."""
    request = call.arguments["request"]
    if request.prompt_token_ids is not None:  # None: a prompt of embeddings
        _saw(call, _RANDOM.sub("", str(request.request_id)), request.prompt_token_ids)


def sglang_saw(call: Call) -> None:
    """A request is in SGLang's queue, truncated where that was allowed; one that comes again was seen before."""
    request = call.arguments["req"]
    if not call.arguments.get("is_retracted"):
        _saw(call, str(request.rid), request.origin_input_ids)


def _saw(call: Call, name: str, ids: Iterable[int]) -> None:
    arrays: dict[str, Flat | Ragged] = {
        "request": Flat.of([request_key(name)], "i8"), "prompt_seen": Ragged.of([list(ids)], "i4"),
    }  # fmt: skip
    call.recorder.frame("seen", step=-1, arrays=arrays)  # an engine knows no step


def syncing(call: Call) -> None:
    """vLLM's worker is about to receive weights, in as many buckets as they take."""
    call.job.memory["received"] = _next(call)


def arrived(call: Call) -> None:
    """Digests of one bucket's tensors as they reached vLLM's worker."""
    tensors = call.arguments["weights"]
    if call.job.digests and isinstance(tensors, (list, tuple)):  # verl's list; an iterator is the job's
        _received(call, call.job.memory.get("received", 0), weights.digests(iter(tensors)))


def loading(call: Call) -> None:
    """SGLang's scheduler is about to load tensors: a hand on its model's loader, which they pass one by one."""
    memory = call.job.memory
    _let_go(memory)  # of a call that raised
    if not call.job.digests or call.arguments.get("load_format") in _PAST_THE_LOADER:
        return
    model = call.owner.get_model()
    memory["hand"], memory["passed"] = (model, vars(model).get("load_weights")), {}
    model.load_weights = _digesting(model.load_weights, memory, call)


def loaded(call: Call) -> None:
    """They are loaded, or were refused."""
    memory = call.job.memory
    passed = _let_go(memory)
    if failed := memory.pop("undigested", ""):
        raise RuntimeError(failed)
    if call.result[0]:
        memory.setdefault("arrived", {}).update(passed)


def flushed(call: Call) -> None:
    """verl ends a sync by flushing SGLang's cache: what arrived since the last one is a version."""
    memory = call.job.memory
    arrived_digests = memory.pop("arrived", None)
    if arrived_digests:
        memory["received"] = version = _next(call)
        _received(call, version, arrived_digests)


def _next(call: Call) -> int:
    """The version that arrives: engines are not told, so they count, from the one that the run began with."""
    memory = call.job.memory
    return int(memory["received"]) + 1 if "received" in memory else resumed_at(call, 0)


_PAST_THE_LOADER = ("direct",)


def _let_go(memory: dict[str, Any]) -> dict[str, str]:
    """The model's own loader again; the digests of what passed."""
    model, original_load = memory.pop("hand", (None, None))
    if model is not None:
        vars(model).pop("load_weights", None)
        if original_load is not None:
            model.load_weights = original_load
    return dict(memory.pop("passed", {}))


def _received(call: Call, version: int, digests: dict[str, str]) -> None:
    call.recorder.weights(step=version - 1, version=version, digests=digests, source="received")


def _digesting(load: Callable[..., Any], memory: dict[str, Any], call: Call) -> Callable[..., Any]:
    passed = memory["passed"]

    def digested(item: Any) -> None:
        try:  # within the job's own call: nothing may be raised here
            with call.recorder.own_time():
                passed[str(item[0])] = weights.digest(item[1])
        except Exception as error:
            memory["undigested"] = error_text(error)

    def passing(tensors: Iterable[Any]) -> Iterator[Any]:
        for item in tensors:
            digested(item)
            yield item

    def load_weights(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if "hand" not in memory:  # the recording went off before the load was done, and let go of everything
            return load(tensors, *args, **kwargs)
        if isinstance(tensors, (list, tuple)):  # a loader may count them, or go through them twice
            for item in tensors:
                digested(item)
            return load(tensors, *args, **kwargs)
        # Any other kind of container stays what it is, and is not seen.
        return load(passing(tensors) if isinstance(tensors, Iterator) else tensors, *args, **kwargs)

    return load_weights
