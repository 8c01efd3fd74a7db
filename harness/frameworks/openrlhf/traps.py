"""Settings that OpenRLHF's PPO accepts although they break the job. Source: OpenRLHF 0.11.2."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

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
            "set --vllm.num_engines 1 in the job's command where runs have to repeat",
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
            "the first weight sync ends with `mismatch dtype`, after the first step's work",
            "set --ds.param_dtype bf16 in the job's command",
        )  # fmt: skip
    else:
        yield Fine(f"trainer {trainer}, engines bf16")


_ROLES = ("actor", "ref", "critic", "reward")
# Each size with its default.
_SIZES = {
    **{f"{role}.{name}": default for role in _ROLES for name, default in (("num_nodes", 1), ("num_gpus_per_node", 8))},
    "vllm.num_engines": 0,
    "vllm.tensor_parallel_size": 1,
}
_SHARED = tuple(f"train.{name}" for name in ("colocate_all", "colocate_actor_ref", "colocate_critic_reward"))


def colocation(settings: Settings) -> Iterator[Outcome]:
    """Equalities that OpenRLHF asserts if models share GPUs."""
    needed = [*_SIZES, *_SHARED, "train.async_enable", "vllm.enable_sleep", "algo.kl.init_coef"]
    needed += ["algo.advantage.estimator"] * settings.on("train.colocate_critic_reward")
    if why := settings.why_unknown(*needed):
        yield Unseen(why)
        return
    sizes = {name: settings.number(name, default) for name, default in _SIZES.items()}
    try:
        reference = float(settings.get("algo.kl.init_coef", 0.01)) > 0
    except (TypeError, ValueError):
        reference = None
    if reference is None or None in sizes.values():
        yield Unseen("a size is not a number here")
        return
    problems = list(_unequal(settings, {name: size or 0 for name, size in sizes.items()}, reference=reference))
    for what, measured in problems:
        yield Problem("error", what, measured, "OpenRLHF asserts it once Ray has started", "make the numbers equal")
    if settings.on("vllm.enable_sleep") and not settings.on("train.colocate_all"):
        yield Problem(
            "warning", "--vllm.enable_sleep is switched off again", "without --train.colocate_all",
            "the engines keep their memory: what was planned to fit beside them does not",
            "add --train.colocate_all to the job's command, or plan without sleep",
        )  # fmt: skip
    elif not problems:
        yield Fine("the models that share GPUs have equal numbers of them")


def _unequal(settings: Settings, sizes: Mapping[str, int], *, reference: bool) -> Iterator[tuple[str, str]]:
    """Yield (what differs, the numbers) for each pair of models that share GPUs."""
    actor, ref, critic, reward = ((sizes[f"{role}.num_nodes"], sizes[f"{role}.num_gpus_per_node"]) for role in _ROLES)
    engines, parallel = sizes["vllm.num_engines"], sizes["vllm.tensor_parallel_size"]
    everything, with_ref, with_reward = map(settings.on, _SHARED)
    if reference and actor != ref and (everything or with_ref):
        yield "actor and reference share GPUs and have other numbers of them", f"{actor}, {ref}"
    if everything and engines and not settings.on("train.async_enable") and math.prod(actor) != engines * parallel:
        numbers = f"actor {math.prod(actor)}, engines {engines} × {parallel}"
        yield "the engines and the actor share GPUs and need other numbers of them", numbers
    has_critic = settings.get("algo.advantage.estimator", "gae") == "gae"  # OpenRLHF 0.11: only with this one
    if with_reward and has_critic and critic != reward:
        yield "critic and reward share GPUs and have other numbers of them", f"{critic}, {reward}"
