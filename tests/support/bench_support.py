"""Two small recorded runs on embedded engines, one of them with a planted fault, and a bench for both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from ppo_support import CLASSES

from harness import config
from harness.parity.verdict import Judged, judged_pair
from probes import format as recording
from probes.format import Run
from scenarios.bench.bench import Bench
from scenarios.bench.undo import Stand
from scenarios.engines.engine_interface import Request
from scenarios.engines.guided import Guide
from scenarios.engines.make import EngineOptions
from scenarios.planted.differences.fault import Fault
from scenarios.ppo.beginning import Beginning
from scenarios.ppo.trainer import Trainer
from scenarios.remote import Actor, Local, call
from scenarios.session import EngineSession
from scenarios.settings import PPO, Rollout, Sampling, Scenario

STEPS = 2
BASE = Scenario(
    steps=STEPS,
    rollout=Rollout(prompts_per_step=4, samples_per_prompt=3),
    sampling=Sampling(max_tokens=16),
    ppo=PPO(train_batch_size=12, micro_batch_size=12, actor_lr=3e-3, critic_lr=3e-3),
)


class Laboratory:
    """Learners that both runs share, and one session a side. A session starts anew for each recording."""

    def __init__(self, paths: dict[str, str]) -> None:
        torch.set_num_threads(1)  # idle OpenMP threads spin
        self._paths = paths
        self._roles: dict[str, list[Actor]] = {}
        self._sessions: dict[str, Actor] = {}
        self._policies: dict[str, str] = {}

    def record(self, side: str, run: Path, scenario: Scenario, fault: Fault, *, guide: Path | None = None) -> None:
        """One whole run of one side; `fault` acts if it is on this side."""
        planted = fault if fault.side == side else Fault()
        own = config.changed(config.changed(scenario, fault.scenario), planted.settings)
        if not self._roles:
            self._roles = {
                name: [Local(kind, own.to_json(), dict(self._paths), urgent=("abort_sync",))]
                for name, kind in CLASSES.items()
            }
        if side in self._sessions:
            self._sessions[side].stop()
        session = self._sessions[side] = Local(
            EngineSession, "hf", self._paths["policy"], own.to_json(),
            EngineOptions("cpu", dict(planted.mapping) or None), wrap=planted.plants().engine,
        )  # fmt: skip
        call(session, "record_to", str(run))
        beginning = Beginning(policy=self._paths["policy"], plants=planted.plants().trainer)
        trainer = Trainer(own.to_json(), self._roles, session, run, beginning)
        trainer.start()
        for step in range(own.steps):
            trainer.step(step, guide=None if guide is None else _guide(guide, step))
        requests = [Request(number, ids) for number, ids in trainer.prompts.batch(own.steps - 1)]
        drawn = call(session, "floor", requests, step=own.steps - 1, version=trainer.version)
        trainer.floor(
            [r.prompt_ids + ids for r, ids in zip(requests, drawn, strict=True)], [r.sample for r in requests]
        )
        self._policies[side] = str(trainer.finish() / "policy")
        call(session, "end_recording")
        recording.write_manifest(run, {"scenario": own.to_json(), "side": side, "backend": "hf"})

    def bench(self, asked: Scenario, *sides: str) -> Bench:
        return Bench(
            asked.to_json(),
            {
                side: Stand(self._sessions[side], self._roles["actor"][0], self._policies[side], asked.steps)
                for side in sides or tuple(self._sessions)
            },
        )

    def session(self, side: str) -> Actor:
        return self._sessions[side]

    def close(self) -> None:
        for actor in [*self._sessions.values(), *(actors[0] for actors in self._roles.values())]:
            actor.stop()


@contextmanager
def laboratory(paths: dict[str, str]) -> Iterator[Laboratory]:
    made = Laboratory(paths)
    try:
        yield made
    finally:
        made.close()


def compared(lab: Laboratory, folder: Path, fault: Fault, scenario: Scenario = BASE) -> tuple[Judged, Bench]:
    """Both runs recorded with the fault on its side, judged, and on the bench."""
    lab.record("baseline", folder / "baseline", scenario, fault)
    lab.record("candidate", folder / "candidate", scenario, fault, guide=folder / "baseline")
    asked = config.changed(scenario, fault.scenario)
    if fault.side == "baseline":
        asked = config.changed(asked, fault.settings)
    return judged_pair(folder / "baseline", folder / "candidate", native=False), lab.bench(asked)


def _guide(run: Path, step: int) -> Guide:
    frame = next(one for one in Run(run).frames(kind="rollout") if one.step == step)
    rows = zip(frame.arrays["sample"].tolist(), frame.arrays["output"].rows(), frame.fields["finish"], strict=True)
    return {int(number): (tuple(ids), str(finish)) for number, ids, finish in rows}
