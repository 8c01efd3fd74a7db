"""Native stage: each engine's own sampler at the same weights, compared as distributions and held against the learner.

- `distributions`: the two stages against each other: different, equal, or too little data.
- `sampler`: each against the learner's own distribution: which of the two does not draw what it was asked.
- `semantics`: what the log-probabilities that an engine reports mean.
- `repeats`: clones, and seeds that are not honoured.

A difference that one draw shows and that may be chance is asked of a second, fresh draw, where there is one.
"""

from __future__ import annotations

import dataclasses

from harness.parity.facts import prompts_seen
from harness.parity.facts.evidence import Evidence, Side
from harness.parity.facts.native_result import MARGIN, NativeResult
from harness.parity.native import distributions, semantics
from harness.parity.native.repeats import PROMISES, collisions, repeats, shared_seeds
from harness.parity.native.sampler import sampler, unread
from harness.parity.native.samples import FIRST, SECOND, Samples, samples_of, tables
from harness.recordings.store import Recording
from harness.recordings.tables import Table
from probes.format import mapping, number
from reports.model import Finding
from reports.text import figure


def native_stage(e: Evidence, *, alpha: float) -> None:
    """Read both native stages into `e.native`, and their differences into the divergences."""
    result = NativeResult(alpha=alpha, margin=_margin(e.baseline.recording))
    e.native = result
    stages = [tables(side, "native") for side in e.sides]
    if not all(stages):
        absent = [side.name for side, stage in zip(e.sides, stages, strict=True) if not stage]
        result.skipped = "no native stage was recorded" + (f" for the {absent[0]}" if len(absent) == 1 else "")
        return
    samples = [samples_of(side) for side in e.sides]
    result.samples = (len(samples[0]), len(samples[1]))
    _versions(e, stages, result)
    for side, one, stage in zip(e.sides, samples, stages, strict=True):
        for table in (*stage, *tables(side, "repeat")):
            prompts_seen.note(e, side, table)
        result.not_compared += one.missing
        semantics.semantics(e, side, one, result)
        if collisions(e, side, one, result):
            result.not_compared.append(f"{side.name}: clones are no samples of their own to hold against the learner")
        else:
            sampler(e, side, one, result)
        repeats(e, side, one, result)
        shared_seeds(e, side, result)
        result.unread += _unread(side, one, result)
    semantics.both(result)
    everything = e.confounded("everything")
    if everything is not None:
        result.skipped = f"the runs differ in {everything.finding.name}"
    e.native = _compared(e, samples, result)
    distributions.note(e, e.native)


def _compared(e: Evidence, samples: list[Samples], result: NativeResult) -> NativeResult:
    """`result` with the two samplers held against each other; of a second draw, where the first one leaves a doubt that
    it answers."""
    equalities = {} if result.skipped else distributions.distributions(e, samples[0], samples[1], result)
    distributions.reject(result)
    distributions.quantities(result, equalities)
    if not result.doubtful or not all(tables(side, "native", SECOND) for side in e.sides):
        return result
    drawn = [samples_of(side, SECOND) for side in e.sides]
    second = NativeResult(alpha=result.alpha, margin=result.margin, skipped=result.skipped)
    for side, one in zip(e.sides, drawn, strict=True):
        sampler(e, side, one, second)
    equalities = {} if result.skipped else distributions.distributions(e, drawn[0], drawn[1], second)
    if lacking := sorted(set(result.tests) - set(second.tests)):
        result.not_compared.append(f"in a second draw: {', '.join(lacking)}")
        return result
    distributions.reject_both(result, second)
    distributions.quantities(second, equalities)
    return dataclasses.replace(
        result, tests=second.tests, first_draw=second.first_draw, rejected=second.rejected, doubtful=[],
        quantities=second.quantities, enough=second.enough, prompts=second.prompts,
        samples=(len(drawn[0]), len(drawn[1])), not_compared=[*result.not_compared, *second.not_compared],
        findings=[*result.findings, *_chance(result, second)],
    )  # fmt: skip


def _chance(first: NativeResult, second: NativeResult) -> list[Finding]:
    """What the first draw showed and both together do not."""
    gone = [name for name in first.doubtful if name not in second.rejected]
    if not gone:
        return []
    text = f"a first draw differed, both draws do not: {first.shown(gone, first.tests)} at first"
    return [Finding("native samples", text, "chance, which as many tests meet at "
                    f"alpha = {figure(second.alpha)}")]  # fmt: skip


def in_doubt(e: Evidence) -> list[str]:
    """The sentence on a difference between the native stages that may be chance; [] without one."""
    if e.native is None or not e.native.doubtful:
        return []
    return [f"the engines' own samplers: {e.native.said()}; no second draw was recorded"]


def _unread(side: Side, samples: Samples, result: NativeResult) -> list[str]:
    """What this side's stage lacks of what our own always write: without it nobody knows whether its sampler draws what
    it was asked, of the prompts that it was sent, or whether it repeats itself.
    """
    lacking = unread(side, samples)
    if not result.repeats.get(side.name, {}).get("samples"):
        lacking.append("`repeat` frames (samples drawn twice)")
    elif result.repeats[side.name]["request_seed"] not in PROMISES:
        lacking.append("`request_seed` of the samples drawn twice: whether the engine honours it")
    drawn = tables(side, "native", FIRST)
    if not all((seen := table.rows("prompt_seen")) and seen.lengths.all() for table in drawn):
        lacking.append("`prompt_seen` of every sample")
    return [f"the {side.name}'s native stage has no {what}" for what in lacking]


def _versions(e: Evidence, stages: list[list[Table]], result: NativeResult) -> None:
    """Native stages are comparable at equal weights only."""
    versions = [found[0].fields.get("weight_version") for found in stages]
    one, two = e.weights.versions
    if versions[0] in one and versions[1] in two:
        if one[versions[0]] != two[versions[1]]:
            result.skipped = f"the weights differ (versions {versions[0]} and {versions[1]})"
    elif versions[0] != versions[1]:
        result.skipped = f"the weight versions differ ({versions[0]} and {versions[1]})"


def samplers_said(e: Evidence) -> str:
    """What the stage showed of the engines' own samplers, for the reason of a verdict that found no difference."""
    result = e.native
    if result is None:
        return "the engines' own samplers were not tested: no native stage"
    if result.adequate and not result.unread:
        equal = ", ".join(result.outcomes)
        return f"the engines' own samplers: {equal} equal in the mean to within {result.margin} standard deviations"
    lacking = f"{result.unread[0]}; " if result.unread and not result.skipped else ""
    return f"the engines' own samplers were not tested: {lacking}{result.said()}"


def alpha_of(recording: Recording) -> float:
    """The scenario's `native.alpha`; 0.01 where none was recorded."""
    return number(mapping(recording.scenario.get("native")).get("alpha"), 0.01)


def _margin(recording: Recording) -> float:
    return number(mapping(recording.scenario.get("native")).get("margin"), MARGIN)
