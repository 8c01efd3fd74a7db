"""The causes STOP, LENGTH and CAPACITY: responses that are equal as far as both go, but of which one goes on.

What tells them apart is the token after which it goes on, and the lengths at which responses end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.parity.causes.family import CauseFamily
from harness.parity.causes.proof import either
from harness.parity.facts.comparison import ALONE
from harness.parity.facts.divergence import Kind
from harness.parity.facts.evidence import Evidence, Side
from harness.parity.facts.explanation import Explained, Explanation, among, when
from harness.parity.interventions.situation import ROOMY, Situation
from harness.parity.interventions.trial import Trial
from harness.parity.subjects.log_probabilities.observed_rereading import tokenizer
from harness.parity.subjects.sampling.observed import (
    engine_infos,
    follows_from,
    reported_ends,
    sampling_given,
    sampling_request,
)
from harness.parity.subjects.sampling.observed_flips import Learner
from harness.parity.subjects.stop_conditions.observed import GIVEN_UP
from harness.parity.subjects.stop_conditions.observed_endings import Ending, Reason
from probes.format import number, whole
from reports.model import Cause, Proof
from reports.text import counted

NEAR = 8  # tokens of a limit that an engine may keep for itself (SGLang: 2 of the context, and whole pages)
FEWEST = 3  # samples that must stop at one token before it counts as an end token
FULL = 0.95  # share of the KV pool in use at which it counts as full


def ends(e: Evidence, so_far: Explained) -> Iterator[Explanation]:
    """Find a cause for each way in which responses of unequal length end."""
    open_samples = so_far.open_samples(Kind.LENGTH.of())
    remaining = [ending for ending in e.stop_conditions.endings if (ending.step, ending.sample) in open_samples]
    # Ends that a token decides come before those that only a length decides.
    for rule in (_dropped, _ignored, _other_set, _cut_short):
        for cause, explained in rule(e, remaining):
            items = {(ending.step, ending.sample) for ending in explained}
            yield Explanation(cause, (Kind.LENGTH.of(), Kind.FINISH.of()), among(items))
            remaining = [ending for ending in remaining if (ending.step, ending.sample) not in items]


Found = Iterator[tuple[Cause, list[Ending]]]


def _sides(ending: Ending) -> tuple[int, int]:
    """Return the index of the shorter side and that of the longer one: 0 baseline, 1 candidate."""
    return (0, 1) if ending.lengths[0] < ending.lengths[1] else (1, 0)


def _names(e: Evidence, index: int) -> Side:
    return e.sides[index]


def end_ids(e: Evidence, side: Side) -> set[int]:
    """Return the token ids that end a sample: as given to the engine, else as it resolved them, else the tokenizer's
    own.
    """
    reported_ids = reported_ends(side, e.mode)
    return set(_model_ends(e)) if reported_ids is None else reported_ids


def _steps(endings: list[Ending]) -> list[int]:
    return sorted({ending.step for ending in endings})


def _dropped(e: Evidence, endings: list[Ending]) -> Found:
    """Find a side that drops the end token: both samples stopped, and one has one token more, its end token."""
    # Either side may be the one that drops it: the shorter samples tell which.
    for short in (0, 1):
        shorter_side, longer_side = _names(e, short), _names(e, 1 - short)
        one_token_less = [ending for ending in endings if _sides(ending)[0] == short and ending.missing == 1]
        end_tokens = end_ids(e, shorter_side)  # a sample that ends with one of these kept it: a choice differed
        dropped = [
            ending
            for ending in one_token_less
            if ending.finish == ("stop", "stop")
            and ending.shorter_last not in end_tokens
            and _is_end(e, ending.longer_last, longer_side)
        ]
        if not dropped:
            continue
        side = shorter_side.name
        tokens = Counter(ending.longer_last for ending in dropped)
        turned = [ending for ending in endings if ending not in dropped and _ended_at_a_tie(e, ending, short)]
        yield (
            Cause.of(
                STOP.key("end token dropped"),
                side,
                f"the {side} leaves the end token out of its output {when(e, _steps(dropped))}",
                f"{counted(len(dropped), 'sample')} that stopped, one token shorter: "
                f"{', '.join(str(token) for token, _ in tokens.most_common(3))} is missing at their end",
                {"samples": len(dropped), "tokens": dict(tokens.most_common(5))},
                [Proof("append the end token", len(dropped), 0, "samples")],
            ),
            dropped + turned,
        )


def _ended_at_a_tie(e: Evidence, ending: Ending, short: int) -> bool:
    """Whether the shorter sample stopped where the other side's learner ranks an end token so near that rounding
    decides.
    """
    longer = _names(e, 1 - short)
    table = longer.recording.table("experience", ending.step)
    if _sides(ending)[0] != short or ending.finish[short] != "stop" or table is None:
        return False
    places = np.array([0]), np.array([min(ending.lengths)]), np.array([ending.longer_next])
    margin, runner_up = Learner(table, np.array([ending.sample])).at(*places)
    return bool(abs(margin[0]) <= e.tolerance.margin and _is_end(e, int(runner_up[0]), longer))


def _is_end(e: Evidence, token: int, longer: Side) -> bool:
    """Whether a sample of the longer side ends with this token."""
    end_tokens = end_ids(e, longer)
    return token in end_tokens if end_tokens else longer.stops.at.get(token, 0) > 0


def _ignored(e: Evidence, endings: list[Ending]) -> Found:
    """Find a side that ignores the model's end token.

    It goes on after that token every time, and stops only at tokens that were asked for in addition. It stops at
    nothing at all where its engine's ignore_eos covers those too.
    """
    for long in (0, 1):
        side, stopped_side = _names(e, long), _names(e, 1 - long)
        undone = follows_from(sampling_request(side, e.mode))
        asked_ids = set() if "stop_token_ids" in undone else _asked_stops(e)
        if set(side.stops.at) - asked_ids or end_ids(e, side) - asked_ids - set(_model_ends(e)):
            continue  # it stops at other tokens, so its set of end tokens differs
        continued = [ending for ending in _gone_on(endings, long) if ending.shorter_last not in asked_ids]
        if continued:
            what = f"goes on after the {stopped_side.name}'s end token, every time"
            yield _stop(e, "ignore_eos", side, continued, what), continued


def _asked_stops(e: Evidence) -> set[int]:
    """Return the stop ids that the scenario asks for in addition to the model's own end tokens."""
    return set(e.baseline.recording.records.settings.sampling.stop_token_ids or ())


def _model_ends(e: Evidence) -> list[int]:
    return [*tokenizer(e).end_ids]


def _gone_on(endings: list[Ending], long: int) -> list[Ending]:
    return [ending for ending in endings if _sides(ending)[1] == long and ending.finish[1 - long] == "stop"]


def _other_set(e: Evidence, endings: list[Ending]) -> Found:
    """Find an end token of one side only: it ends every sample there, and no sample of the other side."""
    for long in (0, 1):
        side, stopped_side = _names(e, long), _names(e, 1 - long)
        continued = _gone_on(endings, long)
        by_token: dict[int, list[Ending]] = {}
        for ending in continued:
            by_token.setdefault(ending.shorter_last, []).append(ending)
        for token, those in sorted(by_token.items()):
            # A token of the set ends every sample of the one side and none of the other. Otherwise the sample stopped
            # for another reason: it was cut short, or a log-probability was not finite.
            if side.stops.at.get(token, 0) or _went_on(stopped_side, token):
                continue
            # The side that lacks an end token that it should have, or says that it has, is at fault, else the side that
            # stops at an additional one.
            missing = token in {*_model_ends(e), *_asked_stops(e), *(reported_ends(side, e.mode) or ())}
            if not missing and len(those) < FEWEST:
                continue
            if missing:
                at_fault, what = side, f"goes on after {token}, at which the {stopped_side.name} stops"
            else:
                at_fault, what = stopped_side, f"stops at {token}, from which the {side.name} goes on"
            yield _stop(e, "other end set", at_fault, those, what, token), those


def _went_on(side: Side, token: int) -> bool:
    """Whether a sample of the side goes on after this token."""
    if token < 0:  # of an empty response, which no token ended
        return True
    inner = side.stops.inner
    return token < len(inner) and inner[token] > 0


def _stop(e: Evidence, what: str, side: Side, endings: list[Ending], text: str, token: int | None = None) -> Cause:
    tokens = sorted({ending.shorter_last for ending in endings})
    sets = {run.name: sorted(end_ids(e, run)) for run in e.sides}
    evidence = f"{counted(len(endings), 'sample')}; the shorter one ends with {', '.join(map(str, tokens[:3]))}"
    if sets["baseline"] != sets["candidate"]:
        evidence += f"; the engines resolved the end ids {sets['baseline']} and {sets['candidate']}"
    which = tokens[0] if len(tokens) == 1 else "these tokens"
    return Cause.of(
        STOP.key(what),
        side.name,
        f"the {side.name} {text}, {when(e, _steps(endings))}",
        evidence,
        {"samples": len(endings), "tokens": tokens[:20], "end ids": sets},
        [Proof(f"cut the longer one after {which}", len(endings), 0, "samples")],
    )


@dataclass(frozen=True)
class _Cuts:
    """Samples of one side (index `short`) that ended at a limit, or were aborted, before the other side's samples
    did.
    """

    endings: list[Ending]
    short: int

    @property
    def missing(self) -> list[int]:
        """Return how many tokens shorter each sample is."""
        return [ending.missing for ending in self.endings]

    @property
    def totals(self) -> set[int]:
        """Return the total lengths at which the samples end, prompt included."""
        return {ending.seen[self.short] + ending.lengths[self.short] for ending in self.endings}

    @property
    def responses(self) -> set[int]:
        """Return the response lengths at which the samples end."""
        return {ending.lengths[self.short] for ending in self.endings}

    @property
    def equal_totals(self) -> bool:
        return len(self.totals) == 1 and len(self.endings) > 1

    @property
    def equal_responses(self) -> bool:
        return len(self.responses) == 1 and len(self.endings) >= FEWEST and not self.equal_totals

    @property
    def limited(self) -> list[Ending]:
        """Return the samples that a limit ended on the other side too."""
        return [ending for ending in self.endings if ending.finish == ("length", "length")]

    @property
    def by_a_limit(self) -> bool:
        """Whether one limit explains the samples. It does not where the engine aborted any of them."""
        if any(ending.finish[self.short] in GIVEN_UP for ending in self.endings):
            return False
        equally_early = len({ending.missing for ending in self.limited}) == 1
        return self.equal_totals or self.equal_responses or equally_early


def _cut_short(e: Evidence, endings: list[Ending]) -> Found:
    """Find a limit that cuts one side only: always at the same length, or where the KV pool ran full."""
    for short in (0, 1):
        side = _names(e, short)
        cut_endings = [
            ending
            for ending in endings
            if _sides(ending)[0] == short
            and ending.finish[short] in ("length", "abort")
            and not _natural(e, ending, short)
        ]
        if not cut_endings:
            continue
        cuts = _Cuts(cut_endings, short)
        pool, context = _resolved(e, side, "kv_cache_tokens"), _resolved(e, side, "max_model_len")
        total, missing = max(cuts.totals), cuts.missing
        if cuts.equal_totals and 0 < pool < context and pool - total <= NEAR:
            proof = Proof(f"cut the other run's responses at {counted(total, 'token')}", len(cut_endings), 0, "samples")
            what = f"each ends at {counted(total, 'token')}, prompt included"
            yield _capacity(e, side, cut_endings, pool, what, [proof]), cut_endings
        elif cuts.by_a_limit:
            yield _context(e, side, cuts, context)
        elif len(set(missing)) > 1 and _is_short_of_memory(e, side, cut_endings, pool):
            yield _capacity(e, side, cut_endings, pool, f"{min(missing)} to {max(missing)} tokens early"), cut_endings


def _context(e: Evidence, side: Side, cuts: _Cuts, context: float) -> tuple[Cause, list[Ending]]:
    """Build the cause of a lower limit, and return it with the endings that it explains.

    The limit is one of the whole sequence, of the response, or a fixed number of tokens below the one asked for.
    `context`: the limit that the engine resolved; 0 where it did not report one.
    """
    details: dict[str, Any] = {}
    explained = cuts.endings
    if cuts.equal_totals:
        by = f"at {max(cuts.totals)} tokens, prompt included"
    elif cuts.equal_responses:
        by, details["response"] = f"after {counted(max(cuts.responses), 'token')}", max(cuts.responses)
    else:
        by, explained = f"{cuts.missing[0]} tokens before the limit", cuts.limited
    evidence = f"{counted(len(cuts.endings), 'sample')}, all of them cut by a limit"
    evidence += f"; it resolved max_model_len {context:g}" if context else ""
    before, after = len(cuts.endings), len(cuts.endings) - len(explained)
    cause = Cause.of(
        LENGTH.key("context"),
        side.name,
        f"the {side.name} ends samples {by}, {when(e, _steps(cuts.endings))}",
        evidence,
        {
            "samples": len(explained),
            "missing": sorted(set(cuts.missing))[:20],
            "totals": sorted(cuts.totals)[:20],
            **details,
        },
        [Proof("cut the other run's responses at the same limit", before, after, "samples")],
    )
    return cause, explained


def cut_earlier(e: Evidence, side: Side) -> set[tuple[int, int]]:
    """Return (step, sample) of samples that a limit of this side cut earlier than a longer prompt explains.

    An engine that saw a longer prompt than it was sent draws other tokens, and ends as many tokens earlier as the
    prompt has more.
    """
    short = e.sides.index(side)
    earlier = set()
    for ending in e.stop_conditions.endings:
        is_cut = _sides(ending)[0] == short and ending.finish[short] == "length" and not _natural(e, ending, short)
        if is_cut and ending.missing > max(0, ending.seen[short] - ending.sent):
            earlier.add((ending.step, ending.sample))
    return earlier


def _natural(e: Evidence, ending: Ending, short: int) -> bool:
    """Whether the shorter sample was cut at the limit that was asked for, so that the longer one is wrong."""
    asked_limit = _names(e, short).recording.records.settings.sampling.max_tokens
    return 0 < asked_limit <= ending.lengths[short]


def _resolved(e: Evidence, side: Side, name: str) -> float:
    return next((number(info.resolved.parameters.get(name), 0.0) for info in engine_infos(side, e.mode)), 0.0)


def _is_short_of_memory(e: Evidence, side: Side, endings: list[Ending], pool: float) -> bool:
    """Whether the KV pool ran full, or could not hold what a step drew, by the engine's own figures."""
    steps = {ending.step for ending in endings}
    if any(stats.step in steps and stats.kv_usage >= FULL for stats in side.recording.records.engine_stats):
        return True
    return 0 < pool < min((_needed(e, side, step) for step in steps), default=0.0)


def _needed(e: Evidence, side: Side, step: int) -> float:
    """Return the tokens that the longest `max_num_seqs` samples of the step hold together in the other run."""
    other_side = e.other_side(side)
    prompt, output = (other_side.recording.rows("rollout", step, name) for name in ("prompt", "output"))
    if prompt is None or output is None:
        return 0.0
    totals = np.sort(prompt.lengths + output.lengths)[::-1]
    running = int(_resolved(e, side, "max_num_seqs")) or len(totals)
    return float(totals[:running].sum())


def _capacity(
    e: Evidence, side: Side, endings: list[Ending], pool: float, text: str, proofs: list[Proof] | None = None
) -> Cause:
    """Build the cause of a full KV pool. Without proofs, samples end at any length, and the engine's figures are the
    evidence.
    """
    return Cause.of(
        CAPACITY.key("kv pool"),
        side.name,
        f"the {side.name}'s KV pool cuts samples short {when(e, _steps(endings))}: {text}",
        f"{counted(len(endings), 'sample')} cut by a limit" + (f"; the pool holds {pool:g} tokens" if pool else ""),
        {"samples": len(endings), "kv_cache_tokens": pool},
        proofs or [],
    )


def reasons(e: Evidence, so_far: Explained) -> Iterator[Explanation]:
    """Find wrong finish reasons, STOP(finish reason): `length` for an end token below the limit, or `stop` at the limit
    without one.
    """
    kind, recorded_reasons = Kind.FINISH.of(), e.stop_conditions.reasons
    if e.alone:
        kind, recorded_reasons = Kind.REASON.of(ALONE), e.baseline.stops.contradicted
    open_samples = so_far.open_samples(kind)
    items = [reason for reason in recorded_reasons if (reason.step, reason.sample) in open_samples]
    for index, side in enumerate(e.sides):
        sampling = sampling_given(side, e.mode)
        if sampling.ignore_eos and reported_ends(side, e.mode) is None:
            continue  # the tokens that still end a sample are unknown
        limit = whole(sampling.get("max_tokens"), 0)
        ends = end_ids(e, side)
        right_on_other_side = [reason for reason in items if not _contradicted(reason, 1 - index, ends, limit)]
        wrong_reasons = [reason for reason in right_on_other_side if _contradicted(reason, index, ends, limit)]
        if not wrong_reasons:
            continue
        (claimed, count), *_ = Counter(reason.finish[index] for reason in wrong_reasons).most_common()
        # A reason that is wrong for other samples is not believed either where a sample's end does not show the right
        # one.
        silent = [reason for reason in right_on_other_side if reason.finish[index] == claimed]
        steps = np.array(sorted({reason.step for reason in wrong_reasons}))
        cause = Cause.of(
            STOP.key("finish reason"),
            side.name,
            f"the {side.name} reports {claimed!r} for samples that ended differently, {when(e, steps)}",
            f"{count} of {len(wrong_reasons)} say {claimed!r}; they end {_ended(wrong_reasons, claimed, limit)}",
            {"samples": len(wrong_reasons), "said": claimed, "end_ids": sorted(ends), "limit": limit},
            [Proof("read the reason from the sample's own end", len(wrong_reasons), 0, "samples")],
        )
        yield Explanation(cause, (kind,), among({(reason.step, reason.sample) for reason in [*wrong_reasons, *silent]}))


def _ended(wrong_reasons: list[Reason], claimed: str, limit: int) -> str:
    if claimed != "length":
        return f"at the limit of {limit}, at no end token"
    if all(reason.length < limit for reason in wrong_reasons):
        return "at an end token, below the limit"
    if all(reason.length >= limit for reason in wrong_reasons):
        return f"at an end token, the last that the limit of {limit} allows: it tests the limit before the end tokens"
    return f"at an end token, at the limit of {limit} and below it"


def _contradicted(reason: Reason, index: int, ends: set[int], limit: int) -> bool:
    if not limit:
        return False
    if reason.finish[index] == "length":
        return reason.last in ends
    return reason.finish[index] == "stop" and reason.last not in ends and reason.length >= limit


def end_dropped(s: Situation) -> Iterator[Trial]:
    """Try a reference that drops the token that ends a sample."""
    if s.answers_differ:
        yield Trial(
            STOP.key("end token dropped"),
            "the end token dropped from the reference's answers",
            "the engine leaves the end token out of its output",
            {"output": "without end"},
        )


def lengths(s: Situation) -> Iterator[Trial]:
    """Try an engine that ends samples early: at a total of prompt and response, or a fixed number of tokens early.

    It waits while a context or a KV pool of the engine's own can still be put back, which would tell whose limit it is.
    """
    if not s.remaining.of("lengths") or {*ROOMY} & {*s.changed} - {*s.last_put_back}:
        return
    capacity = CAPACITY.key("kv pool") in s.recorded and LENGTH.key("context") not in s.recorded
    for total in s.ended_at:
        cause = CAPACITY.key("kv pool") if capacity else LENGTH.key("context")
        yield Trial(
            cause,
            f"the reference ends at {counted(total, 'token')}, prompt included",
            f"the engine ends samples at {counted(total, 'token')}, prompt included",
            {"context": total},
            recorded=cause in s.recorded,
            details={"total": total},
        )
    limit = whole(s.run_sampling.max_tokens)
    for less in dict.fromkeys((*(limit - ended_length for ended_length in s.ended_after), 1, 2, 4, 8)):
        if limit > less:
            yield Trial(
                LENGTH.key("context"),
                f"{counted(less, 'token')} less in the reference",
                f"the engine stops {counted(less, 'token')} before the limit",
                {"sampling": (("max_tokens", limit - less),)},
                details={"tokens": less},
            )


STOP = CauseFamily(
    "STOP",
    meaning="the engine ends samples at other tokens, drops the token that ends one, or says that a limit cut it",
    fix="set the same stop tokens on both engines, and keep the one that ends a sample; where only the reason is "
    "wrong, take another version of the engine, or read it from the last token",
    details={
        "end token dropped": "the token that ends a sample is left out of it",
        "other end set": "the engine ends samples at other tokens than the other one",
        "ignore_eos": "the engine goes on after the tokens that end a sample",
        "finish reason": "the engine reports another reason for the end than the tokens show",
    },
    alone="its proof finds the end at the same token in every sample; a limit ends samples at any token",
    suspicion=7,
    suspicions={"end token dropped": 2, "finish reason": 0},
    proof=either("with the other end, each sample ends where the engine's does"),
)
LENGTH = CauseFamily(
    "LENGTH",
    meaning="the engine ends samples at another length",
    fix="set the same max_tokens and max_model_len on both engines",
    details={"context": "prompt and response together are cut at a smaller number of tokens"},
    alone="its proof ends every sample at one length; a pool that runs full ends them at any",
    proof=either("cut at one length, each sample ends where the engine's does"),
)
CAPACITY = CauseFamily(
    "CAPACITY",
    meaning="the engine's KV pool ran full, and samples were cut",
    fix="give the engine a larger KV pool, or fewer sequences at a time",
    details={"kv pool": "the memory for keys and values of the tokens was too small for the batch"},
    alone="the engine's own figures say that the pool ran full, or is as large as the samples are long",
    suspicion=6,
    proof=either("cut at what the pool holds, each sample ends where the engine's does"),
)

FAMILIES = (STOP, LENGTH, CAPACITY)
