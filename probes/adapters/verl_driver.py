"""Readers of verl's driver, TaskRunnerV1: the configuration, the whole experience of a step, metrics, weight syncs."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from typing import Any

from probes.adapters.adapter_values import (
    plain,
    prompts_digest,
    record_experience,
    record_failed_sync,
    record_metrics,
    record_sync,
    tokenizer_fields,
    unpadded,
)
from probes.adapters.calls import Call
from probes.adapters.verl_values import comparable, configured_sampling, container, each, processed, reports_raw
from probes.draws import COUPLED

# Prefixes of settings that do not affect numbers: where results are written and how they are reported. `harness
# doctor --against` leaves them out as well.
WITHOUT_EFFECT = (
    "trainer.logger", "trainer.project_name", "trainer.experiment_name", "trainer.default_local_dir",
    "trainer.rollout_data_dir", "trainer.validation_data_dir", "trainer.log_val_generations", "trainer.save_freq",
    "trainer.default_hdfs_dir", "trainer.resume", "trainer.max_", "global_profiler", "transfer_queue", "ray_kwargs",
    "skip.",
)  # fmt: skip
_ASIDE = (
    *WITHOUT_EFFECT,
    # Engine settings, which a comparison of engines may change. Seeds are recorded as `seeds`.
    "actor_rollout_ref.rollout.name", "actor_rollout_ref.rollout.engine_kwargs", "actor_rollout_ref.rollout.seed",
    "data.seed",
)  # fmt: skip
# `inference.name`, the engine of a teacher, follows rollout.name.
_ASIDE_ANYWHERE = ("profiler", "prometheus", "trace", "_target_", "disable_log_stats", "inference.name")
# Prefix of the uid of synthetic rows with which verl fills a batch (`upsample_batch_to_divisible_size`). They have no
# loss.
_FILLING = "pad"
# Columns of an experience -> verl's names.
_COLUMNS = {
    "actor_logprob": "old_log_probs", "reference_logprob": "ref_log_prob", "value": "values",
    "advantage": "advantages", "return": "returns",
}  # fmt: skip
_METRICS = {
    "critic/score/mean": "reward_mean", "actor/kl_loss": "kl_mean", "actor/pg_loss": "policy_loss",
    "critic/vf_loss": "value_loss", "actor/entropy": "entropy", "actor/pg_clipfrac": "clip_fraction",
    "actor/grad_norm": "grad_norm", "response_length/mean": "length_mean", "response_length/max": "length_max",
    "response_length/clip_ratio": "truncated_fraction", "perf/time_per_step": "seconds",
}  # fmt: skip


def configured(call: Call) -> None:
    """Record the whole configuration as hydra resolved it, after the trainer was made."""
    config = container(call.arguments["config"])
    rollout, data = config["actor_rollout_ref"]["rollout"], config["data"]
    engine = rollout["name"]
    sampling, mode = configured_sampling(rollout), "coupled" if os.environ.get(COUPLED) else "native"
    scenario = {
        "name": f"verl {config['algorithm']['adv_estimator']}", "seed": data.get("seed") or 0, "train": True,
        "guided": False, "steps": config["trainer"].get("total_training_steps"),
        "model": {"path": config["actor_rollout_ref"]["model"]["path"], "dtype": _learner_dtype(config)},
        "rollout": {
            "mode": mode, "prompts_per_step": data["train_batch_size"], "samples_per_prompt": rollout["n"],
        },
        "sampling": sampling,
    }  # fmt: skip
    engine_kwargs = (rollout.get("engine_kwargs") or {}).get(engine) or {}
    seeds = {
        "data": data.get("seed"),
        "engine": rollout["seed"] if engine == "vllm" else engine_kwargs.get("random_seed"),
    }
    correction = config["algorithm"].get("rollout_correction") or {}
    call.job.memory["bypass"] = bool(correction.get("bypass_mode"))
    missing = _missing_logprobs(rollout, sampling, engine, mode)
    if call.job.memory["bypass"]:
        missing["actor_logprob"] = "with rollout_correction.bypass_mode the learner takes its engine's"
    if not call.job.digests:
        missing["weights"] = "digests of weights were not asked for (--digests)"
    elif (processes := int(config["trainer"]["n_gpus_per_node"]) * int(config["trainer"]["nnodes"])) != 1:
        missing["weights"] = f"the actor is sharded over {processes} processes: none of them holds its weights"
    call.configuration(scenario, _settings(config), backend=engine, seeds=seeds, mode=mode, missing=missing)
    call.recorder.environment()


def _missing_logprobs(rollout: dict[str, Any], sampling: dict[str, Any], engine: str, mode: str) -> dict[str, str]:
    """Why the engine's log-probabilities are not those that its learner computes; {} where they are."""
    why = ""
    if not rollout.get("calculate_log_probs"):
        why = "rollout.calculate_log_probs is off"
    elif mode == "native" and processed(sampling, rollout, engine) and not comparable(sampling, engine):
        why = "verl asks its engines for log-probabilities after temperature, top-k and the like"
        why += " (recorded as processed_logprob)"
    if (mode == "coupled" or reports_raw(rollout, engine)) and float(rollout["temperature"]) != 1.0:
        why = "verl's learner scores after the temperature, this engine reports what is before it"
    return {"logprob": why} if why else {}


def resuming(call: Call) -> None:
    """Record the step at which a resumed run continues. It gives the engines those weights before its first samples."""
    if first := int(call.owner.global_steps):
        call.recorder.event("resume", step=first, path=str(call.owner.config.trainer.default_local_dir))


def tokenized(call: Call) -> None:
    """Record the trainer's tokenizer."""
    call.recorder.event("tokenizer", **tokenizer_fields(call.owner.tokenizer))


def driving(call: Call) -> None:
    """Take over the driver's step."""
    call.job.step = int(call.owner.global_steps) - 1


def submitted(call: Call) -> None:
    """Assign positions in the step to the prompts that go to the agent loops, keyed by uid."""
    batch, memory = call.arguments["batch"], call.job.memory
    step = int(call.owner.global_steps) - 1
    # A step may be submitted in several batches: positions go on from one to the next.
    if memory.get("submitted") != step:
        memory["submitted"], memory["batches"], memory["places"] = step, 0, {}
    size = int(call.owner.config.data.train_batch_size)
    first = memory["batches"] * size
    memory["batches"] += 1
    for place, uid in enumerate(each(batch, "uid")):
        memory["places"][str(uid)] = first + place
    memory["group"] = int(call.owner.config.actor_rollout_ref.rollout.n)


def advantaged(call: Call) -> None:
    """Keep log-probabilities, rewards and advantages of a step under verl's keys; `collected` adds the tokens."""
    data = call.result.batch
    names = list(data.keys())
    masks = data["response_mask"].bool().tolist()
    rewards = data["token_level_scores"].sum(dim=-1).tolist()
    columns = {
        ours: unpadded(data[theirs].detach().float().cpu(), data["response_mask"].bool())
        for ours, theirs in _COLUMNS.items()
        if theirs in names and not (ours == "actor_logprob" and call.job.memory.get("bypass"))
    }
    memory = call.job.memory
    if memory.get("estimated") != call.step:  # drop what was not collected in an earlier step
        memory["estimated"], memory["experience"] = call.step, {}
    waiting = memory.setdefault("experience", {})
    for row, key in enumerate(call.arguments["batch_keys"]):
        waiting[str(key)] = {"reward": rewards[row], **{name: rows[row] for name, rows in columns.items()}}
    lengths = [sum(row) for row in masks]
    call.recorder.shapes(
        "experience", {name: data[name] for name in names if hasattr(data[name], "shape")}, step=call.step,
        padded_tokens=sum(map(len, masks)), real_tokens=sum(lengths), longest=max(lengths, default=0),
        samples=len(lengths),
    )  # fmt: skip


def collected(call: Call) -> None:
    """Record the whole experience, once verl fetches the responses of a step for its metrics."""
    memory, data = call.job.memory, call.result
    places, group = memory.get("places", {}), memory.get("group", 1)
    waiting = memory.pop("experience", {})
    prompts, responses, masks = (_rows(data[name]) for name in ("prompts", "responses", "response_mask"))
    made: list[dict[str, Any]] = []
    unmatched: Counter[str] = Counter()
    for row, key in enumerate(call.arguments["keys"]):
        uid, session, turn = str(key).rsplit("_", 2)
        if uid.startswith(_FILLING):
            continue
        experience = waiting.get(str(key))
        if why := _unmatched(uid in places, turn, experience):
            unmatched[why] += 1
            continue
        # The loss covers what the mask keeps. Tokens of tools and padding were not drawn.
        tokens = [token for token, trained in zip(responses[row], masks[row], strict=True) if trained]
        made.append(
            {"sample": places[uid] * group + int(session), "tokens": tokens, "prompt": prompts[row], **experience}
        )
    if made:
        by_sample = sorted(made, key=lambda row: row["sample"])
        digest, numbers = prompts_digest([row["prompt"] for row in by_sample]), [row["sample"] for row in by_sample]
        call.recorder.event("data", step=call.step, prompts=digest, samples=numbers)
    # The order of training: verl balances the samples by length, from their order of arrival.
    record_experience(call, made, unmatched)


def _unmatched(submitted: bool, turn: str, experience: Mapping[str, Any] | None) -> str:
    """Return why a row that was trained on has no sample of its step; "" where it has one."""
    if not submitted:
        return "its prompt was submitted in another step"
    if turn != "0":
        return "it is a later turn of a sample"
    return "" if experience is not None else "its advantages were not seen"


def measured(call: Call) -> None:
    """Record verl's metrics of a step."""
    reported_metrics = {key: float(value) for key, value in call.arguments["metrics"].items() if _number(value)}
    metrics = {_METRICS.get(key, key): value for key, value in reported_metrics.items()}
    record_metrics(call, call.step, metrics)


def syncing(call: Call) -> None:
    """Keep the version that the engines are about to get."""
    version = call.arguments.get("global_steps")
    call.job.memory["version"] = None if version is None else int(version)


def synced(call: Call) -> None:
    """Record a weight sync that returned."""
    version = call.job.memory.get("version")
    if version is None:  # for a validation: the same weights are sent again
        call.recorder.event("note", text="weights were sent without a version: what arrives later is counted wrong")
        return
    record_sync(call, version)


def not_synced(call: Call) -> None:
    """Record a weight sync that raised."""
    version = call.job.memory.get("version")
    if version is not None:
        record_failed_sync(call, version)


def _learner_dtype(config: dict[str, Any]) -> str | None:
    """Return the dtype in which the actor computes, the coarsest rounding of a run: bfloat16 unless configured
    otherwise.
    """
    actor = config["actor_rollout_ref"]["actor"]
    if actor.get("strategy") not in ("fsdp", "fsdp2"):
        return None
    dtype_name = (actor["fsdp_config"].get("mixed_precision") or {}).get("param_dtype") or "bf16"
    return {"bf16": "bfloat16", "fp32": "float32", "fp16": "float16"}.get(str(dtype_name), str(dtype_name))


def _settings(config: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}

    def walk(value: Any, path: str) -> None:
        if isinstance(value, dict) and value:
            for name, child in value.items():
                walk(child, f"{path}.{name}" if path else str(name))
        elif not path.startswith(_ASIDE) and not any(part in path for part in _ASIDE_ANYWHERE):
            flat[path] = value

    walk(plain(config, depth=12), "")
    return flat


def _rows(values: Any) -> list[list[int]]:
    """Return the rows of a jagged or a padded tensor."""
    return [row.tolist() for row in (values.unbind() if getattr(values, "is_nested", False) else values)]


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) or (hasattr(value, "item") and getattr(value, "ndim", 1) == 0)
