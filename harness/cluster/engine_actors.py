"""Actors of rollout engines, each in the interpreter of its engine's environment."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from harness import envs
from harness.cluster.launch import Cluster, Seat
from harness.cluster.side import Side
from scenarios.engines.make import EngineOptions
from scenarios.forkserver import CHILDREN
from scenarios.plants import INSIDE
from scenarios.remote import Remote
from scenarios.settings import Scenario


def engine_seat(
    side: Side,
    seat: Seat,
    guarded: Callable[[dict[str, str], str], dict[str, str]] = lambda variables, role: variables,
    rank: int = 0,
) -> Seat:
    """The seat of one side's engine, in the interpreter of its environment. An embedded engine has the learner's
    seat."""
    environment = side.environment
    if side.spec.embedded:
        return seat
    variables = dict(environment.env, PYTHONPATH=str(envs.bundle(plugins=True)), OMP_NUM_THREADS="1")
    if side.plants.inside:
        variables[INSIDE] = side.plants.inside
    if side.spec.preload and environment.device == "cpu":
        variables[CHILDREN] = "1"
    return dataclasses.replace(seat, python=environment.python, env=guarded(variables, called(side, rank)))


def session(
    cluster: Cluster, side: Side, policy: str, seat: Seat, options: EngineOptions, rank: int = 0, **actor: Any
) -> Remote:
    """Start the actor of one side's engine, with the weights in `policy`.

    `seat`: an `engine_seat`. `options`: their device is used for an embedded engine. `actor`: options of
    `Cluster.actor`.
    """
    device = options.device if side.spec.embedded else side.environment.device
    return cluster.actor(
        "scenarios.session:EngineSession",
        seat,
        side.environment.engine,
        policy,
        side.scenario.to_json(),
        dataclasses.replace(options, device=device, mapping=side.parameter_map or None),
        wrap=side.plants.engine,
        rank=rank,
        **actor,
    )


def called(side: Side, engine: int) -> str:
    """The role of one engine of a side, as the watch names it; with a number if there are several."""
    return "rollout" if side.scenario.engine.engines == 1 else f"rollout-{engine}"


def natively(scenario: Scenario) -> Scenario:
    """The scenario with which the engine of its native stage is started."""
    return dataclasses.replace(scenario, rollout=dataclasses.replace(scenario.rollout, mode="native"))
