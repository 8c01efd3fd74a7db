"""Settings that OpenRLHF's PPO accepts although they break the job. Source: OpenRLHF 0.11.2."""

from __future__ import annotations

from collections.abc import Iterator

from harness.doctor.outcome import Fine, Outcome, Problem, Unseen
from harness.frameworks.settings import Settings

FOREIGN = "openrlhf.cli"  # in `unknown` if something other than a module of OpenRLHF starts


def order(settings: Settings) -> Iterator[Outcome]:
    """OpenRLHF takes samples in the order in which they finish, and numbers the rows of its experience in that
    order."""
    if why := settings.unknown.get(FOREIGN):
        yield Unseen(why)
        return
    yield Problem(
        "info", "OpenRLHF takes samples in the order in which they are finished", "SamplesGenerator._generate_vllm",
        "two runs of one seed train on the same samples in another order: mini-batches differ, and so do the updates",
        "compare runs with harness parity or harness diff, which align samples by their prompt",
    )  # fmt: skip


def data(settings: Settings) -> Iterator[Outcome]:
    """OpenRLHF 0.11 shuffles prompts in its driver, a process outside any group that nothing seeds.

    Three runs of one command had three orders.
    """
    if settings.seed is not None:
        yield Fine(f"the prompts are shuffled with the seed {settings.seed}")
    elif why := settings.unknown.get(FOREIGN):
        yield Unseen(why)
    else:
        yield Problem(
            "warning", "OpenRLHF shuffles its prompts without its seed",
            "DeepspeedStrategy.setup_dataloader in PPOTrainer",
            "each run meets the prompts in another order: two runs train on other data from their first step",
            "harness record --seed N -- COMMAND   # or harness parity with --seed N; OpenRLHF's seed does not "
            "reach that generator",
        )  # fmt: skip


def seed(settings: Settings) -> Iterator[Outcome]:
    """Engine i gets seed + i, no request has a seed, and each prompt goes to the engine with the least work."""
    engines = settings.number("vllm.num_engines", 0)
    first = None if settings.why_unknown("train.seed") else settings.get("train.seed", 42)
    if why := settings.why_unknown("vllm.num_engines"):
        yield Unseen(why)
    elif engines is None:
        yield Unseen("--vllm.num_engines is not a number here")
    elif engines > 1:
        yield Problem(
            "warning", "which seed draws a sample depends on which engine was free",
            f"{engines} engines: {'seed' if first is None else first} + i",
            "the same command gives other samples with another number of engines, and on a busier machine",
            "--vllm.num_engines 1 where runs have to repeat",
        )  # fmt: skip
    else:
        yield Fine("one engine" if first is None else f"one engine, seed {first}")


def dtype(settings: Settings) -> Iterator[Outcome]:
    """OpenRLHF starts every engine in bfloat16, and its weight sync asserts that the trainer has the same dtype."""
    trainer = settings.get("ds.param_dtype", "bf16")
    if why := settings.why_unknown("ds.param_dtype"):
        yield Unseen(why)
    elif trainer == "fp16":
        yield Problem(
            "error", "the engines are bfloat16 whatever the trainer is", "--ds.param_dtype fp16",
            "the first weight sync ends with `mismatch dtype`, after the first step's work", "--ds.param_dtype bf16",
        )  # fmt: skip
    else:
        yield Fine(f"trainer {trainer}, engines bf16")


def colocation(settings: Settings) -> Iterator[Outcome]:
    """Equalities that OpenRLHF asserts if models share GPUs."""
    roles = ("actor", "ref", "critic", "reward")
    shared = ("colocate_all", "colocate_actor_ref", "colocate_critic_reward", "async_enable")
    why = settings.why_unknown(
        *(f"{role}.{of}" for role in roles for of in ("num_nodes", "num_gpus_per_node")),
        "vllm.num_engines", "vllm.tensor_parallel_size", "vllm.enable_sleep", "algo.kl.init_coef",
        *(f"train.{switch}" for switch in shared),
        *["algo.advantage.estimator"] * settings.on("train.colocate_critic_reward"),
    )  # fmt: skip
    if why:
        yield Unseen(why)
        return
    size = {
        role: (settings.number(f"{role}.num_nodes", 1), settings.number(f"{role}.num_gpus_per_node", 8))
        for role in roles
    }
    engines, parallel = settings.number("vllm.num_engines", 0), settings.number("vllm.tensor_parallel_size", 1)
    try:
        reference = float(settings.get("algo.kl.init_coef", 0.01)) > 0
    except (TypeError, ValueError):
        engines = None
    nodes, each = size["actor"]
    if any(count is None for pair in size.values() for count in pair) or engines is None or parallel is None:
        yield Unseen("a size is not a number here")
        return
    assert nodes is not None and each is not None
    everything = settings.on("train.colocate_all")
    critic = settings.get("algo.advantage.estimator", "gae") == "gae"  # OpenRLHF 0.11 has a critic only with this one
    problems = []
    if (everything or settings.on("train.colocate_actor_ref")) and reference and size["actor"] != size["ref"]:
        problems.append(("actor and reference share GPUs and have other numbers of them",
                         f"{size['actor']}, {size['ref']}"))  # fmt: skip
    if everything and engines and not settings.on("train.async_enable") and nodes * each != engines * parallel:
        problems.append(("the engines and the actor share GPUs and need other numbers of them",
                         f"actor {nodes * each}, engines {engines} × {parallel}"))  # fmt: skip
    if settings.on("train.colocate_critic_reward") and critic and size["critic"] != size["reward"]:
        problems.append(("critic and reward share GPUs and have other numbers of them",
                         f"{size['critic']}, {size['reward']}"))  # fmt: skip
    for what, measured in problems:
        yield Problem("error", what, measured, "OpenRLHF asserts it once Ray has started", "make the numbers equal")
    if settings.on("vllm.enable_sleep") and not everything:
        yield Problem(
            "warning", "--vllm.enable_sleep is switched off again", "without --train.colocate_all",
            "the engines keep their memory: what was planned to fit beside them does not",
            "--train.colocate_all, or plan without sleep",
        )  # fmt: skip
    elif not problems:
        yield Fine("the models that share GPUs have equal numbers of them")
