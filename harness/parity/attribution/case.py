"""The case: the few samples that both engines draw again, taken from the recordings."""

from __future__ import annotations

from dataclasses import replace

from harness.parity.explain import remaining
from harness.parity.facts.divergence import DivergenceKey
from harness.parity.facts.evidence import Evidence
from harness.parity.facts.explanation import Explained
from harness.parity.subjects.engines.observed import drawn_by_suspect
from scenarios.bench.case import CaseSample

Sample = tuple[int, int]  # step, number of the sample in it

OFFENDING = 24  # differing samples; chosen: every intervention draws all of them again
EARLIEST = 8  # of those: the earliest
LATEST = 4  # of those: the latest
EACH = 4  # of those: samples with the same kinds of divergence; one more than may vanish by chance (`situation.LEAST`)
HEALTHY = 4  # samples without any difference, which show what an intervention breaks
HEALTHY_IF_RARE = 100  # of those in a case in which samples that differ are looked for
OPEN = 4  # of the differing ones: samples of the last step that no recording explains


def choose(so_far: Explained, kinds: list[DivergenceKey], *, most_healthy: int = HEALTHY) -> list[CaseSample]:
    """Return differing samples of these kinds, and healthy ones of the same steps; [] where none can be drawn.

    A difference without samples (a sync, a floor) is looked for in the last step.
    """
    e = so_far.evidence
    of_engine = drawn_by_suspect(e)
    kinds_by_sample = _kinds_by_sample(e, kinds, of_engine)
    offending = list(dict.fromkeys([*unexplained(so_far, kinds), *_telling(e, kinds_by_sample)]))[:OFFENDING]
    prompts = {step: _prompts(e, step) for step in sorted({step for step, _ in offending})}
    drawn = [(step, sample) for step, step_prompts in prompts.items() for sample in sorted(step_prompts)]
    by_suspect = [item for item in drawn if of_engine is None or item in of_engine]
    healthy = [item for item in by_suspect if item not in kinds_by_sample][:most_healthy]
    case = []
    for step, sample in sorted([*offending, *healthy]):
        ids = prompts[step].get(sample)
        if ids is None:
            continue
        # A trial of shared random numbers draws each sample with those of the first one of its prompt.
        leader = min(sibling for sibling, sibling_ids in prompts[step].items() if sibling_ids == ids)
        case.append(CaseSample(sample, ids, offends=(step, sample) in kinds_by_sample, leader=leader))
    return case


def narrowed(case: list[CaseSample], differing: set[int]) -> list[CaseSample]:
    """Return the samples of a case that differ on the bench, and some of the others: a case as small as the first.

    A fault that turns one token in a hundred shows in other samples when they are drawn again at the last weights.
    """
    offending = [replace(sample, offends=True) for sample in case if sample.number in differing][:OFFENDING]
    others = [sample for sample in case if sample.number not in differing and not sample.offends][:HEALTHY]
    return sorted([*offending, *others], key=lambda sample: sample.number)


def _kinds_by_sample(
    e: Evidence, kinds: list[DivergenceKey], of_engine: set[Sample] | None
) -> dict[Sample, frozenset[DivergenceKey]]:
    """Return what differs in each sample.

    Where one of several engines is at fault, only its samples are included: other engines would draw them correctly.
    For a difference without samples, those of the last step are returned without a kind.
    """
    kinds_by_sample: dict[Sample, frozenset[DivergenceKey]] = {}
    for kind in kinds:
        for step, sample in e.found(kind).tolist():
            if sample < 0 or step < 0:  # of the native stage, or of no sample
                continue
            if of_engine is None or (step, sample) in of_engine:
                kinds_by_sample[step, sample] = kinds_by_sample.get((step, sample), frozenset()) | {kind}
    if not kinds_by_sample and e.steps:
        last = e.steps[-1]
        kinds_by_sample = {(last, sample): frozenset() for sample in sorted(_prompts(e, last))[:OFFENDING]}
    return kinds_by_sample


def _telling(e: Evidence, kinds_by_sample: dict[Sample, frozenset[DivergenceKey]]) -> list[Sample]:
    """Return the samples that differ, the most informative first; some of them twice.

    First come a few of the earliest. Then a few with the most kinds of divergence, of equals the latest, because what
    began late hides behind what was there from the start. Then some of each combination of kinds, rare ones first,
    because what only few samples show (a limit, say) hides behind a fault of all. Last all of them by the number of
    kinds, of equals the longest first, since long samples show most and are cut by limits.
    """
    earliest = sorted(kinds_by_sample)[:EARLIEST]
    latest = sorted(kinds_by_sample, key=lambda item: (-len(kinds_by_sample[item]), -item[0], item[1]))[:LATEST]
    lengths = {step: _lengths(e, step) for step in {step for step, _ in kinds_by_sample}}
    longest = sorted(
        kinds_by_sample, key=lambda item: (-len(kinds_by_sample[item]), -lengths[item[0]].get(item[1], 0), item)
    )
    samples_by_kinds: dict[frozenset[DivergenceKey], list[Sample]] = {}
    for item in longest:
        samples_by_kinds.setdefault(kinds_by_sample[item], []).append(item)
    rare = [item for items in sorted(samples_by_kinds.values(), key=len) for item in items[:EACH]]
    return [*earliest, *latest, *rare, *longest]


def unexplained(so_far: Explained, kinds: list[DivergenceKey]) -> list[tuple[int, int]]:
    """Return a few (step, sample) of the last step that no recorded cause explains.

    Returns [] unless every kind of divergence that is left open still occurred there: what had passed before cannot be
    drawn again.
    """
    e = so_far.evidence
    open_ = [items[items[:, 0] == e.steps[-1]] for items in remaining(so_far, kinds).values()] if e.steps else []
    if not open_ or not all(len(items) for items in open_):
        return []
    open_samples = {
        (int(step), int(sample)) for items in open_ for step, sample in items[:OPEN].tolist() if sample >= 0
    }
    return sorted(open_samples)[:OPEN]


def _lengths(e: Evidence, step: int) -> dict[int, int]:
    """Return the tokens of the baseline's responses of one step, by sample."""
    table = e.baseline.recording.table("rollout", step)
    if table is None or (responses := table.rows("output")) is None:
        return {}
    return dict(zip(table.sample.tolist(), responses.lengths.tolist(), strict=True))


def _prompts(e: Evidence, step: int) -> dict[int, tuple[int, ...]]:
    """Return the prompt ids of one step as they were sent, by sample."""
    table = e.baseline.recording.table("rollout", step)
    if table is None or (prompts := table.rows("prompt")) is None:
        return {}
    return {sample: tuple(prompts.row(row).tolist()) for row, sample in enumerate(table.sample.tolist())}
