"""Batches of a run's ranks: how many samples and padded tokens each got, and whether the shares are equal."""

from __future__ import annotations

from dataclasses import dataclass

from harness.parity.facts.evidence import Evidence, Side
from probes.format import number, whole

Share = tuple[float, float, float]  # samples, real tokens, padded tokens


@dataclass(frozen=True)
class Unequal:
    """Ranks of one role whose shares of the batch differ in these `steps`, where the other run's do not."""

    side: Side
    phase: str
    steps: tuple[int, ...]
    shares: dict[int, Share]  # of the first of them, by rank
    text: str


def unequal_ranks(e: Evidence) -> list[Unequal]:
    """Return an entry for each phase in which one run gives its ranks unequal numbers of samples and the other does
    not.

    Ranks pad to their own longest sample, so padded sizes differ between ranks in any sound run. The number of samples
    differs by one at most.
    """
    shares = {side.name: _shares(side) for side in e.sides}
    unequal = []
    for side in e.sides:
        own, others = shares[side.name], shares[e.other_side(side).name]
        steps_by_phase: dict[str, list[int]] = {}
        for phase, step in sorted(own):
            theirs = others.get((phase, step))
            if not theirs or step in e.unjudged_steps:
                continue
            # A fault that both runs share is none of one run: the ranks of the other must have equal shares.
            if _apart(own[phase, step]) and not _apart(theirs):
                steps_by_phase.setdefault(phase, []).append(step)
        for phase, steps in steps_by_phase.items():
            ranks, theirs = own[phase, steps[0]], others[phase, steps[0]]
            text = f"the {side.name}'s ranks got {_in_words(ranks)} in {phase} of step {steps[0]}, "
            text += f"the {e.other_side(side).name}'s {_in_words(theirs)}"
            unequal.append(Unequal(side, phase, tuple(steps), ranks, text))
    return unequal


def _shares(side: Side) -> dict[tuple[str, int], dict[int, Share]]:
    """Return (phase, step) -> rank -> its share, for every phase with several ranks."""
    by_phase: dict[tuple[str, int], dict[int, Share]] = {}
    for event in side.recording.labelled("shapes", "_forward"):
        step, phase = event.get("step"), str(event.get("phase"))
        if isinstance(step, int) and phase.endswith("_forward"):
            ranks = by_phase.setdefault((phase, step), {})
            rank = whole(event.get("rank"), 0)
            share_so_far = ranks.get(rank, (0.0, 0.0, 0.0))
            keys = ("samples", "real_tokens", "padded_tokens")
            ranks[rank] = tuple(a + number(event.get(key), 0.0) for a, key in zip(share_so_far, keys, strict=True))  # type: ignore[assignment]
    return {key: ranks for key, ranks in by_phase.items() if len(ranks) > 1}


def _apart(ranks: dict[int, Share]) -> bool:
    samples = [share[0] for share in ranks.values()]
    return max(samples) - min(samples) > 1


def _in_words(ranks: dict[int, Share]) -> str:
    return " and ".join(f"{share[0]:g} samples ({share[2]:g} padded tokens)" for _, share in sorted(ranks.items()))
