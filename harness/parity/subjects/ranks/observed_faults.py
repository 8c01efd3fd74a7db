"""Faults of one run's ranks, found in their own records without the other run.

The rules of a sound learner: a step's samples are dealt to the ranks once in every epoch. The losses of a mini-batch
are divided by one count of its tokens. The gradient that a rank applies is the sum of all ranks' gradients. After every
update all ranks hold the same weights. Each sample has the answer of the rank that scored it. Advantages are normalised
over the whole batch.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeVar

import numpy as np

from harness.parity.subjects.precision.observed_floor import EPSILON
from harness.parity.subjects.ranks.observed import ANSWERS, Ranks, Share, Updates
from harness.recordings.tables import Rows, Table
from probes import weights
from reports.text import counted, first_of

SAME = 1e-5  # relative difference of advantages computed again from float32 columns, like other such means
LISTED = 3  # parameters that are named; further ones are counted
MOST_ORDERS = 4  # up to so many ranks every order is tried; for more, each rotation and the reverse

T = TypeVar("T")
Key = tuple[int, str]  # step, role
Group = Mapping[int, Updates]  # by rank


class What(StrEnum):
    """What is wrong, with its name in a cause."""

    DEALT = "samples of a rank"
    DIVISOR = "number of ranks in the loss"
    GRADIENT = "gradient of a rank"
    UPDATE = "update of a rank"
    APART = "weights of a rank"
    ANSWERS = "order of ranks"
    EXCHANGED = "answers of other samples"
    ALTERED = "answers that were changed"
    ADVANTAGES = "advantages per rank"
    TOKENS = "tokens that were scored"
    FOLLOWED = "reference that follows the policy"


@dataclass(frozen=True)
class RankFault:
    """One fault. `ranks`: those at fault; none where all are, or where the records do not tell which."""

    what: What
    role: str
    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    text: str


def rank_faults(ranks: Ranks) -> tuple[RankFault, ...]:
    """Return a fault for each kind, role and set of ranks, with all its steps and the text of the first."""
    return merged(_faults(ranks))


def merged(faults: Iterable[RankFault]) -> tuple[RankFault, ...]:
    """Return one fault for each kind, role and set of ranks, with all its steps and the text of the first."""
    merged_faults: dict[tuple[What, str, tuple[int, ...]], RankFault] = {}
    for fault in faults:
        key = (fault.what, fault.role, fault.ranks)
        earlier = merged_faults.get(key)
        merged_faults[key] = replace(earlier, steps=(*earlier.steps, *fault.steps)) if earlier else fault
    return tuple(merged_faults.values())


def _faults(ranks: Ranks) -> Iterator[RankFault]:
    recording, learner = ranks.recording, ranks.recording.records.settings.learner
    made = set(recording.steps("experience"))  # within the window, which `table` does not know

    def experience(step: int) -> Table | None:
        return recording.table("experience", step) if step in made else None

    for (step, role), group in _of_all(ranks, ranks.updates):
        if len(group) == 1:
            continue  # one process: nothing is dealt or summed
        table = experience(step)
        misdealt = list(dealt(role, step, group, [] if table is None else table.sample, learner.epochs or 0))
        # Ranks that train on other samples count other tokens: their divisors say nothing then.
        yield from misdealt or divided(role, step, group)
        yield from summed(role, step, group)
        yield from applied(role, step, group, ranks.updates.get((step - 1, role), {}))
    normalises = learner.normalize_advantages is True and not recording.records.manifest.framework
    for (step, role), shares in _of_all(ranks, ranks.shares):
        table = experience(step)
        if table is None:
            continue
        if recording.hashed_by == weights.HASH:
            yield from answered(role, step, shares, table)
        if role == "actor" and normalises:
            yield from normalised(step, shares, table)


def _of_all(ranks: Ranks, records: Mapping[Key, Mapping[int, T]]) -> Iterator[tuple[Key, Mapping[int, T]]]:
    """Return the records of steps for which every rank has one."""
    return ((key, by) for key, by in records.items() if len(by) >= ranks.world)


def dealt(role: str, step: int, group: Group, samples: Iterable[int], epochs: int) -> Iterator[RankFault]:
    """Find samples that the ranks trained on more or less often than once an epoch.

    A rank is named that has a sample twice in a mini-batch. If several ranks have a sample, nothing here says which
    should.
    """
    often = Counter(sample for updates in group.values() for batch in updates.samples for sample in batch)
    # Without a recorded number of epochs, the sample that was trained on most often says how many there were.
    wanted = epochs or max(often.values(), default=0)
    more = sorted(sample for sample, count in often.items() if count > wanted)
    less = sorted(int(sample) for sample in samples if often[int(sample)] < wanted)
    if not more and not less:
        return
    twice = tuple(rank for rank, updates in group.items() if _has_a_sample_twice(updates))
    parts = []
    for how, miscounted in (("more", more), ("less", less)):
        if miscounted:
            parts.append(f"{how} often on {counted(len(miscounted), 'sample')} (sample {miscounted[0]} for one)")
    text = f"in step {step} the {role}'s ranks trained {' and '.join(parts)} than once an epoch"
    text += f"; {_named(twice)} had one twice in a mini-batch" if twice else ""
    yield RankFault(What.DEALT, role, twice, (step,), text)


def _has_a_sample_twice(updates: Updates) -> bool:
    """Whether a mini-batch of the rank has a sample more than once."""
    return any(len(set(batch)) < len(batch) for batch in updates.samples)


def divided(role: str, step: int, group: Group) -> Iterator[RankFault]:
    """Find losses that are not divided by the number of response tokens of the whole mini-batch."""
    for batch, each in enumerate(zip(*(updates.tokens for updates in group.values()), strict=False)):
        total, divisors = sum(each), [updates.divisors[batch] for updates in group.values()]
        wrong = tuple(rank for rank, divisor in zip(group, divisors, strict=True) if divisor != total)
        if not wrong:
            continue
        # Two usual slips have a sentence of their own: the mean over the ranks, and each rank's own mean.
        if divisors == [len(group) * total] * len(group):
            how = f"and each rank divides by {divisors[0]}: by the number of ranks as well"
        elif divisors == list(each):
            how = f"and each rank divides by its own, {' and '.join(map(str, each))}, before their gradients are summed"
        else:
            how = f"and {_named(wrong)} by {', '.join(str(divisor) for divisor in divisors if divisor != total)}"
        text = f"mini-batch {batch} of step {step} has {total} response tokens on the {role}'s ranks, {how}"
        yield RankFault(What.DIVISOR, role, wrong if len(wrong) < len(group) else (), (step,), text)
        return


def summed(role: str, step: int, group: Group) -> Iterator[RankFault]:
    """Find gradients that were applied but are not the sum of the ranks' own."""
    rank_updates = list(group.values())
    if len({(updates.own.shape, updates.parameters) for updates in rank_updates}) > 1:
        return
    own_sums = np.stack([updates.own for updates in rank_updates])
    used = np.stack([updates.summed for updates in rank_updates])
    # A float32 sum in any order is off by less than one rounding for each addend, of the sum of the absolute values:
    # Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 4.2.
    allowed = EPSILON * len(rank_updates) * np.sum([updates.size for updates in rank_updates], axis=0)
    off = (np.abs(used - own_sums.sum(axis=0)) > allowed) & np.isfinite(own_sums).all(axis=0)
    if not off.any():
        return
    # Only the first wrong update of a step is reported. Parameters with the same fault share its sentence.
    update = int(np.flatnonzero(off.any(axis=(0, 2)))[0])
    reasons: dict[tuple[tuple[int, ...], str], list[str]] = {}
    for place in np.flatnonzero(off[:, update].any(axis=0)):
        at = (slice(None), update, place)
        reason = _instead(tuple(group), own_sums[at], used[at], float(allowed[update, place]), off[at])
        reasons.setdefault(reason, []).append(rank_updates[0].parameters[place])
    for (ranks, how), names in reasons.items():
        text = f"update {update} of step {step}, gradient of {first_of(names, LISTED)} of the {role}: {how}"
        yield RankFault(What.GRADIENT, role, ranks, (step,), text)


def _instead(
    ranks: tuple[int, ...], own_sums: np.ndarray, used: np.ndarray, allowed: float, off: np.ndarray
) -> tuple[tuple[int, ...], str]:
    """Return (ranks at fault, what they applied instead of the sum). `off`: ranks that applied something else."""
    wrong = tuple(ranks[at] for at in np.flatnonzero(off))
    blamed = wrong if len(wrong) < len(ranks) else ()  # where all are off, nothing says whose fault it is
    without = [at for at in range(len(ranks)) if (np.abs(used - (own_sums.sum() - own_sums[at])) <= allowed).all()]
    if (np.abs(used - own_sums) <= allowed)[off].all():
        return blamed, f"{_named(wrong)} applied its own, not the sum of all ranks'"
    if len(without) == 1:
        return (ranks[without[0]],), f"the sum that all ranks applied lacks that of rank {ranks[without[0]]}"
    # The mean times the number of ranks is the sum, and so is its rounding.
    if (np.abs(len(ranks) * used - own_sums.sum()) <= len(ranks) * allowed).all():
        return (), "ranks applied the mean of all ranks', where losses are divided for the sum"
    return blamed, f"{_named(wrong)} applied something else than the sum of all ranks'"


def applied(role: str, step: int, group: Group, before: Group) -> Iterator[RankFault]:
    """Find ranks whose weights begin to differ in this step.

    A rank whose weights did not move in an update did not apply it. Otherwise nothing here says which rank is right.
    """
    weights_by_rank = {rank: updates.weights for rank, updates in group.items()}
    # Only ranks that ended the step before with equal weights can part in this one.
    if not _are_equal(updates.weights[-1:] for updates in before.values()):
        return
    if len(set(map(len, weights_by_rank.values()))) > 1:
        return
    # The sums of the weights tell after which update the ranks part. The digests of all weights, taken once at the end
    # of the step, also tell of a difference that leaves the sums equal.
    after = _first_unequal(weights_by_rank)
    unmoved: tuple[int, ...] = ()
    if after is None:
        if len({updates.digest for updates in group.values()}) < 2:
            return
        # Equal after every recorded update, but not at the end of the step, by the digests of all weights.
        after = len(next(iter(weights_by_rank.values()))) - 1
    elif after:
        unmoved = tuple(rank for rank, sums in weights_by_rank.items() if sums[after] == sums[after - 1])
    place = f"after update {after - 1} of step {step}" if after else f"before the first update of step {step}"
    text = f"{place} the {role}'s ranks hold other weights"
    if unmoved and len(unmoved) < len(group):
        text += f": the update did not move those of {_named(unmoved)}"
        yield RankFault(What.UPDATE, role, unmoved, (step,), text)
    elif not any(summed(role, step, group)):  # else the sum is the reason
        yield RankFault(What.APART, role, (), (step,), text)


def _first_unequal(weights_by_rank: Mapping[int, np.ndarray]) -> int | None:
    """Return the first index at which the ranks' digests differ; None where they never do."""
    for at in range(len(next(iter(weights_by_rank.values())))):
        if not _are_equal(digests[at : at + 1] for digests in weights_by_rank.values()):
            return at
    return None


def answered(role: str, step: int, shares: Mapping[int, Share], table: Table) -> Iterator[RankFault]:
    """Find samples that have other numbers in the experience than the role answered for them.

    Three kinds: the ranks' parts were joined in another order, a rank's numbers stand with others of its samples, or
    numbers stand there that it did not answer.
    """
    name = ANSWERS[role][1]
    column = table.flat(name) if role == "reward" else table.rows(name)
    place = table.row_by_sample
    # Only a step of which every sample is in the table, and every rank's digest in the recording, can be judged.
    samples = {sample for share in shares.values() for sample in share.samples}
    if column is None or not place.keys() >= samples or not all(share.digest for share in shares.values()):
        return
    values = [_values(column, [place[sample] for sample in share.samples]) for share in shares.values()]
    order = _joined_order(values, [share.digest for share in shares.values()])
    if order is None:
        yield from _other_numbers(role, step, shares, values, _of_actor(role, table))
    elif order != tuple(range(len(shares))):
        ranks = ", ".join(str(list(shares)[at]) for at in order)
        text = f"in step {step} the answers of the {role}'s ranks were put together in the order {ranks}: samples "
        yield RankFault(What.ANSWERS, role, (), (step,), text + "have the answers of others")


def _joined_order(values: list[np.ndarray], digests: list[str]) -> tuple[int, ...] | None:
    """Return the order of the ranks in which their answers were joined; None where none gives the ranks' digests.

    `values`: the numbers that the samples of each rank have now. `digests`: those of what each rank answered.
    """
    all_values = np.concatenate(values)
    for order in _orders(len(values)):
        parts = np.split(all_values, np.cumsum([len(values[at]) for at in order])[:-1])
        if [weights.digest(part) for part in parts] == [digests[at] for at in order]:
            return order
    return None


def _of_actor(role: str, table: Table) -> bool:
    """Whether the reference's log-probabilities in the experience are the actor's."""
    recorded = table.together("actor_logprob", "reference_logprob")
    return role == "reference" and recorded is not None and np.array_equal(recorded[0].values, recorded[1].values)


def _other_numbers(
    role: str, step: int, shares: Mapping[int, Share], values: list[np.ndarray], of_actor: bool
) -> Iterator[RankFault]:
    """Say whether numbers that no order of the ranks gives are those of other samples, the actor's (`of_actor`), or
    none that were answered.

    The sorted numbers tell it. Nothing is said of the actor: its log-probabilities are scored again and compared, and
    the causes of the learner tell numbers of other samples from numbers of other tokens.
    """
    if role == "actor":
        return
    parts = zip(values, shares.values(), strict=True)
    what, how = What.ALTERED, "are not its answers"
    if all(weights.digest(np.sort(part)) == share.sorted_digest for part, share in parts):
        what, how = What.EXCHANGED, "are its answers, and stand with other samples"
    elif of_actor:
        what, how = What.FOLLOWED, "are not its answers, but the actor's"
    yield RankFault(what, role, (), (step,), f"in step {step} the numbers of the {role} in the experience {how}")


def _values(column: Rows | np.ndarray, rows: list[int]) -> np.ndarray:
    """Return the numbers of these rows, concatenated."""
    values = [column.row(row) for row in rows] if isinstance(column, Rows) else [column[rows]]
    return np.concatenate([np.zeros(0, np.float32), *values]).astype(np.float32)


def _orders(ranks: int) -> Iterator[tuple[int, ...]]:
    """Yield orders of the ranks, their own first."""
    natural_order = tuple(range(ranks))
    if ranks <= MOST_ORDERS:
        yield from itertools.permutations(natural_order)
    else:
        yield from (natural_order[first:] + natural_order[:first] for first in range(ranks))
        yield natural_order[::-1]


def normalised(step: int, shares: Mapping[int, Share], table: Table) -> Iterator[RankFault]:
    """Find advantages that were normalised over each rank's samples: returns minus values, normalised anew, show it."""
    recorded, place = table.together("advantage", "return", "value"), table.row_by_sample
    parts: list[list[int]] = []
    for share in shares.values():
        if share.samples:
            parts.append([place[sample] for sample in share.samples if sample in place])
    if recorded is None or len(parts) < 2:
        return
    advantages, returns, values = recorded
    plain = returns.values.astype(np.float64) - values.values.astype(np.float64)
    if len(plain) != len(advantages.values) or not np.isfinite(plain).all():
        return
    all_indices = np.arange(len(plain))
    index_rows = Rows(all_indices, advantages.offsets)
    by_rank = [index_rows.joined_at(np.array(rows, np.int64)) for rows in parts]
    # Both tests are needed: a batch in which each normalisation gives the same numbers shows nothing.
    if _apart(advantages.values, plain, [all_indices]) > SAME >= _apart(advantages.values, plain, by_rank):
        text = f"the advantages of step {step} are normalised over each rank's samples, not over those of all ranks"
        yield RankFault(What.ADVANTAGES, "actor", (), (step,), text)


def _apart(advantages: np.ndarray, plain: np.ndarray, parts: Sequence[np.ndarray]) -> float:
    """Return how far advantages are from `plain` normalised over each part, relative to the part's largest."""
    off = 0.0
    for part in parts:
        part_values = plain[part]
        variance = part_values.var(ddof=1) if len(part_values) > 1 else 0.0
        made = (part_values - part_values.mean()) / np.sqrt(variance + 1e-8)  # as `scenarios.ppo.advantages.whiten`
        off = max(off, float(np.abs(advantages[part] - made).max() / max(1.0, np.abs(made).max())))
    return off


def _are_equal(values: Iterable[np.ndarray]) -> bool:
    """Whether all of these arrays are equal in every bit."""
    return len({value.tobytes() for value in values}) < 2


def _named(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {' and '.join(map(str, ranks))}"
