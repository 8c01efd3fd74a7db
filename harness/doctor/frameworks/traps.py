"""Settings of each framework that are accepted and break the job all the same: one function each.

Nothing fails and nothing passes on a setting that cannot be told (`Plan.untold`): that is not checked, and says why.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from harness.doctor.frameworks.plan import Plan
from harness.doctor.frameworks.trl import trl_dtype, trl_group, trl_seed, trl_sizes
from harness.doctor.outcome import Fine, Outcome, Problem, Unseen

ROLLOUT, ACTOR = "actor_rollout_ref.rollout", "actor_rollout_ref.actor"


def verl_seed(plan: Plan) -> Iterator[Outcome]:
    """verl 0.9 gives vLLM `rollout.seed` plus the replica's number, and SGLang no seed at all."""
    name, own = plan.get(f"{ROLLOUT}.name", "vllm"), f"{ROLLOUT}.engine_kwargs.sglang.random_seed"
    why = plan.untold(f"{ROLLOUT}.name") or (plan.untold(own) if name == "sglang" else "")
    if why:
        yield Unseen(why)
    elif name not in ("vllm", "sglang"):
        yield Unseen(f"what verl gives {name} as a seed is not known here")
    elif name == "vllm":
        yield Fine(f"{ROLLOUT}.seed reaches vLLM")
    elif plan.has(own):
        yield Fine("SGLang is given a random_seed")
    else:
        yield Problem(
            "warning", "verl gives SGLang no seed", f"{ROLLOUT}.name=sglang without engine_kwargs.sglang.random_seed",
            "SGLang then draws one: no run of this job repeats, and two runs differ before any engine does",
            f"+{ROLLOUT}.engine_kwargs.sglang.random_seed=0",
        )  # fmt: skip


def verl_determinism(plan: Plan) -> Iterator[Outcome]:
    """Under full_determinism verl's vLLM server gives every request the seed of its replica."""
    group, name = plan.number(f"{ROLLOUT}.n", 1), plan.get(f"{ROLLOUT}.name", "vllm")
    why = plan.untold(f"{ROLLOUT}.full_determinism")
    if not why and plan.on(f"{ROLLOUT}.full_determinism"):
        why = plan.untold(f"{ROLLOUT}.n") or (plan.untold(f"{ROLLOUT}.name") if group != 1 else "")
    if why:
        yield Unseen(why)
    elif not plan.on(f"{ROLLOUT}.full_determinism"):
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
            f"{ROLLOUT}.full_determinism=False",
        )  # fmt: skip
    elif group > 1:
        yield Fine("SGLang's requests get no seed of verl's")
    else:
        yield Fine("one sample for each prompt")


def verl_dtype(plan: Plan) -> Iterator[Outcome]:
    """verl's FSDP engine computes in bfloat16 unless mixed_precision says otherwise, whatever the rollout's dtype."""
    rollout = plan.get(f"{ROLLOUT}.dtype", "bfloat16")
    own = plan.get(f"{ACTOR}.fsdp_config.mixed_precision.param_dtype")
    whole = plan.get(f"{ACTOR}.fsdp_config.mixed_precision")
    trainer = "fp32" if "param_dtype:fp32" in whole.replace(" ", "").replace('"', "") else own or "bf16"
    mixed = f"{ACTOR}.fsdp_config.mixed_precision"
    why = plan.untold(
        f"{ROLLOUT}.dtype", "model_engine", f"{ACTOR}.strategy", mixed, *([] if whole else [f"{mixed}.param_dtype"])
    )
    if why:
        yield Unseen(why)
    elif not _fsdp(plan):
        yield Unseen("only the FSDP engines' precision is known here")
    elif rollout in ("float32", "fp32", "float") and trainer in ("bf16", "bfloat16"):
        yield Problem(
            "warning", "the trainer's log-probabilities are bfloat16 while the rollout's are float32",
            f"{ROLLOUT}.dtype={rollout}, and {ACTOR}.fsdp_config.mixed_precision.param_dtype is bf16 by default",
            "the ratio of the first update is not one: in a tiny model probabilities of tokens differed by up to 0.01",
            f"+{ACTOR}.fsdp_config.mixed_precision={{param_dtype:fp32,reduce_dtype:fp32,buffer_dtype:fp32}}",
        )  # fmt: skip
    else:
        yield Fine(f"trainer {trainer}, rollout {rollout}")


def _fsdp(plan: Plan) -> bool:
    default = "fsdp" if plan.get("model_engine", "dp") == "dp" else ""
    return plan.get(f"{ACTOR}.strategy", default) in ("fsdp", "fsdp2")


def verl_sizes(plan: Plan) -> Iterator[Outcome]:
    """The equalities that verl asserts after Ray and the models were started, or never."""
    nodes, each = plan.number("trainer.nnodes", 1), plan.number("trainer.n_gpus_per_node", 8)
    batch, group = plan.number("data.train_batch_size", 1024), plan.number(f"{ROLLOUT}.n", 1)
    parts = [plan.number(f"{ROLLOUT}.{name}_parallel_size", default)
             for name, default in (("tensor_model", 2), ("data", 1), ("pipeline_model", 1))]  # fmt: skip
    mini = plan.number(f"{ACTOR}.ppo_mini_batch_size", 256)
    pool = [f"{ROLLOUT}.{one}" for one in ("nnodes", "n_gpus_per_node")]
    why = plan.untold(
        "model_engine", f"{ACTOR}.strategy", *pool,
        "trainer.nnodes", "trainer.n_gpus_per_node", "data.train_batch_size", f"{ROLLOUT}.n",
        f"{ACTOR}.ppo_mini_batch_size", f"{ACTOR}.use_dynamic_bsz",
        *(f"{ROLLOUT}.{one}_parallel_size" for one in ("tensor_model", "data", "pipeline_model")),
    )  # fmt: skip
    if not why and not _fsdp(plan):
        why = "only the FSDP engines' sizes are known here"
    if not why and (plan.get(pool[0], "0") != "0" or plan.has(pool[1])):
        why = "the rollout is given GPUs of its own, and how verl shares them out is not known here"
    if why:
        yield Unseen(why)
        return
    if None in (nodes, each, batch, group, mini, *parts):
        yield Unseen("a size is not a number here")
        return
    assert nodes is not None and each is not None and batch is not None and group is not None and mini is not None
    gpus, replica = nodes * each, 1
    for part in parts:
        replica *= part or 1
    if min(gpus, replica, batch, group, mini) < 1:
        sizes = f"GPUs {nodes} × {each}, replicas of {replica}, batch {batch} × {group}, mini-batch {mini}"
        yield Problem("error", "a size is less than 1", sizes, "nothing can be shared out", "make the sizes agree")
        return
    found = []
    if gpus % replica:
        found.append((f"{gpus} GPUs are not whole rollout replicas of {replica}",
                      f"trainer: {nodes} × {each}, rollout: tensor × data × pipeline = {replica}",
                      "the GPUs that are left over have no engine to send their weights to"))  # fmt: skip
    if batch * group % gpus and not plan.on(f"{ACTOR}.use_dynamic_bsz"):
        found.append((f"{batch} prompts × {group} samples cannot be shared evenly by {gpus} GPUs",
                      f"data.train_batch_size={batch}, {ROLLOUT}.n={group}",
                      "verl asserts it before the first step"))  # fmt: skip
    if mini > batch and not plan.on(f"{ACTOR}.use_dynamic_bsz"):
        found.append((f"a mini-batch of {mini} prompts is larger than the batch of {batch}",
                      f"{ACTOR}.ppo_mini_batch_size={mini}, data.train_batch_size={batch}",
                      "verl refuses it before the first step"))  # fmt: skip
    for what, measured, why in found:
        yield Problem("error", what, measured, why, "make the sizes agree")
    if not found:
        yield Fine(f"{gpus} GPUs, replicas of {replica}, {batch} × {group} samples, mini-batches of {mini}")


def verl_amd(plan: Plan) -> Iterator[Outcome]:
    """verl's workers raise when ROCR_VISIBLE_DEVICES stands beside HIP's or CUDA's, or when those two differ."""
    rocr, hip, cuda = (plan.variables.get(f"{name}_VISIBLE_DEVICES", "") for name in ("ROCR", "HIP", "CUDA"))
    given = {"ROCR": rocr, "HIP": hip, "CUDA": cuda}
    shell = next((f"{name}_VISIBLE_DEVICES is {one}" for name, one in given.items() if "$" in one or "`" in one), "")
    if shell and sum(map(bool, given.values())) > 1:
        yield Unseen(f"{shell}, which only the shell knows")
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


def openrlhf_order(plan: Plan) -> Iterator[Outcome]:
    """OpenRLHF takes samples as they are finished, and numbers the rows of its experience by that order."""
    if plan.foreign:
        yield Unseen(plan.foreign)
        return
    yield Problem(
        "info", "OpenRLHF takes samples in the order in which they are finished", "SamplesGenerator._generate_vllm",
        "two runs of one seed train on the same samples in another order: mini-batches differ, and so do the updates",
        "compare runs with harness parity or harness diff, which align samples by their prompt",
    )  # fmt: skip


def openrlhf_data(plan: Plan) -> Iterator[Outcome]:
    """OpenRLHF 0.11 shuffles prompts in its driver, a process that is in no group and that nobody seeds: three runs of
    one command had three orders."""
    if plan.foreign:
        yield Unseen(plan.foreign)
        return
    yield Problem(
        "warning", "OpenRLHF shuffles its prompts without its seed", "DeepspeedStrategy.setup_dataloader in PPOTrainer",
        "each run meets the prompts in another order: two runs train on other data from their first step",
        "harness parity --seed N, or harness record --seed N: --train.seed does not reach that generator",
    )  # fmt: skip


def openrlhf_seed(plan: Plan) -> Iterator[Outcome]:
    """Engine i gets seed + i, no request has a seed, and prompts go to whichever engine has least to do."""
    engines = plan.number("vllm.num_engines", 0)
    seed = "seed" if plan.untold("train.seed") else plan.get("train.seed", "42")
    if why := plan.untold("vllm.num_engines"):
        yield Unseen(why)
    elif engines is None:
        yield Unseen("--vllm.num_engines is not a number here")
    elif engines > 1:
        yield Problem(
            "warning", "which seed draws a sample depends on which engine was free", f"{engines} engines: {seed} + i",
            "the same command gives other samples with another number of engines, and on a busier machine",
            "--vllm.num_engines 1 where runs have to repeat",
        )  # fmt: skip
    else:
        yield Fine("one engine" if seed == "seed" else f"one engine, seed {seed}")


def openrlhf_dtype(plan: Plan) -> Iterator[Outcome]:
    """OpenRLHF starts every engine in bfloat16, and its weight sync asserts that the trainer's dtype is the same."""
    trainer = plan.get("ds.param_dtype", "bf16")
    if why := plan.untold("ds.param_dtype"):
        yield Unseen(why)
    elif trainer == "fp16":
        yield Problem(
            "error", "the engines are bfloat16 whatever the trainer is", "--ds.param_dtype fp16",
            "the first weight sync ends with `mismatch dtype`, after the first step's work", "--ds.param_dtype bf16",
        )  # fmt: skip
    else:
        yield Fine(f"trainer {trainer}, engines bf16")


def openrlhf_colocation(plan: Plan) -> Iterator[Outcome]:
    """The equalities that OpenRLHF asserts when models share GPUs."""
    shared = ("colocate_all", "colocate_actor_ref", "colocate_critic_reward", "async_enable")
    why = plan.untold(
        *(f"{role}.{of}" for role in ("actor", "ref", "critic", "reward") for of in ("num_nodes", "num_gpus_per_node")),
        "vllm.num_engines", "vllm.tensor_parallel_size", "vllm.enable_sleep", "algo.kl.init_coef",
        *(f"train.{one}" for one in shared), *["algo.advantage.estimator"] * plan.on("train.colocate_critic_reward"),
    )  # fmt: skip
    if why:
        yield Unseen(why)
        return
    size = {}
    for role in ("actor", "ref", "critic", "reward"):
        size[role] = (plan.number(f"{role}.num_nodes", 1), plan.number(f"{role}.num_gpus_per_node", 8))
    engines, parallel = plan.number("vllm.num_engines", 0), plan.number("vllm.tensor_parallel_size", 1)
    try:
        reference = float(plan.get("algo.kl.init_coef", "0.01")) > 0
    except ValueError:
        engines = None
    if any(one is None for pair in size.values() for one in pair) or engines is None or parallel is None:
        yield Unseen("a size is not a number here")
        return
    everything = plan.on("train.colocate_all")
    critic = plan.get("algo.advantage.estimator", "gae") == "gae"  # without it OpenRLHF 0.11 takes no critic
    found = []
    if (everything or plan.on("train.colocate_actor_ref")) and reference and size["actor"] != size["ref"]:
        found.append(
            ("actor and reference share GPUs and have other numbers of them", f"{size['actor']}, {size['ref']}")
        )
    nodes, each = size["actor"]
    assert nodes is not None and each is not None
    if everything and engines and not plan.on("train.async_enable") and nodes * each != engines * parallel:
        found.append(("the engines and the actor share GPUs and need other numbers of them",
                      f"actor {nodes * each}, engines {engines} × {parallel}"))  # fmt: skip
    if plan.on("train.colocate_critic_reward") and critic and size["critic"] != size["reward"]:
        found.append(("critic and reward share GPUs and have other numbers of them",
                      f"{size['critic']}, {size['reward']}"))  # fmt: skip
    for what, measured in found:
        yield Problem("error", what, measured, "OpenRLHF asserts it once Ray has started", "make the numbers equal")
    if plan.on("vllm.enable_sleep") and not everything:
        yield Problem(
            "warning", "--vllm.enable_sleep is switched off again", "without --train.colocate_all",
            "the engines keep their memory: what was planned to fit beside them does not",
            "--train.colocate_all, or plan without sleep",
        )  # fmt: skip
    elif not found:
        yield Fine("the models that share GPUs have equal numbers of them")


def of(plan: Plan) -> tuple[Trap, ...]:
    """The traps of a start: OpenRLHF's are those of its PPO, not of its other trainers."""
    framework = plan.job.adapter.framework
    other = framework == "openrlhf" and plan.entry and not re.search(r"(?:^|[./])train_ppo_ray(?:\.py)?$", plan.entry)
    return () if other else TRAPS[framework]


Trap = tuple[str, Callable[[Plan], Iterator[Outcome]]]
TRAPS: dict[str, tuple[Trap, ...]] = {
    "verl": (
        ("verl-seed", verl_seed), ("verl-determinism", verl_determinism), ("verl-dtype", verl_dtype),
        ("verl-sizes", verl_sizes), ("verl-amd", verl_amd),
    ),
    "openrlhf": (
        ("openrlhf-colocation", openrlhf_colocation), ("openrlhf-dtype", openrlhf_dtype),
        ("openrlhf-data", openrlhf_data), ("openrlhf-seed", openrlhf_seed), ("openrlhf-order", openrlhf_order),
    ),
    "trl": (
        ("trl-group", trl_group), ("trl-seed", trl_seed), ("trl-dtype", trl_dtype), ("trl-sizes", trl_sizes),
    ),
}  # fmt: skip
