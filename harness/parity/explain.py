"""Causes: what the rules explain of the divergences, and UNEXPLAINED with its narrowest place for what is left.

Interventions that need a live engine (flush, restart, put a parameter back) are not made here.
"""

from __future__ import annotations

import functools
import math
from dataclasses import replace

import numpy as np

from harness.parity.causes import registry
from harness.parity.causes.family import Rule
from harness.parity.causes.registry import Slot
from harness.parity.causes.unexplained import UNEXPLAINED
from harness.parity.facts.divergence import DivergenceKey, Kind, Order
from harness.parity.facts.evidence import Evidence
from harness.parity.facts.explanation import Explained, Explanation, when
from harness.parity.facts.odd_one import AGAINST_LEARNER, odd_one
from harness.parity.lifted import remark
from harness.parity.rivals import told_apart
from harness.parity.subjects.engines import causes_lifecycle, causes_self_disagreement
from harness.parity.subjects.learner import causes as learner
from harness.parity.subjects.learner import causes_padding, causes_shapes
from harness.parity.subjects.log_probabilities import explain as log_probabilities
from harness.parity.subjects.native_sampler import explain as native_sampler
from harness.parity.subjects.order import causes as order
from harness.parity.subjects.precision import causes as precision
from harness.parity.subjects.precision import causes_not_finite
from harness.parity.subjects.prefix_cache import causes as prefix_cache
from harness.parity.subjects.prompts import causes as prompts
from harness.parity.subjects.prompts import causes_retokenization, causes_vocabulary
from harness.parity.subjects.sampling import causes as sampling
from harness.parity.subjects.sampling import causes_random_numbers
from harness.parity.subjects.stop_conditions import causes as stop_conditions
from harness.parity.subjects.weights import causes as weights
from reports.model import Cause, Place
from reports.text import counted, figure

# A rule sees what earlier rules left open (`Explained.left`). Causes are listed in this order too.
RULES: tuple[Rule | Slot, ...] = (
    # What a run recorded of its own faults: they make differences of every kind.
    Rule(
        learner.ranks,
        "the ranks' own records show the fault; their results are then no evidence of any other cause",
        alone=True,
    ),
    Rule(order.mispaired, "a learner that scored another sample's response says nothing about the engine"),
    Rule(
        causes_lifecycle.used_asleep,
        "a record shows it; an engine with weights of another version differs in everything that later rules read",
        alone=True,
    ),
    Rule(
        weights.stale_weights,
        "a recorded sync shows it; an engine with other weights differs in everything that later rules read",
        alone=True,
    ),
    Rule(
        weights.altered_weights,
        "it reads the same sync: first what did not arrive, then what arrived altered",
        alone=True,
    ),
    Rule(
        weights.not_loaded,
        "it takes tensors that arrived as they were sent, and asks what the engine made of them",
        alone=True,
    ),
    Rule(
        weights.one_update_behind,
        "a tensor that the record names already explains the distance from the learner",
        alone=True,
    ),
    Rule(
        log_probabilities.as_the_reference,
        "proofs of syncs say more of an engine's weights than the reference's numbers, which single runs have too",
        alone=True,
    ),
    Rule(prompts.prompts, "prompt ids are recorded; what an engine continues comes before how it draws", alone=True),
    Rule(
        sampling.sampling_parameters,
        "a parameter covers the draws of every sample, so samples with another prompt are explained first",
    ),
    Rule(sampling.most_tokens, "other parameters explain lengths too; this rule takes the lengths that are left"),
    Rule(
        sampling.data_type,
        "the last rule that reads a record: a data type covers every number, and the fits below would fit to it",
        alone=True,
    ),
    # Whose tokens the numbers belong to.
    Rule(order.permuted, "it searches for whole responses of other samples, where no record says why tokens differ"),
    Rule(
        causes_retokenization.retokenized,
        "single tokens of another sample may decode to the same text by chance, so whole responses come first",
    ),
    Rule(
        causes_random_numbers.collisions,
        "samples of one prompt that were encoded again may become equal, so encoding comes first",
    ),
    # The same numbers, read in another way.
    Rule(
        log_probabilities.placeholders,
        "a placeholder says nothing at another position or scale, so it comes before shifts and factors",
        alone=True,
    ),
    Rule(
        log_probabilities.rounded,
        "numbers of few bits are a property of every number; a position or a factor would fit some of them",
        alone=True,
    ),
    Rule(
        log_probabilities.alignment,
        "numbers can be read at another position only when it is known whose tokens they belong to",
        alone=True,
    ),
    Rule(
        log_probabilities.slipped,
        "it reads a part of a sample at another position, so samples that are shifted whole come first",
        alone=True,
    ),
    Slot.PLUGINS,  # a plug-in knows its engine: its causes come before those that are fitted
    Rule(
        log_probabilities.scaled,
        "a factor would also fit numbers that belong to the neighbouring token, so alignment comes first",
    ),
    Rule(
        causes_not_finite.numeric, "samples are left out only where no other reading of their numbers helps", alone=True
    ),
    Rule(
        causes_vocabulary.vocabulary,
        "logits that are not finite make an engine draw any id, padding ids too",
    ),
    Rule(
        prefix_cache.stale_cache,
        "it takes samples for which nothing within the sample explains the difference",
        alone=True,
    ),
    Rule(
        log_probabilities.mixed_version,
        "a stale cache changes samples from their first token on, as an early change of the weights does",
        alone=True,
    ),
    Rule(
        log_probabilities.semantics,
        "its bounds also hold for other small faults, so it is the last of the re-readings",
        alone=True,
    ),
    Rule(
        causes_padding.padded,
        "any fault may happen to stand in padded samples alone, so it takes what no reading explains",
        alone=True,
    ),
    # Where samples end.
    Rule(sampling.min_tokens, "an end token before min_tokens is a wrong choice of a token, and explains the length"),
    Rule(stop_conditions.ends, "it explains ends that no choice of a token explains"),
    Rule(
        stop_conditions.reasons,
        "a sample of another length may well have another finish reason, so lengths come first",
        alone=True,
    ),
    # What learners make of the same rollouts.
    Rule(
        learner.returns,
        "a run's own records show it; ranks that answer differently change the inputs of returns, not their formula",
        alone=True,
    ),
    Rule(learner.one_rank, "it takes what learners make of rollouts that nothing above explains"),
    Rule(
        learner.applied_losses,
        "a run's own records show it; gradients of two runs say less than the losses that they are of",
        alone=True,
    ),
    Rule(learner.scaled_gradients, "a gradient's norm says less than the samples that it is made of"),
    Rule(
        causes_shapes.shapes, "unequal shares change only how sums round; a fault that changes gradients is named first"
    ),
    # The native stage.
    Rule(native_sampler.native_prompts, "the native stage follows the rollouts; prompts come first, as above"),
    Rule(native_sampler.native_ends, "a sampling parameter would fit samples that were cut, so ends come first"),
    Rule(
        native_sampler.native_min_tokens,
        "end tokens that were to be barred are every token outside of the support, and no fit has to say so",
    ),
    Rule(native_sampler.samplers, "sampling parameters are fitted to what prompts and ends leave open"),
    Rule(native_sampler.meanings, "what the reported numbers mean is asked after what was drawn"),
    Rule(native_sampler.seeds, "repeated draws depend on none of the rules above, so they end the native stage"),
    # What explains differences of any kind covers only what is left.
    Rule(
        causes_self_disagreement.noisy,
        "noise explains differences of any kind, so it covers only what all other rules leave",
    ),
    Rule(precision.logic, "the lifted stage's causes claim what is left in half precision"),
    Rule(precision.arithmetic, "rounding is what remains once float32 agrees"),
)


@functools.cache
def rules() -> tuple[Rule, ...]:
    """Return every rule, in the order in which they are applied."""
    return registry.rules(RULES)


def find(e: Evidence, kinds: list[DivergenceKey]) -> list[Cause]:
    """Return the causes of the divergences of these kinds."""
    return named(explain(e, kinds), kinds)


def named(explained: Explained, kinds: list[DivergenceKey]) -> list[Cause]:
    """Return the causes of the divergences of these kinds, UNEXPLAINED for what no rule explains; [] where none is
    left.
    """
    causes, open_ = [explanation.cause for explanation in explained.explanations], remaining(explained, kinds)
    causes += [unexplained(explained, open_)] if open_ else []
    return [told_apart(cause, explained.evidence) for cause in causes]


def explain(e: Evidence, kinds: list[DivergenceKey]) -> Explained:
    """Apply the rules to the divergences of these kinds. Each sees what the earlier ones left open."""
    present = [kind for kind in kinds if kind in e.first]
    so_far = Explained(e)
    if not present:
        return so_far
    for rule in rules():
        if e.alone and not rule.alone:
            continue
        for explanation in rule.run(e, so_far):
            if explanation.partial or any(explanation.covers(kind, e.found(kind)).any() for kind in present):
                _add(so_far.explanations, replace(explanation, cause=sampling.party(e, explanation.cause)))
    return so_far


def _add(explained: list[Explanation], explanation: Explanation) -> None:
    """Add an explanation. A cause that an earlier stage of the run also shows is named once, with the proofs of
    both.
    """
    cause, stage = explanation.cause, explanation.cause.details.get("stage")
    if not stage or UNEXPLAINED.has(cause.key):
        explained.append(explanation)
        return
    for at, earlier in enumerate(explained):
        is_same_cause = (earlier.cause.key, earlier.cause.party) == (cause.key, cause.party)
        if is_same_cause and earlier.cause.details.get("stage") != stage:
            with_both_proofs = replace(earlier.cause, proofs=[*earlier.cause.proofs, *cause.proofs])
            explained[at] = replace(earlier, cause=with_both_proofs, also=(*earlier.also, explanation))
            return
    explained.append(explanation)


def remaining(explained: Explained, kinds: list[DivergenceKey]) -> dict[DivergenceKey, np.ndarray]:
    """Return kind -> (step, sample) of the divergences that the causes named so far leave open."""
    open_ = {kind: items for kind in kinds if len(items := explained.left(kind))}
    if _follows(explained, open_):
        del open_[Kind.NATIVE.of()]
    # In a guided run both learners take the tokens of the guide, so nothing downstream follows from a flip.
    if explained.evidence.guided:
        return open_
    # Tokens that differ change everything that is made of them.
    upstream = {kind: items for kind, items in open_.items() if not kind.downstream}
    if upstream or explained.explanations:
        return upstream
    return open_


def _follows(explained: Explained, open_: dict[DivergenceKey, np.ndarray]) -> bool:
    """Whether another distribution of native samples follows from what explains an engine's native numbers.

    The sampler of such an engine is not judged, and what draws from other numbers draws other tokens.
    """
    e = explained.evidence
    if e.native is None or Kind.NATIVE.of() not in open_:
        return False
    unjudged = [side.name for side in e.sides if side.name not in e.native.sampler]
    numbers = map(Kind.NATIVE_LEARNER.of, unjudged)
    return any(key in e.first and key not in open_ for key in numbers)


def unexplained(so_far: Explained, open_: dict[DivergenceKey, np.ndarray]) -> Cause:
    """Return UNEXPLAINED for what no rule explains, with its narrowest place."""
    e = so_far.evidence
    # The earliest place comes first: what differs later may follow from it.
    places = {kind: _first_left(e, kind, items) for kind, items in open_.items()}
    kinds = sorted(open_, key=lambda kind: places[kind][0])
    first = kinds[0]
    place = places[first][1]
    items = np.unique(open_[first], axis=0)
    of_samples = bool((items[:, 1] >= 0).all())  # -1: no sample, as for a weight sync
    count_text = counted(len(items), "sample" if of_samples else "place")
    summary = f"{first.words} {when(e, open_[first][:, 0])}: {count_text}; nothing recorded explains it"
    also = f"; also {', '.join(kind.words for kind in kinds[1:])}" if len(kinds) > 1 else ""
    equal_weights = e.weights.equal(place.step, place.step, place.step) if place.step >= 0 else None
    numbered = (("step", place.step), ("sample", place.sample), ("position", place.position))
    where = [f"{what} {number}" for what, number in numbered if number >= 0]  # -1: it has none
    evidence = f"narrowest place: {', '.join([*where[:1], place.phase, *where[1:], place.field])}{also}"
    evidence += {
        True: "; the learners' weights are equal there",
        False: "; the learners' weights differ there",
        None: "",
    }[equal_weights]
    suspected = [text for side in e.sides if (text := prefix_cache.untried_cache(e, side, so_far))]
    alone = "it is of one sample: one wrong record looks the same" if of_samples and len(items) == 1 else ""
    evidence = "; ".join(filter(None, [evidence, *suspected, alone, _impossible(e, place) or remark(e)]))
    return Cause.of(
        UNEXPLAINED.key(),
        _party(e, first),
        summary,
        evidence,
        {"kinds": {kind.label: len(items) for kind, items in open_.items()}},
    )


def _impossible(e: Evidence, place: Place) -> str:
    """Return which value of a place no log-probability has, since it is not finite or above 0; "" where none is."""
    values = [value for value in (place.baseline, place.candidate) if isinstance(value, float)]
    wrong = [value for value in values if not math.isfinite(value) or value > e.tolerance.extreme]
    return f"{figure(wrong[0])} is no log-probability" if wrong and "logprob" in place.field else ""


def _first_left(e: Evidence, kind: DivergenceKey, items: np.ndarray) -> tuple[Order, Place]:
    """Return the earliest place of a kind among these (step, sample).

    If it is another sample than the step's first, only the step and the sample are known.
    """
    step = int(items[:, 0].min())
    samples = items[items[:, 0] == step, 1]
    first = e.places[kind].get(step) or e.first[kind]
    place, rank = first.place, first.order
    if place.sample in samples:
        return rank, place
    sample = int(samples.min())
    return (rank[0], rank[1], sample, -1), replace(
        place, sample=sample, position=-1, baseline=None, candidate=None, margin=None, context=""
    )


def _party(e: Evidence, key: DivergenceKey) -> str:
    """Return which side moved, by the learner's numbers where there are any."""
    if key.side is not None:
        may_be_learner = key.kind in AGAINST_LEARNER and Kind.ENGINE.of(key.side) in e.first
        return odd_one(e, key.side) if may_be_learner and not e.alone else key.side
    if key.kind.of_trainer:
        return "trainer"
    moved = {str(key_of_side.side) for key_of_side in e.diverged(Kind.ENGINE, Kind.CHOICE, Kind.DRIFT)}
    if len(moved) == 1:
        return moved.pop()
    if key.kind is Kind.FLIP and not moved:  # most margins speak for the other side's tokens
        return "candidate" if 2 * e.counts.flips_for_candidate < e.counts.flips_beyond_margin else "baseline"
    return "unknown"
