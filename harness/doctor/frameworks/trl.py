"""Settings of TRL that are accepted and break the job all the same, from its command and its script."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator

from harness.doctor.frameworks.plan import Plan
from harness.doctor.frameworks.trl_options import replaced
from harness.doctor.outcome import Fine, Outcome, Problem, Unseen

# Words of a command that may start several processes.
_SEVERAL = frozenset({
    "accelerate", "accelerate.commands.launch", "deepspeed", "mpiexec", "mpirun", "srun", "submit",
    "torch.distributed.launch", "torch.distributed.run", "torchrun", "trl",
})  # fmt: skip
# Of a script that starts others of itself, and of one that loads its model itself.
_SPAWNS = re.compile(r"\b(?:notebook_launcher|debug_launcher|elastic_launch|start_processes|spawn)\b")
_LOADS = re.compile(r"Model\w*\.from_pretrained\(")


def trl_seed(plan: Plan) -> Iterator[Outcome]:
    """TRL seeds a colocated vLLM with the process's number over the tensor parallel size, not with args.seed."""
    used = _setting(plan, "use_vllm", False)
    why = _untold(plan, "use_vllm") or (_untold(plan, "vllm_mode") if used else "")
    if why:
        yield Unseen(why)
    elif not used:
        yield Fine("samples are drawn by Transformers, seeded by the trainer")
    elif _setting(plan, "vllm_mode", "colocate") == "colocate":
        yield Problem(
            "warning", "the colocated engine's seed is not the trainer's", "use_vllm with vllm_mode colocate",
            "another seed in the configuration changes the data and the weights, and not what vLLM draws",
            "vllm_mode='server' with a seed of its own, or expect it",
        )  # fmt: skip
    else:
        yield Fine("the engine is a server with a seed of its own")


def trl_group(plan: Plan) -> Iterator[Outcome]:
    """A seed among the generation arguments is every request's."""
    own, group = _setting(plan, "generation_kwargs", {}), _setting(plan, "num_generations", 8)
    # Any of the three settles it: no seed there, no vLLM, groups of one. Else all three have to be told.
    kept = {"generation_kwargs": not (isinstance(own, dict) and "seed" in own), "num_generations": group == 1,
            "use_vllm": not _setting(plan, "use_vllm", False)}  # fmt: skip
    why = {name: _untold(plan, name) for name in kept}
    settled = any(fine and not why[name] for name, fine in kept.items())
    if not settled and any(why.values()):
        yield Unseen(next(filter(None, why.values())))
    elif isinstance(own, dict) and "seed" in own and _setting(plan, "use_vllm", False) and group != 1:
        yield Problem(
            "error", "a seed in generation_kwargs makes all samples of a group the same",
            f"generation_kwargs has seed {own['seed']}, num_generations is {group}",
            "every request has one seed: a group has one answer, its advantages are zero, nothing learns",
            "take seed out of generation_kwargs",
        )  # fmt: skip
    else:
        yield Fine("no request carries the seed of its group")


def trl_dtype(plan: Plan) -> Iterator[Outcome]:
    """vLLM's dtype auto loads a float32 model as bfloat16. TRL 1.16 loads it as float32 unless told otherwise
    (`create_model_from_path`), and computes in bfloat16 all the same unless `bf16` is off (`_BaseConfig`)."""
    used = _setting(plan, "use_vllm", False)
    why = _untold(plan, "use_vllm") or (_untold(plan, "bf16", "fp16") if used else "")
    off = _setting(plan, "bf16", None) in (False, "false", "False") and _setting(plan, "fp16", None) in (None, False)
    if used and off and not why:
        why = _untold(plan, "model_init_kwargs", "dtype")
    own = _setting(plan, "model_init_kwargs", {})
    given = own if isinstance(own, dict) else {}
    dtype = str(given.get("dtype", given.get("torch_dtype", _setting(plan, "dtype", "float32"))))
    single = off and dtype != "bfloat16"
    mixed = plan.launch.get("mixed_precision", "no")  # what is neither bf16 nor fp16 is what accelerate was told
    if used and not why and single:
        why = plan.launch_unread or (f"mixed_precision is {mixed}, which only the shell knows" if "$" in mixed else "")
    if why:
        yield Unseen(why)
    elif used and single and mixed in ("bf16", "fp16"):
        yield Fine(f"accelerate has the trainer compute in {mixed}, whatever its own settings say")
    elif used and single and dtype != "float32":
        yield Unseen(f"the trainer loads its model as {dtype}, and whether that is the engine's dtype is not known")
    elif used and single and _LOADS.search(plan.source):
        yield Unseen(f"{plan.entry} may load the model itself, in a dtype that is not known here")
    elif used and single:
        yield Problem(
            "warning", "the engine is bfloat16 while the trainer is float32", "use_vllm, and bf16 is off",
            "log-probabilities of the two differ by bfloat16's rounding from the first token on",
            "bf16=True, or a model saved in the dtype that both shall have",
        )  # fmt: skip
    else:
        yield Fine("trainer and engine are not known to differ")


def trl_sizes(plan: Plan) -> Iterator[Outcome]:
    """GRPO's generation batch has to hold whole groups: 1.16 asserts it in `GRPOConfig.__post_init__`, in every process
    that the job has started by then. The defaults are Transformers' (8 samples a process, 1 step) and TRL's."""
    if "GRPOConfig" not in plan.source and plan.given[:1] != ("grpo",) and not plan.entry.endswith(".grpo"):
        yield Unseen(plan.unread[0] if plan.unread else "the command does not show that it is a job of GRPO's")
        return
    if why := replaced(plan):
        yield Unseen(why)
        return
    names = ("num_generations", "per_device_train_batch_size", "generation_batch_size", "steps_per_generation",
             "gradient_accumulation_steps")  # fmt: skip
    if why := _untold(plan, *names):
        yield Unseen(why)
        return
    group, each, batch, steps, accumulated = (
        _setting(plan, name, default) for name, default in zip(names, (8, 8, None, None, 1), strict=True)
    )
    steps = accumulated if steps is None else steps
    if not (isinstance(group, int) and isinstance(each, int) and isinstance(steps, int)) or group < 1:
        yield Unseen("a size is not a number here")
        return
    processes = _processes(plan)
    if isinstance(batch, int):
        whole, shown = batch, f"generation_batch_size={batch}"
    else:
        whole = each * steps * (processes or 1)
        shown = f"{each} a process × {processes or 'some'} processes × {steps} steps"
    if whole % group == 0:
        yield Fine(f"{shown} hold whole groups of {group}")
    elif processes is None and not isinstance(batch, int):
        yield Unseen(f"{shown} hold whole groups of {group} with some numbers of processes only, and the command does "
                     "not say how many there are")  # fmt: skip
    else:
        yield Problem(
            "error", "the generation batch does not hold whole groups", f"{shown}, num_generations={group}",
            "GRPOConfig refuses it once every process has started", f"make {whole} a multiple of {group}",
        )  # fmt: skip


def _processes(plan: Plan) -> int | None:
    """How many processes train; None where that is not told, as it is where GPUs are counted."""
    told = plan.launch.get("num_processes", "")
    if told:
        return int(told) if told.isdigit() else None
    several = any(word.rpartition("/")[2] in _SEVERAL for word in plan.words) or _SPAWNS.search(plan.source)
    return None if several or "WORLD_SIZE" in plan.variables or plan.launch_unread else 1


def _setting(plan: Plan, name: str, default: object) -> object:
    """A setting of TRL's, from the command or from the script's configuration; of a word the value that it spells."""
    if plan.has(f"no_{name}"):  # as the parser of Transformers writes a switch that is on by default
        return False
    if not plan.has(name):
        return plan.keywords.get(name, default)
    word = plan.get(name).strip("'\"") or "true"
    if word.lower() in ("true", "yes", "false", "no", "none"):
        return {"true": True, "yes": True, "none": None}.get(word.lower(), False)
    for read in (json.loads, ast.literal_eval):
        try:
            return read(word)
        except (ValueError, SyntaxError):
            continue
    return word


def _untold(plan: Plan, *names: str) -> str:
    """`Plan.untold`, and arguments that are no mapping here, as those in a file of their own."""
    if why := plan.untold(*names):
        return why
    for name in names:
        own = _setting(plan, name, None)
        if name.endswith("_kwargs") and not isinstance(own, dict | None):
            return f"{name} is {own}, which is not read"
    return ""
