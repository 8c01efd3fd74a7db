"""From a judged difference to a proven cause: reproduce it, find the side, change the reference, then the engine."""

from __future__ import annotations

import time
from dataclasses import replace

from harness.errors import HarnessError
from harness.parity.attribution import live, reference
from harness.parity.attribution.case import choose, unexplained
from harness.parity.attribution.merge import merged
from harness.parity.attribution.outcome import Attribution
from harness.parity.causes.unexplained import UNEXPLAINED
from harness.parity.explain import explain
from harness.parity.facts.divergence import Kind
from harness.parity.interventions.bench import Bench
from harness.parity.interventions.situation import LEAST, Situation, gone, settled
from harness.parity.subjects.engines.causes_self_disagreement import itself
from harness.parity.subjects.prefix_cache.causes import differ_past_cache
from harness.parity.subjects.prompts.causes_retokenization import read_aloud
from harness.parity.verdict import Judged
from probes.format import mapping
from reports.model import Verdict
from reports.text import counted
from scenarios.bench.case import Symptoms, Tolerance
from scenarios.remote import ActorFailed

BUDGET_S = 60.0  # for everything but the restart of an engine


def attribute(judged: Judged, bench: Bench) -> Verdict:
    """The verdict of `judged` with the causes that live interventions prove, confirm or withdraw.

    Anything but DIVERGENT comes back as it is. `bench`: both engines as the runs left them. Never raises for an engine
    that fails: what was proven until then stays, the rest is said.
    """
    if judged.verdict.verdict != "DIVERGENT" or judged.evidence is None:
        return judged.verdict
    return merged(judged, search(judged, bench))


def search(judged: Judged, bench: Bench) -> Attribution:
    """Every intervention that applies, on every side that differs from its reference."""
    attribution, started = Attribution(), time.monotonic()
    try:
        _search(judged, bench, attribution, started)
    except (HarnessError, ActorFailed, RuntimeError) as error:
        # RuntimeError: EngineError and SyncFailed of a bench in this process. Whatever an engine died of in an
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
    explained = explain(e, judged.kinds)
    open_ = unexplained(explained, judged.kinds)
    samples = choose(explained, judged.kinds)
    attribution.reproduced = bool(open_) and {sample for _, sample in open_} <= {sample.number for sample in samples}
    if not samples:
        attribution.notes.append("not tested on the bench: no sample of the difference can be drawn again")
        return
    attribution.drawn = sum(sample.offends for sample in samples)
    run_tolerance, longest = e.tolerance, mapping(e.baseline.recording.scenario.get("sampling")).get("max_tokens", 0)
    allowed = Tolerance(run_tolerance.value, run_tolerance.margin)
    if run_tolerance.half:
        far_flips = run_tolerance.far_flips(longest * len(samples))
        allowed = replace(allowed, few=far_flips, far=run_tolerance.far_margin, turned=run_tolerance.turned)
    sides = bench.open(samples, allowed)
    unnamed = any(UNEXPLAINED.has(cause.key) for cause in judged.verdict.causes)
    if unnamed:
        attribution.learned = replace(attribution.learned, aloud=read_aloud(e, explained, bench.texts))
    read: dict[str, Symptoms] = {}
    for side in sides:
        read[side] = bench.read(side, again=True)
        attribution.first[side] = settled(read[side], e.tolerance)
        if (symptoms := attribution.first[side]).cut:
            attribution.notes.append(
                f"the {side}'s engine scores no more than {counted(symptoms.longest, 'token')} of a sequence: "
                f"{symptoms.cut} of the case's {counted(len(samples), 'sequence')} were scored up to there"
            )
    if unnamed and not any(symptoms.total > LEAST for symptoms in attribution.first.values()):
        for side in (side_name for side_name in sides if len(e.found(Kind.ENGINE.of(side_name)))):
            read[side] = live.resent(bench, side)
            attribution.first[side] = settled(read[side], e.tolerance)
            state = "differs from the reference" if attribution.first[side].total else "still agrees with the reference"
            attribution.notes.append(f"sent other weights, then the learner's again, the {side}'s engine {state}")
    for side in [side_name for side_name in sides if attribution.first[side_name].total]:
        s = Situation(
            bench, e, side, read[side], time.monotonic, deadline=started + BUDGET_S, samples=samples,
            named=attribution.named, tried=attribution.tried, notes=attribution.notes,
            recorded=frozenset(cause.key for cause in judged.verdict.causes),
        )  # fmt: skip
        try:
            _one_side(s, attribution)
            noisy = any(cause.key == itself(side) for cause in judged.verdict.causes)
            if noisy and gone(attribution.first[side], s.rest):
                live.regroup(s)
        finally:
            attribution.left[side] = s.rest
            if attribution.named and attribution.named_after is None:
                attribution.named_after = time.monotonic() - started
    if unnamed:
        attribution.learned = replace(attribution.learned, past_cache=differ_past_cache(attribution.tried))


def _one_side(s: Situation, attribution: Attribution) -> None:
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
    reference.search(s)
    if s.rest.total:
        live.search(s, then=reference.search)
    _locate(s, attribution)


def _locate(s: Situation, attribution: Attribution) -> None:
    """Note where what is left begins: the first layer that differs, or the keys that attention reads."""
    scored, place = s.rest.of("scores") > 0, ""
    if scored:
        attribution.layers[s.side], place = live.narrowest(s)
    if s.rest.of("tokens", "logprobs") and (lengths := live.attention_lengths(s)):
        attribution.layers[s.side] = "; ".join(filter(None, (attribution.layers.get(s.side), lengths)))
        if place or not scored:  # it holds what the learner does, or scores as the learner does
            place = "attention length"
    if place:
        attribution.computes[s.side] = place
