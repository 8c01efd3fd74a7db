"""Settings that verl accepts although they break the job. Source: verl 0.9.1."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

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
    if why := settings.why_unknown(f"{ROLLOUT}.full_determinism"):
        yield Unseen(why)
    elif settings.on(f"{ROLLOUT}.full_determinism"):
        yield _seed_of_requests(settings)
    else:
        yield Fine("full_determinism is off")


def _seed_of_requests(settings: Settings) -> Outcome:
    """What full_determinism does to the samples of a group."""
    group, name = settings.number(f"{ROLLOUT}.n", 1), settings.get(f"{ROLLOUT}.name", "vllm")
    why = settings.why_unknown(f"{ROLLOUT}.n") or (settings.why_unknown(f"{ROLLOUT}.name") if group != 1 else "")
    if why:
        return Unseen(why)
    if group is None:
        return Unseen(f"{ROLLOUT}.n is not a number here")
    if group <= 1:
        return Fine("one sample for each prompt")
    if name == "sglang":
        return Fine("SGLang's requests get no seed of verl's")
    if name != "vllm":
        return Unseen(f"what verl gives {name} as a seed is not known here")
    return Problem(
        "error", "full_determinism makes all samples of a group the same",
        f"{ROLLOUT}.full_determinism=True with {ROLLOUT}.n={group}",
        "every request of a replica gets one seed: a group has one answer, its advantages are zero, nothing learns",
        f"set {ROLLOUT}.full_determinism=False in the job's command",
    )  # fmt: skip


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


@dataclass(frozen=True)
class _Sizes:
    """The sizes of a job that have to agree: GPUs, batches in prompts, and how the rollout splits a model."""

    nodes: int
    gpus_per_node: int
    batch: int
    samples: int
    mini_batch: int
    tensor: int
    data: int
    pipeline: int

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def replica(self) -> int:
        """GPUs of one rollout engine."""
        return self.tensor * self.data * self.pipeline

    @property
    def positive(self) -> bool:
        return min(self.gpus, self.replica, self.batch, self.samples, self.mini_batch) >= 1


# Field of `_Sizes` -> (its setting, verl's default).
_SIZE_SETTINGS = {
    "nodes": ("trainer.nnodes", 1), "gpus_per_node": ("trainer.n_gpus_per_node", 8),
    "batch": ("data.train_batch_size", 1024), "samples": (f"{ROLLOUT}.n", 1),
    "mini_batch": (f"{ACTOR}.ppo_mini_batch_size", 256), "tensor": (f"{ROLLOUT}.tensor_model_parallel_size", 2),
    "data": (f"{ROLLOUT}.data_parallel_size", 1), "pipeline": (f"{ROLLOUT}.pipeline_model_parallel_size", 1),
}  # fmt: skip


def sizes(settings: Settings) -> Iterator[Outcome]:
    """Equalities that verl asserts only after Ray and the models have started, or never."""
    job = _sizes_of(settings)
    if isinstance(job, str):
        yield Unseen(job)
        return
    if not job.positive:
        measured = (
            f"GPUs {job.nodes} × {job.gpus_per_node}, replicas of {job.replica}, batch {job.batch} × {job.samples}, "
            f"mini-batch {job.mini_batch}"
        )
        yield Problem("error", "a size is less than 1", measured, "nothing can be shared out", "make the sizes agree")
        return
    problems = list(_unequal(job, dynamic=settings.on(f"{ACTOR}.use_dynamic_bsz")))
    yield from problems
    if not problems:
        yield Fine(
            f"{job.gpus} GPUs, replicas of {job.replica}, {job.batch} × {job.samples} samples, mini-batches of "
            f"{job.mini_batch}"
        )


def _sizes_of(settings: Settings) -> _Sizes | str:
    """The sizes of a job, or why they are not known."""
    names = [name for name, _ in _SIZE_SETTINGS.values()]
    if why := settings.why_unknown(
        "model_engine", f"{ACTOR}.strategy", f"{ROLLOUT}.nnodes", f"{ACTOR}.use_dynamic_bsz", *names
    ):
        return why
    if not _fsdp(settings):
        return "only the FSDP engines' sizes are known here"
    if settings.number(f"{ROLLOUT}.nnodes", 0) != 0:
        return "the rollout is given GPUs of its own, and how verl shares them out is not known here"
    numbers: dict[str, int] = {}
    for field, (name, default) in _SIZE_SETTINGS.items():
        number = settings.number(name, default)
        if number is None:
            return "a size is not a number here"
        numbers[field] = number
    return _Sizes(**numbers)


def _unequal(job: _Sizes, *, dynamic: bool) -> Iterator[Problem]:
    """Yield the equalities that do not hold. verl asserts the last two only without dynamic batches, which are measured
    in tokens."""
    agree = "make the sizes agree"
    if job.gpus % job.replica:
        yield Problem(
            "error", f"{job.gpus} GPUs are not whole rollout replicas of {job.replica}",
            f"trainer: {job.nodes} × {job.gpus_per_node}, rollout: tensor × data × pipeline = {job.replica}",
            "the GPUs that are left over have no engine to send their weights to", agree,
        )  # fmt: skip
    if job.batch * job.samples % job.gpus and not dynamic:
        yield Problem(
            "error", f"{job.batch} prompts × {job.samples} samples cannot be shared evenly by {job.gpus} GPUs",
            f"data.train_batch_size={job.batch}, {ROLLOUT}.n={job.samples}",
            "verl asserts it before the first step", agree,
        )  # fmt: skip
    if job.mini_batch > job.batch and not dynamic:
        yield Problem(
            "error", f"a mini-batch of {job.mini_batch} prompts is larger than the batch of {job.batch}",
            f"{ACTOR}.ppo_mini_batch_size={job.mini_batch}, data.train_batch_size={job.batch}",
            "verl refuses it before the first step", agree,
        )  # fmt: skip


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
