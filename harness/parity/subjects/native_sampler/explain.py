"""Causes that only the native stage shows, from four questions.

- Was each prompt seen as it was sent?
- Under which sampling parameters are the samples likely?
- What do the reported log-probabilities mean?
- Does the engine honour a request's seed?
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from harness.parity.causes.family import Seen, of_each_side
from harness.parity.facts.divergence import NATIVE, Kind, keys
from harness.parity.facts.evidence import Evidence, Side
from harness.parity.facts.explanation import Explained, Explanation
from harness.parity.subjects.log_probabilities.causes import ALIGNMENT
from harness.parity.subjects.log_probabilities.observed_outliers import FEWEST_OUTLIERS
from harness.parity.subjects.native_sampler.observed_meaning import RAW, evidence
from harness.parity.subjects.native_sampler.observed_repeats import EXCHANGED
from harness.parity.subjects.native_sampler.observed_samples import tables
from harness.parity.subjects.order.causes import ORDER
from harness.parity.subjects.prompts.causes import UNDONE, is_of_one_sample, prompt_key
from harness.parity.subjects.prompts.observed import OF_ONE_REQUEST
from harness.parity.subjects.sampling.causes import SAMPLING_PARAM
from harness.parity.subjects.sampling.causes_meaning import LOGPROB_SEMANTICS
from harness.parity.subjects.sampling.causes_random_numbers import RNG
from harness.parity.subjects.sampling.causes_sampler import JOINT, SPORADIC
from harness.parity.subjects.sampling.observed import engines_sampling
from harness.parity.subjects.stop_conditions.causes import FEWEST, LENGTH, STOP, end_ids
from reports.model import Cause, Proof
from reports.text import counted, figure, part_of
from scenarios.engines import canonical
from scenarios.engines.native import apart

STRUCTURE = {
    "joint": JOINT,
    "exclusive": SAMPLING_PARAM.key("top_p"),
    "blind": SAMPLING_PARAM.key("repetition_penalty"),
    "passed": SPORADIC,
}
STRUCTURE_WORDS = {
    "joint": "takes top-p over the unfiltered mass beside top-k, not over the renormalised top-k",
    "exclusive": "leaves out of top-p the token that reaches its share",
    "blind": "lets the repetition penalty cover the output only, not prompt and output",
}
NEVER = {penalty.name: penalty.off for penalty in canonical.PENALTIES if not penalty.requested}
LIKELIER = math.log(100)  # nats over the next best change: the wrong one would win once in a hundred stages
FIELD = {"joint": "top_p", "exclusive": "top_p", "blind": "repetition_penalty"}


@of_each_side
def native_prompts(e: Evidence, side: Side, so_far: Explained) -> Iterator[Explanation]:
    """Find native prompts that the engine did not see as they were sent. It ran without any of our plugins, so it may
    be sent others.
    """
    kinds = side.native_prompts.kinds
    for kind, where in kinds.items():
        samples = len(set(where))
        if kind == OF_ONE_REQUEST or is_of_one_sample(kind, samples):
            continue
        yield Explanation(
            Cause.of(
                prompt_key(kind),
                side.name,
                f"the engine saw other prompt ids than it was sent in the native stage: {kind}",
                f"{counted(samples, 'sample')}, the first is {where[0][1]}",
                {
                    "side": side.name,
                    "stage": "native",
                    "kind": kind,
                    "samples": [list(place) for place in where[:50]],
                },
                [Proof(UNDONE[kind], samples, 0, "prompts")] if kind in UNDONE else [],
            ),
            keys((Kind.NATIVE_PROMPT, *NATIVE), side.name),
        )


@of_each_side
def native_ends(e: Evidence, side: Side, so_far: Explained) -> Iterator[Explanation]:
    """Find what makes all native samples of a side shorter: a dropped end token, or a lower limit than the other
    side's.
    """
    if e.native is None:
        return
    ends_at, (lengths, last, finish) = end_ids(e, side), _endings(side)
    longest = _endings(e.other_side(side))[0].max(initial=0)
    stopped, cut = finish == "stop", finish == "length"
    lost = stopped & ~np.isin(last, sorted(ends_at))
    key, text = None, ""
    if ends_at and lost.sum() >= FEWEST and lost.sum() == stopped.sum():
        key, affected = STOP.key("end token dropped"), lost
        text = "no native sample ends with the token at which it stopped"
    elif cut.sum() >= FEWEST and lengths.max() < longest and len(set(lengths[cut].tolist())) == 1:
        key, affected = LENGTH.key("context"), cut
        text = f"native samples end after {int(lengths.max())} tokens, the other side's after up to {int(longest)}"
    if key:
        details = {"side": side.name, "stage": "native", "samples": int(affected.sum())}
        cause = Cause.of(key, side.name, text, counted(int(affected.sum()), "sample"), details)
        yield Explanation(cause, keys((Kind.NATIVE, Kind.NATIVE_SAMPLER), side.name))


def _endings(side: Side) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return for each native sample its length, its last token (-1 without any), and its finish reason."""
    lengths, last, finish = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0, object)]
    for table in tables(side, "native"):
        output = table.rows("output")
        if output is None or table.finish is None:
            continue
        lengths.append(output.lengths)
        last.append(output.last(absent=-1))
        finish.append(np.asarray(table.finish, object))
    return np.concatenate(lengths), np.concatenate(last), np.concatenate(finish)


@of_each_side
def samplers(e: Evidence, side: Side, so_far: Explained) -> Iterator[Explanation]:
    """Find what the sampler did instead: the change of parameters under which the learner finds its samples likely."""
    result = e.native
    kind = Kind.NATIVE_SAMPLER.of(side.name)
    if result is None:
        return
    fits = result.sampler.get(side.name, {}).get("fits", ())
    # The tests of one side look at the mean and at the mass, which a change may leave nearly as they are. Where the two
    # sides draw differently, a fit that no other change comes near tells which of them was changed.
    is_fitted = bool(fits) and all(fit.over >= LIKELIER for fit in fits) and len(so_far.left(Kind.NATIVE.of()))
    if not is_fitted and not len(so_far.left(kind)):
        return
    # A fit is how the change was found, so it is no proof of the change.
    for fit in fits:
        change, value, outside = fit.change, fit.value, fit.tokens_outside
        requested = side.recording.records.settings.sampling.get(change)
        likelihood = "impossible" if fit.gain == float("inf") else f"{figure(fit.gain)} nats less likely"
        others = _values_instead(side, change)  # by the engine's own record, which is exact where a fit is not
        draws_with = f"was given {change} {others[0]!r}" if others else f"draws with {change} {figure(value)}"
        drawn_with = f"{draws_with}, asked was {NEVER.get(change, requested)!r}"
        did = STRUCTURE_WORDS.get(change, drawn_with)
        if change == "passed":
            did = f"takes the second best token now and then: at {value:.1%} of its tokens"
        effect = f"from {figure(abs(fit.before))} to {figure(abs(fit.after))} standard errors of surprisal"
        if outside[0] > outside[1]:
            effect = f"from {outside[0]:,} to {outside[1]:,} tokens outside of the support"
        yield Explanation(
            Cause.of(
                key=STRUCTURE.get(change) or SAMPLING_PARAM.key(change),
                party=_party(side, change),
                summary=f"the {side.name}'s own sampler {did}",
                evidence=f"its samples are {likelihood} under what was asked; read as drawn with "
                f"{_words(change, value)} they go {effect}: a fit, which is no proof",
                details={
                    "side": side.name,
                    "stage": "native",
                    "asked": requested,
                    "fitted": value,
                    "gain": fit.gain,
                    "over": fit.over,
                },
                observed=_observed(side, change, fit.over),
            ),
            (Kind.NATIVE.of(), kind),
        )


@of_each_side
def native_min_tokens(e: Evidence, side: Side, so_far: Explained) -> Iterator[Explanation]:
    """Find a sampler that only end tokens before min_tokens depart from what was asked: they are every token that it
    could not have drawn.
    """
    kind, least = Kind.NATIVE_SAMPLER.of(side.name), side.recording.records.settings.sampling.min_tokens
    if e.native is None or not least > 0 or not len(so_far.left(kind)):
        return
    outside, early = e.native.sampler[side.name]["outside"], _early_ends(e, side, least)
    if early < FEWEST or early != outside:
        return
    cause = Cause.of(
        SAMPLING_PARAM.key("min_tokens"),
        _party(side, "min_tokens"),
        f"the {side.name}'s own sampler draws end tokens before min_tokens = {least:g}",
        f"all {counted(early, 'token')} that it could not have drawn as asked",
        {"side": side.name, "stage": "native", "asked": least, "tokens": early},
        observed=[Seen.AT_THE_LIMIT],
    )
    yield Explanation(cause, (Kind.NATIVE.of(), kind))


def _early_ends(e: Evidence, side: Side, least: float) -> int:
    """Return how many end tokens stand at native positions below `least`."""
    ends, early = sorted(end_ids(e, side)), 0
    for table in tables(side, "native"):
        output = table.rows("output")
        if output is None:
            continue
        position = np.arange(len(output.values)) - np.repeat(output.offsets[:-1], output.lengths)
        early += int((np.isin(output.values, ends) & (position < least)).sum())
    return early


@of_each_side
def meanings(e: Evidence, side: Side, so_far: Explained) -> Iterator[Explanation]:
    """Find log-probabilities that have another meaning than the engine documents."""
    result = e.native
    kind = Kind.NATIVE_LEARNER.of(side.name)
    meaning = result.meanings.get(side.name) if result is not None else None
    if result is None or meaning is None or not len(so_far.left(kind)):
        return
    if shift := meaning.shift:
        text = f"native log-probabilities are shifted by {abs(shift.by)}: each stands "
        text += f"{'after' if shift.by > 0 else 'before'} its token"
        proof = Proof(f"read {shift.by:+d} position", shift.before, shift.after, "tokens")
        details = {"side": side.name, "stage": "native", **dataclasses.asdict(shift)}
        yield Explanation(Cause.of(ALIGNMENT.key(), side.name, text, "", details, [proof]), (kind,))
    # A shift moves numbers that are right; another meaning makes other numbers. Only one of the two is ever recognised.
    recognised = meaning.recognised
    if recognised in ("", RAW, meaning.documented):
        return
    before, after = meaning.beyond["learner_logprob"], meaning.beyond[meaning.column]
    if before <= FEWEST_OUTLIERS:
        return  # a meaning is one of all numbers, and so few may be wrong by themselves
    yield Explanation(
        Cause.of(
            LOGPROB_SEMANTICS.key(recognised),
            "mapping" if recognised in _set(meaning.mode) else side.name,
            f"the {side.name}'s native log-probabilities are {recognised}, not the model's own",
            evidence(result, side.name),
            {"side": side.name, "stage": "native", **meaning.facts()},
            [Proof(f"held against the learner's {recognised} ones", before, after, "tokens")],
        ),
        (kind,),
    )


@of_each_side
def seeds(e: Evidence, side: Side, so_far: Explained) -> Iterator[Explanation]:
    """Find requests that draw another sample under the same seed, although the engine honours request seeds."""
    result = e.native
    kind = Kind.NATIVE_REPEAT.of(side.name)
    if result is None or kind not in e.first:
        return
    repeat = result.repeats[side.name]
    samples, details = repeat["samples"], {"side": side.name, "stage": "native", **repeat}
    key, text, proofs = RNG.key("seed ignored"), "the same requests with the same seeds draw other samples", []
    if repeat["state"] == EXCHANGED:
        key, text = ORDER.key(), "the same requests with the same seeds draw the samples of others"
        proofs = [Proof("match samples by their tokens", samples, samples - repeat["exchanged"], "samples")]
    evidence_text = (
        f"{part_of(repeat['alike'], samples, 'sample')} alike, {figure(repeat['expected'])} expected by chance"
    )
    yield Explanation(Cause.of(key, side.name, text, evidence_text, details, proofs), (kind,))


def _observed(side: Side, change: str, over: float) -> list[Seen]:
    """Return what excludes another change of parameters: the likelihood, or the engine's own record."""
    observations = [Seen.LIKELIER] if over >= LIKELIER else []
    return [*observations, Seen.GIVEN] if _party(side, change) == "mapping" else observations


def _words(change: str, value: float) -> str:
    descriptions = {
        "joint": "joint top-k and top-p",
        "exclusive": "top-p without the token that reaches its share",
        "blind": "a penalty blind to the prompt",
        "passed": f"the second best token at {value:.1%} of all",
    }
    return descriptions.get(change, f"{change} {figure(value)}")


def _values_instead(side: Side, change: str) -> list[Any]:
    """Return the values that the engine was given in place of the one asked for, by its own record."""
    name = FIELD.get(change, change)
    return [
        request.received[name]
        for request in engines_sampling(side, "native")
        if name in request.received and request.received[name] != request.requested.get(name)
    ]


def _party(side: Side, change: str) -> str:
    """Return "mapping" where the engine was given another value than asked for, or a value that it understands
    differently.
    """
    if _values_instead(side, change):
        return "mapping"
    name = FIELD.get(change, change)
    for request in engines_sampling(side, "native"):
        unlike = {parameter for names in request.unlike for parameter in apart(names)}
        if request.mapped_by_others and name in unlike:
            return "mapping"
    return side.name


def _set(mode: str) -> tuple[str, ...]:
    """Return the meaning that the engine was set to report, in our words. Processed is also tempered where no filter
    acts.
    """
    if "processed" in mode:
        return "renormalised", "tempered"
    return ("tempered",) if "temperature" in mode else (RAW,)
