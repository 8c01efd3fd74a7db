"""Planted faults of the trainer, at its own interface.

They change what it sends in a weight sync, what it makes of log-probabilities, and how it divides samples among its
ranks.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from scenarios.planted.differences.responses import numbered
from scenarios.plants import Injection
from scenarios.ppo.advantages import whiten
from scenarios.ppo.hooks import Hooks
from scenarios.session import RolloutResult

if TYPE_CHECKING:
    from scenarios.ppo.batches import Sample  # with torch

HERE, RANKS = "scenarios.planted.differences.trainer", "scenarios.planted.differences.ranks"
MEMORY = "scenarios.planted.differences.memory"
UNSAID = {
    "unsaid": "divided",
    "mean of means": "averaged",
    "mean of micro-batches": "accumulated",
}  # divisors that the recording does not show
KEPT = "_sent_before"  # attribute of an actor role: its model, and what the last sync should have sent


@dataclass(frozen=True)
class TrainerPlants(Hooks):
    """The faults of one trainer; the default has none.

    omit_tensors: {weight version: names left out of that sync}. omit_from: the first version from which `omit_names`
    are left out of every sync. alter: {tensor: "revision" | "halves"}: changed when it is sent, from version
    `alter_from` on, see `altered`. behind_from: from the sync of this version on, each sync sends what the previous
    one should have sent. scale: factor of the actor's log-probabilities. shift: positions by which they are late.
    pads: added to the actor's log-probabilities of samples whose prompt is shorter than the longest of the step.
    unrewarded: the finish reason of samples whose returns are made without their reward.
    first_share: the share of the samples that the first rank gets (0 to 1). first_step: earlier steps are right.
    awake_in: steps after whose rollout the engine is not put to sleep. wakes: {weight version: how the engine wakes
    for it}.

    Of several ranks, `rank` is the one at fault. dealing: it trains on `another's` samples, those of rank 0, or on
    its first one `twice` and not on its last; or samples are distributed `in turn`, which is right. update: see
    `ranks.update`; of the actor. revision: {role: the tensor of which that rank has another revision}. divisor: what
    a loss is divided by: `times ranks`, or its rank's `own` tokens; `unsaid`: as `times ranks`, without a record;
    `mean of means`: ranks times the rank's own tokens, without a record; `mean of micro-batches`: micro-batches times
    their own tokens, without a record. advantages: normalised `per rank`. exchanged: the role whose answers are
    gathered in the reverse order of its ranks; where it has one rank, of its samples. cut_prompts: the actor scores and
    trains on the last so many ids of each prompt. reference: `follows`: the actor's log-probabilities serve as the
    reference's. old_logprobs: those of the loss are the `present` ones.

    joined_engines: the answers of this many engines are joined engine by engine and numbered by their position. leak:
    see `memory.leak`; of the actor's rank `rank`.
    """

    omit_tensors: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    omit_from: int = -1
    omit_names: tuple[str, ...] = ()
    alter: Mapping[str, str] = field(default_factory=dict)
    alter_from: int = 0
    behind_from: int = -1
    scale: float = 1.0
    shift: int = 0
    first_share: float = 0.0
    first_step: int = 0
    pads: float = 0.0
    unrewarded: str = ""
    awake_in: tuple[int, ...] = ()
    wakes: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    rank: int = 1
    dealing: str = ""
    update: Mapping[str, Any] = field(default_factory=dict)
    revision: Mapping[str, str] = field(default_factory=dict)
    divisor: str = ""
    advantages: str = ""
    exchanged: str = ""
    cut_prompts: int = 0
    reference: str = ""
    old_logprobs: str = ""
    joined_engines: int = 0
    leak: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def _actor(self) -> list[Any]:
        """The actor's log-probabilities of the present step."""
        return []

    def sleeps(self, step: int) -> bool:
        return step not in self.awake_in

    def waking(self, version: int) -> tuple[str, ...]:
        return tuple(self.wakes.get(version, super().waking(version)))

    def omitted(self, version: int) -> tuple[str, ...]:
        """Return the tensors that the sync of this weight version leaves out."""
        later = self.omit_names if 0 <= self.omit_from <= version else ()
        return (*self.omit_tensors.get(version, ()), *later)

    def change(self, version: int) -> Injection | None:
        """Return how the sync of this weight version changes what it sends; None for no change."""
        behind = 0 <= self.behind_from <= version
        alter = dict(self.alter) if version >= self.alter_from else {}
        return Injection(f"{HERE}:changed", {"alter": alter, "behind": behind}) if behind or alter else None

    def bounds(self, items: int, ranks: int) -> list[int]:
        if not self.first_share or ranks < 2:
            return super().bounds(items, ranks)
        lead = round(items * self.first_share)
        return [0, *(lead + (items - lead) * rank // (ranks - 1) for rank in range(ranks))]

    def rewarded(self, rewards: Any, finish: Sequence[str], step: int) -> Any:
        """Return the rewards that the returns are made of, one for each sample (array), given why each ended."""
        if not self.unrewarded or step < self.first_step:
            return rewards
        return rewards * [reason != self.unrewarded for reason in finish]

    def inside(self, role: str, rank: int) -> Injection | None:
        if role == "actor" and self.old_logprobs:
            return Injection(f"{RANKS}:present_as_old")
        if role == "actor" and self.cut_prompts:
            return Injection(f"{RANKS}:cut_prompts", {"kept": self.cut_prompts})
        if rank == self.rank and role == "actor" and self.update:
            return Injection(f"{RANKS}:update", self.update)
        if rank == self.rank and role == "actor" and self.leak:
            return Injection(f"{MEMORY}:leak", self.leak)
        if role in ("actor", "critic") and self.divisor in UNSAID:
            return Injection(f"{RANKS}:{UNSAID[self.divisor]}")
        if rank == self.rank and role in self.revision:
            return Injection(f"{RANKS}:revision", {"name": self.revision[role]})
        return None

    def dealt(self, items: Iterable[Any], ranks: int, step: int) -> list[list[Any]]:
        samples = list(items)
        shares = super().dealt(samples, ranks, step)
        if self.dealing == "in turn":
            return [samples[rank::ranks] for rank in range(ranks)]
        if self.dealing and step >= self.first_step and self.rank < ranks:
            share = shares[self.rank]
            shares[self.rank] = list(shares[0]) if self.dealing == "another's" else [share[0], *share[:-1]]
        return shares

    def count(self, tokens: int, rank_tokens: int, ranks: int) -> int:
        return {"times ranks": tokens * ranks, "own": rank_tokens}.get(self.divisor, tokens)

    def gathered(self, role: str, parts: list[Any]) -> list[Any]:
        if role == "reference" and self.reference == "follows":
            return list(self._actor)
        if role != self.exchanged:
            return super().gathered(role, parts)
        return super().gathered(role, parts[::-1] if len(parts) > 1 else [part[::-1] for part in parts])

    def joined(self, result: RolloutResult) -> RolloutResult:
        if not self.joined_engines:
            return result
        prompts = itertools.groupby(result.completions, key=lambda completion: completion.prompt_seen)
        groups = [len(list(group)) for _, group in prompts]  # prompts are distributed in turn: see `scenarios.fleet`
        engine = [number % self.joined_engines for number, size in enumerate(groups) for _ in range(size)]
        # `sorted` is stable: within an engine its answers keep their order, as a join of lists leaves them.
        places = sorted(range(len(engine)), key=engine.__getitem__)
        numbers = [completion.sample for completion in result.completions]
        return dataclasses.replace(
            result,
            completions=[numbered(result.completions[at], number) for at, number in zip(places, numbers, strict=True)],
            used=[(number, *result.used[at][1:]) for at, number in zip(places, numbers, strict=True)],
        )

    def whiten(self, rows: list[Any], ranks: int) -> list[Any]:
        if not self.advantages:
            return super().whiten(rows, ranks)
        return [row for share in self.split(rows, ranks) for row in whiten(share)]

    def logprobs(self, rows: list[Any], samples: Sequence[Sample], step: int) -> list[Any]:
        """Return what the trainer uses as the actor's log-probabilities (arrays, one for each of `samples`)."""
        self._actor[:] = rows
        if step < self.first_step or (self.scale == 1.0 and not self.shift and not self.pads):
            return rows
        import numpy as np

        if self.pads:
            longest = max(len(sample.prompt) for sample in samples)
            return [row + np.float32(self.pads * (len(sample.prompt) < longest))
                    for row, sample in zip(rows, samples, strict=True)]  # fmt: skip
        return [(np.roll(row, self.shift) * np.float32(self.scale)).astype(row.dtype) for row in rows]


def plant(settings: Mapping[str, Any]) -> TrainerPlants:
    """Return the hooks of a trainer with these faults, keywords of `TrainerPlants`."""
    return TrainerPlants(**settings)


def changed(role: Any, tensors: Mapping[str, Any], settings: Mapping[str, Any]) -> Callable[[str, Any], Any]:
    """Return a change for `ActorRole.send_weights`.

    `alter`: as in `altered`. `behind`: send the tensors that the previous sync should have sent; the role keeps them
    until it loads another model.
    """
    alter: Mapping[str, str] = settings["alter"]
    before: Mapping[str, Any] = {}
    if settings["behind"]:
        model, sent = getattr(role, KEPT, (None, {}))
        before = sent if model is role.model else {}
        setattr(role, KEPT, (role.model, {name: tensor.detach().clone() for name, tensor in tensors.items()}))
    return lambda name, tensor: altered(tensor, alter[name]) if name in alter else before.get(name, tensor)


def altered(tensor: Any, how: str) -> Any:
    """Return another tensor of the same shape.

    A `revision` has noise of a twentieth of its standard deviation. `halves` exchanges the halves of its rows, so
    every norm stays.
    """
    import torch

    from scenarios.bench.undo import halves_exchanged

    if how == "halves":
        return halves_exchanged(tensor)
    noise = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(0)).to(tensor)
    return tensor.detach() + 0.05 * tensor.detach().std() * noise
