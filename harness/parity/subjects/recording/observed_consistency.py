"""Contradictions within a recording: what it records twice must be the same twice.

A recording holds several witnesses of one fact: a digest and what it was made of, a mean and its terms, the ends of a
sample and the sample. Where two of them disagree, one is wrong, and it is unknown which: the run never passes. Facts
that the job of a framework records only once are not compared: its digests and means may be of other things than ours.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.parity.facts.evidence import Evidence, Side
from harness.parity.subjects.recording.observed_confounders import process_packages
from harness.recordings.records.values import equal_values
from harness.recordings.records.weight_sync import LEARNER, RECEIVED
from harness.recordings.store import Recording
from probes import weights


def contradictions(e: Evidence) -> list[str]:
    """Return a sentence for each kind of contradiction within either run, with its first place."""
    sentences = []
    for side in e.sides:
        contradicted = dict.fromkeys(filter(None, (*_first_of_each(side), _unreached(e, side))))
        sentences += [f"the {side.name}'s recording contradicts itself: {what}" for what in contradicted]
    return sentences


def _unreached(e: Evidence, side: Side) -> str:
    """Return a report of more unreached positions of a guide than the samples lack; "" where there is none."""
    if side.name not in e.completeness.odd_unreached:
        return ""
    step, reported, lacking = e.completeness.odd_unreached[side.name]
    return f"step {step} says that {reported} positions of a guide were not reached, and its samples lack {lacking}"


def _first_of_each(side: Side) -> Iterator[str]:
    """Yield the first contradiction of each comparison in a fixed order; "" where there is none."""
    # Only the first contradiction of each comparison is told: one wrong digest makes every later step contradict too.
    recording, steps = side.recording, side.witnesses.first
    yield steps.get("prompts", "")
    for compare in (_weights, _counts, _arrivals, _settings, _packages):
        yield next(compare(recording), "")
    yield from (text for name, text in steps.items() if name not in ("prompts", "guided"))
    if not recording.records.manifest.framework:
        yield next(_seeds(recording), "")
        yield steps.get("guided", "")
        yield next(_floors(recording), "")


def _weights(recording: Recording) -> Iterator[str]:
    """Compare the digest of the learner's weights after an update with the digests of the tensors that it then sent."""
    if recording.hashed_by != weights.HASH:
        return
    sent: dict[tuple[str, int], dict[str, str]] = {}
    for version, record in recording.records.digests_of(LEARNER):
        sent.setdefault((record.file, version), {}).update(record.digests)
    for update in recording.records.updates:
        step, actor = update.step, update.digests.get("actor")
        if step is None or actor is None:
            continue
        digests = sent.get((update.file, step + 1))
        if digests and weights.combine(digests) != actor:
            yield (
                f"the {len(digests):,} tensors of weight version {step + 1} do not have the digest that the learner "
                f"recorded after step {step}"
            )


def _counts(recording: Recording) -> Iterator[str]:
    """Compare the tensors that a sync reports to have sent with those that have a digest.

    A sync that reports more than there are digests is unproven, which `observed_sync` notes.
    """
    sent: dict[int, set[str]] = {}
    for version, record in recording.records.digests_of(LEARNER):
        sent.setdefault(version, set()).update(record.digests)
    for sync in recording.records.syncs:
        count = sync.tensors
        if count is None or sync.version is None:
            continue
        digested = len(sent.get(sync.version, set()).difference(sync.absent))
        if not count >= digested:  # also true of NaN, a count that is no number
            text = f"the sync of weight version {sync.version} says that it sent {count:.0f} tensors"
            yield f"{text}, and {digested} have digests"


def _arrivals(recording: Recording) -> Iterator[str]:
    """Check what one engine received of each version: no tensor twice with different digests, and none that its sync
    did not send or report.
    """
    arrived: dict[int | None, dict[tuple[str, str], str]] = {}
    for version, record in recording.records.digests_of(RECEIVED):
        digests = arrived.setdefault(version, {})
        for name, digest in record.digests.items():
            if digest and digests.setdefault((record.file, name), digest) != digest:
                yield f"{name} of weight version {version} arrived twice, with two digests"
    for sync in recording.records.syncs:
        arrived_names = {name for _, name in arrived.get(sync.version, {})}
        for names, claim in ((sync.absent, "was not sent"), (sync.unreported, "has no digest of the engine")):
            for name in sorted(arrived_names.intersection(names))[:1]:
                yield f"{name} of weight version {sync.version} {claim} by its sync, and arrived"


def _settings(recording: Recording) -> Iterator[str]:
    """Compare the sampling parameters that the engine reports with those of run.json."""
    run_sampling = recording.records.settings.sampling
    for request in recording.records.sampling:
        for name, value in request.requested.items():
            if name in run_sampling and not equal_values(value, run_sampling[name]):
                yield f"{name} was asked as {run_sampling[name]!r} by run.json and as {value!r} by the engine"


def _packages(recording: Recording) -> Iterator[str]:
    """Compare the packages of each process as it began with those of its environment."""
    for (file, _), versions in process_packages(recording).items():
        for name, of_process in versions.items():
            if len(of_process) > 1:
                yield f"{file} has {name} {' and '.join(sorted(of_process))}"


def _seeds(recording: Recording) -> Iterator[str]:
    """Compare the seeds of run.json with its scenario."""
    seeds, settings = recording.records.manifest.seeds, recording.records.settings
    for name, value in (("scenario", settings.seed), ("engine", settings.engine.seed)):
        if name in seeds and seeds[name] != value:
            yield f"the {name}'s seed is {seeds[name]!r} by its seeds and {value!r} by its scenario"


def _floors(recording: Recording) -> Iterator[str]:
    """Check that the floor was measured at the last weights that were sent. In a partly read run those are not
    known.
    """
    if recording.window is not None:
        return
    last = max((sync.version for sync in recording.records.syncs if sync.version is not None), default=None)
    if last is None:
        return
    for step in recording.steps("floor"):
        first, *others = recording.values_of("floor", step, "weight_version")
        if first in (None, last) or any(version != first for version in others):
            continue  # frames that disagree name no version
        yield f"the floor was measured with weight version {first!r}, and the last that was sent is {last}"
