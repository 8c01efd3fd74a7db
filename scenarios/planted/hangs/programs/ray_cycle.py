"""K6: Ray actors that wait for each other with `ray.get`.

`pair`: the trainer's step asks the engine for rollouts, and the engine asks the trainer for the policy's version
while that step still runs. `ring`: trainer, engine and reward model, one after the other. `self`: the trainer asks
itself through its own handle.
"""

from __future__ import annotations

import argparse
from typing import Any

import local_ray
import ray


class Trainer:
    def connect(self, engine: Any, me: Any) -> None:
        self.engine, self.me = engine, me

    def version(self) -> Any:
        return 3

    def step(self, number: int, hang: bool) -> Any:
        return ray.get(self.me.version.remote() if self.engine is None else self.engine.rollout.remote(number, hang))


class Engine:
    def connect(self, trainer: Any, reward: Any) -> None:
        self.trainer, self.reward = trainer, reward

    def rollout(self, number: int, hang: bool) -> Any:
        if not hang:
            return number
        if self.reward is not None:
            return ray.get(self.reward.score.remote(number))
        return ray.get(self.trainer.version.remote())


class Reward:
    def connect(self, trainer: Any) -> None:
        self.trainer = trainer

    def score(self, number: int) -> Any:
        return ray.get(self.trainer.version.remote())


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--phase", choices=["pair", "ring", "self"], default="pair")
    options = arguments.parse_args()
    local_ray.start()
    trainer: Any = ray.remote(num_cpus=0)(Trainer).remote()
    if options.phase == "self":
        ray.get(trainer.connect.remote(None, trainer))
    else:
        engine: Any = ray.remote(num_cpus=0)(Engine).remote()
        reward: Any = ray.remote(num_cpus=0)(Reward).remote() if options.phase == "ring" else None
        ray.get([trainer.connect.remote(engine, trainer), engine.connect.remote(trainer, reward)])
        if reward is not None:
            ray.get(reward.connect.remote(trainer))
        ray.get(trainer.step.remote(0, False))
    ray.get(trainer.step.remote(1, True))


if __name__ == "__main__":
    main()
