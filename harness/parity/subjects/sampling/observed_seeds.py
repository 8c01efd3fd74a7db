"""Whether two runs of a framework should draw the same samples: same engine, same version, same seeds.

Their samples are then compared one by one. Equal samples are evidence. A difference proves nothing, because no margin
of the learner says how close the choice was: the check counts as not tested from there on.
"""

from __future__ import annotations

from typing import Any

from harness.recordings.store import Recording


def same_sampler(baseline: Recording, candidate: Recording) -> bool:
    """Whether two runs of a framework should draw the same samples: engine, version and seeds are equal."""
    baseline_sampler, candidate_sampler = (_sampler(recording) for recording in (baseline, candidate))
    return baseline_sampler is not None and baseline_sampler == candidate_sampler


def _sampler(recording: Recording) -> Any:
    framework, seeds = recording.records.manifest.framework, recording.records.manifest.seeds
    engines = sorted({(info.engine_name, info.version or "") for info in recording.records.engines})
    return (framework, seeds, engines) if framework and seeds and engines else None
