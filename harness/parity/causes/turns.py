"""Ordered lists of functions that several modules contribute to. Each function names the one that it follows, and
why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T", bound="Turn")


@dataclass(frozen=True)
class Turn:
    """A function with its place in a list.

    `after`: the name of the function that it follows, "" for the first. `because`: why it follows that one. `competes`:
    its results are weighed against those of that function, and the best of both is taken. `alone`: it needs one run
    only, and says as much about it as about either of two.
    """

    run: Callable[..., Any]
    after: str
    because: str
    competes: bool = field(default=False, kw_only=True)
    alone: bool = field(default=False, kw_only=True)

    @property
    def name(self) -> str:
        return self.run.__name__


@dataclass(frozen=True)
class Intervention(Turn):
    """An intervention on an engine.

    `title`: its name in notes. `starts_engine`: it takes seconds that a caller may not have.
    """

    title: str
    starts_engine: bool = False


def in_order(turns: Iterable[T]) -> tuple[T, ...]:
    """Return the turns in order, each directly behind the one that it follows.

    Of several that follow the same one, the one with the fewest direct and indirect followers comes first. So a new
    turn can be put between two existing ones. Raises ValueError for a name that occurs twice, and for a turn that
    follows nothing that is listed.
    """
    behind: dict[str, list[T]] = {}
    names: set[str] = set()
    for turn in turns:
        if turn.name in names:
            raise ValueError(f"two functions are named {turn.name!r}")
        names.add(turn.name)
        behind.setdefault(turn.after, []).append(turn)

    def listed(after: str) -> list[T]:
        branches = [[turn, *listed(turn.name)] for turn in behind.pop(after, ())]
        return [
            turn for branch in sorted(branches, key=lambda branch: (len(branch), branch[0].name)) for turn in branch
        ]

    ordered = tuple(listed(""))
    for after, lost in behind.items():
        raise ValueError(f"{lost[0].name!r} follows {after!r}, which is not listed, or follows it in turn")
    return ordered


def contests(turns: Iterable[T]) -> list[list[T]]:
    """Return turns in their order, in groups: each competing turn with the one that it follows."""
    groups: list[list[T]] = []
    for turn in turns:
        rivals = [group for group in groups if turn.competes and turn.after in {member.name for member in group}]
        if rivals:
            rivals[0].append(turn)
        else:
            groups.append([turn])
    return groups
