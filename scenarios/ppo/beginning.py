"""How a run of the PPO stack begins: the arguments of its trainer."""

from __future__ import annotations

from dataclasses import dataclass

from scenarios.plants import Injection


@dataclass(frozen=True)
class Beginning:
    """How a run begins.

    `policy`: the directory of the initial policy, for its tokenizer; None: the learner's. `plants`: makes the
    trainer's hooks where a fault is planted. `sync_backend`: gloo, or nccl where learner and engine are on GPUs.
    `resume`: a checkpoint to continue from. `replay`: the recorded run whose rollouts are used: the engine scores
    them instead of drawing. `first`: the first step, and the version of the initial weights. `adopted`: for a lifted
    stage, the directories of the weights that its further steps take, one after the other.
    """

    policy: str | None = None
    plants: Injection | None = None
    sync_backend: str = "gloo"
    resume: str | None = None
    replay: str | None = None
    first: int = 0
    adopted: tuple[str, ...] = ()
