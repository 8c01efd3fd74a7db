"""What a trainer asks before it acts. These answers change nothing; a planted fault overrides them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scenarios.engines.engine import Part
from scenarios.plants import Injection
from scenarios.ppo import advantages
from scenarios.session import RolloutResult

SYNC = "sync"


class Hooks:
    """The hooks of one trainer."""

    def logprobs(self, rows: list[Any], step: int) -> list[Any]:
        """What the trainer takes for the actor's log-probabilities (arrays, one a sample)."""
        return rows

    def bounds(self, items: int, ranks: int) -> list[int]:
        """Where the shares of `ranks` begin and end among so many samples."""
        return [items * rank // ranks for rank in range(ranks + 1)] if ranks else []

    def omitted(self, version: int) -> tuple[str, ...]:
        """Tensors that the sync of this weight version leaves out."""
        return ()

    def change(self, version: int) -> Injection | None:
        """What changes the tensors that this sync sends: see `ActorRole.send_weights`."""
        return None

    def sleeps(self, step: int) -> bool:
        """Whether the engine is put to sleep after this step's rollout, where the scenario says so."""
        return True

    def waking(self, version: int) -> tuple[str, ...]:
        """What wakes an engine for these weights, in order: its parts, and the sync between them, if there is one."""
        return (Part.WEIGHTS, SYNC, Part.CACHE)

    def inside(self, role: str, rank: int) -> Injection | None:
        """What alters one rank of a role before its first step: see `Role.plant`."""
        return None

    def dealt(self, items: Iterable[Any], ranks: int, step: int) -> list[list[Any]]:
        """What each rank trains on of one mini-batch."""
        return self.split(items, ranks)

    def count(self, tokens: int, rank_tokens: int, ranks: int) -> int:
        """What a rank that trains on `rank_tokens` of a mini-batch's response tokens divides its loss by."""
        return tokens

    def gathered(self, role: str, parts: list[Any]) -> list[Any]:
        """What the ranks of a role answered, a part each, in the order of the samples."""
        return [row for part in parts for row in part]

    def whiten(self, rows: list[NDArray[np.float32]], ranks: int) -> list[NDArray[np.float32]]:
        """The advantages of a whole batch, normalised."""
        return advantages.whiten(rows)

    def joined(self, result: RolloutResult) -> RolloutResult:
        """What the engines answered, in the order of the samples."""
        return result

    def split(self, items: Iterable[Any], ranks: int) -> list[list[Any]]:
        """Consecutive shares of as equal a size as can be; later ones may be empty."""
        all_items = list(items)
        return [all_items[start:end] for start, end in pairwise(self.bounds(len(all_items), ranks))]
