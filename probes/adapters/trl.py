"""TRL's GRPO: each rank is a plain process that generates, scores and trains.

It generates with Transformers, or with vLLM in the same process or on a server. A step is an optimiser step
(`state.global_step`). A sample's number is its position in the step: batches that were generated within one step
follow each other, each batch in the order of the ranks, and the samples of a group are adjacent.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from probes import weights
from probes.adapters.adapter_values import (
    canonical_sampling,
    changed_by,
    engine_version,
    finishes,
    lists,
    only_tempered,
    plain,
    prompts_digest,
    record_boundaries,
    record_failed_sync,
    record_metrics,
    rollout_arrays,
    tokenizer_fields,
    unpadded,
    vllm_requested,
    vllm_resolved,
)
from probes.adapters.calls import Call
from probes.adapters.loaders import check_digested, record_received, restore_loader, wrap_loader
from probes.adapters.merged_weights import is_adapted, merged_weights, sent_weights
from probes.adapters.table import Adapter, Hook
from probes.draws import COUPLED, DRAWN, SEEN
from probes.frames import Flat, Ragged

TRAINER = "trl.trainer.grpo_trainer:GRPOTrainer"
VLLM = "trl.generation.vllm_generation:VLLMGeneration"
STEP = "self.state.global_step"

# Prefixes of settings that do not affect numbers: where results are written, how often they are reported, the name of
# the job. `harness doctor --against` leaves them out as well.
WITHOUT_EFFECT = (
    "output_dir", "run_name", "project", "trackio_", "hub_", "push_to_hub", "report_to", "logging_", "log_", "save_",
    "eval_on_start", "disable_tqdm", "num_completions_to_print", "load_best_model_at_end", "skip_memory_metrics",
    "include_", "local_rank", "ddp_timeout", "resume_from_checkpoint",
)  # fmt: skip
# Prefixes of engine settings, which a comparison of engines may change. Seeds are recorded as `seeds`.
_ENGINE = ("use_vllm", "vllm_", "use_transformers_", "transformers_", "cache_implementation")
_SEEDS = ("seed", "data_seed")
# Sampling parameters that TRL has settings of its own for.
_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
_METRICS = {
    "reward": "reward_mean", "kl": "kl_mean", "loss": "policy_loss", "entropy": "entropy", "grad_norm": "grad_norm",
    "clip_ratio/region_mean": "clip_fraction", "completions/mean_length": "length_mean",
    "completions/max_length": "length_max", "completions/clipped_ratio": "truncated_fraction",
    "step_time": "seconds",
}  # fmt: skip


def configured(call: Call) -> None:
    """Record the resolved settings, the sampling, the engine and the tokenizer, after the trainer was made."""
    trainer, args = call.owner, call.owner.args
    all_settings = {name: value for name, value in plain(args.to_dict()).items() if not name.startswith(WITHOUT_EFFECT)}
    engine = {name: value for name, value in all_settings.items() if name.startswith(_ENGINE)}
    settings = {name: value for name, value in all_settings.items() if name not in engine and name not in _SEEDS}
    sampling = _sampling(trainer)
    samples = args.per_device_train_batch_size * args.steps_per_generation * trainer.accelerator.num_processes
    mode = "coupled" if os.environ.get(COUPLED) and _colocated(trainer) else "native"
    scenario = {
        "name": "trl grpo", "seed": args.seed, "train": True, "guided": False,
        "model": {"path": str(trainer.model.name_or_path), "dtype": str(trainer.model.dtype).removeprefix("torch.")},
        "rollout": {
            "mode": mode, "prompts_per_step": samples // trainer.num_generations,
            "samples_per_prompt": trainer.num_generations,
        },
        "sampling": sampling, "rollout_engine": engine,
        **({"steps": args.max_steps} if args.max_steps > 0 and _generates_each_step(args) else {}),
    }  # fmt: skip
    seeds = {"trainer": args.seed, "data": args.data_seed if args.data_seed is not None else args.seed}
    if _colocated(trainer):
        seeds["engine"] = trainer.accelerator.process_index // trainer.vllm_generation.tensor_parallel_size
    # Digests need the whole weights in one process.
    call.job.memory["whole"] = not _sharded(trainer)
    backend = _backend(trainer)
    missing = _missing(trainer, digests=call.job.digests)
    call.configuration(scenario, settings, backend=backend, seeds=seeds, mode=mode, missing=missing)
    call.recorder.event("sampling", canonical=sampling, native=plain(_native_sampling(trainer)), mode=mode)
    requested = call.job.memory.pop("requested", {})
    call.recorder.event("engine_info", **_engine(trainer, backend, requested), replaced=[], pids=[os.getpid()])
    call.recorder.event("tokenizer", **tokenizer_fields(trainer._tokenizer))
    call.recorder.environment()  # again: now torch is loaded


def _missing(trainer: Any, *, digests: bool) -> dict[str, str]:
    """What this job cannot record, and why."""
    missing = {}
    if not trainer.use_vllm:
        missing["logprob"] = "Transformers' generate gives TRL no log-probabilities"
    elif _changed(trainer) and not _comparable(trainer):
        missing["logprob"] = "TRL asks vLLM for log-probabilities after temperature, top-k and the like"
        missing["logprob"] += " (recorded as processed_logprob)"
    if not digests:
        missing["weights"] = "digests of weights were not asked for (--digests)"
    elif _sharded(trainer):
        missing["weights"] = "the model is sharded: no process holds its weights"
    if not _colocated(trainer):
        missing["received"] = "only a vLLM of this process gives digests of the weights that it received"
    return missing


def requesting(call: Call) -> None:
    """Keep what a vLLM of this process is started with."""
    call.job.memory["requested"] = plain(call.keywords)


def beginning(call: Call) -> None:
    """Keep the checkpoint from which training resumes."""
    checkpoint = call.arguments.get("resume_from_checkpoint")
    call.job.memory["resumes"] = checkpoint or None


def generating(call: Call) -> None:
    """Record digests of the weights that will draw the next batch; before the first batch, where a resumed run
    continues.
    """
    trainer, memory = call.owner, call.job.memory
    memory["evaluates"] = not trainer.model.training
    if memory["evaluates"]:
        return
    checkpoint = memory.pop("resumes", None)
    if checkpoint is not None:
        path = f"the last one in {trainer.args.output_dir}" if checkpoint is True else str(checkpoint)
        call.recorder.event("resume", step=call.step, path=path)
    if memory.get("step") != call.step:
        memory["step"], memory["drawn"] = call.step, 0
    if not (trainer.use_vllm and is_adapted(trainer.model)):  # each sync merges an adapter anew
        _digested(call, trainer.accelerator.unwrap_model(trainer.model))


def generated(call: Call) -> None:
    """Record a batch of samples as TRL keeps them: prompts, completions, and vLLM's log-probabilities."""
    trainer, memory = call.owner, call.job.memory
    if memory["evaluates"]:
        return
    prompts, outputs, tool_mask, _, logprobs = call.result[:5]
    prompts, outputs = lists(prompts), lists(outputs)
    # Sample numbers count over all ranks of a batch, and on over the batches of a step (see the module's docstring).
    rank, world = trainer.accelerator.process_index, trainer.accelerator.num_processes
    first = memory["drawn"] + rank * len(outputs)
    memory["drawn"] += world * len(outputs)
    samples = list(range(first, first + len(outputs)))
    ends = [*trainer.eos_token_ids, trainer._tokenizer.pad_token_id]
    finish = finishes(outputs, ends)
    mode = "coupled" if _noted(trainer, DRAWN) else "native"
    fields = {"weight_version": call.step, "mode": mode, "guided": False, "finish": finish}
    if tool_mask is not None:
        fields["uncompared"] = "tools or an environment wrote a part of these outputs"
    elif getattr(trainer, "mask_truncated_completions", False):
        fields["uncompared"] = "mask_truncated_completions hides the tokens of truncated samples from the loss"
    # TRL's learner scores after the temperature. So what vLLM's log-probabilities mean decides whether they have a
    # counterpart there, and the frame has to say it.
    changed = _changed(trainer)
    if changed and mode == "coupled":
        logprobs = None  # raw ones, of which TRL's learner has no counterpart
    elif _comparable(trainer):
        fields["tempered"] = True
    elif changed and _in_ratio(trainer):
        fields["ratio"] = True
    meaning = "processed_logprob" if changed else "logprob"
    arrays = rollout_arrays(samples, prompts, outputs, logprobs, meaning=meaning)
    prompts_seen = _noted(trainer, SEEN)
    if prompts_seen is not None and len(prompts_seen) == len(samples) and tool_mask is None:
        arrays["prompt_seen"] = Ragged.of(prompts_seen, "i4")
    call.recorder.frame("rollout", step=call.step, arrays=arrays, fields=fields)
    memory["bounded"] = 0
    rows = zip(samples, prompts, outputs, finish, strict=True)
    record_boundaries(call, trainer._tokenizer, call.step, rows)
    call.recorder.event("data", step=call.step, prompts=prompts_digest(prompts), samples=samples)
    memory["batch"] = {"samples": samples, "step": call.step}
    memory["sizes"] = [len(a) + len(b) for a, b in zip(prompts, outputs, strict=True)]


def rewarded(call: Call) -> None:
    """Keep the rewards of this process's samples for the frame. The call returns those of every process, weighted
    here as TRL does.
    """
    trainer, memory = call.owner, call.job.memory
    if not memory["evaluates"]:
        weighted_rewards = call.result * trainer.reward_weights.to(call.result.device).unsqueeze(0)
        weighted = weighted_rewards.nansum(dim=1)
        weighted[weighted_rewards.isnan().all(dim=1)] = float("nan")  # no reward function scored this sample
        count = len(memory["batch"]["samples"])
        first = trainer.accelerator.process_index * count
        memory["batch"]["rewards"] = weighted[first : first + count].tolist()


def scored(call: Call) -> None:
    """Record the shapes of the experience before it is shuffled and cut into batches, and keep each row's sample."""
    memory = call.job.memory
    if memory["evaluates"]:
        return
    made, batch = call.result, memory["batch"]
    tensors = {name: value for name, value in made.items() if hasattr(value, "shape")}
    padded = made["prompt_ids"].numel() + made["completion_ids"].numel()
    sizes = memory["sizes"]
    call.recorder.shapes(
        "experience", tensors, step=call.step, padded_tokens=padded, real_tokens=sum(sizes), longest=max(sizes),
        samples=len(sizes),
    )  # fmt: skip
    memory["rows"] = [
        (batch["step"], sample, reward) for sample, reward in zip(batch["samples"], batch["rewards"], strict=True)
    ]


def shuffling(call: Call) -> None:
    """Keep the state of the random numbers with which the samples are about to be shuffled."""
    call.job.memory["random_state"] = sys.modules["torch"].get_rng_state()


def shuffled(call: Call) -> None:
    """Put the rows of the experience into the order in which they were shuffled."""
    memory, torch = call.job.memory, sys.modules["torch"]
    rows, state = memory.pop("rows", []), memory.pop("random_state")
    generator = torch.Generator()
    generator.set_state(state)
    order = torch.randperm(len(rows), generator=generator)
    before, after = (samples["completion_ids"].cpu() for samples in (call.arguments["seq_dict"], call.result))
    if not torch.equal(before[order], after):
        raise LookupError("the samples were shuffled in another way")
    memory["shuffled"] = [rows[place] for place in order.tolist()]
    memory["waiting"] = set(range(len(rows)))  # places that no loss has used yet


def scoring(call: Call) -> None:
    """Name the forward pass: of the reference model, or of the policy."""
    reference = getattr(call.owner, "ref_model", None)
    if reference is not None and call.arguments["model"] is reference:
        call.name = "reference_forward"


def losing(call: Call) -> None:
    """Note, before a loss, whether any sample still needs its first one. If none does, nothing is kept or read."""
    memory = call.job.memory
    memory.pop("logps", None)  # left over from a loss that raised
    memory["wanted"] = bool(memory.get("waiting")) and not memory.get("evaluates", True)


def forwarded(call: Call) -> None:
    """Keep the log-probabilities of a batch for its loss, detached from the autograd graph."""
    if call.name == "actor_forward" and call.job.memory.get("wanted"):
        call.job.memory["logps"] = call.result[0].detach()


def trained(call: Call) -> None:
    """Record the inputs of one loss as a part of the step's experience, only the first time that a sample is used.

    Reading waits for the device: at most seven transfers, and none once every sample was taken (in later passes).
    """
    memory = call.job.memory
    wanted, logps = memory.pop("wanted", False), memory.pop("logps", None)
    if not wanted or logps is None:
        return
    trainer, inputs = call.owner, call.arguments["inputs"]
    mask = inputs["completion_mask"].cpu()
    outputs = unpadded(inputs["completion_ids"], mask)
    # TRL cuts the shuffled samples into batches, and takes the same batch again in each pass over them.
    first = trainer._step % trainer.args.steps_per_generation * len(outputs)
    matches = memory["shuffled"][first : first + len(outputs)]
    rows = [row for row in range(len(outputs)) if first + row in memory["waiting"]]
    memory["waiting"].difference_update(first + row for row in rows)
    if not rows:
        return
    # Without old log-probabilities the loss takes those of this pass: the policy has not moved yet.
    old = inputs.get("old_per_token_logps")
    columns = {"actor_logprob": logps if old is None else old, "reference_logprob": inputs.get("ref_per_token_logps")}
    advantages = _of_each_token(inputs["advantages"].detach().cpu().reshape(len(outputs), -1), outputs, mask)
    arrays: dict[str, Flat | Ragged] = {
        "sample": Flat.of([matches[row][1] for row in rows], "i8"),
        "reward": Flat.of([matches[row][2] for row in rows], "f4"),
        "tokens": Ragged.of([outputs[row] for row in rows], "i4"),
        "advantage": Ragged.of([advantages[row] for row in rows], "f4"),
    }
    for name, values in columns.items():
        if values is not None:
            kept = unpadded(values.detach().float().cpu(), mask)
            arrays[name] = Ragged.of([kept[row] for row in rows], "f4")
    step = matches[rows[0]][0]
    call.recorder.frame("experience", step=step, arrays=arrays, fields={"weight_version": step})


def _of_each_token(advantages: Any, outputs: list[list[int]], mask: Any) -> list[list[float]]:
    """The advantages of each output's tokens: TRL has one for a sample, or one for each padded position."""
    if advantages.shape[1] != 1:
        return unpadded(advantages, mask)
    return [row * len(output) for row, output in zip(advantages.tolist(), outputs, strict=True)]


def logged(call: Call) -> None:
    """Record TRL's metrics of a step."""
    logs = call.arguments["logs"]
    metrics = {name: logs[key] for key, name in _METRICS.items() if isinstance(logs.get(key), (int, float))}
    other_metrics = {
        key: value for key, value in logs.items() if key not in _METRICS and isinstance(value, (int, float))
    }
    if metrics:
        record_metrics(call, call.step - 1, {**other_metrics, **metrics})


def syncing(call: Call) -> None:
    """Wrap the loader of a colocated vLLM, so that the digest of each tensor that it loads is taken from now on. Of an
    adapter, record the digests of the merged weights: merging and taking apart again rounds the base.
    """
    engine, memory = getattr(call.owner, "llm", None), call.job.memory
    if is_adapted(call.owner.model):
        memory.pop("digested", None)
        _digested(call, call.owner.model)
    if not call.job.digests or engine is None:
        return
    model = engine.llm_engine.model_executor.driver_worker.model_runner.model
    if memory.get("hand", (None,))[0] is not model:
        restore_loader(memory)
        wrap_loader(call, model)


def synced(call: Call) -> None:
    """Record a weight sync to vLLM. Of a server nothing is known of what arrived, so every tensor counts as
    unreported. A tensor that a colocated vLLM was not sent counts as absent.
    """
    sent = {weight.name: weight.parameter for weight in sent_weights(call.owner.model)}
    passed = call.job.memory.get("passed")
    without_digest = [name for name in sent if name not in (passed or ())]
    comparable = passed is not None and call.job.memory.get("whole", True)
    call.recorder.event(
        "sync", step=call.step, version=call.step, ok=True, message="", seconds=call.seconds, tensors=len(sent),
        bytes=sum(tensor.numel() * tensor.element_size() for tensor in sent.values()), mismatched=[],
        absent=without_digest if comparable else [], unreported=[] if comparable else without_digest,
    )  # fmt: skip


def not_synced(call: Call) -> None:
    """Record a weight sync that raised."""
    record_failed_sync(call, call.step)


def drew(call: Call) -> None:
    """Record the digests of what a colocated vLLM loaded since it last drew, in a sync or otherwise."""
    passed = call.job.memory.get("passed")
    check_digested(call.job.memory)
    if passed:
        record_received(call, call.step, dict(passed))
        passed.clear()


def saved(call: Call) -> None:
    folder = call.owner._get_output_dir(trial=call.arguments["trial"])
    call.recorder.event("checkpoint", step=call.step, path=os.path.join(folder, f"checkpoint-{call.step}"))


def ended(call: Call) -> None:
    """Record digests of the weights after the last update."""
    call.job.step = int(call.owner.state.global_step)
    _digested(call, call.owner.accelerator.unwrap_model(call.owner.model))


def _digested(call: Call, model: Any) -> None:
    """Record digests of the policy's weights as they are sent, and of the update that made them, where they were asked
    for.
    """
    memory, version = call.job.memory, call.step
    if not call.job.digests or memory.get("digested") == version or not memory.get("whole"):
        return
    memory["digested"] = version
    digests = weights.digests(merged_weights(model))
    call.recorder.weights(step=version - 1, version=version, digests=digests, source="learner")
    if version and memory.get("learned") != version:
        memory["learned"] = version
        call.recorder.event("learner", step=version - 1, actor=weights.combine(digests))


def _sharded(trainer: Any) -> bool:
    return bool(getattr(trainer, "is_fsdp_enabled", False) or getattr(trainer, "is_deepspeed_enabled", False))


def _generates_each_step(args: Any) -> bool:
    return bool(args.steps_per_generation * args.num_iterations == args.gradient_accumulation_steps)


def _sampling(trainer: Any) -> dict[str, Any]:
    """Return the sampling parameters that the engine is given. A parameter that was not set is left out: the engine
    decides it.
    """
    if trainer.use_vllm:
        values = {name: getattr(trainer, name, None) for name in _SAMPLING}
        values["min_p"] = 0.0 if values["min_p"] is None else values["min_p"]  # as TRL passes it
        values = {"max_tokens": trainer.max_completion_length, **values, **(trainer.args.generation_kwargs or {})}
    else:
        values = {name: getattr(trainer.generation_config, name, None) for name in _SAMPLING}
        values["max_tokens"] = trainer.generation_config.max_new_tokens
    return canonical_sampling(values)


def _native_sampling(trainer: Any) -> Any:
    generation_kwargs = trainer.args.generation_kwargs or {}
    return generation_kwargs if trainer.use_vllm else trainer.generation_config.to_diff_dict()


def _changed(trainer: Any) -> bool:
    """Whether something other than the model, such as temperature, changes the log-probabilities."""
    return bool(changed_by(_sampling(trainer)) or trainer.args.generation_kwargs)


def _comparable(trainer: Any) -> bool:
    """Whether the engine's log-probabilities are after the temperature alone, as the learner's are. TRL asks a
    colocated engine for processed ones; what a server reports is a setting of its own.
    """
    return _colocated(trainer) and not trainer.args.generation_kwargs and only_tempered(_sampling(trainer))


def _in_ratio(trainer: Any) -> bool:
    """Whether the importance ratio divides by what the engine reports after every processing of its logits."""
    return _colocated(trainer) and bool(getattr(trainer, "vllm_importance_sampling_correction", False))


def _colocated(trainer: Any) -> bool:
    return bool(trainer.use_vllm and trainer.vllm_generation.mode == "colocate")


def _noted(trainer: Any, name: str) -> Any:
    """Return what the plug-in of coupled sampling noted on a colocated engine since the last call; None for nothing."""
    engine = getattr(getattr(trainer, "vllm_generation", None), "llm", None)
    return None if engine is None else vars(engine).pop(name, None)


def _backend(trainer: Any) -> str:
    return "vllm" if trainer.use_vllm else "transformers"


def _engine(trainer: Any, backend: str, requested: Mapping[str, Any]) -> dict[str, Any]:
    """Return the engine as it was requested and resolved. vLLM's own configuration is read where vLLM runs in this
    process.
    """
    here = backend != "vllm" or "vllm" in sys.modules  # the version of a separate server is unknown here
    version = engine_version(backend) if here else ""
    dtype = str(trainer.model.dtype).removeprefix("torch.")
    llm = getattr(getattr(trainer, "vllm_generation", None), "llm", None)
    if llm is None:
        resolved = {"dtype": dtype, "device": str(trainer.accelerator.device)}
        return {"engine": backend, "version": version, "asked": {}, "resolved": resolved}
    resolved = plain(vllm_resolved(llm.llm_engine.vllm_config))
    canonical = {"dtype": dtype, **vllm_requested(requested)} if requested else {}
    return {"engine": backend, "version": version, "asked": requested, "canonical": canonical, "resolved": resolved}


ADAPTER = Adapter(
    framework="trl",
    distribution="trl",
    versions=("1.16", "1.17"),
    roles={"process": "trainer"},
    missing={
        "prompt_seen": "no backend of TRL says which ids it saw (with --mode coupled the harness keeps vLLM's)",
        "cached": "TRL does not keep which prompt tokens came from a cache",
        "floor": "a job's own engine cannot be asked to draw again",
        "margin": "TRL keeps no margins: a flip cannot be judged",
    },
    hooks=(
        Hook(f"{TRAINER}.__init__", span="start", record=configured),
        Hook(f"{TRAINER}._generate", span="rollout", step=STEP, before=generating, record=generated),
        Hook(f"{TRAINER}._generate_single_turn", span="generate", step=STEP, when="unless a rollout function draws"),
        Hook(f"{TRAINER}._calculate_rewards", span="reward_forward", step=STEP, record=rewarded),
        Hook(f"{TRAINER}._generate_and_score_completions", span="experience", step=STEP, record=scored),
        Hook("trl.trainer.grpo_trainer:shuffle_sequence_dict", span="shuffle", before=shuffling, record=shuffled),
        Hook(
            f"{TRAINER}._get_per_token_logps_and_entropies",
            span="actor_forward",
            step=STEP,
            before=scoring,
            record=forwarded,
            when="without Liger's loss",
        ),
        Hook(
            f"{TRAINER}._compute_loss",
            span="loss",
            step=STEP,
            before=losing,
            record=trained,
            when="without Liger's loss",
        ),
        Hook(f"{TRAINER}.training_step", span="training_step", step=STEP),
        Hook(f"{TRAINER}.log", span="log", step=STEP, record=logged, when="with logging"),
        Hook(f"{TRAINER}._save_checkpoint", span="checkpoint", step=STEP, record=saved, when="with checkpoints"),
        Hook(f"{VLLM}.__init__", span="start_engine", when="with vLLM"),
        Hook("vllm.entrypoints.llm:LLM.__init__", span="start_vllm", before=requesting, when="with a colocated vLLM"),
        Hook(f"{VLLM}.generate", span="generate_vllm", record=drew, when="with vLLM"),
        Hook(f"{VLLM}.sync_weights", span="sync", before=syncing, record=synced, failed=not_synced, when="with vLLM"),
        Hook("accelerate.accelerator:Accelerator.backward", span="backward"),
        Hook("transformers.trainer:Trainer.train", span="train_all", before=beginning, record=ended),
    ),
)
