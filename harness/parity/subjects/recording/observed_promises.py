"""Events that were removed from a recording whose checksums fit: what a process promises, and what the runs share.

1. Each process of a run of the harness records some kinds of events in any case, the first trainer some in each step
   (`scenarios.records`). This holds for one recording alone.
2. Two runs of one scenario record as many events of each kind as the other, role by role. So the loss of a single event
   on one side is noticed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from harness.parity.facts.evidence import Evidence, Side
from harness.recordings.records.run_settings import TRAINED
from harness.recordings.store import ProcessCounts, Recording
from reports.text import counted
from scenarios.records import AS_MANY_AS_FRAMES, OF_EACH_PROCESS, OF_EACH_STEP, OF_THE_ENGINE, OF_THE_SCENARIO


def unkept_promises(recording: Recording) -> Iterator[str]:
    """Yield what a recording lacks of what its run.json, or each process of such a run, promises."""
    kinds = recording.records.manifest.promised_kinds
    absent = [kind for kind in kinds if not recording.count(kind)]
    for kind in absent:
        yield f"no events of kind {kind!r}, which its run.json promises"
    if TRAINED not in kinds:
        return
    steps = _whole_steps(recording)
    for process in recording.processes:
        for kind, lack in _lacks_of_process(process, steps):
            if kind not in absent:  # one sentence for a kind that no process has
                yield lack


def _lacks_of_process(process: ProcessCounts, steps: int) -> Iterator[tuple[str, str]]:
    """Yield (kind of events, what is missing) of one process of a run of the harness. `steps`: that it must have."""
    for kind in OF_EACH_PROCESS.get(process.role, ()):
        if not process.events[kind]:
            yield kind, f"no events of kind {kind!r} in {process.journal}, which its process always records"
    for kind, frame_kind in AS_MANY_AS_FRAMES.items():
        frames = process.frames[frame_kind]
        if process.events[kind] < frames:
            yield kind, f"{_events(process, kind)} for {counted(frames, 'frame')} of kind {frame_kind!r}"
    if (process.role, process.rank) != ("trainer", 0):
        return
    for kind in OF_EACH_STEP:
        if process.events[kind] < steps:
            yield kind, f"{_events(process, kind)} for {counted(steps, 'step')}"


def _events(process: ProcessCounts, kind: str) -> str:
    return f"{counted(process.events[kind], 'event')} of kind {kind!r} in {process.journal}"


def _whole_steps(recording: Recording) -> int:
    """Return how many steps the first trainer has recorded from beginning to end; 0 of a run that was resumed."""
    return recording.promised_steps if recording.records.manifest.resumed_step is None else 0


def unequal_counts(e: Evidence) -> list[str]:
    """Return a sentence for each kind and role of which one run recorded fewer events than the other.

    Only for two whole runs of one scenario by one writer that kept the same frames: others may record more or less.
    """
    if e.alone or not _same_writing(e.baseline.recording, e.candidate.recording):
        return []
    baseline, candidate = (_events_by_role(side.recording) for side in e.sides)
    same_engine = len({side.recording.records.manifest.backend for side in e.sides}) == 1
    sentences = []
    for role, kind in sorted(baseline.keys() | candidate.keys()):
        if role == "rollout" and kind in OF_THE_ENGINE and not same_engine:
            continue  # each engine records as many of these as it likes
        counts = [baseline[role, kind], candidate[role, kind]]
        # A guided rollout calls its engine again after each flip, so two sound runs may make unequal numbers of calls.
        if kind == "call" and counts[0] != counts[1]:
            counts = [count - _extra_rounds(side) for count, side in zip(counts, e.sides, strict=True)]
        if counts[0] != counts[1]:
            lacking, complete = e.sides if counts[0] < counts[1] else e.sides[::-1]
            sentences.append(
                f"the {lacking.name}'s {role} recorded {counted(min(counts), 'event')} of kind {kind!r}, the "
                f"{complete.name}'s {max(counts)}"
            )
    return sentences


def _same_writing(*recordings: Recording) -> bool:
    """Whether both recordings are whole runs, or lifted stages, that record the same by their run.json."""
    first, second = recordings
    if not all(map(_is_whole_run, recordings)):
        return False
    # Another format, scenario, promise or stage records other events, and so does another version of the harness.
    keys = ("format_version", "scenario", "records", "lifted")
    if any(first.manifest.get(key) != second.manifest.get(key) for key in keys):
        return False
    if _writers(first) != _writers(second):
        return False
    return Counter(map(_shape, first.processes)) == Counter(map(_shape, second.processes))


def _is_whole_run(recording: Recording) -> bool:
    """Whether a recording is of a run of the harness, from its first step to its end, with all of its files."""
    manifest = recording.records.manifest
    if manifest.framework or manifest.replayed_steps is not None or manifest.resumed_step is not None:
        return False
    has_all_files = recording.indexed or recording.older_than_indexes
    return has_all_files and recording.records.settings.recorded and recording.complete


def _writers(recording: Recording) -> set[str]:
    """Return the versions of the harness that the processes of a recording say they ran."""
    return {start.packages.get("rlhf-harness", "") for start in recording.records.starts}


def _shape(process: ProcessCounts) -> tuple[str, int, tuple[tuple[str, int], ...]]:
    """Return role and rank of a process with its number of frames of each kind."""
    return process.role, process.rank, tuple(sorted(process.frames.items()))


def _events_by_role(recording: Recording) -> Counter[tuple[str, str]]:
    totals = Counter[tuple[str, str]]()
    for process in recording.processes:
        totals.update({(process.role, kind): process.events[kind] for kind in OF_THE_SCENARIO})
    return totals


def _extra_rounds(side: Side) -> int:
    """Return how many calls a guided rollout made beyond the first of each step, by its frames."""
    recording = side.recording
    steps = recording.steps("rollout")
    rounds = [number for step in steps for number in recording.values_of("rollout", step, "rounds")]
    return sum(number - 1 for number in rounds if isinstance(number, int))
