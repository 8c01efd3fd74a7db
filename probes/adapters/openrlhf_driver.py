"""Readers of OpenRLHF's driver, the Ray actor PPOTrainer: configuration, samples, experience, metrics, weight syncs."""

from __future__ import annotations

import os
import weakref
from collections import Counter
from collections.abc import Mapping
from typing import Any

from probes.adapters.adapter_values import (
    canonical_sampling,
    changed_by,
    columns,
    only_tempered,
    plain,
    prompts_digest,
    record_boundaries,
    record_experience,
    record_failed_sync,
    record_metrics,
    record_sync,
    rollout_arrays,
    tokenizer_fields,
    unpadded,
)
from probes.adapters.calls import Call, running_local
from probes.draws import COUPLED, DRAW, SEEDED, SEEN
from probes.frames import Ragged

# Prefixes of settings that do not affect numbers: where results are written and how they are reported.
WITHOUT_EFFECT = (
    "logger.",
    "ckpt.path",
    "ckpt.output_dir",
    "ckpt.save",
    "ckpt.max_",
    "ckpt.disable_ds",
    "use_ms",
    "local_rank",
)
_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
_METRICS = {
    "rollout/reward_mean": "reward_mean", "kl": "kl_mean", "policy_loss": "policy_loss", "critic_loss": "value_loss",
    "actor_grad_norm": "grad_norm", "rollout/response_length_mean": "length_mean",
    "rollout/truncated_rate": "truncated_fraction", "entropy_loss": "entropy",
}  # fmt: skip
# Columns of an experience frame -> OpenRLHF's names.
_COLUMNS = {
    "actor_logprob": "action_log_probs", "reference_logprob": "base_action_log_probs", "value": "values",
    "advantage": "advantages", "return": "returns",
}  # fmt: skip


def configured(call: Call) -> None:
    """Record the resolved arguments, the sampling and the tokenizer, after the trainer was made."""
    args, opts = call.arguments["strategy"].args, call.arguments["generate_kwargs"]
    sampling = _configured_sampling(opts)
    mode = "coupled" if os.environ.get(COUPLED) else "native"
    scenario = {
        "name": f"openrlhf {args.algo.advantage.estimator}", "seed": args.train.seed, "train": True, "guided": False,
        "model": {"path": args.actor.model_name_or_path, "dtype": _DTYPES.get(args.ds.param_dtype)},
        "rollout": {
            "mode": mode, "prompts_per_step": args.rollout.batch_size,
            "samples_per_prompt": args.rollout.n_samples_per_prompt,
        },
        "sampling": sampling,
    }  # fmt: skip
    missing = {}
    if mode == "native":
        missing["prompt_seen"] = "OpenRLHF does not keep which ids vLLM saw (with --mode coupled the harness does)"
    if args.algo.advantage.is_correction_level == "off":
        missing["logprob"] = "OpenRLHF asks vLLM for log-probabilities only with --algo.advantage.is_correction_level"
    elif changed_by(sampling) and not only_tempered(sampling):
        missing["logprob"] = "OpenRLHF asks vLLM for log-probabilities after temperature, top-k and the like"
        missing["logprob"] += " (recorded as processed_logprob)"
    if not call.job.digests:
        missing["weights"] = "digests of weights were not asked for (--digests)"
    elif args.ds.zero_stage == 3 or args.ds.tensor_parallel_size > 1:
        missing["weights"] = "the actor is sharded: no process holds its weights"
    seeds = {"trainer": args.train.seed, "engine": args.train.seed}
    data = getattr(getattr(call.owner, "prompts_dataloader", None), SEEDED, None)
    if data is None:
        missing["data seed"] = "OpenRLHF does not seed the generator that shuffles its prompts (--seed N does)"
    else:
        seeds["data"] = data
    call.configuration(scenario, _settings(args), backend="vllm", seeds=seeds, mode=mode, missing=missing)
    call.recorder.event("tokenizer", **tokenizer_fields(call.owner.tokenizer))
    call.recorder.environment()
    call.job.step = 0


def _configured_sampling(opts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the canonical sampling parameters among the arguments of a generation. What the request then carries is
    recorded by the engine's process.
    """
    limits = {"max_tokens": opts.get("max_new_tokens"), "min_tokens": opts.get("min_new_tokens")}
    return canonical_sampling({**opts, **limits})


def evaluating(call: Call) -> None:
    call.job.memory["evaluates"] = True


def evaluated(call: Call) -> None:
    call.job.memory["evaluates"] = False


def drawing(call: Call) -> None:
    """Drop what was kept for an earlier batch, before new samples are drawn: no request is in flight now.

    The start of a step would be the wrong moment: OpenRLHF's asynchronous trainer draws in a separate process, which
    knows no step and never makes the experience.
    """
    memory = call.job.memory
    memory["numbers"], memory["answers"] = {}, []
    _forget(memory)


def _forget(memory: dict[str, Any]) -> None:
    """Drop the entries of samples that the job itself has dropped."""
    memory["known"] = [pair for pair in memory.get("known", []) if pair[0]() is not None]


def submitted(call: Call) -> None:
    """Assign sample numbers to the prompts that were submitted, by the references to their responses.

    Texts of these references are kept and not the references, which would keep the responses in Ray's store.
    """
    memory, options = call.job.memory, call.arguments["generate_kwargs"]
    if memory.get("evaluates"):
        return
    if memory.get("submitted") != call.step:
        memory.update(submitted=call.step, sent=0, numbers={}, bounded=0)
    memory["sampling"] = _configured_sampling(options)
    group = options.get("n_samples_per_prompt", call.owner.args.rollout.n_samples_per_prompt)
    for reference in call.result:
        first = memory["sent"] * group
        memory["numbers"][reference.hex()] = list(range(first, first + group))
        memory["sent"] += 1


def answered(call: Call) -> None:
    """Keep one response of an engine: token ids, the range that the policy wrote, log-probabilities.

    Responses come in the order in which they are finished, those of a group together and in the group's order. The
    reference that they came by is known to OpenRLHF's loop only.
    """
    memory, response = call.job.memory, call.arguments["response"]
    if memory.get("evaluates") or not memory.get("numbers"):
        return
    reference = running_local("_generate_vllm", "ref").hex()
    waiting = memory["numbers"].get(reference)
    if not waiting:
        return
    sample = waiting.pop(0)
    if not waiting:
        del memory["numbers"][reference]
    if not response["action_ranges"]:
        return
    start, end = response["action_ranges"][0]
    ids, logprobs = list(response["observation_tokens"]), response["rollout_log_probs"]
    memory.setdefault("answers", []).append({
        "sample": sample, "prompt": ids[:start], "output": ids[start:end],
        "logprob": None if logprobs is None else list(logprobs[start:end]), "turns": len(response["action_ranges"]),
        "finish": "length" if response.get("truncated", False) else "stop", "coupled": DRAW in response,
        "seen": response.get(SEEN),
    })  # fmt: skip
    # Python may give the same `id()` to a later object, and a strong reference would keep a dropped sample alive:
    # hence a weak reference.
    memory.setdefault("known", []).append((weakref.ref(call.result), (call.step, sample)))


def generated(call: Call) -> None:
    """Record the samples of one batch of prompts, sorted by number, whatever the order in which they arrived."""
    memory = call.job.memory
    arrival = memory.pop("answers", [])
    _forget(memory)
    if not arrival:
        return
    rows = columns(sorted(arrival, key=lambda answer: answer["sample"]))
    samples, prompts, outputs, step = rows["sample"], rows["prompt"], rows["output"], call.step
    fields: dict[str, Any] = {
        "weight_version": step, "mode": "coupled" if all(rows["coupled"]) else "native", "guided": False,
        "finish": rows["finish"], "arrival": columns(arrival)["sample"],
    }  # fmt: skip
    if max(rows["turns"]) > 1:
        fields["uncompared"] = "later turns of a sample are not recorded: an environment wrote between them"
    # vLLM reports after its sampling parameters. The learner scores after the temperature too, so a temperature alone
    # leaves the two comparable.
    sampling = memory.get("sampling", {})
    processed = changed_by(sampling) and fields["mode"] == "native"
    if processed and only_tempered(sampling):
        fields["tempered"] = True
    elif processed:
        fields["ratio"] = True  # OpenRLHF asks for log-probabilities for its importance ratio alone
    logprobs = None if None in rows["logprob"] else rows["logprob"]
    meaning = "processed_logprob" if processed else "logprob"
    arrays = rollout_arrays(samples, prompts, outputs, logprobs, meaning=meaning)
    if any(rows["seen"]):
        arrays["prompt_seen"] = Ragged.of([list(token_ids or ()) for token_ids in rows["seen"]], "i4")
    call.recorder.frame("rollout", step=step, arrays=arrays, fields=fields)
    call.recorder.event("data", step=step, prompts=prompts_digest(prompts), samples=samples)
    record_boundaries(call, call.owner.tokenizer, step, zip(samples, prompts, outputs, rows["finish"], strict=True))


def experiencing(call: Call) -> None:
    """Keep the step and sample number of each row before the experience is made: OpenRLHF refers to rows by their
    position here.
    """
    memory = call.job.memory
    rows = call.arguments["rollout_samples"]
    # An id says which object it is only while the object lives, and the rows live until this call returns.
    pairs_by_id = {id(made): pair for pair in memory.get("known", []) if (made := pair[0]()) is not None}
    memory["places"] = [pairs_by_id.get(id(row), (None, None))[1] for row in rows]
    row_ids = {id(row) for row in rows}
    memory["known"] = [pair for place, pair in pairs_by_id.items() if place not in row_ids]


def experienced(call: Call) -> None:
    """Record the whole experience of a step."""
    places = call.job.memory.pop("places", [])
    rows: list[dict[str, Any]] = []
    unmatched: Counter[str] = Counter()
    sizes: list[int] = []
    padded = 0
    for batch in call.result:
        padded += batch.sequences.numel()
        sizes += batch.attention_mask.sum(dim=-1).tolist()
        values = _recorded_columns(batch)
        for row, place in enumerate(batch.index):
            step, sample = places[place] or (None, None)
            if step == call.step:
                rows.append({"sample": sample, **{name: column[row] for name, column in values.items()}})
            else:
                unmatched["no response was recorded of it" if step is None else "it was drawn in another step"] += 1
    first = call.result[0] if call.result else None
    if first is not None:
        tensors = {name: tensor for name, tensor in vars(first).items() if hasattr(tensor, "shape")}
        call.recorder.shapes(
            "experience", tensors, step=call.step, padded_tokens=padded, real_tokens=sum(sizes),
            longest=max(sizes, default=0), samples=len(sizes),
        )  # fmt: skip
    record_experience(call, rows, unmatched)


def _recorded_columns(batch: Any) -> dict[str, list[Any]]:
    """Return what is recorded of each row of a batch, without padding."""
    mask = batch.action_mask.bool()
    rewards = batch.info["reward"].float().tolist() if "reward" in batch.info else batch.rewards.float().tolist()
    recorded = {"reward": rewards, "tokens": unpadded(batch.sequences[:, 1:], mask)}
    for ours, theirs in _COLUMNS.items():
        values = getattr(batch, theirs)
        if values is not None:
            recorded[ours] = unpadded(values.detach().float().cpu(), mask)
    return recorded


def resuming(call: Call) -> None:
    """Take over the step of a checkpoint. A resumed run continues at that step and gives the engines those weights
    before its first samples.
    """
    first = int(call.result.get("global_step") or 0)
    if first:
        call.job.step, call.job.memory["resumed"] = first, True
        call.recorder.event("resume", step=first, path=str(call.owner.args.ckpt.path))


def training(call: Call) -> None:
    call.job.step = int(call.arguments["global_step"])


def synced(call: Call) -> None:
    """Record a weight sync that returned."""
    record_sync(call, _synced_version(call))


def not_synced(call: Call) -> None:
    """Record a weight sync that raised."""
    record_failed_sync(call, _synced_version(call))


def _synced_version(call: Call) -> int:
    return call.step + (0 if call.job.memory.pop("resumed", False) else 1)


def trained(call: Call) -> None:
    """Record OpenRLHF's metrics of a step, and begin the next step."""
    status, following = call.result
    metrics = {
        _METRICS.get(name, name): float(value) for name, value in status.items() if isinstance(value, (int, float))
    }
    record_metrics(call, call.step, metrics)
    call.job.step = int(following)


def _settings(args: Any) -> dict[str, Any]:
    """Flatten the nested arguments; the keys are their names on the command line."""
    flat: dict[str, Any] = {}

    def walk(value: Any, path: str) -> None:
        attributes = getattr(value, "__dict__", None)
        if attributes and not callable(value):
            for name, child in attributes.items():
                walk(child, f"{path}.{name}" if path else name)
        elif not path.startswith(WITHOUT_EFFECT):
            flat[path] = value

    walk(args, "")
    return dict(plain(flat))
