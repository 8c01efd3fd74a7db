"""Learner against learner: in a guided run both make the same updates, bit for bit, for the whole run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from harness.parity.facts.divergence import Kind
from harness.parity.facts.evidence_builder import EvidenceBuilder
from harness.parity.subjects.learner.observed_experience import ROUNDINGS, SPACING
from harness.parity.subjects.learner.observed_learners import OtherDivisor
from harness.parity.subjects.ranks.observed import Updates
from harness.parity.subjects.ranks.observed_faults import What
from harness.parity.subjects.recording.observed_confounders import CUTS, DEALING, MICRO_BATCHES
from harness.parity.subjects.recording.observed_missing_steps import BATCH, CRITIC, LOSSES, NORMS
from harness.recordings.store import Recording
from probes.format import number
from reports.model import place_of_step
from reports.text import figure

# Equal updates have equal losses. Where a framework sums the losses of micro-batches in another order, they differ by
# this.
SAME_LOSS = 1e-6  # relative; losses of normalised advantages are nearly zero, hence NO_LOSS
NO_LOSS = 1e-7  # absolute: smaller differences are equal as well
# A step records the mean norm over its updates. All but the first of them have other weights by then. Measured over two
# updates of a loss that was divided by two: the norms were halved up to a relative 2e-6 (actor) and 2e-4 (critic).
SAME_NORM = 1e-2
# Relative difference of a sum of absolute values times one factor; 2e-8 was measured in float32, over two ranks. In
# half precision gradients and their terms are rounded, so `ROUNDINGS` of the type apply.
SAME_SIZE = 1e-5
SPREAD = 4  # times that difference: ranks whose factors differ by more have factors of their own
# What a loss depends on if its gradient changes with the cut of the batch, for each name of `CUTS`.
_IN_THE_LOSS = {
    "ppo.world_size": What.DIVISOR,
    "ppo.micro_batch_size": "size of micro-batches in the loss",
    MICRO_BATCHES: "size of micro-batches in the loss",
    "ppo.packing": "packing in the loss",
    DEALING: "samples of the ranks in the loss",
}
# The digests in the order of the phases, so that the first that differs shows where the runs diverged.
_DIGESTS = (("batch", "experience"), ("actor", "train"), ("critic", "train"))


def learners(e: EvidenceBuilder) -> None:
    """Compare `learner` digests step by step, up to the first update that differs. Later differences follow from it."""
    baseline_updates, candidate_updates = e.weights.updates
    if not e.weights.comparable:
        made = (f"those of the {side.name} were made by {side.recording.hashed_by}" for side in e.sides)
        e.missing.append(f"digests were not compared: {', '.join(made)}")
    updates = {"baseline": tuple(sorted(baseline_updates)), "candidate": tuple(sorted(candidate_updates))}
    e.learners = replace(e.learners, updates=updates)
    compared: list[int] = []
    for step in sorted(set(baseline_updates) & set(candidate_updates)):
        baseline_digests, candidate_digests = baseline_updates[step].digests, candidate_updates[step].digests
        pairs: dict[str, tuple[Any, Any]] = {
            name: (baseline_digests.get(name), candidate_digests.get(name)) for name, _ in _DIGESTS
        }
        if None in pairs["actor"]:
            continue  # without the digest of the weights the update was not compared
        for name, what in (("batch", BATCH), ("critic", CRITIC)):
            e.note_recorded(what, step, *(value is not None for value in pairs[name]))
        wrong = [(name, phase) for name, phase in _DIGESTS if _differ(*pairs[name])]
        if wrong:
            e.learners = replace(e.learners, equal=tuple(compared))
            _note_parted(e, step, wrong, pairs[wrong[0][0]])
            return
        compared.append(step)
    e.learners = replace(e.learners, equal=tuple(compared))
    _losses(e, compared)


def _differ(baseline: Any, candidate: Any) -> bool:
    """Whether both digests were recorded and are unequal."""
    return None not in (baseline, candidate) and bool(baseline != candidate)


def _note_parted(e: EvidenceBuilder, step: int, wrong: list[tuple[str, str]], digests: tuple[Any, Any]) -> None:
    """Note the first update that differs: what explains it, or else a divergence.

    `wrong`: digests that differ, with their phases. `digests`: both runs' values of the first of them.
    """
    e.learners = replace(e.learners, parted=step)
    name, phase = wrong[0]
    confounder = e.confounded("everything", "prompts", "experience", "train", step=step)
    # If only the cut of the batch differs, the first gradients show whether rounding explains the difference.
    if _only_cut(e):
        scaled = _scaled(e, step) if name != "batch" else None
        scaled = scaled or _by_cut(e, step)
        e.learners = replace(e.learners, scaled=scaled)
    # What was to be expected comes first: a confounder, other tokens, another order. Only then is it a divergence.
    if (confounder is not None or e.learners.cuts) and e.learners.scaled is None:
        unequal = confounder.finding if confounder is not None else e.learners.cuts[0]
        e.learners = replace(e.learners, confounded=unequal.summary)
    elif not e.guided and _trained_apart(e, step):
        e.learners = replace(e.learners, followed=step)
    elif _reordered(e, step):
        e.learners = replace(e.learners, reordered=step)
    else:
        names = ", ".join(digest for digest, _ in wrong)
        place = place_of_step(
            step=step,
            phase=phase,
            field=f"{name} digest",
            baseline=digests[0],
            candidate=digests[1],
            context=f"{names} differ after the update of step {step}; before it the learners were equal",
        )
        e.note_divergence(Kind.LEARNER.of(), [], place)


def _losses(e: EvidenceBuilder, steps: list[int]) -> None:
    """Check that equal updates recorded equal and finite losses."""
    first_steps: dict[str, int] = {}  # loss -> the first step with other last digits
    metrics_by_side = [{record.step: record.metrics for record in side.recording.records.steps} for side in e.sides]
    for step in steps:
        for name in LOSSES:
            values = [metrics.get(step, {}).get(name) for metrics in metrics_by_side]
            if None in values:  # the weights agree without it
                e.note_recorded(name, step, *(value is not None for value in values))
            elif _loss_differs(e, name, step, *map(number, values)):
                first_steps.setdefault(name, step)
    e.learners = replace(e.learners, losses_differ=first_steps)


def _loss_differs(e: EvidenceBuilder, name: str, step: int, baseline: float, candidate: float) -> bool:
    """Note a loss that differs by more than rounding, and return whether it differs by less."""
    finite = math.isfinite(baseline), math.isfinite(candidate)
    e.note_recorded(name, step, *finite)
    if not all(finite):
        e.odd_columns.add(name)
    allowed = max(NO_LOSS, SAME_LOSS * max(abs(baseline), abs(candidate)))
    if finite[0] == finite[1] and not abs(baseline - candidate) > allowed:
        return baseline != candidate and finite[0]
    context = "of an update that left both learners bit-identical"
    place = place_of_step(step=step, phase="train", field=name, baseline=baseline, candidate=candidate, context=context)
    e.note_divergence(Kind.LOSS.of(), [], place)
    return False


def _only_cut(e: EvidenceBuilder) -> bool:
    """Whether the runs learn from the same samples, however they split them into ranks and micro-batches."""
    return all(confounder.finding.name in CUTS for confounder in e.confounders)


def _scaled(e: EvidenceBuilder, step: int) -> OtherDivisor | None:
    """Return how gradients of equal weights and batches differ by a factor that ranks explain; None where they do not.

    The factor is another one on each rank, or the number of ranks for all.
    """
    return _own_divisors(e, step) or _times_ranks(e, step)


def _by_cut(e: EvidenceBuilder, step: int) -> OtherDivisor | None:
    """Return whether runs that split the same batch differently have other gradients than rounding explains.

    Only the first update is compared, which both make from equal weights; how far the norms differ is noted. A learner
    rounds a gradient, relative to its size, by no more than a log-probability in nats.
    """
    if not e.learners.cuts or any(kind in e.first for kind in (Kind.EXPERIENCE.of(), Kind.REWARD.of())):
        return None
    # Two norms of one gradient may differ by sums in another order, or by the learner's measured rounding.
    allowed = max(_same_size(e), e.tolerance.rounding.largest)
    # The norms of both roles are described even where the first is apart: the sentence on rounding names them all.
    descriptions, apart = [], None
    for role in ("actor", "critic"):
        norms = [updates[step].norms.get(role, ()) for updates in e.weights.updates]
        norm_b, norm_c = (next(iter(run_norms), math.nan) for run_norms in norms)
        if not (math.isfinite(norm_b) and math.isfinite(norm_c) and norm_b > 0):
            return None
        relative = abs(norm_c / norm_b - 1)
        descriptions.append(f"{figure(relative)} ({role})")
        if relative > allowed and apart is None:
            apart = f"by equal weights and of an equal batch the norm of the {role}'s first gradient of step {step} is "
            apart += f"{figure(norm_b)} in the baseline and {figure(norm_c)} in the candidate; rounding moves it by "
            apart += f"{figure(allowed)} of itself at most"
    norms_text = f"the norms of their first gradients differ, relative to themselves, by {' and '.join(descriptions)}: "
    e.learners = replace(e.learners, norms=norms_text + f"at most {figure(allowed)} is rounding")
    first, *further_cuts = e.learners.cuts
    what = "cut of the batch in the loss" if further_cuts else _IN_THE_LOSS[first.name]
    return OtherDivisor("", f"{apart}; {first.summary}", what) if apart else None


def _same_size(e: EvidenceBuilder) -> float:
    """Return the relative difference that sizes of equal gradients may have."""
    return max(SAME_SIZE, ROUNDINGS * SPACING.get(e.tolerance.dtype, 0.0))


def _own_divisors(e: EvidenceBuilder, step: int) -> OtherDivisor | None:
    """Find ranks that divide by their own tokens and not by the mini-batch's.

    Each rank's gradient before the sum is held against that of the same samples in the other run. The factor then is
    the ratio of the two token counts, another one on each rank. Only the first update is compared: later ones have
    other weights.
    """
    allowed = _same_size(e)
    for role in ("actor", "critic"):
        ranks, candidate_ranks = (side.ranks.updates.get((step, role), {}) for side in e.sides)
        if not _begin_alike(ranks, candidate_ranks):
            continue
        tokens = np.array([updates.tokens[0] for updates in ranks.values()], np.float64)
        sizes = np.array([[by[rank].size[0].sum() for rank in ranks] for by in (ranks, candidate_ranks)])
        if not (tokens > 0).all() or not (np.isfinite(sizes) & (sizes > 0)).all():
            continue
        factors, shares = sizes[1] / sizes[0], tokens.sum() / tokens
        if np.ptp(shares) <= SPREAD * allowed * shares.max():
            continue  # ranks with equal token counts share one factor
        # Which run has the fault is not known: either may be the other's gradients times the shares.
        for side, factor in (("candidate", factors), ("baseline", 1 / factors)):
            how = _of_rank_means(factor / shares, allowed)
            if not how:
                continue
            text = f"by equal weights and of equal samples the {role}'s gradients of the first update of step "
            text += f"{step} are {_listed(factors)} times the baseline's on ranks {_listed(ranks)}, which have "
            text += f"{_listed(tokens)} of the mini-batch's {tokens.sum():.0f} response tokens; the {side} "
            text += f"applies the {how} of its ranks' means, each over that rank's own tokens"
            return OtherDivisor(side, text)
    return None


def _begin_alike(ranks: Mapping[int, Updates], candidate_ranks: Mapping[int, Updates]) -> bool:
    """Whether both runs have the same ranks, several, each with the same samples in its first mini-batch."""
    if len(ranks) < 2 or ranks.keys() != candidate_ranks.keys():
        return False
    return all(ranks[rank].samples[:1] == candidate_ranks[rank].samples[:1] for rank in ranks)


def _of_rank_means(times: np.ndarray, allowed: float) -> str:
    """Return whether a side applies the "sum" or the "mean" of its ranks' means; "" for neither.

    `times`: of each rank, its gradient over the other run's, as a share of what its own token count explains.
    """
    for how, expected in (("sum", 1.0), ("mean", 1 / len(times))):
        if (np.abs(times / expected - 1) <= allowed).all():
            return how
    return ""


def _listed(values: Iterable[float]) -> str:
    return " and ".join(f"{value:.4g}" for value in values)


def _times_ranks(e: EvidenceBuilder, step: int) -> OtherDivisor | None:
    """Find gradient norms that are a multiple of the other run's, with the number of ranks as the factor."""
    factors = {times for side in e.sides for times in (side.ranks.world, 1 / side.ranks.world) if times != 1}
    by_side = [[record for record in side.recording.records.steps if record.step == step] for side in e.sides]
    if not all(by_side):
        return None
    for name in NORMS:
        norm_b, norm_c = (records[0].number(name) for records in by_side)
        for factor in sorted(factors):
            if norm_b > 0 and abs(norm_c / (norm_b * factor) - 1) <= SAME_NORM:
                text = f"on an equal batch and by equal weights {name} of step {step} is {figure(norm_b)} in the "
                text += f"baseline and {figure(norm_c)} in the candidate, {figure(factor)} times: the number of ranks"
                return OtherDivisor("", text)
    return None


def _trained_apart(e: EvidenceBuilder, step: int) -> bool:
    """Whether the samples themselves differed in a free run, in this step or before, so that the update had to.

    Samples of the engines' own samplers always count as different, unless they are seeded.
    """
    if e.mode == "native" and not e.seeded:
        return True
    return any(trained_step <= step for trained_step in e.other_tokens)


def _reordered(e: EvidenceBuilder, step: int) -> bool:
    """Whether the learners took the samples in another order, in this step or before.

    Frameworks take them as engines finish them, and a sum in another order rounds differently. Only recordings with an
    order count.
    """
    for earlier_step in range(step + 1):
        orders = [_order(side.recording, earlier_step) for side in e.sides]
        if None not in orders and orders[0] != orders[1]:
            return True
    return False


def _order(recording: Recording, step: int) -> tuple[int, ...] | None:
    for kind in ("experience", "rollout"):
        table = recording.table(kind, step) if step in recording.steps(kind) else None
        if table is not None and table.header.order:
            return table.header.order
    return None
