"""From a judged difference to a proven cause: reproduce it, find the side, change the reference, then the engine."""

from __future__ import annotations

import time
from dataclasses import replace

from harness.errors import HarnessError
from harness.parity.attribution import live, reference
from harness.parity.attribution.case import HEALTHY_IF_RARE, choose, narrowed, unexplained
from harness.parity.attribution.merge import merged
from harness.parity.attribution.outcome import Attribution
from harness.parity.causes.family import Seen
from harness.parity.causes.unexplained import UNEXPLAINED
from harness.parity.explain import explain
from harness.parity.facts.divergence import Kind
from harness.parity.facts.evidence import Evidence
from harness.parity.interventions.bench import Bench
from harness.parity.interventions.situation import LEAST, Situation, settled, vanished
from harness.parity.subjects.engines.causes_self_disagreement import itself
from harness.parity.subjects.order.causes import ORDER, other_sample_numbers
from harness.parity.subjects.prefix_cache.causes import differ_past_cache, repeats_past_cache
from harness.parity.subjects.prompts.causes_retokenization import read_aloud
from harness.parity.verdict import Judged
from probes.format import whole
from reports.model import Verdict
from reports.text import counted
from scenarios.bench.case import CaseSample, Symptoms, Tolerance
from scenarios.remote import ActorFailed

BUDGET_S = 60.0  # seconds for everything but the restart of an engine


def attribute(judged: Judged, bench: Bench) -> Verdict:
    """Return the verdict of `judged` with the causes that live interventions prove, confirm or withdraw.

    Verdicts other than DIVERGENT are returned unchanged. `bench`: both engines as the runs left them. Does not raise
    when an engine fails: what was proven until then stays, and the failure is noted.
    """
    if judged.verdict.verdict != "DIVERGENT" or judged.evidence is None:
        return judged.verdict
    return merged(judged, search(judged, bench))


def search(judged: Judged, bench: Bench) -> Attribution:
    """Make every intervention that applies, on every side that differs from its reference."""
    attribution, started = Attribution(), time.monotonic()
    try:
        _search(judged, bench, attribution, started)
    except (HarnessError, ActorFailed, RuntimeError) as error:
        # RuntimeError: EngineError and SyncFailed of a bench in this process. Whatever killed an engine in an
        # intervention, what was proven until then stands.
        attribution.notes.append(f"attribution ended early: {error}")
        attribution.broken = "an engine failed in an intervention on it"
    attribution.seconds = time.monotonic() - started
    return attribution


def _search(judged: Judged, bench: Bench, attribution: Attribution, started: float) -> None:
    e = judged.evidence
    assert e is not None
    if e.mode not in ("coupled", "greedy"):
        attribution.notes.append(f"not tested on the bench: {e.mode} sampling has no common randomness")
        return
    # 1. The case: samples that both engines draw again, what no recorded cause explains among them.
    explained = explain(e, judged.kinds)
    open_ = unexplained(explained, judged.kinds)
    samples = choose(explained, judged.kinds)
    if not samples:
        attribution.notes.append("not tested on the bench: no sample of the difference can be drawn again")
        return
    sides = bench.open(samples, _allowed(e, len(samples)))
    # 2. The symptoms of each side, against the reference. Only where recordings leave something unexplained is it worth
    # asking the tokenizer, or syncing once more.
    unnamed = any(UNEXPLAINED.has(cause.key) for cause in judged.verdict.causes)
    if unnamed:
        attribution.learned = replace(attribution.learned, aloud=read_aloud(e, explained, bench.texts))
    symptoms = _compared(e, bench, sides, attribution)
    if unnamed and _shows_little(attribution) and len(explained.left(Kind.FLIP.of())):
        wide = choose(explained, judged.kinds, most_healthy=HEALTHY_IF_RARE)
        samples = _narrowed(e, bench, sides, attribution, wide) or samples
        bench.open(samples, _allowed(e, len(samples)))
        symptoms = _compared(e, bench, sides, attribution)
    # What no cause explains counts as reproduced only if the bench has every sample of it: interventions that remove
    # the difference of some of them explain no others.
    in_case = {sample.number for sample in samples}
    attribution.reproduced = bool(open_) and {number for _, number in open_} <= in_case
    attribution.drawn = sum(sample.offends for sample in samples)
    _note_cut_sequences(attribution, len(samples))
    if unnamed and _shows_little(attribution):
        symptoms |= _resent(e, bench, sides, attribution)
    # 3. One intervention after another on each side that differs.
    for side in [side_name for side_name in sides if attribution.first[side_name].total]:
        s = Situation(
            bench, e, side, symptoms[side], time.monotonic, deadline=started + BUDGET_S, samples=samples,
            named=attribution.named, tried=attribution.tried, notes=attribution.notes,
            recorded=frozenset(cause.key for cause in judged.verdict.causes),
        )  # fmt: skip
        _search_side(s, attribution, started)
    if unnamed:
        attribution.learned = replace(attribution.learned, past_cache=differ_past_cache(attribution.tried))


def _narrowed(
    e: Evidence, bench: Bench, sides: list[str], attribution: Attribution, wide: list[CaseSample]
) -> list[CaseSample]:
    """Return a case of the samples that differ now, of a wide one; [] where these show as little as the first.

    A sampler that turns a token now and then turns others at the last weights. So many healthy samples are drawn too.
    """
    bench.open(wide, _allowed(e, len(wide)))
    symptoms = _compared(e, bench, sides, attribution)
    if _shows_little(attribution):
        return []
    return narrowed(wide, {number for side in sides for number in symptoms[side].by_sample})


def _allowed(e: Evidence, samples: int) -> Tolerance:
    """Return what counts as equal on the bench, for a case of this many samples."""
    tolerance = e.tolerance
    allowed = Tolerance(tolerance.value, tolerance.margin)
    # In half precision a few choices of a sound engine lie far from the reference's. How many depends on the tokens.
    if not tolerance.half:
        return allowed
    longest = whole(e.baseline.recording.records.settings.sampling.max_tokens)
    most_flips = tolerance.far_flips(longest * samples)
    return replace(allowed, few=most_flips, far=tolerance.far_margin, turned=tolerance.turned)


def _compared(e: Evidence, bench: Bench, sides: list[str], attribution: Attribution) -> dict[str, Symptoms]:
    """Compare each side with the unchanged reference, and note its first symptoms without what rounding explains."""
    symptoms: dict[str, Symptoms] = {}
    for side in sides:
        symptoms[side] = bench.read(side, again=True)
        attribution.first[side] = settled(symptoms[side], e.tolerance)
    return symptoms


def _shows_little(attribution: Attribution) -> bool:
    """Whether no side differs in more places than may vanish by chance."""
    return all(first.total <= LEAST for first in attribution.first.values())


def _note_cut_sequences(attribution: Attribution, samples: int) -> None:
    for side, first in attribution.first.items():
        if first.cut:
            attribution.notes.append(
                f"the {side}'s engine scores no more than {counted(first.longest, 'token')} of a sequence: "
                f"{first.cut} of the case's {counted(samples, 'sequence')} were scored up to there"
            )


def _resent(e: Evidence, bench: Bench, sides: list[str], attribution: Attribution) -> dict[str, Symptoms]:
    """Compare the sides that differed in the run and agree now, after another sync.

    If the last sync repaired the fault of an earlier one, the next sync brings it back.
    """
    symptoms: dict[str, Symptoms] = {}
    for side in (side_name for side_name in sides if len(e.found(Kind.ENGINE.of(side_name)))):
        symptoms[side] = live.resent(bench, side)
        first = attribution.first[side] = settled(symptoms[side], e.tolerance)
        state = "differs from the reference" if first.total else "still agrees with the reference"
        attribution.notes.append(f"sent other weights, then the learner's again, the {side}'s engine {state}")
    return symptoms


def _search_side(s: Situation, attribution: Attribution, started: float) -> None:
    """Make every intervention on one side. What it showed stays, even where the engine fails."""
    try:
        _one_side(s, attribution)
        # The recordings say that the engine disagrees with itself, and nothing is left: was its noise the fault's?
        noise_was_recorded = any(key.family == itself(s.side).family for key in s.recorded)
        if noise_was_recorded and vanished(attribution.first[s.side], s.remaining):
            live.regroup(s)
    finally:
        attribution.remaining[s.side] = s.remaining
        if attribution.named and attribution.named_after is None:
            attribution.named_after = time.monotonic() - started


def _one_side(s: Situation, attribution: Attribution) -> None:
    if s.symptoms.noise and repeats_past_cache(s):
        attribution.first[s.side] = settled(s.symptoms, s.evidence.tolerance)
    if s.symptoms.restless:
        s.notes.append(
            f"the {s.side}'s engine chooses alike in two equal draws and gives {s.symptoms.noise} other numbers: "
            "only its choices were looked at, and nothing was undone on it"
        )
        reference.search(s)
        return
    if s.symptoms.noise:
        s.notes.append(
            f"the {s.side}'s engine does not repeat itself: {s.symptoms.noise} tokens and log-probabilities differ "
            "between two equal draws; nothing was undone"
        )
        return
    if any(ORDER.has(key) for key in s.recorded):
        # Nothing is drawn for it. Among permuted responses a guessed parameter removes some differences by chance.
        other_sample_numbers(s)
    # The reference first: changing it costs no call of the engine, and leaves the engine as the run left it.
    reference.search(s)
    if s.remaining.total:
        live.search(s, then=reference.search)
    _locate(s, attribution)


def _locate(s: Situation, attribution: Attribution) -> None:
    """Note where what is left begins: the first layer that differs, or the keys that attention reads."""
    scored, place = s.remaining.of("scores") > 0, ""
    if scored:
        attribution.layers[s.side], place = live.narrowest(s)
    if s.remaining.of("tokens", "logprobs") and (lengths := live.attention_lengths(s)):
        attribution.layers[s.side] = "; ".join(filter(None, (attribution.layers.get(s.side), lengths)))
        if place or not scored:  # it holds the learner's weights, or scores as the learner does
            place = "attention length"
    if place:
        attribution.computes[s.side] = place
        attribution.excluded[s.side] = (
            *(Seen.HELD_EQUAL,) * (s.held is not None and s.held.all_equal),
            *(Seen.SCORES_AGREE,) * (not scored),
        )
