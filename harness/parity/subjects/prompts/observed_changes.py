"""Prompts that an engine did not see as they were sent. `observed` collects them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class ChangedPrompt:
    """One such prompt: the kind of its change, and its length as the engine saw it."""

    kind: str
    step: int
    sample: int
    length: int


@dataclass(frozen=True)
class Prompts:
    """The changed prompts of one engine: kind of change -> (step, sample) of each, and the length of each."""

    kinds: Mapping[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    lengths: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @staticmethod
    def of(changes: Iterable[ChangedPrompt]) -> Prompts:
        by_kind: dict[str, list[ChangedPrompt]] = {}
        for change in changes:
            by_kind.setdefault(change.kind, []).append(change)
        return Prompts(
            kinds={
                kind: tuple((change.step, change.sample) for change in of_kind) for kind, of_kind in by_kind.items()
            },
            lengths={kind: tuple(change.length for change in of_kind) for kind, of_kind in by_kind.items()},
        )
