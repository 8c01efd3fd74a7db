"""The learners of an experiment: sets of role actors, which sides with equal settings share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scenarios.remote import Actor, Remote
from scenarios.settings import Engine, Scenario

if TYPE_CHECKING:
    from harness.cluster.launch import Cluster, Seat
    from harness.cluster.seats import Seats
    from harness.cluster.side import Side
    from harness.warm.pool import Pool

ROLES = ("actor", "critic", "reward", "reference")
URGENT = ("abort_sync",)  # calls that a learner must accept while it is in another call


@dataclass
class LearnerSet:
    """The actors of every role, and the settings by which they learn now."""

    actors: dict[str, list[Actor]]  # role -> its ranks
    learns_by: Scenario

    @property
    def size(self) -> tuple[int, tuple[str, ...]]:
        """Return the number of ranks of each role, and the roles."""
        return self.learns_by.ppo.world_size, tuple(self.actors)


class Learners:
    """Starts sets of learners and gives each the settings of the side that it learns for.

    `wait`: see `Waiting.result`. `warm`: engines that are up, with warm processes for learners.
    """

    def __init__(self, cluster: Cluster, seats: Seats, wait: Callable[..., Any], warm: Pool | None) -> None:
        self._cluster = cluster
        self._seats = seats
        self._wait = wait
        self._warm = warm
        self._sets: list[LearnerSet] = []

    def start(self, side: Side, models: dict[str, str]) -> LearnerSet:
        """Start a set for this side. `models`: directories of the first policy and of the reward model."""
        scenario = side.scenario
        size = scenario.ppo.world_size
        started: dict[str, list[Actor]] = {}
        for role in roles_of(scenario):
            seats = [self._seats.take(role, side) for _ in range(size)]
            address, port = self._cluster.rendezvous(seats[0]) if size > 1 else ("127.0.0.1", 0)
            started[role] = [
                self.actor(
                    f"scenarios.ppo.roles:{role.capitalize()}Role",
                    seat,
                    scenario.to_json(),
                    {
                        "policy": models["policy"],
                        "reward": models["reward"],
                        "rank": rank,
                        "world_size": size,
                        "master_addr": address,
                        "master_port": port,
                        "device": self._seats.device,
                        "backend": self._seats.backend,
                    },
                    urgent=URGENT if role == "actor" else (),
                )
                for rank, seat in enumerate(seats)
            ]
        learners = LearnerSet(started, learner_settings(scenario))
        self._sets.append(learners)
        return learners

    def of_size(self, side: Side, models: dict[str, str]) -> LearnerSet:
        """Return a set with as many actors as `side` needs: one that is up, or a new one."""
        size = side.scenario.ppo.world_size, roles_of(side.scenario)
        return next((learners for learners in self._sets if learners.size == size), None) or self.start(side, models)

    def teach(self, learners: LearnerSet, side: Side) -> None:
        """Let a set learn by the scenario of `side`, which may have changed since the set was started."""
        settings = learner_settings(side.scenario)
        if learners.learns_by == settings:
            return
        for actors in learners.actors.values():
            for actor in actors:
                self._wait(actor.submit("configure", side.scenario.to_json()), side, "configuring the learner")
        learners.learns_by = settings

    def actor(self, target: str, seat: Seat, *args: Any, **kwargs: Any) -> Remote:
        """Start one actor, in a warm process if there is one."""
        if self._warm is None:
            return self._cluster.actor(target, seat, *args, **kwargs)
        return self._warm.learner(self._cluster, target, seat, *args, **kwargs)


def roles_of(scenario: Scenario) -> tuple[str, ...]:
    """The names of the learner's roles in a run."""
    return ROLES if scenario.train else ("actor",)


def learner_settings(scenario: Scenario) -> Scenario:
    """The settings from which the learners are made: all except the engine's own parameters and its place."""
    placement = dataclasses.replace(scenario.placement, engine="")
    return dataclasses.replace(scenario, engine=Engine(), placement=placement)
