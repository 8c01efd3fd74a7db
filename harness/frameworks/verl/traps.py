"""Settings that verl accepts although they break the job. Source: verl 0.9.1."""

from __future__ import annotations

from collections.abc import Iterator

from harness.doctor.outcome import Fine, Outcome, Problem, Unseen
from harness.frameworks.settings import SHELL, Settings

ROLLOUT, ACTOR = "actor_rollout_ref.rollout", "actor_rollout_ref.actor"
SGLANG_SEED = f"{ROLLOUT}.engine_kwargs.sglang.random_seed"
_MIXED = f"{ACTOR}.fsdp_config.mixed_precision"


def seed(settings: Settings) -> Iterator[Outcome]:
    """verl 0.9 gives vLLM `rollout.seed` plus the number of the replica, and SGLang no seed at all."""
    name = settings.get(f"{ROLLOUT}.name", "vllm")
    why = settings.why_unknown(f"{ROLLOUT}.name") or (settings.why_unknown(SGLANG_SEED) if name == "sglang" else "")
    if why:
        yield Unseen(why)
    elif name not in ("vllm", "sglang"):
        yield Unseen(f"what verl gives {name} as a seed is not known here")
    elif name == "vllm":
        yield Fine(f"{ROLLOUT}.seed reaches vLLM")
    elif settings.get(SGLANG_SEED) is not None:
        yield Fine("SGLang is given a random_seed")
    else:
        yield Problem(
            "warning", "verl gives SGLang no seed", f"{ROLLOUT}.name=sglang without engine_kwargs.sglang.random_seed",
            "SGLang then draws one: no run of this job repeats, and two runs differ before any engine does",
            f"add +{SGLANG_SEED}=0 to the job's command",
        )  # fmt: skip


def determinism(settings: Settings) -> Iterator[Outcome]:
    """With full_determinism verl's vLLM server gives every request the seed of its replica."""
    group, name = settings.number(f"{ROLLOUT}.n", 1), settings.get(f"{ROLLOUT}.name", "vllm")
    why = settings.why_unknown(f"{ROLLOUT}.full_determinism")
    on = settings.on(f"{ROLLOUT}.full_determinism")
    if not why and on:
        why = settings.why_unknown(f"{ROLLOUT}.n") or (settings.why_unknown(f"{ROLLOUT}.name") if group != 1 else "")
    if why:
        yield Unseen(why)
    elif not on:
        yield Fine("full_determinism is off")
    elif group is None:
        yield Unseen(f"{ROLLOUT}.n is not a number here")
    elif group > 1 and name not in ("vllm", "sglang"):
        yield Unseen(f"what verl gives {name} as a seed is not known here")
    elif group > 1 and name == "vllm":
        yield Problem(
            "error", "full_determinism makes all samples of a group the same",
            f"{ROLLOUT}.full_determinism=True with {ROLLOUT}.n={group}",
            "every request of a replica gets one seed: a group has one answer, its advantages are zero, nothing learns",
            f"set {ROLLOUT}.full_determinism=False in the job's command",
        )  # fmt: skip
    elif group > 1:
        yield Fine("SGLang's requests get no seed of verl's")
    else:
        yield Fine("one sample for each prompt")


def dtype(settings: Settings) -> Iterator[Outcome]:
    """verl's FSDP engine computes in bfloat16 unless mixed_precision says otherwise, whatever the rollout's dtype."""
    rollout = settings.get(f"{ROLLOUT}.dtype", "bfloat16")
    trainer = settings.get(f"{_MIXED}.param_dtype", "bf16")
    if why := settings.why_unknown(f"{ROLLOUT}.dtype", "model_engine", f"{ACTOR}.strategy", f"{_MIXED}.param_dtype"):
        yield Unseen(why)
    elif not _fsdp(settings):
        yield Unseen("only the FSDP engines' precision is known here")
    elif rollout in ("float32", "fp32", "float") and trainer in ("bf16", "bfloat16"):
        yield Problem(
            "warning", "the trainer's log-probabilities are bfloat16 while the rollout's are float32",
            f"{ROLLOUT}.dtype={rollout}, and {_MIXED}.param_dtype is bf16 by default",
            "the ratio of the first update is not one: in a tiny model probabilities of tokens differed by up to 0.01",
            f"add '+{_MIXED}={{param_dtype:fp32,reduce_dtype:fp32,buffer_dtype:fp32}}' to the job's command",
        )  # fmt: skip
    else:
        yield Fine(f"trainer {trainer}, rollout {rollout}")


def _fsdp(settings: Settings) -> bool:
    default = "fsdp" if settings.get("model_engine", "dp") == "dp" else ""
    return settings.get(f"{ACTOR}.strategy", default) in ("fsdp", "fsdp2")


def sizes(settings: Settings) -> Iterator[Outcome]:
    """Equalities that verl asserts only after Ray and the models have started, or never."""
    names = {
        "trainer.nnodes": 1, "trainer.n_gpus_per_node": 8, "data.train_batch_size": 1024, f"{ROLLOUT}.n": 1,
        f"{ACTOR}.ppo_mini_batch_size": 256, f"{ROLLOUT}.tensor_model_parallel_size": 2,
        f"{ROLLOUT}.data_parallel_size": 1, f"{ROLLOUT}.pipeline_model_parallel_size": 1,
    }  # fmt: skip
    why = settings.why_unknown(
        "model_engine", f"{ACTOR}.strategy", f"{ROLLOUT}.nnodes", f"{ACTOR}.use_dynamic_bsz", *names
    )
    if not why and not _fsdp(settings):
        why = "only the FSDP engines' sizes are known here"
    if not why and settings.number(f"{ROLLOUT}.nnodes", 0) != 0:
        why = "the rollout is given GPUs of its own, and how verl shares them out is not known here"
    numbers = [number for name, default in names.items() if (number := settings.number(name, default)) is not None]
    if why or len(numbers) < len(names):
        yield Unseen(why or "a size is not a number here")
        return
    nodes, each, batch, group, mini, tensor, data, pipeline = numbers
    gpus, replica = nodes * each, tensor * data * pipeline
    if min(gpus, replica, batch, group, mini) < 1:
        measured = f"GPUs {nodes} × {each}, replicas of {replica}, batch {batch} × {group}, mini-batch {mini}"
        yield Problem("error", "a size is less than 1", measured, "nothing can be shared out", "make the sizes agree")
        return
    # verl asserts the last two equalities only without dynamic batches, which are measured in tokens.
    dynamic, problems = settings.on(f"{ACTOR}.use_dynamic_bsz"), []
    if gpus % replica:
        problems.append((f"{gpus} GPUs are not whole rollout replicas of {replica}",
                         f"trainer: {nodes} × {each}, rollout: tensor × data × pipeline = {replica}",
                         "the GPUs that are left over have no engine to send their weights to"))  # fmt: skip
    if batch * group % gpus and not dynamic:
        problems.append((f"{batch} prompts × {group} samples cannot be shared evenly by {gpus} GPUs",
                         f"data.train_batch_size={batch}, {ROLLOUT}.n={group}",
                         "verl asserts it before the first step"))  # fmt: skip
    if mini > batch and not dynamic:
        problems.append((f"a mini-batch of {mini} prompts is larger than the batch of {batch}",
                         f"{ACTOR}.ppo_mini_batch_size={mini}, data.train_batch_size={batch}",
                         "verl refuses it before the first step"))  # fmt: skip
    for what, measured, effect in problems:
        yield Problem("error", what, measured, effect, "make the sizes agree")
    if not problems:
        yield Fine(f"{gpus} GPUs, replicas of {replica}, {batch} × {group} samples, mini-batches of {mini}")


def amd(settings: Settings) -> Iterator[Outcome]:
    """verl's workers raise if ROCR_VISIBLE_DEVICES is set beside HIP's or CUDA's, or if those two differ."""
    rocr, hip, cuda = device_lists = [
        settings.variables.get(f"{name}_VISIBLE_DEVICES", "") for name in ("ROCR", "HIP", "CUDA")
    ]
    shell = next((devices for devices in device_lists if SHELL.search(devices)), "")
    if shell and sum(map(bool, device_lists)) > 1:
        yield Unseen(f"the visible devices are {shell}, which only the shell knows")
    elif rocr and (hip or cuda):
        yield Problem(
            "error", "ROCR_VISIBLE_DEVICES stands beside HIP_ or CUDA_VISIBLE_DEVICES",
            f"ROCR={rocr} HIP={hip or '(unset)'} CUDA={cuda or '(unset)'}",
            "verl's workers refuse it when they start", "unset ROCR_VISIBLE_DEVICES",
        )  # fmt: skip
    elif hip and cuda and hip != cuda:
        yield Problem(
            "error", "HIP_VISIBLE_DEVICES and CUDA_VISIBLE_DEVICES differ", f"HIP={hip} CUDA={cuda}",
            "verl's workers refuse it when they start", "unset HIP_VISIBLE_DEVICES",
        )  # fmt: skip
    else:
        yield Fine("no two variables choose devices")
