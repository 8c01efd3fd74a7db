"""Functions that the readers of several adapters share: rows without padding, configurations as plain values."""

from __future__ import annotations

import hashlib
import importlib.metadata
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from probes import redaction
from probes.adapters.calls import Call
from probes.draws import DRAW
from probes.format import EVENTS
from probes.frames import Flat, Ragged
from probes.lines import decode_json, without_none
from probes.secret_names import hides

# Canonical name of an engine parameter -> vLLM's.
_CANONICAL = {
    "dtype": "dtype", "seed": "seed", "max_model_len": "max_model_len", "enforce_eager": "enforce_eager",
    "prefix_caching": "enable_prefix_caching", "memory_fraction": "gpu_memory_utilization",
    "max_num_seqs": "max_num_seqs", "tensor_parallel": "tensor_parallel_size",
}  # fmt: skip
# Sampling parameters of a request that have their canonical name in vLLM, SGLang and the frameworks.
_SAMPLING = (
    "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "max_tokens", "min_tokens", "ignore_eos",
)  # fmt: skip
# Those that change the distribution, with their values of no effect.
_NEUTRAL = {"temperature": 1.0, "top_k": -1, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
_BOUNDARIES = 32  # samples of a step whose boundaries are decoded and recorded


def driver_event(call: Call, kind: str) -> dict[str, Any]:
    """Return the first event of a kind that the job's driver recorded; {} without one. Engines read from the recording
    what they are not passed.
    """
    mark = f'"kind":"{kind}"'.encode()
    for file in sorted((call.recorder.run_dir / EVENTS).glob("trainer-*.jsonl")):
        for event in file.read_bytes().splitlines():
            if mark in event:
                return dict(decode_json(event))
    return {}


def resumed_at(call: Call, otherwise: int) -> int:
    """Return the step at which the driver resumed its run; `otherwise` if it did not."""
    return int(driver_event(call, "resume").get("step", otherwise))


EXPERIENCE = ("actor_logprob", "reference_logprob", "value", "advantage", "return")  # one number for each token


def record_experience(call: Call, rows: list[dict[str, Any]], unmatched: Mapping[str, int]) -> None:
    """Record the experience of a step, by sample. `rows`: in the order of training. `unmatched`: why rows that were
    trained on have no sample of their step -> their number.
    """
    order = [row["sample"] for row in rows]
    rows.sort(key=lambda row: row["sample"])
    arrays: dict[str, Flat | Ragged] = {
        "sample": Flat.of([row["sample"] for row in rows], "i8"),
        "reward": Flat.of([row["reward"] for row in rows], "f4"),
        "tokens": Ragged.of([row["tokens"] for row in rows], "i4"),
    }
    for name in EXPERIENCE:
        if all(name in row for row in rows):
            arrays[name] = Ragged.of([row[name] for row in rows], "f4")
    fields = {"weight_version": call.step, "order": order, **without_none(unmatched=unmatched or None)}
    call.recorder.frame("experience", step=call.step, arrays=arrays, fields=fields)


def plain(value: Any, depth: int = 6) -> Any:
    """Return a configuration as JSON values. Any other value becomes its text; settings that are named like secrets
    are left out.
    """
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return redaction.text(value, 0)
    if depth and isinstance(value, Mapping):
        named_items = ((str(name), item) for name, item in value.items())
        return {name: plain(item, depth - 1) for name, item in named_items if not hides(name, item)}
    if depth and isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item, depth - 1) for item in value]
    if isinstance(value, type) or callable(value):
        return getattr(value, "__qualname__", type(value).__name__)
    return redaction.text(str(value), 200)


def canonical_sampling(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return sampling parameters by canonical name. One that is absent or None is left out: the engine decides it."""
    sampling = {name: values[name] for name in _SAMPLING if values.get(name) is not None}
    if sampling.get("top_k") == 0:  # off, as -1 is
        sampling["top_k"] = -1
    return sampling


def request_sampling(request: Any) -> dict[str, Any]:
    """Return the canonical sampling parameters of a request, a mapping or vLLM's own object.

    A coupled draw carries its parameters itself, and the request beside it is neutral.
    """
    values = request if isinstance(request, Mapping) else {name: getattr(request, name, None) for name in _SAMPLING}
    return canonical_sampling({**values, **(request_draw(request) or {})})


def request_draw(request: Any) -> Mapping[str, Any] | None:
    """Return the coupled draw that a request carries; None without one."""
    for name in ("extra_args", "custom_params"):
        carried = request.get(name) if isinstance(request, Mapping) else getattr(request, name, None)
        if carried and DRAW in carried:
            return dict(carried[DRAW])
    return None


def is_new_mode(call: Call, mode: str) -> bool:
    """Whether this process has not drawn in this mode before."""
    modes: set[str] = call.job.memory.setdefault("sampled_modes", set())
    new = mode not in modes
    modes.add(mode)
    return new


def record_sampling(call: Call, settings: Mapping[str, Any], request: Any, mode: str) -> None:
    """Record the sampling parameters of the settings and of a request: the first one of a mode stands for all."""
    received = request_sampling(request)
    if "max_tokens" not in settings:  # then each prompt has its own limit
        received.pop("max_tokens", None)
    native = request if isinstance(request, Mapping) else received
    call.recorder.event("sampling", canonical=plain(settings), native=plain(native), given=plain(received), mode=mode)


def record_sync(call: Call, version: int) -> None:
    """Record a weight sync that returned. Digests of what was sent and received are in the recordings of both ends."""
    call.recorder.event(
        "sync", step=version - 1, version=version, ok=True, message="", seconds=call.seconds, mismatched=[],
        unreported=[] if call.job.digests else ["all: digests of weights were not asked for (--digests)"],
    )  # fmt: skip


def record_metrics(call: Call, step: int, metrics: Mapping[str, float]) -> None:
    """Record the metrics of a step, and what the probes have cost so far."""
    call.recorder.event("step", step=step, metrics=metrics)
    call.recorder.event("probe_cost", step=step, self_ns=call.recorder.self_ns)


def record_failed_sync(call: Call, version: int, message: str = "") -> None:
    """Record a weight sync that raised, or that an engine refused with a message."""
    call.recorder.event(
        "sync", step=version - 1, version=version, ok=False, message=message or call.error, seconds=call.seconds
    )


def changed_by(sampling: Mapping[str, Any]) -> list[str]:
    """Return the sampling parameters that change the log-probabilities that an engine computes after them."""
    return [name for name, value in _NEUTRAL.items() if sampling.get(name, value) != value]


def only_tempered(sampling: Mapping[str, Any]) -> bool:
    """Whether temperature alone changes the log-probabilities of vLLM. The frameworks' learners score after it too."""
    return changed_by(sampling) == ["temperature"]


def unpadded(values: Any, mask: Any) -> list[list[Any]]:
    """Return the rows of a padded [samples, length] tensor where its mask is true."""
    pairs = zip(values.tolist(), mask.tolist(), strict=True)
    return [[value for value, kept in zip(row, kept_row, strict=True) if kept] for row, kept_row in pairs]


def columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the values of each field of some rows, of which there is at least one."""
    return {name: [row[name] for row in rows] for name in rows[0]}


def lists(rows: Iterable[Any]) -> list[list[Any]]:
    """Return rows of numbers as lists, whether they are tensors, arrays or sequences."""
    return [row.tolist() if hasattr(row, "tolist") else list(row) for row in rows]


def rollout_arrays(
    samples: Sequence[int],
    prompts: Iterable[Any],
    outputs: Iterable[Any],
    logprobs: Iterable[Any] | None = None,
    *,
    meaning: str = "logprob",
) -> dict[str, Flat | Ragged]:
    """Return the arrays of a `rollout` frame; without log-probabilities where not every token has one. `meaning`: the
    array's name.
    """
    outputs = lists(outputs)
    arrays: dict[str, Flat | Ragged] = {
        "sample": Flat.of(list(samples), "i8"),
        "prompt": Ragged.of(lists(prompts), "i4"),
        "output": Ragged.of(outputs, "i4"),
    }
    if logprobs is not None:
        rows = [[float("nan") if logprob is None else float(logprob) for logprob in row] for row in logprobs]
        if [len(row) for row in rows] == [len(row) for row in outputs]:
            arrays[meaning] = Ragged.of(rows, "f4")
    return arrays


def record_boundaries(call: Call, tokenizer: Any, step: int, rows: Iterable[tuple[int, Any, Any, str]]) -> None:
    """Record the boundaries of (sample, prompt, output, finish) rows, until a process has recorded enough of a step.

    `bounded` in the job's memory counts them; an adapter sets it to 0 where a step begins.
    """
    memory = call.job.memory
    for sample, prompt, output, finish in itertools.islice(rows, max(_BOUNDARIES - memory.get("bounded", 0), 0)):
        memory["bounded"] = memory.get("bounded", 0) + 1
        call.recorder.boundaries(
            step=step, sample=sample, prompt=prompt, output=output, finish=finish,
            specials=tokenizer.all_special_ids, decode=tokenizer.decode,
        )  # fmt: skip


def prompts_digest(prompts: Iterable[Sequence[int]]) -> str:
    """Return the `prompts` field of a `data` event: one digest of a step's prompt ids, in the order of the samples."""
    return hashlib.blake2b(repr(lists(prompts)).encode(), digest_size=16).hexdigest()


def finishes(outputs: Iterable[Sequence[int]], ends: Iterable[int]) -> list[str]:
    """Return `stop` for an output whose last id is an end token, else `length`. For frameworks that keep no finish
    reason.
    """
    ends = set(ends)
    return ["stop" if len(row) and row[-1] in ends else "length" for row in outputs]


def tokenizer_fields(tokenizer: Any) -> dict[str, Any]:
    """Return the fields of a `tokenizer` event for a tokenizer of Transformers."""
    prompt: list[int] = []
    if getattr(tokenizer, "chat_template", None):
        talk = [{"role": "user", "content": "x"}]
        with_prompt, without = (
            tokenizer.apply_chat_template(talk, add_generation_prompt=add, tokenize=True, return_dict=False)
            for add in (True, False)
        )
        prompt = list(with_prompt[len(without) :])
    return {
        "size": len(tokenizer), "bos": tokenizer.bos_token_id, "eos": tokenizer.eos_token_id,
        "pad": tokenizer.pad_token_id, "specials": sorted(tokenizer.all_special_ids), "generation_prompt": prompt,
    }  # fmt: skip


def engine_version(engine: str) -> str:
    """Return the installed version of an engine; "" where it is not installed. Builds for CPUs are separate
    distributions.
    """
    for name in (f"{engine}-cpu", engine):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""


def vllm_resolved(config: Any) -> dict[str, Any]:
    """Return the `resolved` field of an `engine_info` event from vLLM's own configuration object."""
    model, schedule, cache = config.model_config, config.scheduler_config, config.cache_config
    return dict(plain({
        "dtype": str(model.dtype).removeprefix("torch."), "max_model_len": model.max_model_len, "seed": model.seed,
        "enforce_eager": model.enforce_eager, "max_num_seqs": schedule.max_num_seqs,
        "max_num_batched_tokens": schedule.max_num_batched_tokens, "prefix_caching": cache.enable_prefix_caching,
        "logprobs_mode": str(model.logprobs_mode), "device": str(config.device_config.device_type),
        "tensor_parallel_size": config.parallel_config.tensor_parallel_size,
    }))  # fmt: skip


def vllm_requested(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `canonical` field of an `engine_info` event from the arguments that vLLM was started with."""
    return {ours: plain(arguments[name]) for ours, name in _CANONICAL.items() if arguments.get(name) is not None}
