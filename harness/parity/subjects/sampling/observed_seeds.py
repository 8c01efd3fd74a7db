"""Two runs of one framework with one engine and one set of seeds: its own sampler should repeat itself.

Their samples are compared one by one. Equal ones are evidence; where they part nothing is proven, because no margin of
the learner says how close the choice was, so the check is not tested from there on.
"""

from __future__ import annotations

from typing import Any

from harness.recordings.store import Recording
from probes.format import mapping


def same_sampler(baseline: Recording, candidate: Recording) -> bool:
    """Should two runs of a framework draw the same samples? Only where engine, version and seeds are equal."""
    one, two = (_sampler(recording) for recording in (baseline, candidate))
    return one is not None and one == two


def _sampler(recording: Recording) -> Any:
    framework, seeds = recording.manifest.get("framework"), mapping(recording.manifest.get("seeds"))
    engines = sorted({(str(one.get("engine")), str(one.get("version"))) for one in recording.all("engine_info")})
    return (framework, seeds, engines) if framework and seeds and engines else None
