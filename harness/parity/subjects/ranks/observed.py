"""Records of a learner's ranks: the samples each scored and trained on, the gradients it summed, the updates it
applied.

A learner of one rank records its answers alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sized
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from harness.recordings.store import Recording
from harness.recordings.tables import FrameArrays
from probes.limits import RANKS
from reports.text import part_of

# Role -> phase in which it scores samples, and the column of the experience that holds its answers.
ANSWERS = {
    "actor": ("actor_forward", "actor_logprob"),
    "reference": ("reference_forward", "reference_logprob"),
    "critic": ("critic_forward", "value"),
    "reward": ("reward_forward", "reward"),
}
_ROLES = {phase: role for role, (phase, _) in ANSWERS.items()}


def world_size(recording: Recording) -> int:
    """Return the number of ranks in the learner's scenario; 1 where that is no valid number."""
    world = recording.records.settings.learner.world_size
    return world if world is not None and 0 < world <= RANKS else 1


@dataclass(frozen=True)
class Updates:
    """The updates of one step on one rank.

    `own`, `size`, `summed`: arrays [update, parameter] of the sum of a gradient's numbers before the ranks are summed,
    the sum of their absolute values, and the sum of the numbers afterwards. `weights`: the sum of all weights before
    the first update and after each one.
    """

    rank: int
    parameters: tuple[str, ...]
    samples: tuple[tuple[int, ...], ...]
    tokens: tuple[int, ...]
    divisors: tuple[int, ...]
    digest: str
    own: np.ndarray
    size: np.ndarray
    summed: np.ndarray
    norm: np.ndarray
    weights: np.ndarray


@dataclass(frozen=True)
class Share:
    """The samples that one rank of a role scored in one step, and the digest of its answer.

    `sorted_digest`: that of the same numbers in ascending order; "" where it was not recorded.
    """

    samples: tuple[int, ...]
    digest: str
    sorted_digest: str = ""


@dataclass(frozen=True)
class Ranks:
    """The records of one run's ranks."""

    recording: Recording

    @property
    def world(self) -> int:
        return world_size(self.recording)

    @cached_property
    def updates(self) -> dict[tuple[int, str], dict[int, Updates]]:
        """Return (step, role) -> updates of each rank."""
        updates_by_key: dict[tuple[int, str], dict[int, Updates]] = {}
        for step in self.recording.steps("updates"):
            for frame in self.recording.frames_of("updates", step):
                made = _updates(frame)
                if made is not None:
                    updates_by_key.setdefault((step, str(frame.fields.get("role"))), {})[frame.rank] = made
        return {key: dict(sorted(by.items())) for key, by in sorted(updates_by_key.items())}

    @cached_property
    def shares(self) -> dict[tuple[int, str], dict[int, Share]]:
        """Return (step, role) -> share of each rank."""
        shares_by_key: dict[tuple[int, str], dict[int, Share]] = {}
        for answers in self.recording.records.answers:
            role = _ROLES.get(answers.phase or "")
            if role and answers.step is not None and answers.samples is not None:
                share = Share(answers.samples, answers.digest or "", answers.sorted_digest or "")
                shares_by_key.setdefault((answers.step, role), {})[answers.rank] = share
        return {key: dict(sorted(by.items())) for key, by in sorted(shares_by_key.items())}

    def lacking(self, steps: Iterable[int]) -> str:
        """Return what was not recorded of these steps, in words; "" where nothing is missing."""
        expected: list[tuple[str, Mapping[tuple[int, str], Sized], Iterable[str]]]
        expected = [("answers", self.shares, ANSWERS)]
        if self.world > 1:
            expected.insert(0, ("updates", self.updates, ("actor", "critic")))
        for step in steps:
            for what, records, roles in expected:
                for role in roles:
                    rank_count = len(records.get((step, role), ()))
                    if rank_count != self.world:
                        return f"{what} of {part_of(rank_count, self.world, 'rank')} of the {role} in step {step}"
        return ""


def _updates(frame: FrameArrays) -> Updates | None:
    """Return the updates of a frame; None where its columns do not fit together."""
    columns = [frame.arrays.get(name) for name in ("own", "size", "summed", "norm", "weights")]
    lists: list[Any] = [frame.fields.get(name) for name in ("parameters", "samples", "tokens", "divisors")]
    are_arrays = all(isinstance(column, np.ndarray) for column in columns)
    if not are_arrays or not all(isinstance(listing, list) for listing in lists):
        return None
    own_sum, size, summed, norm, weights = (np.asarray(column, np.float64) for column in columns)
    parameters, samples, tokens, divisors = lists
    # Arrays travel flat in a frame. Their lengths must fit the grid of updates and parameters before they are folded.
    updates, grid = len(samples), (len(samples), len(parameters))
    if {len(own_sum), len(size), len(summed)} != {grid[0] * grid[1]} or len(weights) != updates + 1:
        return None
    if {len(norm), len(tokens), len(divisors)} != {updates}:
        return None
    return Updates(
        rank=frame.rank,
        parameters=tuple(parameters),
        samples=tuple(tuple(map(int, ids)) for ids in samples),
        tokens=tuple(tokens),
        divisors=tuple(divisors),
        digest=str(frame.fields.get("digest")),
        own=own_sum.reshape(grid),
        size=size.reshape(grid),
        summed=summed.reshape(grid),
        norm=norm,
        weights=weights,
    )
