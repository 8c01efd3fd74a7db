"""Settings that TRL accepts although they break the job. Source: TRL 1.16.0.

`launch.*` are not settings of TRL but of what starts it: the processes, accelerate's mixed precision, the trainer.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.doctor.outcome import Fine, Outcome, Problem, Unseen
from harness.frameworks.launcher import processes as launched_processes
from harness.frameworks.settings import Settings
from reports.text import counted

MIXED, TRAINER, LOADED = "launch.mixed_precision", "launch.trainer", "launch.model_dtype"
# Sampling parameters with the values under which the engine's log-probabilities are those of all tokens.
_UNCHANGED: dict[str, tuple[object, ...]] = {
    "top_p": (None, 1), "top_k": (None, 0, -1), "min_p": (None, 0), "repetition_penalty": (None, 1),
    "presence_penalty": (None, 0), "frequency_penalty": (None, 0), "logit_bias": (None, {}),
}  # fmt: skip

_SAME_DTYPE = "trainer and engine are not known to differ"
_FIELDS = ("top_p", "top_k", "min_p", "repetition_penalty")  # those that GRPOConfig has itself


def seed(settings: Settings) -> Iterator[Outcome]:
    """TRL seeds a colocated vLLM with the process's number divided by the tensor parallel size, not with args.seed."""
    used = settings.on("use_vllm")
    why = settings.why_unknown("use_vllm") or (settings.why_unknown("vllm_mode") if used else "")
    if why:
        yield Unseen(why)
    elif not used:
        yield Fine("samples are drawn by Transformers, seeded by the trainer")
    elif settings.get("vllm_mode", "colocate") == "colocate":
        yield Problem(
            "warning", "the colocated engine's seed is not the trainer's", "use_vllm with vllm_mode colocate",
            "another seed in the configuration changes the data and the weights, and not what vLLM draws",
            "set vllm_mode='server' with a seed of its own, or expect it",
        )  # fmt: skip
    else:
        yield Fine("the engine is a server with a seed of its own")


def group(settings: Settings) -> Iterator[Outcome]:
    """A seed among the generation arguments applies to every request."""
    generation_kwargs, size = settings.get("generation_kwargs", {}), settings.get("num_generations", 8)
    seeded = isinstance(generation_kwargs, dict) and "seed" in generation_kwargs
    yield _excuse(
        "no request carries the seed of its group",
        (not seeded, _unknown(settings, "generation_kwargs")),
        (size == 1, _unknown(settings, "num_generations")),
        (not settings.on("use_vllm"), _unknown(settings, "use_vllm")),
    ) or Problem(
        "error", "a seed in generation_kwargs makes all samples of a group the same",
        f"generation_kwargs has seed {generation_kwargs['seed']}, num_generations is {size}",
        "every request has one seed: a group has one answer, its advantages are zero, nothing learns",
        "take seed out of generation_kwargs",
    )  # fmt: skip


def ratio(settings: Settings) -> Iterator[Outcome]:
    """With top-p and the like TRL's importance ratio compares numbers of two distributions (trl#6789).

    TRL asks vLLM for log-probabilities after every processing, renormalised over the tokens that are kept. Its own are
    of all tokens, after temperature only.
    """
    generation_kwargs = settings.get("generation_kwargs", {})
    overrides = generation_kwargs if isinstance(generation_kwargs, dict) else {}
    values = {name: overrides.get(name, settings.get(name)) for name in _UNCHANGED}
    changed = {name: value for name, value in values.items() if value not in _UNCHANGED[name]}
    unread = "" if overrides is generation_kwargs else f"generation_kwargs is {generation_kwargs}, which is not read"
    correction = "vllm_importance_sampling_correction"
    yield _excuse(
        "the importance ratio is of log-probabilities of one distribution, or there is none",
        (not settings.on("use_vllm"), settings.why_unknown("use_vllm")),
        (settings.get(correction) is False, settings.why_unknown(correction)),
        (not changed, unread or settings.why_unknown(*_FIELDS, "generation_kwargs")),
    ) or Problem(
        "warning", "the importance ratio is biased: vLLM's log-probabilities are of fewer tokens",
        f"use_vllm with {', '.join(f'{name}={value}' for name, value in changed.items())}",
        "the trainer's are of all tokens, so with equal weights, too, no ratio is 1",
        "set top_p=1.0, top_k=0 and no penalty, or vllm_importance_sampling_correction=False",
    )  # fmt: skip


def _excuse(fine: str, *excuses: tuple[bool, str]) -> Outcome | None:
    """Fine where an excuse holds, None where none does, Unseen where that is not known.

    `excuses`: (whether it holds, why that is not known). One that is known to hold is enough; to say that none holds,
    all have to be known.
    """
    reasons = [why for _, why in excuses if why]
    if reasons and (True, "") not in excuses:
        return Unseen(reasons[0])
    return Fine(fine) if any(holds for holds, _ in excuses) else None


def dtype(settings: Settings) -> Iterator[Outcome]:
    """vLLM's dtype auto loads a float32 model as bfloat16.

    TRL 1.16 loads it as float32 unless told otherwise (`create_model_from_path`), but still computes in bfloat16 unless
    `bf16` is off (`_BaseConfig`).
    """
    if why := settings.why_unknown("use_vllm"):
        yield Unseen(why)
    elif settings.on("use_vllm"):
        yield _dtype_beside_vllm(settings)
    else:
        yield Fine(_SAME_DTYPE)


def _dtype_beside_vllm(settings: Settings) -> Outcome:
    # Does the trainer compute in half precision, by its own settings or by its model's dtype?
    if why := settings.why_unknown("bf16", "fp16"):
        return Unseen(why)
    if settings.get("bf16") is not False or settings.on("fp16"):
        return Fine(_SAME_DTYPE)
    if LOADED not in settings.values and (why := _unknown(settings, "model_init_kwargs", "dtype")):
        return Unseen(why)
    init_kwargs = settings.get("model_init_kwargs", {})
    model_kwargs = init_kwargs if isinstance(init_kwargs, dict) else {}
    asked_dtype = model_kwargs.get("dtype") or model_kwargs.get("torch_dtype") or settings.get("dtype", "float32")
    model = str(settings.get(LOADED, asked_dtype)).removeprefix("torch.")
    if model == "bfloat16":
        return Fine(_SAME_DTYPE)
    # accelerate's setting applies where the trainer's own are off.
    if why := settings.unknown.get(MIXED, ""):
        return Unseen(why)
    mixed = settings.get(MIXED, "no")
    if mixed in ("bf16", "fp16"):
        return Fine(f"accelerate has the trainer compute in {mixed}, whatever its own settings say")
    if model != "float32":
        return Unseen(f"the trainer loads its model as {model}, and whether that is the engine's dtype is not known")
    if LOADED in settings.unknown:
        return Unseen(settings.unknown[LOADED])
    return Problem(
        "warning", "the engine is bfloat16 while the trainer is float32", "use_vllm, and bf16 is off",
        "log-probabilities of the two differ by bfloat16's rounding from the first token on",
        "set bf16=True, or take a model saved in the dtype that both shall have",
    )  # fmt: skip


def sizes(settings: Settings) -> Iterator[Outcome]:
    """GRPO's generation batch has to contain whole groups.

    TRL 1.16 asserts it in `GRPOConfig.__post_init__`, in every process that the job has started by then. The defaults
    are those of Transformers (8 samples per process, 1 step) and TRL.
    """
    names = ("num_generations", "per_device_train_batch_size", "generation_batch_size", "steps_per_generation",
             "gradient_accumulation_steps")  # fmt: skip
    if why := settings.unknown.get(TRAINER) or settings.why_unknown(*names):
        yield Unseen(why)
        return
    size, each = settings.get("num_generations", 8), settings.get("per_device_train_batch_size", 8)
    steps = settings.get("steps_per_generation", settings.get("gradient_accumulation_steps", 1))
    if not all(isinstance(number, int) for number in (size, each, steps)) or size < 1:
        yield Unseen("a size is not a number here")
    elif size == 1:
        yield Problem(
            "error", "groups of one sample have no advantage", "num_generations=1",
            "GRPOConfig refuses it once every process has started", "set num_generations=2 or more",
        )  # fmt: skip
    else:
        yield _whole_groups(settings, size, each, steps)


def _whole_groups(settings: Settings, size: int, each: int, steps: int) -> Outcome:
    """Whether the generation batch holds whole groups of `size`; it is `each` a process × `steps` unless it is set."""
    total = settings.get("generation_batch_size")
    unknown = ""
    if isinstance(total, int):
        batch_text = f"generation_batch_size={total}"
    else:
        processes, unknown = launched_processes(settings)
        number_text = "1 process" if processes == 1 else f"{processes} processes"
        if unknown:
            number_text = "some processes"
        batch_text = f"{each} a process × {number_text} × {counted(steps, 'step')}"
        total = each * steps * (1 if unknown else processes)
    if total % size == 0:
        return Fine(f"{batch_text} hold whole groups of {size}")
    if unknown:
        return Unseen(f"{batch_text} hold whole groups of {size} with some numbers of processes only, and {unknown}")
    return Problem(
        "error", "the generation batch does not hold whole groups", f"{batch_text}, num_generations={size}",
        "GRPOConfig refuses it once every process has started", f"make {total} a multiple of {size}",
    )  # fmt: skip


def _unknown(settings: Settings, *names: str) -> str:
    """As `Settings.why_unknown`, and also for arguments that are no mapping here because a file of their own has
    them."""
    if why := settings.why_unknown(*names):
        return why
    for name in names:
        value = settings.get(name)
        if name.endswith("_kwargs") and not isinstance(value, dict | None):
            return f"{name} is {value}, which is not read"
    return ""
