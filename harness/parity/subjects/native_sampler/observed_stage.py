"""The native stage: samples that each engine drew with its own sampler at equal weights. The steps:

- `observed_distributions` compares the two stages: different, equal, or undecided.
- `observed_sampler` holds each stage against the learner's distribution, to see which engine draws otherwise than
  asked.
- `observed_meaning` recognises what the reported log-probabilities mean.
- `observed_repeats` finds clones, and seeds that are not honoured.

The stages are drawn in parts and tested after each part (`observed_looks`).
"""

from __future__ import annotations

from harness.parity.facts.comparison import RecordedSide
from harness.parity.facts.evidence import Evidence
from harness.parity.facts.evidence_builder import EvidenceBuilder
from harness.parity.subjects.native_sampler import observed_distributions, observed_meaning
from harness.parity.subjects.native_sampler.observed import NativeResult, NativeStage, ranked
from harness.parity.subjects.native_sampler.observed_looks import Plan
from harness.parity.subjects.native_sampler.observed_repeats import PROMISES, collisions, repeats, shared_seeds
from harness.parity.subjects.native_sampler.observed_sampler import sampler, sampler_tests, unread
from harness.parity.subjects.native_sampler.observed_samples import Samples, draws_of, samples_of, tables
from harness.parity.subjects.prompts import observed as prompts_observed
from harness.recordings.tables import Table
from reports.text import part_of


def native_stage(e: EvidenceBuilder) -> None:
    """Read both native stages into `e.native`, and add their divergences."""
    plan = Plan.of(e.baseline.recording)
    stage = NativeStage(NativeResult(**vars(plan)))
    last = _read(e, plan, stage)
    e.native = stage.result
    if last is not None:
        e.native = observed_distributions.conclude(e.native, last, plan)
        observed_distributions.note(e, e.native)


def _read(e: EvidenceBuilder, plan: Plan, stage: NativeStage) -> observed_distributions.Compared | None:
    """Read both stages into `stage`. Returns what the last look compared; None where a stage is absent."""
    stages = [tables(side, "native") for side in e.sides]
    absent = [side.name for side, side_tables in zip(e.sides, stages, strict=True) if not side_tables]
    if absent:
        stage.set(skipped="no native stage was recorded" + (f" for the {absent[0]}" if len(absent) == 1 else ""))
        return None
    draws = min(plan.draws, *map(draws_of, e.sides))  # a test suite's baseline may have drawn more for another fault
    samples = [samples_of(side, draws) for side in e.sides]
    most = plan.draws * max(len(drawn.first(1)) for drawn in samples)
    stage.set(samples=(len(samples[0]), len(samples[1])), most=most)
    _versions(e, stages, stage)
    # A sampler is judged only where the learner knows its distribution: its engine's numbers are the learner's, and
    # its samples are its own.
    readable: set[str] = set()
    for side, drawn in zip(e.sides, samples, strict=True):
        for table in (*tables(side, "native", draws), *tables(side, "repeat")):
            prompts_observed.note(e, side, table)
        # The meaning first: whether the engine's numbers are the learner's decides what else may be held against it.
        stage.add("not_compared", *drawn.missing)
        agrees = observed_meaning.recognise(e, side, drawn, stage)
        if collisions(e, side, drawn, stage):
            stage.add(
                "not_compared", f"{side.name}: its sampler was not judged, since samples of it are copies of others"
            )
        elif not agrees:
            stage.add(
                "not_compared",
                f"{side.name}: its sampler was not judged, since its log-probabilities are not the learner's",
            )
        else:
            sampler(e, side, drawn, stage)
            readable.add(side.name)
        repeats(e, side, drawn, stage)
        shared_seeds(e, side, draws, stage)
        stage.add("unread", *_unread(side, drawn, stage.result))
    observed_meaning.note_other_meaning(stage)
    # A confounded pair says nothing of the other run. Each side against its own learner still counts.
    everything = e.confounded("everything")
    if everything is not None:
        stage.set(skipped=f"the runs differ in {everything.finding.name}")
    return _looks(e, samples, readable, plan, stage)


def _looks(
    e: EvidenceBuilder, samples: list[Samples], readable: set[str], plan: Plan, stage: NativeStage
) -> observed_distributions.Compared:
    """Test both stages after each draw, as was done while they were drawn.

    A later look spends what the looks before it left. So a verdict on a recording is the one that ended the drawing.
    `readable`: sides that are also held against the learner. Returns what the last look compared.
    """
    comparison = observed_distributions.Compared()
    for draw in range(1, max(drawn.draws for drawn in samples) + 1):
        so_far = [drawn.first(draw) for drawn in samples]
        if not stage.result.skipped:
            measured = observed_distributions.compared(so_far[0], so_far[1], margin=plan.margin)
            if measured is None:
                stage.set(skipped="the two stages have no prompt in common")
            comparison = measured or comparison
        for side, drawn in zip(e.sides, so_far, strict=True):
            if side.name in readable:
                comparison.tests |= sampler_tests(e, side, drawn)
        stage.add("looks", observed_distributions.look(comparison, plan, draw, (len(so_far[0]), len(so_far[1]))))
    stage.add("not_compared", *comparison.not_compared)
    if not stage.result.skipped:
        equal_count, expected = observed_distributions.identical(*samples)
        stage.set(identical=equal_count, identical_expected=expected)
    return comparison


def in_doubt(e: Evidence) -> list[str]:
    """Return a sentence on a difference between the native stages that may be chance; [] without one."""
    if e.native is None or not e.native.doubtful:
        return []
    doubtful_tests = ranked(e.native.doubtful, e.native.tests)
    draws = f"{part_of(len(e.native.looks), e.native.most_looks, 'draw')} were recorded"
    return [f"the engines' own samplers: a difference that may be chance, {doubtful_tests}; only {draws}"]


def _unread(side: RecordedSide, samples: Samples, result: NativeResult) -> list[str]:
    """Return the parts that our own stages always record and that this side's stage lacks.

    Without them it is unknown whether the sampler draws as asked, for the prompts that it was sent, or whether it
    repeats itself.
    """
    lacking = unread(side, samples)
    if not result.repeats.get(side.name, {}).get("samples"):
        lacking.append("`repeat` frames (samples drawn twice)")
    elif result.repeats[side.name]["request_seed"] not in PROMISES:
        lacking.append("`request_seed` of the samples drawn twice: whether the engine honours it")
    drawn = tables(side, "native", samples.draws)
    if not all((seen_prompts := table.rows("prompt_seen")) and seen_prompts.lengths.all() for table in drawn):
        lacking.append("`prompt_seen` of every sample")
    return [f"the {side.name}'s native stage has no {what}" for what in lacking]


def _versions(e: EvidenceBuilder, stages: list[list[Table]], stage: NativeStage) -> None:
    """Skip the comparison where the stages were drawn at different weights."""
    versions = [stage[0].header.weight_version for stage in stages]
    baseline_versions, candidate_versions = e.weights.versions
    if versions[0] in baseline_versions and versions[1] in candidate_versions:
        if baseline_versions[versions[0]] != candidate_versions[versions[1]]:
            stage.set(skipped=f"the weights differ (versions {versions[0]} and {versions[1]})")
    elif versions[0] != versions[1]:
        stage.set(skipped=f"the weight versions differ ({versions[0]} and {versions[1]})")


def samplers_sentences(e: Evidence) -> list[str]:
    """Return what was drawn with the engines' own samplers, and a sentence for each quantity, for a verdict that found
    no difference.
    """
    result = e.native
    if result is None or result.skipped or not result.quantities:
        return [samplers_clause(e)]
    in_part = f" were tested in part, {result.unread[0]}" if result.unread else ""
    drawn, *sentences = result.sentences()
    doubtful = [f"a difference that may be chance: {ranked(result.doubtful, result.tests)}"] if result.doubtful else []
    return [f"the engines' own samplers{in_part}: {drawn}", *sentences, *doubtful]


def samplers_clause(e: Evidence) -> str:
    """Return a clause on the engines' own samplers, for the reason of a verdict that found no difference."""
    result = e.native
    if result is None:
        return "the engines' own samplers were not tested: no native stage"
    if result.skipped:
        return f"the engines' own samplers were not tested: {result.skipped}"
    in_part = f" were tested in part: {result.unread[0]}; " if result.unread else ": "
    return f"the engines' own samplers{in_part}{result.summary()}"
