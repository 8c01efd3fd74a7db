"""The sampling mode of a recording, from run.json and from the frames of its rollouts.

Everything that is compared depends on the mode. So a recording passes nothing whose mode the judge does not know, or
that states two modes.
"""

from __future__ import annotations

from harness.parity.subjects.recording.observed_replay import replayed
from harness.recordings.store import Recording

MODES = ("coupled", "greedy", "native")
REPLAY = "replay"


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
    frames, scenario_mode, replays = (
        recording.field_texts("rollout", "mode"),
        _scenario(recording),
        replayed(recording) is not None,
    )
    modes_by_source = {
        "run.json's scenario": {scenario_mode} - {""},
        "run.json's sampling_mode": {recording.records.manifest.sampling_mode or ""} - {""},
        "the frames of its rollouts": frames,
    }
    for where, modes in modes_by_source.items():
        strange = sorted(modes - {*MODES, *((REPLAY,) if where != "run.json's scenario" else ())})
        if strange:
            return [f"the {name}'s sampling mode {strange[0]!r}, of {where}, cannot be judged"]
    # The scenario of a replay has the mode of the run that it replays.
    if replays:
        modes_by_source.pop("run.json's scenario")
        modes_by_source["run.json's replay"] = {REPLAY}
    pairs = [(mode, where) for where, modes in modes_by_source.items() for mode in sorted(modes)]
    if not replays and any(mode == REPLAY for mode, _ in pairs):
        where = next(where for mode, where in pairs if mode == REPLAY)
        return [f"the {name} is a replay by {where}, but run.json does not say of which steps"]
    if len({mode for mode, _ in pairs}) > 1:
        first, conflicting = pairs[0], next(pair for pair in pairs if pair[0] != pairs[0][0])
        text = f"the {name}'s sampling mode is {first[0]} by {first[1]} and {conflicting[0]} by {conflicting[1]}"
        return [f"{text}: it is unknown how its samples were drawn"]
    return []


def _scenario(recording: Recording) -> str:
    return recording.records.settings.rollout.mode or ""
