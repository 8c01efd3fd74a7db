"""Questions that a trainer asks before it acts. These answers change nothing; a planted fault overrides them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from scenarios.engines.engine_interface import Part
from scenarios.plants import Injection
from scenarios.ppo import advantages
from scenarios.session import RolloutResult

if TYPE_CHECKING:
    from scenarios.ppo.batches import Sample  # with torch

SYNC = "sync"


class Hooks:
    """The hooks of one trainer."""

    def logprobs(self, rows: list[Any], samples: Sequence[Sample], step: int) -> list[Any]:
        """Return what the trainer uses as the actor's log-probabilities (arrays, one for each of `samples`)."""
        return rows

    def rewarded(self, rewards: NDArray[np.float32], finish: Sequence[str], step: int) -> NDArray[np.float32]:
        """Return the rewards that the returns are made of, one for each sample, given why each ended."""
        return rewards

    def bounds(self, items: int, ranks: int) -> list[int]:
        """Return where the shares of `ranks` begin and end among `items` samples."""
        return [items * rank // ranks for rank in range(ranks + 1)] if ranks else []

    def omitted(self, version: int) -> tuple[str, ...]:
        """Return the tensors that the sync of this weight version leaves out."""
        return ()

    def change(self, version: int) -> Injection | None:
        """Return what changes the tensors that this sync sends: see `ActorRole.send_weights`."""
        return None

    def sleeps(self, step: int) -> bool:
        """Whether the engine is put to sleep after this step's rollout, where the scenario says so."""
        return True

    def waking(self, version: int) -> tuple[str, ...]:
        """Return what wakes an engine for these weights, in order: its parts, and the sync between them, if there is
        one.
        """
        return (Part.WEIGHTS, SYNC, Part.CACHE)

    def inside(self, role: str, rank: int) -> Injection | None:
        """Return what changes one rank of a role before its first step: see `Role.plant`."""
        return None

    def dealt(self, items: Iterable[Any], ranks: int, step: int) -> list[list[Any]]:
        """Return what each rank trains on of one mini-batch."""
        return self.split(items, ranks)

    def count(self, tokens: int, rank_tokens: int, ranks: int) -> int:
        """Return the number by which a rank divides its loss, given its `rank_tokens` of the mini-batch's response
        tokens.
        """
        return tokens

    def gathered(self, role: str, parts: list[Any]) -> list[Any]:
        """Return the answers of the ranks of a role, one part each, in the order of the samples."""
        return [row for part in parts for row in part]

    def whiten(self, rows: list[NDArray[np.float32]], ranks: int) -> list[NDArray[np.float32]]:
        """Return the advantages of a whole batch, normalised."""
        return advantages.whiten(rows)

    def joined(self, result: RolloutResult) -> RolloutResult:
        """Return the engines' answers in the order of the samples."""
        return result

    def split(self, items: Iterable[Any], ranks: int) -> list[list[Any]]:
        """Return consecutive shares of sizes as equal as possible; later ones may be empty."""
        all_items = list(items)
        return [all_items[start:end] for start, end in pairwise(self.bounds(len(all_items), ranks))]
