"""The checks that compare run with run: tokens, ends, log-probabilities, and what the learners made of them."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from harness.parity.checks.registry import Outcome, check, coupled, outcome, trains, unless_native
from harness.parity.facts.divergence import Kind
from harness.parity.facts.evidence import Evidence
from harness.parity.subjects.log_probabilities.observed_outliers import Tail, outliers
from harness.parity.subjects.log_probabilities.observed_systematic import FALSE_ALARM
from reports.model import CheckState, Finding
from reports.text import counted, figure, part_of, show

LIFTED = "lifted-precision"  # the check of both engines in float32


@check("tokens", required=coupled, draws=True)
def tokens(e: Evidence) -> Outcome:
    """Flips: benign only within the margin and to the learner's own second choice."""
    compared, flips = e.counts.compared_tokens, e.counts.flips
    unjudged = e.counts.flips_without_margin
    conclude = partial(
        outcome,
        "tokens",
        compared_tokens=compared,
        flips=flips,
        benign_flips=e.counts.benign_flips,
        flips_beyond_margin=e.counts.flips_beyond_margin,
        without_margin=unjudged,
        margin=e.tolerance.margin,
    )
    if not coupled(e):
        return conclude("not tested", f"in {e.mode} mode the runs need not draw the same tokens")
    if not compared:
        return conclude("not tested", "no token could be compared")
    if wrong := _wrong_flips(e):
        return conclude("confirmed", wrong, kinds=(Kind.FLIP.of(),))
    if unjudged:
        text = f"{part_of(unjudged, flips, 'flip')} cannot be judged: no margin of the learner was recorded at them"
        return conclude("not tested", text)
    if flips:
        return conclude("ruled out", f"{counted(compared, 'token')} compared, {counted(flips, 'flip')}, all benign")
    return conclude("ruled out", f"{part_of(compared, compared, 'token')} equal")


def _wrong_flips(e: Evidence) -> str:
    """Return why flips cannot be benign: one is beyond the margin, or ties are too many; "" where they can be."""
    compared, flips, benign = e.counts.compared_tokens, e.counts.flips, e.counts.benign_flips
    beyond, unjudged = e.counts.flips_beyond_margin, e.counts.flips_without_margin
    too_often = f"engines within {figure(e.tolerance.value)} nats of each other are not tied so often"
    if beyond:
        for_candidate = e.counts.flips_for_candidate
        text = f"{part_of(beyond, compared, 'token')} differ beyond the margin of {figure(e.tolerance.margin)} nats "
        text += f"(the learner sides with the baseline in {beyond - for_candidate:,}, with the candidate in "
        return text + f"{for_candidate:,}); {counted(benign, 'benign flip')}"
    if e.flips.too_many:
        text = f"{part_of(flips, compared, 'token')} differ, {unjudged:,} of them where no margin says how close the "
        return f"{text}choice was: {too_often}"
    if e.flips.too_many_ties:
        text = f"{part_of(benign, compared, 'token')} differ where the learner's margins say that the choice was tied"
        return f"{text}: {too_often}"
    return ""


@check("lengths", required=coupled, draws=True)
def lengths(e: Evidence) -> Outcome:
    """The number of tokens of each sample."""
    if Kind.LENGTH.of() in e.first:
        return outcome(
            "lengths",
            "confirmed",
            f"{len(e.found(Kind.LENGTH.of())):,} samples have other lengths though their tokens agree",
            kinds=(Kind.LENGTH.of(),),
        )
    if not e.counts.samples or not coupled(e):
        return outcome("lengths", "not tested", "no samples were compared one by one")
    parted = ", except where their tokens differ" if e.counts.flips else ""
    return outcome("lengths", "ruled out", f"equal in {counted(e.counts.samples, 'sample')}{parted}")


@check("finish-reasons", required=coupled, draws=True)
def finish_reasons(e: Evidence) -> Outcome:
    """Why each sample ended: stop, length or abort."""
    if Kind.FINISH.of() in e.first:
        place = e.first[Kind.FINISH.of()].place
        first = f"{place.baseline} against {place.candidate}"
        text = f"{len(e.found(Kind.FINISH.of())):,} samples end for another reason, the first {first}"
        return outcome("finish-reasons", "confirmed", text, kinds=(Kind.FINISH.of(),))
    if not e.counts.finish_reasons or not coupled(e):
        return outcome("finish-reasons", "not tested", "no finish reasons were compared")
    given_up = e.stop_conditions.given_up
    if given_up:
        number = counted(sum(given_up.values()), "sample")
        where = f"the first in step {min(given_up)}"
        text = f"both engines gave up {number}, {where}: where they would have ended is unknown"
        return outcome("finish-reasons", "not tested", text)
    text = f"equal in {counted(e.counts.finish_reasons, 'sample')}"
    if parted := e.counts.reasons_parted:
        text += f"; not compared in {parted:,} of {e.counts.samples:,}, whose tokens or lengths differ"
    if absent := e.counts.reasons_not_recorded:
        text += f"; not recorded in {absent:,} of {e.counts.samples:,}"
    return outcome("finish-reasons", "ruled out", text)


@check("ends", applies=lambda e: e.alone, alone=True)
def ends(e: Evidence) -> Outcome:
    """Whether the last token of each sample agrees with the reason that the engine gives for its end. For one run only:
    engines that are wrong in the same way do not differ in a comparison.
    """
    name, side = "ends", e.baseline
    if not side.counts.reasons_held:
        return outcome(name, "not tested", "no engine reported which tokens end a sample, and why each ended")
    count, key = counted(side.counts.reasons_held, "sample"), Kind.REASON.of(side.name)
    if key in e.first:
        place = e.first[key].place
        text = f"{len(e.found(key)):,} of {count} ended in another way than the engine says: the first says "
        return outcome(name, "confirmed", f"{text}{place.baseline}, {place.context}", kinds=(key,))
    return outcome(name, "ruled out", f"the last token agrees with the reason in {count}")


@check("logprobs", required=unless_native)
def logprobs(e: Evidence) -> Outcome:
    """The two engines' log-probabilities of equal tokens."""
    n, beyond = e.between_engines.tokens + e.between_engines.not_finite, e.beyond(Kind.LOGPROB.of())
    details: dict[str, Any] = {
        "buckets": e.between_engines.by_bucket(),
        "where": e.between_engines.where(),
        "tolerance": e.of_engines.value,
        "beyond": beyond,
    }
    if not n:
        return outcome("logprobs", "not tested", "no log-probabilities of equal tokens were compared", **details)
    largest = f"max |Δ| {figure(e.between_engines.largest[0])} nats over {counted(n, 'token')}; "
    largest += f"{beyond:,} beyond the tolerance of {figure(e.of_engines.value)}, "
    largest += e.log_probabilities.tails.get(Kind.LOGPROB.of(), Tail()).in_words()
    if Kind.LOGPROB.of() in e.first:
        text = largest
        if e.between_engines.not_finite:
            text += f"; {e.between_engines.not_finite} are not finite"
        return outcome("logprobs", "confirmed", text, kinds=(Kind.LOGPROB.of(),), **details)
    unsure = e.counts.beyond_ten_floors
    if unsure > outliers(n):
        text = f"{part_of(unsure, n, 'token')} lie between ten floors, {figure(e.tolerance.within)} nats, and the cap: "
        text += "the floor is of engines against themselves, whose kernels round alike each time, and the learner's "
        text += f"own rounding in {e.tolerance.dtype} was not recorded; {largest}"
        return outcome("logprobs", "not tested", text, settled_by=LIFTED, **details)
    absent = e.log_probabilities.incomplete
    if absent:
        text = f"not every token of step {absent[0]} has a log-probability in both runs; {largest}"
        return outcome("logprobs", "not tested", text, **details)
    return outcome("logprobs", "ruled out", largest, **details)


# --- learner against learner -------------------------------------------------------------------


def _trains_on_its_own(e: Evidence) -> bool:
    return trains(e) and not (e.alone and e.guided)


@check("trained-tokens", required=_trains_on_its_own, alone=True)
def trained_tokens(e: Evidence) -> Outcome:
    """The tokens that a learner trained on, against those that its engine drew."""
    kinds = e.diverged(Kind.TRAINED)
    if kinds:
        text = f"what was trained on is not what was rolled out: {e.first_place(*kinds).context}"
        return outcome("trained-tokens", "confirmed", text, kinds=kinds)
    # A learner that was compared only in part may have trained on anything in the rest.
    for side in e.sides:
        if gap := side.uncompared:
            text = f"the {side.name}'s samples of step {gap[0]} were not compared with what was trained on: {gap[1]}"
            return outcome("trained-tokens", "not tested", text)
    for side in e.sides:
        if rows := side.unmatched:
            step, reasons = rows
            text = "; ".join(f"{counted(count, 'row')}: {why}" for why, count in reasons.items())
            text = f"rows that the {side.name} trained on in step {step} have no sample to compare them with: {text}"
            return outcome("trained-tokens", "not tested", text)
    if e.alone and e.guided:
        return outcome("trained-tokens", "not tested", "a guided run trains on the tokens of its guide, another run")
    if not all(side.counts.trained_tokens for side in e.sides):
        return outcome("trained-tokens", "not tested", "no experience was recorded beside the rollouts")
    whose = " (the baseline's, in both runs)" if e.guided else ""
    return outcome("trained-tokens", "ruled out", f"the tokens trained on are the tokens rolled out{whose}")


@check("experience", required=trains)
def experience(e: Evidence) -> Outcome:
    """What the two learners made of the same tokens: log-probabilities, values, advantages, returns."""
    samples = e.counts.experience_samples
    if Kind.EXPERIENCE.of() in e.first:
        place = e.first[Kind.EXPERIENCE.of()].place
        text = f"{place.field} differs from step {place.step} on, on the same tokens"
        if place.position < 0:  # of no single token: a mean
            text = place.context
        return outcome("experience", "confirmed", text, kinds=(Kind.EXPERIENCE.of(),))
    if not samples:
        return outcome("experience", "not tested", "no experience of the same tokens in both runs")
    loose, findings, how_equal = e.experience.not_identical, list[Finding](), "bit-identical"
    if loose:
        summary = f"not bit-identical, though within the tolerance: {', '.join(loose)}"
        findings.append(Finding("experience", summary, where="learner", details=dict(loose)))
        how_equal = f"within the tolerance; {_apart(e, *loose)}"
    if untested := [why for name, why in e.experience.untested.items() if name != "reward"]:
        return outcome("experience", "not tested", untested[0], findings=findings)
    text = f"what the learners made of {counted(samples, 'sample')} is {how_equal}"
    return outcome("experience", "ruled out", text, findings=findings)


@check("rewards", required=trains)
def rewards(e: Evidence) -> Outcome:
    """The rewards of the same tokens."""
    if Kind.REWARD.of() in e.first:
        place, differing_samples = e.first[Kind.REWARD.of()].place, e.found(Kind.REWARD.of())
        # A mean reward that differs belongs to no sample, which is numbered -1.
        sample_count = np.count_nonzero(differing_samples[:, 1] >= 0)
        text = f"{sample_count} samples of the same tokens have another reward"
        if place.sample < 0 or not sample_count:
            text = place.context
        return outcome("rewards", "confirmed", text, kinds=(Kind.REWARD.of(),))
    if not e.counts.rewards:
        return outcome("rewards", "not tested", "no rewards of the same tokens in both runs")
    samples = counted(e.counts.rewards, "sample")
    if untested := e.experience.untested.get("reward"):
        return outcome("rewards", "not tested", untested)
    if "reward" in e.experience.apart:
        text = f"not bit-identical in {samples}: {_apart(e, 'reward')}, and no mean difference "
        return outcome("rewards", "ruled out", f"{text}(false alarms {FALSE_ALARM:g})")
    return outcome("rewards", "ruled out", f"equal in {samples}")


def _apart(e: Evidence, *names: str) -> str:
    """Return in words the largest differences within what rounding explains."""
    within_rounding = e.experience.apart
    rows = ((name, *within_rounding[name]) for name in names if name in within_rounding)
    return "; ".join(f"{name} within {figure(allowed)}, largest |Δ| {figure(most)}" for name, most, allowed in rows)


@check("learner", required=trains)
def learner(e: Evidence) -> Outcome:
    """Learners stay bit-identical, by their digests after every update."""
    equal, updates = e.learners.equal, e.learners.updates
    details: dict[str, Any] = {"updates": updates, "equal": equal}
    if Kind.LEARNER.of() in e.first:
        return outcome(
            "learner", "confirmed", e.first[Kind.LEARNER.of()].place.context, kinds=(Kind.LEARNER.of(),), **details
        )
    if not e.train:
        return outcome("learner", "not tested", "a run without training", **details)
    if parted := _parted_with_reason(e):
        state, text = parted
        return outcome("learner", state, text, **details)
    absent = [step for step in e.steps if step not in equal]
    if absent:
        text = f"no digests of both learners after the update of step {absent[0]}"
        return outcome("learner", "not tested", text, **details)
    if Kind.LOSS.of() in e.first:
        place = e.first[Kind.LOSS.of()].place
        values = f"{show(place.baseline)} against {show(place.candidate)}"
        text = f"{place.field} of step {place.step} is {values}, {place.context}"
        return outcome("learner", "confirmed", text, kinds=(Kind.LOSS.of(),), **details)
    findings = [
        Finding("losses", f"{name} differs in its last digits from step {step} on", where="learner")
        for name, step in e.learners.losses_differ.items()
    ]
    text = f"bit-identical after {part_of(len(equal), len(equal), 'update')}"
    return outcome("learner", "ruled out", text, findings=findings, **details)


def _parted_with_reason(e: Evidence) -> tuple[CheckState, str] | None:
    """Return the state and the words where the learners differ for a reason other than the engines; None elsewhere.

    Nothing is confirmed then.
    """
    learners = e.learners
    if learners.confounded:
        text = f"the learners part at step {learners.parted}, as they must: {learners.confounded}"
        text += f"; {learners.norms}" if learners.norms else ""
        # The gradients of the step in which they part were compared. No step follows it in which anything is open.
        only_last_step = learners.norms and not e.confounders and learners.parted == max(e.steps)
        return "ruled out" if only_last_step else "not tested", text
    if learners.followed is not None:
        return "not tested", f"the runs trained on other tokens from step {learners.followed} on"
    if learners.reordered is not None:
        text = f"the learners part after step {learners.reordered}: they took the samples in another order, which "
        return "not tested", f"{text}rounds differently"
    return None
