"""The room of an experiment on its cluster: one bundle of resources for each actor, and who gets which.

All bundles are reserved in one group first, so that a cluster that is too small fails before any actor starts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

from harness.cluster.launch import Cluster, Seat, driver_seat
from harness.cluster.learners import roles_of
from harness.cluster.sharing import check_memory, shares
from harness.cluster.side import Side
from harness.triage.watch.guard import Guard


class _Kind(NamedTuple):
    """Seats of one kind are interchangeable."""

    place: str  # label or resource that the node must have; "" for any node
    gpus: int  # how many GPUs an actor has for itself; 1 also if it shares one


def chosen_device(device: str, gpus: float) -> str:
    """The device of engines and learners. `device`: "cpu", "cuda", or "auto" for cuda if the cluster has GPUs."""
    if device != "auto":
        return device
    return "cuda" if gpus else "cpu"


class Seats:
    """The seats of an experiment. `device`: as in `chosen_device`."""

    def __init__(self, cluster: Cluster, device: str, guard: Guard | None) -> None:
        self._cluster = cluster
        self._guard = guard
        self.gpus = cluster.gpus()
        self.device = chosen_device(device, self.gpus)
        self.hosts: dict[str, list[str]] = {}  # place -> hosts that have it
        self._free: dict[_Kind, list[int]] = {}  # numbers of the bundles that no actor has yet
        self.shares: list[float] = []  # share of a GPU, by bundle

    def reserve(
        self, sides: Sequence[Side], spare: int, own_learners: Callable[[Side], bool], say: Callable[[str], None]
    ) -> None:
        """Reserve a bundle for the trainer, for each learner's role, and for each engine, and `spare` more.

        `own_learners`: whether a side has learners of its own. Raises LaunchFailed if the cluster has too little.
        """
        kinds = [_Kind(sides[0].scenario.placement.learner, 1), *[_Kind("", 1)] * spare]
        for side in sides:
            scenario = side.scenario
            roles = len(roles_of(scenario)) * scenario.ppo.world_size if own_learners(side) else 0
            kinds += [_Kind(scenario.placement.learner, 1)] * roles
            kinds += [_Kind(scenario.placement.engine, self._ranks(side))] * scenario.engine.engines
        places = [kind.place for kind in kinds]
        self.hosts = {place: self._cluster.offering(place) for place in {*places} - {""}}
        check_memory(self.gpus, [(side.spec, side.scenario.engine) for side in sides if self._on_gpu(side)])
        self.shares = shares(self.gpus, [kind.gpus for kind in kinds])
        bundles = [{"CPU": self._cluster.actor_cpus} | ({"GPU": share} if share else {}) for share in self.shares]
        self._cluster.reserve(bundles, places, say)
        for number, kind in enumerate(kinds):
            self._free.setdefault(kind, []).append(number)

    def take(self, role: str, side: Side, name: str = "") -> Seat:
        """Return a free seat for an actor of this role. `name`: what the watch calls it, if not by its role."""
        ranks = self._ranks(side) if role == "rollout" else 1
        free = self._free.get(_Kind(side.scenario.placement.of(role), ranks)) or self._free[_Kind("", 1)]
        number = free.pop(0)
        seat = driver_seat(self.shares[number], number)
        return dataclasses.replace(seat, env=self.guarded(seat.env, name or role))

    def guarded(self, variables: dict[str, str], role: str) -> dict[str, str]:
        """Return the environment of an actor, with what the watch needs of it."""
        return self._guard.environment(variables, role) if self._guard is not None else variables

    @property
    def shared(self) -> bool:
        """Whether processes share a GPU."""
        return bool(self.gpus) and min(self.shares) < 1.0

    @property
    def backend(self) -> str:
        """The backend of every process group.

        NCCL refuses two ranks on one GPU ("Duplicate GPU detected", NCCL's `init.cc`), so actors that share a GPU use
        gloo.
        """
        return "nccl" if self.device == "cuda" and not self.shared else "gloo"

    def _on_gpu(self, side: Side) -> bool:
        """Whether the engines of this side run on GPUs."""
        return (self.device if side.spec.embedded else side.environment.device) == "cuda"

    def _ranks(self, side: Side) -> int:
        """The number of GPUs that one engine of this side needs for itself; 1 if it may share one."""
        return side.spec.ranks(side.scenario.engine) if self._on_gpu(side) else 1
