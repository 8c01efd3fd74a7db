"""Reverses one change at a time on a live engine; the change stays reversed. Runs in the learner's interpreter."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from scenarios.engines import registry
from scenarios.plants import Injection
from scenarios.ppo.weight_sync import WeightLink
from scenarios.remote import Actor, call

# Modules of a checkpoint that an engine fuses into one.
FUSED = {"q_proj": "qkv", "k_proj": "qkv", "v_proj": "qkv", "gate_proj": "gate_up", "up_proj": "gate_up"}


@dataclass(frozen=True)
class Stand:
    """One side on the bench.

    `session`: its engine. `actor`: the learner that sends weights. `policy`: the directory whose weights the engine
    should hold. `version`: the number of those weights. `workers`: of the engine.
    """

    session: Actor
    actor: Actor  # the learner that sends weights
    policy: str
    version: int
    workers: int = 1


class Undo:
    """The engines of each side, and the changes that can be reversed on them.

    `sync_backend`: backend of the process groups over which weights are sent.
    """

    def __init__(self, stands: dict[str, Stand], *, sync_backend: str) -> None:
        self._stands, self._sync_backend = stands, sync_backend
        self._links: dict[str, WeightLink] = {}
        self._adopted: dict[Actor, str] = {}
        self._longest: dict[str, int] = {}  # how many tokens of a sequence a side's engine scores; 0: unknown

    def flush(self, side: str) -> None:
        """Empty the prefix cache."""
        call(self._stands[side].session, "flush")

    def tensors(self, side: str) -> list[list[str]]:
        """Return the names of the learner's tensors in the order of a sync, in groups that the engine can load
        separately.
        """
        names = [meta.name for meta in call(self._learner(side), "weight_meta")]
        engine = registry.find(call(self._stands[side].session, "snapshot")["engine"])
        if engine is None or not engine.reloads_modules:
            return [[name] for name in names]
        groups: dict[str, list[str]] = {}
        for name in names:
            module, _, _ = name.rpartition(".")
            parent, _, last = module.rpartition(".")
            experts, _, _ = module.partition(".experts.")  # an engine holds all experts of a layer in one module
            key = experts if experts != module else f"{parent}.{FUSED.get(last, last)}"
            groups.setdefault(key, []).append(name)
        return list(groups.values())

    def send_otherwise(self, side: str, names: list[str]) -> None:
        """Send all tensors, with the halves of the rows of `names` exchanged.

        An engine that loads what it is sent then holds wrong values. Send the right ones afterwards.
        """
        self.sync(side, change=Injection(f"{__name__}:exchange_halves", {"names": names}))

    def sync(self, side: str, names: list[str] | None = None, change: Injection | None = None) -> float:
        """Send these tensors to the engine again (all of them for None), and return the seconds it took. Raises
        SyncFailed.

        `change`: changes what is sent, see `ActorRole.send_weights`.
        """
        stand = self._stands[side]
        started = time.perf_counter()
        actor = self._learner(side)
        if side not in self._links:
            self._links = {side: WeightLink(actor, stand.session)}  # a learner sends over one process group at a time
            self._links[side].connect(world_size=1 + stand.workers, backend=self._sync_backend)
        all_names = [meta.name for meta in call(actor, "weight_meta")]
        omit = () if names is None else tuple(name for name in all_names if name not in set(names))
        self._links[side].send(step=-1, version=stand.version, omit=omit, change=change)
        return time.perf_counter() - started

    def restart(self, side: str) -> float:
        """Start a fresh engine that loads this side's weights from disk, and return the seconds it took."""
        started = time.perf_counter()
        call(self._stands[side].session, "serve", self._stands[side].policy)
        call(self._stands[side].session, "restart")
        self._links.pop(side, None)  # its process group died with the engine
        return time.perf_counter() - started

    def put_back(self, side: str, names: list[str]) -> float:
        """Start a fresh engine that gets these engine parameters as they were requested, and return the seconds it
        took.
        """
        started = time.perf_counter()
        session = self._stands[side].session
        call(session, "serve", self._stands[side].policy)
        call(session, "put_back", names)
        self._links.pop(side, None)
        self._longest.pop(side, None)
        return time.perf_counter() - started

    def set(self, side: str, name: str, value: Any) -> float:
        """Change one parameter of a live session, and return the seconds it took. An engine parameter restarts the
        engine.
        """
        started = time.perf_counter()
        session = self._stands[side].session
        if name.startswith("engine."):
            call(session, "serve", self._stands[side].policy)
            self._links.pop(side, None)
        call(session, "set", name, value)
        self._longest.pop(side, None)
        return time.perf_counter() - started

    def _learner(self, side: str) -> Actor:
        """Return the learner, set to this side's weights: both runs may share it and end at different weights."""
        stand = self._stands[side]
        if self._adopted.get(stand.actor) != stand.policy:
            call(stand.actor, "adopt", stand.policy)
            self._adopted[stand.actor] = stand.policy
        return stand.actor


def exchange_halves(role: Any, tensors: Any, settings: Mapping[str, Any]) -> Callable[[str, Any], Any]:
    """Return a change for `ActorRole.send_weights`: the tensors `names` of the settings are sent with their halves
    exchanged.
    """
    names = frozenset(settings["names"])
    return lambda name, tensor: halves_exchanged(tensor) if name in names else tensor


def halves_exchanged(tensor: Any) -> Any:
    """Return the tensor with the two halves of its rows exchanged; its norm stays the same."""
    return tensor.detach().roll(tensor.shape[0] // 2, dims=0)
