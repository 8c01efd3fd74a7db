"""Readers of verl's agent loops (one process draws several prompts and samples at once) and of its rollout servers."""

from __future__ import annotations

import os
import sys
from contextvars import ContextVar
from math import ceil
from typing import Any

from probes.adapters.adapter_values import (
    changed_by,
    columns,
    engine_version,
    finishes,
    is_new_mode,
    plain,
    record_boundaries,
    record_sampling,
    request_draw,
    request_sampling,
    rollout_arrays,
    vllm_resolved,
)
from probes.adapters.calls import Call, running_local
from probes.adapters.verl_engine import request_key
from probes.adapters.verl_values import comparable, configured_sampling, container, each, reports_raw, scalar
from probes.frames import Flat

STALE = 8  # steps after which an unfinished prompt is dropped

_trajectory: ContextVar[dict[str, Any] | None] = ContextVar("rlhf_harness_trajectory", default=None)
_requests: ContextVar[list[int] | None] = ContextVar("rlhf_harness_requests", default=None)


def looping(call: Call) -> None:
    """Assign positions in the step to a batch of prompts that arrives in an agent loop's process, keyed by uid."""
    batch, memory = call.arguments["batch"], call.job.memory
    config = call.owner.config
    if bool(scalar(batch, "validate", False)):
        return
    step = int(scalar(batch, "global_steps", 0)) - 1
    if memory.get("looped") != step:
        memory["looped"], memory["batches"], memory["places"], memory["bounded"] = step, 0, {}, 0
        done = memory.get("done", {})  # the samples of a failed prompt are never written
        memory["done"] = {uid: made for uid, made in done.items() if made[-1]["step"] > step - STALE}
    call.job.step = step
    # Each agent loop counts its prompts from its own share of the batch on, since loops do not know of each other.
    uids, size = each(batch, "uid"), int(config.data.train_batch_size)
    share = max(len(uids), ceil(size / int(config.actor_rollout_ref.rollout.agent.num_workers)))
    first = memory["batches"] * size + _loop_number() * share
    memory["batches"] += 1
    memory["places"].update({str(uid): first + place for place, uid in enumerate(uids)})


def entered(call: Call) -> None:
    """Note, for this asyncio task, which sample the following calls of `generate` belong to."""
    arguments = {**call.arguments, **call.arguments.get("kwargs", {})}
    trajectory, uid = arguments["trajectory"], str(arguments.get("uid", ""))
    group = int(call.owner.config.actor_rollout_ref.rollout.n)
    place = call.job.memory.get("places", {}).get(uid)
    if trajectory["validate"] or place is None:
        _trajectory.set(None)
        return
    _trajectory.set({
        "sample": place * group + int(arguments.get("session_id", 0)), "step": call.job.step, "turns": [],
        "uid": uid,
    })  # fmt: skip


def generating(call: Call) -> None:
    """Begin the list of request ids for one answer."""
    _requests.set([])


def named(call: Call) -> None:
    """Keep the id under which the engine will know a request."""
    requests = _requests.get()
    if requests is not None:
        # With rollout.full_determinism every request is named det-0, so requests cannot be matched to prompts.
        requests.append(-1 if str(call.result).startswith("det-") else request_key(str(call.result)))


def generated(call: Call) -> None:
    """Keep one answer of an engine: prompt ids, output ids, log-probabilities."""
    current = _trajectory.get()
    if current is None:
        return
    output, turns = call.result, current["turns"]
    prompt, made = list(call.arguments["prompt_ids"]), list(output.token_ids)
    logprob = None if output.log_probs is None else list(output.log_probs)
    if "prompt_logprobs" in call.arguments["sampling_params"]:  # a teacher that scores the student's samples
        return
    version = (output.extra_fields or {}).get("global_steps")
    # The rest of an interrupted answer is asked for with the tokens so far in the prompt. It is one answer, which two
    # weight versions may have drawn.
    if turns and _continues(turns[-1], prompt):
        last = turns[-1]
        last["output"] += made
        last["logprob"] = None if logprob is None or last["logprob"] is None else last["logprob"] + logprob
        last["reason"] = output.stop_reason or ""
        last["versions"].add(version)
        return
    requests, sampling_params = _requests.get(), call.arguments["sampling_params"]
    coupled, sampling = request_draw(sampling_params) is not None, request_sampling(sampling_params)
    if is_new_mode(call, mode := "coupled" if coupled else "native"):
        record_sampling(
            call, configured_sampling(container(call.owner.config.actor_rollout_ref.rollout)), sampling_params, mode
        )
    turns.append({
        "prompt": prompt, "output": made, "logprob": logprob, "reason": output.stop_reason or "", "versions": {version},
        "coupled": coupled, "sampling": sampling, "request": requests[0] if requests else -1,
    })  # fmt: skip


def _continues(turn: dict[str, Any], prompt: list[int]) -> bool:
    """Whether an engine that interrupted its answer goes on with it: the output grows, and no new turn begins."""
    return turn["reason"] in ("aborted", "abort") and prompt == turn["prompt"] + turn["output"]


def finished(call: Call) -> None:
    """Keep a finished sample until its whole group is finished."""
    current = _trajectory.get()
    if current is not None and current["turns"]:
        call.job.memory.setdefault("done", {}).setdefault(current["uid"], []).append(current)


def grouped(call: Call) -> None:
    """Record one frame with all samples of a prompt, once they are finished."""
    uid = str(call.arguments["prompt"]["uid"])
    done = sorted(call.job.memory.get("done", {}).pop(uid, []), key=lambda trajectory: trajectory["sample"])
    if not done:
        return
    tokenizer, config, step = call.owner.tokenizer, call.owner.config, done[0]["step"]
    first = [trajectory["turns"][0] for trajectory in done]
    turns, samples = columns(first), columns(done)["sample"]
    prompts, outputs = turns["prompt"], turns["output"]
    finish = _finish_reasons(outputs, turns["reason"], _ends(tokenizer, call.owner))
    coupled = all(turns["coupled"])
    rollout = container(config.actor_rollout_ref.rollout)
    meaning = _meaning(first, rollout, coupled=coupled)
    fields = {
        "weight_version": _weight_version(first, step), "mode": "coupled" if coupled else "native", "guided": False,
        "finish": finish, **_uncompared(done, config), **_processed(meaning, turns["sampling"], rollout, config),
    }  # fmt: skip
    logprobs = turns["logprob"] if meaning and None not in turns["logprob"] else None
    arrays = rollout_arrays(samples, prompts, outputs, logprobs, meaning=meaning or "logprob")
    arrays["request"] = Flat.of(turns["request"], "i8")  # matches the `seen` frames of the engine
    call.recorder.frame("rollout", step=step, arrays=arrays, fields=fields)
    record_boundaries(call, tokenizer, step, zip(samples, prompts, outputs, finish, strict=True))


def _finish_reasons(outputs: list[list[int]], reasons: list[str], ends: set[int]) -> list[str]:
    """Why each output ended. Both engines report "completed" for an end token and for the limit; the tokens tell."""
    ordinary = ("", "completed", "stop", "length")
    pairs = zip(finishes(outputs, ends), reasons, strict=True)
    return [by_tokens if reason in ordinary else reason for by_tokens, reason in pairs]


def _uncompared(trajectories: list[dict[str, Any]], config: Any) -> dict[str, str]:
    """The field that says why these samples are not compared; empty if they are."""
    if any(len(trajectory["turns"]) > 1 for trajectory in trajectories):
        return {"uncompared": "later turns of a sample are not recorded: tools or an environment wrote between them"}
    if _correction(config, "rollout_rs"):
        return {"uncompared": "rollout_correction.rollout_rs hides the tokens that it rejects from the loss"}
    return {}


def _processed(meaning: str, sampling: list[dict[str, Any]], rollout: dict[str, Any], config: Any) -> dict[str, bool]:
    """The field that says what log-probabilities after sampling's changes are compared with; empty if with nothing."""
    engine = str(rollout.get("name"))
    if meaning != "processed_logprob":
        return {}
    if all(comparable(of_request, engine) for of_request in sampling):
        return {"tempered": True}
    return {"ratio": True} if engine == "vllm" and _correction(config, "rollout_is") else {}


def _weight_version(turns: list[dict[str, Any]], step: int) -> int | None:
    """Return the weight version that drew these turns; None where several did. An engine that names none has drawn
    with the version of the step.
    """
    versions = {version for turn in turns for version in turn["versions"] if version is not None} or {step}
    return versions.pop() if len(versions) == 1 else None


def _meaning(turns: list[dict[str, Any]], rollout: dict[str, Any], *, coupled: bool) -> str:
    """Return the name of the array for the log-probabilities of these answers, by the sampling of their requests.

    verl's learner scores after the temperature. The model's own, before it, have no counterpart then: "".
    """
    changes = {name for turn in turns for name in changed_by(turn["sampling"])}
    if not changes:
        return "logprob"
    if not coupled and not reports_raw(rollout, str(rollout.get("name"))):
        return "processed_logprob"
    return "" if "temperature" in changes else "logprob"


def _correction(config: Any, name: str) -> bool:
    """Whether verl corrects by the engine's log-probabilities: `rollout_is` by a ratio, `rollout_rs` by rejection."""
    algorithm = getattr(config, "algorithm", None)
    return bool(getattr(getattr(algorithm, "rollout_correction", None), name, None))


def vllm_started(call: Call) -> None:
    """Record the engine's configuration as vLLM resolved it."""
    _engine(call, "vllm", vllm_resolved(call.owner.engine.vllm_config))


def sglang_started(call: Call) -> None:
    """Record the engine's arguments as SGLang resolved them."""
    args = call.owner.tokenizer_manager.server_args
    names = {
        "dtype": "dtype", "context_length": "max_model_len", "random_seed": "seed",
        "disable_cuda_graph": "enforce_eager",
        "max_running_requests": "max_num_seqs", "mem_fraction_static": "mem_fraction_static", "device": "device",
        "tp_size": "tensor_parallel_size", "attention_backend": "attention_backend",
        "sampling_backend": "sampling_backend", "chunked_prefill_size": "chunked_prefill_size",
    }  # fmt: skip
    resolved = {ours: getattr(args, theirs, None) for theirs, ours in names.items()}
    resolved["prefix_caching"] = not getattr(args, "disable_radix_cache", False)
    resolved["chunked_prefill"] = (getattr(args, "chunked_prefill_size", None) or -1) > 0
    _engine(call, "sglang", resolved)


# Canonical name -> verl's setting. What verl passes on, and under which name, is in the engine's own arguments.
_SETTINGS = {
    "dtype": "dtype", "enforce_eager": "enforce_eager", "max_model_len": "max_model_len",
    "max_num_seqs": "max_num_seqs", "memory_fraction": "gpu_memory_utilization",
    "prefix_caching": "enable_prefix_caching", "chunked_prefill": "enable_chunked_prefill",
}  # fmt: skip


def vllm_starting(call: Call) -> None:
    """Keep the arguments with which verl starts vLLM."""
    call.job.memory["arguments"] = plain(call.arguments["config"])


def sglang_starting(call: Call) -> None:
    """Keep the arguments with which verl starts SGLang: its own record of them has defaults beside them."""
    call.job.memory["arguments"] = plain(running_local("launch_server", "args"))


_OTHER_SERVERS = ("server_reward_", "server_teacher_")  # servers of the same class that are not the engine that draws


def _engine(call: Call, engine: str, resolved: dict[str, Any]) -> None:
    """Record the engine: what was requested under verl's and canonical names, what verl passed on, and what was
    resolved.
    """
    if any(part in _actor_name() for part in _OTHER_SERVERS):
        return
    rollout = call.owner.config
    settings = {name: getattr(rollout, theirs, None) for name, theirs in _SETTINGS.items()}
    seed = getattr(rollout, "seed", None)
    settings["seed"] = None if seed is None else seed + call.owner.replica_rank  # as verl counts them
    call.recorder.event(
        "engine_info", engine=engine, version=engine_version(engine), asked=call.job.memory.pop("arguments", {}),
        canonical={name: value for name, value in plain(settings).items() if value is not None},
        resolved=plain(resolved), replaced=[], pids=[os.getpid()],
    )  # fmt: skip
    call.recorder.environment()


def _loop_number() -> int:
    """Return the number of this process among the agent loops, from its actor's name."""
    digits = _actor_name().removeprefix("agent_loop_worker_").partition("_")[0]
    return int(digits) if digits.isdigit() else 0


def _actor_name() -> str:
    ray: Any = sys.modules.get("ray")
    name = ray.get_runtime_context().get_actor_name() if ray is not None and ray.is_initialized() else ""
    return name or ""


def _ends(tokenizer: Any, worker: Any) -> set[int]:
    config = getattr(getattr(worker, "model_config", None), "generation_config", None)
    model_ends = getattr(config, "eos_token_id", None)
    more = model_ends if isinstance(model_ends, (list, tuple)) else [model_ends]
    return {token for token in (*more, tokenizer.eos_token_id) if token is not None}
