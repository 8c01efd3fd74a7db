"""Synthetic recordings of a framework's job: what no framework can give is not there."""

from __future__ import annotations

import dataclasses

from recordings import Recording, make, scenario

from scenarios.settings import Scenario

PLAN = dataclasses.replace(scenario(), guided=False)


def job(side: str, *, plan: Scenario = PLAN, noise: float = 3e-7, started: int = 0) -> Recording:
    """One run: no floor of its engine, no margins, no proof at its syncs, no sync of the first weights at all.

    `started`: nanoseconds after the first run of that side, to which a second one is no copy.
    """
    recording = make(side, plan, noise=noise, native=False, floor=False)
    recording.manifest |= {"framework": "openrlhf", "backend": "vllm", "seeds": {"trainer": 1, "data": 7}}
    recording.drop("model")
    trainer = recording.logs["trainer"]
    trainer.events = [one for one in trainer.events if not (one[0] == "sync" and one[1]["version"] == 0)]
    for sync in recording.events("sync"):
        for name in ("proof_max_delta", "proof_mean_delta", "proof_behind"):
            sync.pop(name, None)
    for frame in recording.frames("rollout"):
        frame.fields["guided"] = False
    for frame in recording.frames("experience"):
        del frame.arrays["margin"], frame.arrays["runner_up"]  # no framework keeps them
        frame.fields["order"] = [0, 1, 2, 3]
    for info in recording.events("engine_info"):
        info.update(engine="vllm", version="0.32.0")
    for opened in recording.events("open"):
        opened["wall_ns"] += started
    return recording
