"""The sampling mode of a recording, from run.json and from the frames of its rollouts.

Everything that is compared depends on the mode. So a recording passes nothing whose mode the judge does not know, or
that states two modes.
"""

from __future__ import annotations

from harness.parity.subjects.recording.observed_replay import replayed
from harness.recordings.store import Recording

MODES = ("coupled", "greedy", "native")
REPLAY = "replay"
_SCENARIO = "run.json's scenario"


def drawn_in(baseline: Recording) -> str:
    """Return the mode in which the baseline drew; coupled, the strictest, where it is not recorded."""
    recorded_modes = [
        _scenario(baseline),
        baseline.records.manifest.sampling_mode,
        *sorted(baseline.field_texts("rollout", "mode")),
    ]
    return str(next((mode for mode in recorded_modes if mode and mode != REPLAY), "coupled"))


def unclear(recording: Recording, name: str) -> list[str]:
    """Return why the sampling mode of a side is unknown, as one sentence; [] where it is known.

    A replay is recorded three times, beside the mode of the replayed run: as `replay` and `sampling_mode` in run.json,
    and in its frames.
    """
    replays = replayed(recording) is not None
    modes_by_source = {
        _SCENARIO: {_scenario(recording)} - {""},
        "run.json's sampling_mode": {recording.records.manifest.sampling_mode or ""} - {""},
        "the frames of its rollouts": recording.field_texts("rollout", "mode"),
    }
    for source, modes in modes_by_source.items():
        judged_modes = {*MODES} if source == _SCENARIO else {*MODES, REPLAY}
        if strange := sorted(modes - judged_modes):
            return [f"the {name}'s sampling mode {strange[0]!r}, of {source}, cannot be judged"]
    # The scenario of a replay has the mode of the run that it replays.
    if replays:
        modes_by_source.pop(_SCENARIO)
        modes_by_source["run.json's replay"] = {REPLAY}
    source_by_mode: dict[str, str] = {}  # each mode with the first source that states it
    for source, modes in modes_by_source.items():
        for mode in sorted(modes):
            source_by_mode.setdefault(mode, source)
    if not replays and REPLAY in source_by_mode:
        return [f"the {name} is a replay by {source_by_mode[REPLAY]}, but run.json does not say of which steps"]
    if len(source_by_mode) > 1:
        (mode, source), (other_mode, other_source), *_ = source_by_mode.items()
        text = f"the {name}'s sampling mode is {mode} by {source} and {other_mode} by {other_source}"
        return [f"{text}: it is unknown how its samples were drawn"]
    return []


def _scenario(recording: Recording) -> str:
    return recording.records.settings.rollout.mode or ""
