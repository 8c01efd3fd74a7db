"""What is wrong with the ranks of one run's learner by their own records, whatever the other run does.

A step's samples are dealt to the ranks once in every epoch. The losses of a mini-batch are divided by one count of its
tokens. The gradient that a rank applies is the sum of all ranks'. After every update all ranks hold the same weights.
Each sample has the answer of the rank that was asked about it. Advantages are normalised over the batch.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeVar

import numpy as np

from harness.parity.facts.floor import EPSILON
from harness.parity.facts.ranks import ANSWERS, Ranks, Share, Updates
from harness.recordings.tables import Rows, Table
from probes import weights
from probes.format import mapping, whole
from reports.text import counted

SAME = 1e-5  # advantages made again from float32 columns: as other means that are (`agreement`)
LISTED = 3  # parameters that are named; more are counted
MOST_ORDERS = 4  # ranks of which every order is tried; of more, each rotation and the reverse

T = TypeVar("T")
Key = tuple[int, str]  # step, role
Group = Mapping[int, Updates]  # by rank


class What(StrEnum):
    """What is wrong: its name in a cause."""

    DEALT = "samples of a rank"
    DIVISOR = "number of ranks in the loss"
    GRADIENT = "gradient of a rank"
    UPDATE = "update of a rank"
    APART = "weights of a rank"
    ANSWERS = "order of ranks"
    ADVANTAGES = "advantages per rank"


@dataclass(frozen=True)
class RankFault:
    """`ranks`: those at fault; none where it is all of them, or where these records do not tell which."""

    what: What
    role: str
    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    text: str


def rank_faults(ranks: Ranks) -> tuple[RankFault, ...]:
    """One for each kind, role and set of ranks, with all its steps and the words of the first."""
    found: dict[tuple[What, str, tuple[int, ...]], RankFault] = {}
    for one in _every(ranks):
        key = (one.what, one.role, one.ranks)
        found[key] = replace(found[key], steps=(*found[key].steps, *one.steps)) if key in found else one
    return tuple(found.values())


def _every(ranks: Ranks) -> Iterator[RankFault]:
    recording, ppo = ranks.recording, mapping(ranks.recording.scenario.get("ppo"))
    made = set(recording.steps("experience"))
    for (step, role), group in _of_all(ranks, ranks.updates):
        table = recording.table("experience", step) if step in made else None
        misdealt = list(dealt(role, step, group, [] if table is None else table.sample, whole(ppo.get("epochs"), 0)))
        yield from misdealt or divided(role, step, group)
        yield from summed(role, step, group)
        yield from applied(role, step, group, ranks.updates.get((step - 1, role), {}))
    normalises = ppo.get("normalize_advantages") is True and not recording.manifest.get("framework")
    for (step, role), shares in _of_all(ranks, ranks.shares):
        table = recording.table("experience", step) if step in made else None
        if table is not None and recording.hashed_by == weights.HASH:
            yield from answered(role, step, shares, table)
        if table is not None and role == "actor" and normalises:
            yield from normalised(step, shares, table)


def _of_all(ranks: Ranks, records: Mapping[Key, Mapping[int, T]]) -> Iterator[tuple[Key, Mapping[int, T]]]:
    """Records of steps of which every rank has one, where there are several."""
    return ((key, by) for key, by in records.items() if len(by) > 1 and len(by) >= ranks.world)


def dealt(role: str, step: int, group: Group, samples: Iterable[int], epochs: int) -> Iterator[RankFault]:
    """Samples on which the ranks trained more or less often than once an epoch. A rank is named that has one twice in a
    mini-batch; of a sample that several ranks have, nothing here says whose it is."""
    often = Counter(one for each in group.values() for batch in each.samples for one in batch)
    wanted = epochs or max(often.values(), default=0)
    more = sorted(one for one, count in often.items() if count > wanted)
    less = sorted(int(one) for one in samples if often[int(one)] < wanted)
    if more or less:
        twice = tuple(rank for rank, each in group.items() if any(len(set(one)) < len(one) for one in each.samples))
        parts = [f"{how} often on {counted(len(some), 'sample')} (sample {some[0]} for one)"
                 for how, some in (("more", more), ("less", less)) if some]  # fmt: skip
        text = f"in step {step} the {role}'s ranks trained {' and '.join(parts)} than once an epoch"
        text += f"; {_named(twice)} had one twice in a mini-batch" if twice else ""
        yield RankFault(What.DEALT, role, twice, (step,), text)


def divided(role: str, step: int, group: Group) -> Iterator[RankFault]:
    """Losses that are not divided by the number of response tokens of the whole mini-batch."""
    for batch, each in enumerate(zip(*(one.tokens for one in group.values()), strict=False)):
        total, divisors = sum(each), [one.divisors[batch] for one in group.values()]
        wrong = tuple(rank for rank, divisor in zip(group, divisors, strict=True) if divisor != total)
        if not wrong:
            continue
        if divisors == [len(group) * total] * len(group):
            how = f"and each rank divides by {divisors[0]}: by the number of ranks as well"
        elif divisors == list(each):
            how = f"and each rank divides by its own, {' and '.join(map(str, each))}, before their gradients are summed"
        else:
            how = f"and {_named(wrong)} by {', '.join(str(one) for one in divisors if one != total)}"
        text = f"mini-batch {batch} of step {step} has {total} response tokens on the {role}'s ranks, {how}"
        yield RankFault(What.DIVISOR, role, wrong if len(wrong) < len(group) else (), (step,), text)
        return


def summed(role: str, step: int, group: Group) -> Iterator[RankFault]:
    """Gradients that are applied and are not the sum of the ranks' own."""
    each = list(group.values())
    if len({(one.own.shape, one.parameters) for one in each}) > 1:
        return
    own, used = np.stack([one.own for one in each]), np.stack([one.summed for one in each])
    # A float32 sum in any order is off by less than one rounding for each addend of the sum of their sizes: Higham,
    # Accuracy and Stability of Numerical Algorithms, 2002, section 4.2.
    allowed = EPSILON * len(each) * np.sum([one.size for one in each], axis=0)
    off = (np.abs(used - own.sum(axis=0)) > allowed) & np.isfinite(own).all(axis=0)
    if not off.any():
        return
    update = int(np.flatnonzero(off.any(axis=(0, 2)))[0])
    reasons: dict[tuple[tuple[int, ...], str], list[str]] = {}
    for place in np.flatnonzero(off[:, update].any(axis=0)):
        at = (slice(None), update, place)
        reason = _instead(tuple(group), own[at], used[at], float(allowed[update, place]), off[at])
        reasons.setdefault(reason, []).append(each[0].parameters[place])
    for (ranks, how), names in reasons.items():
        shown = ", ".join(names[:LISTED]) + (f" and {len(names) - LISTED} more" if len(names) > LISTED else "")
        text = f"update {update} of step {step}, gradient of {shown} of the {role}: {how}"
        yield RankFault(What.GRADIENT, role, ranks, (step,), text)


def _instead(
    ranks: tuple[int, ...], own: np.ndarray, used: np.ndarray, allowed: float, off: np.ndarray
) -> tuple[tuple[int, ...], str]:
    """(ranks at fault, what they applied instead of the sum). `off`: those that applied something else."""
    wrong = tuple(ranks[at] for at in np.flatnonzero(off))
    without = [at for at in range(len(ranks)) if (np.abs(used - (own.sum() - own[at])) <= allowed).all()]
    if (np.abs(used - own) <= allowed)[off].all():
        return (wrong if len(wrong) < len(ranks) else ()), f"{_named(wrong)} applied its own, not the sum of all ranks'"
    if len(without) == 1:
        return (ranks[without[0]],), f"the sum that all ranks applied lacks that of rank {ranks[without[0]]}"
    if (np.abs(len(ranks) * used - own.sum()) <= len(ranks) * allowed).all():
        return (), "ranks applied the mean of all ranks', where losses are divided for the sum"
    return (
        wrong if len(wrong) < len(ranks) else ()
    ), f"{_named(wrong)} applied something else than the sum of all ranks'"


def applied(role: str, step: int, group: Group, before: Group) -> Iterator[RankFault]:
    """Ranks whose weights part in this step. A rank whose weights an update did not move did not apply it; of others
    nothing here says which one is right."""
    held = {rank: one.weights for rank, one in group.items()}
    if not _alike(one.weights[-1:] for one in before.values()) or len({len(one) for one in held.values()}) > 1:
        return
    alike = [_alike(one[at : at + 1] for one in held.values()) for at in range(len(next(iter(held.values()))))]
    if all(alike) and len({one.digest for one in group.values()}) < 2:
        return
    after = len(alike) - 1 if all(alike) else alike.index(False)
    still = tuple(rank for rank, one in held.items() if not all(alike) and after and one[after] == one[after - 1])
    place = f"after update {after - 1} of step {step}" if after else f"before the first update of step {step}"
    text = f"{place} the {role}'s ranks hold other weights"
    if still and len(still) < len(group):
        text += f": the update did not move those of {_named(still)}"
        yield RankFault(What.UPDATE, role, still, (step,), text)
    elif not any(summed(role, step, group)):  # else that is why
        yield RankFault(What.APART, role, (), (step,), text)


def answered(role: str, step: int, shares: Mapping[int, Share], table: Table) -> Iterator[RankFault]:
    """Samples that have the answers of others: the ranks' parts, put together in another order."""
    name = ANSWERS[role][1]
    column = table.flat(name) if role == "reward" else table.rows(name)
    place = {int(sample): row for row, sample in enumerate(table.sample)}
    own = list(shares.values())
    if column is None or not {one for share in own for one in share.samples} <= {*place}:
        return
    rows = [[place[one] for one in share.samples] for share in own]
    values = [_values(column, one) for one in rows]
    every = np.concatenate(values)
    for order in _orders(len(own)):
        parts = np.split(every, np.cumsum([len(values[at]) for at in order])[:-1])
        if [weights.digest(part) for part in parts] != [own[at].digest for at in order]:
            continue
        if order != tuple(range(len(own))):
            ranks = ", ".join(str(list(shares)[at]) for at in order)
            text = f"in step {step} the answers of the {role}'s ranks were put together in the order {ranks}: samples "
            yield RankFault(What.ANSWERS, role, (), (step,), text + "have the answers of others")
        return


def _values(column: Rows | np.ndarray, rows: list[int]) -> np.ndarray:
    """The numbers of these rows, end to end."""
    values = [column.row(row) for row in rows] if isinstance(column, Rows) else [column[rows]]
    return np.concatenate([np.zeros(0, np.float32), *values]).astype(np.float32)


def _orders(ranks: int) -> Iterator[tuple[int, ...]]:
    """Orders of the ranks, their own first."""
    own = tuple(range(ranks))
    if ranks <= MOST_ORDERS:
        yield from itertools.permutations(own)
    else:
        yield from (own[first:] + own[:first] for first in range(ranks))
        yield own[::-1]


def normalised(step: int, shares: Mapping[int, Share], table: Table) -> Iterator[RankFault]:
    """Advantages that were normalised over each rank's samples: returns less values, normalised anew, say so."""
    told, returns, values = (table.rows(name) for name in ("advantage", "return", "value"))
    place = {int(sample): row for row, sample in enumerate(table.sample)}
    parts = [[place[one] for one in share.samples if one in place] for share in shares.values() if share.samples]
    if told is None or returns is None or values is None or len(parts) < 2:
        return
    plain = returns.values.astype(np.float64) - values.values.astype(np.float64)
    if len(plain) != len(told.values) or not np.isfinite(plain).all():
        return
    every = np.arange(len(plain))
    by_rank = [np.concatenate([every[told.offsets[row] : told.offsets[row + 1]] for row in rows]) for rows in parts]
    if _apart(told.values, plain, [every]) > SAME >= _apart(told.values, plain, by_rank):
        text = f"the advantages of step {step} are normalised over each rank's samples, not over those of all ranks"
        yield RankFault(What.ADVANTAGES, "actor", (), (step,), text)


def _apart(told: np.ndarray, plain: np.ndarray, parts: Sequence[np.ndarray]) -> float:
    """How far advantages are from these ones normalised over each part, relative to the largest of it."""
    off = 0.0
    for part in parts:
        own = plain[part]
        variance = own.var(ddof=1) if len(own) > 1 else 0.0
        made = (own - own.mean()) / np.sqrt(variance + 1e-8)  # as `scenarios.ppo.advantages.whiten`
        off = max(off, float(np.abs(told[part] - made).max() / max(1.0, np.abs(made).max())))
    return off


def _alike(values: Iterable[np.ndarray]) -> bool:
    """Are all of these the same to the last bit?"""
    return len({one.tobytes() for one in values}) < 2


def _named(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {' and '.join(map(str, ranks))}"
