"""Flips without a margin, and flips that the margins call ties: too many of them cannot be ties."""

from __future__ import annotations

from harness.parity.facts.divergence import Kind
from harness.parity.facts.evidence import Counts
from harness.parity.facts.evidence_builder import EvidenceBuilder
from harness.parity.subjects.precision.observed_floor import implausible

UNJUDGED, FLIP = Kind.UNJUDGED_FLIP.of(), Kind.FLIP.of()


def note_improbable_flips(e: EvidenceBuilder) -> None:
    """Turn unjudged and benign flips into divergences where engines within the tolerance could not have made so many.

    That holds for coupled and greedy runs, which draw the same samples: the margins themselves must be wrong then.
    Flips at tokens that half precision rounds far are no divergence while they are few and nothing else flipped.
    """
    _far(e)
    flips, compared = e.counts.flips_without_any_margin, e.counts.compared_tokens
    if e.mode not in ("coupled", "greedy"):
        return
    if implausible(flips, compared, e.of_engines.value, e.tolerance.temperature):
        e.too_many_flips = True
        unjudged = e.found(UNJUDGED)
        for step, first in e.places[UNJUDGED].items():
            e.note_divergence(FLIP, unjudged[unjudged[:, 0] == step, 1], first.place)
    benign = e.counts.benign_flips
    # Gumbel noise makes small gaps rare. Two greedy logits may be as near as the model makes them.
    if e.mode == "coupled" and implausible(benign, compared, e.tolerance.value, e.tolerance.temperature):
        e.too_many_ties = True
        for samples, place in e.ties:
            e.note_divergence(FLIP, samples, place)


def _far(e: EvidenceBuilder) -> None:
    noted = e.far
    for key in dict.fromkeys(far_choice.key for far_choice in noted):
        of_key = [far_choice for far_choice in noted if far_choice.key == key]
        flips = key == FLIP
        tokens = e.counts.compared_tokens if flips else e.side(str(key.side)).counts.choices
        choice_count = sum(len(far_choice.margin) for far_choice in of_key)
        if choice_count <= e.tolerance.far_flips(tokens) and key not in e.first:
            e.counts += Counts(benign_flips=choice_count if flips else 0)
            continue
        for far_choice in of_key:
            e.note_divergence(key, far_choice.samples, far_choice.place)
            if far_choice.flips is not None:
                e.flips.append(far_choice.flips)
                e.counts += Counts(flips_beyond_margin=len(far_choice.margin))
                e.series["flips_beyond_margin"][e.series["step"].index(far_choice.place.step)] += len(far_choice.margin)
