"""Spare processes that become the learners of a run, with all imports done.

Each serves one run, so that no state is carried over. The keeper replaces it after the run.
"""

from __future__ import annotations

import contextlib

from harness.cluster.launch import Cluster, driver_seat
from harness.cluster.learners import URGENT, roles_of
from scenarios.remote import Remote
from scenarios.settings import Scenario


class Spares:
    """As many spare processes as a run of `scenario` has learners, plus its stage.

    model: a directory with a model like those that the learners will load.
    names: the names of the unused spares.
    """

    def __init__(self, cluster: Cluster, scenario: Scenario, model: str) -> None:
        self._cluster, self._model = cluster, model
        self._wanted = 1 + len(roles_of(scenario)) * scenario.ppo.world_size
        self._made = 0
        self.names: tuple[str, ...] = ()
        self.actors = self._start(self._wanted)

    def lacking(self, unused: tuple[str, ...]) -> bool:
        """Whether a run has used some spares. `unused`: the names of those that it did not use."""
        return len(unused) < self._wanted

    def replace(self, unused: tuple[str, ...]) -> tuple[str, ...]:
        """End the spares that a run has used and start new ones. Return the names of all."""
        for name in {*self.names} - {*unused}:
            with contextlib.suppress(ValueError):  # the actor has ended
                Cluster.named(name).stop()
        self.names = unused
        self._start(self._wanted - len(unused))
        return self.names

    def _start(self, number: int) -> list[Remote]:
        names = [f"spare-{self._made + count}" for count in range(number)]
        self._made += number
        self.names = (*self.names, *names)
        return [
            self._cluster.actor("scenarios.spare_learner:Spare", driver_seat(), self._model, urgent=URGENT, name=name)
            for name in names
        ]
