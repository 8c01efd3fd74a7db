"""The result of comparing the records of each step with each other. `observed_step_consistency` compares them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Witnesses:
    """The disagreements of one recording with itself.

    - `first`: comparison -> its first disagreement in words, in the order in which they are reported.
    - `batch_agrees`: step -> whether the learner's digest of what it trained on is that of what was recorded.
    - `seen_as_sent`: steps whose digest of the data is that of the prompts that the engine saw, and not of those that
      its rollouts say were sent. The rollouts are wrong about it: the engine saw what it was sent.
    """

    first: Mapping[str, str] = field(default_factory=dict)
    batch_agrees: Mapping[int, bool] = field(default_factory=dict)
    seen_as_sent: frozenset[int] = frozenset()
