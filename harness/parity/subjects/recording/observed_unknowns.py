"""What a recording must contain to pass: which engine drew, in which type, with which settings, and from what.

Nothing is assumed about what was not recorded. A run that leaves it out may have been anything, and two such runs may
have differed in it. Neither passes, while a difference that was found still stands.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from harness.parity.facts.comparison import RecordedSide
from harness.parity.facts.evidence import Evidence, Side
from harness.parity.subjects.recording.observed_confounders import learner_packages
from harness.parity.subjects.sampling.observed import engine_infos
from probes.format import number
from scenarios.engines.canonical import FILTERS

UNTYPED = ("", "None", "auto")
# vLLM draws at 0.01 where less is asked for, and SGLang draws greedily below 1e-6: margins over less excuse every flip.
LOWEST = 0.01


def unknowns(e: Evidence) -> list[str]:
    """Return a sentence for each fact that either run leaves out.

    One run alone needs no settings, packages and prompts, since only a second run is held against them.
    """
    sentences = [what for side in e.sides for what in _engine(e, side)]
    if not e.alone:
        for side in e.sides:
            sentences += [*_settings(side), *_environment(side), *_data(side)]
    return sentences + _drawn(e)


def _engine(e: Evidence, side: Side) -> Iterator[str]:
    infos = [info for info in engine_infos(side, e.mode) if info.engine]
    if not infos:
        yield f"which engine drew is not recorded of the {side.name}: no process of its job recorded one"
        return
    if not all(info.version for info in infos):
        yield f"which version of its engine drew is not recorded of the {side.name}"
    types = {info.resolved.dtype or "" for info in infos}
    if types & set(UNTYPED):
        yield f"in which type the {side.name}'s engine computes is not recorded, and with it what rounding explains"


def _settings(side: Side) -> Iterator[str]:
    if not side.recording.records.settings.recorded:
        yield (
            f"how the {side.name}'s job was configured is not recorded: no process of it said so, and what confounds "
            "the pair cannot be seen"
        )


def _environment(side: Side) -> Iterator[str]:
    if not set(learner_packages(side.recording)) - {"python"}:
        yield f"which packages the {side.name}'s learner ran with is not recorded: it may be another learner"


def _data(side: Side) -> Iterator[str]:
    """Find steps without digests of the prompts. Our own runs must have them for every step, others for at least
    one.
    """
    recorded_steps = {batch.step for batch in side.recording.records.prompts if batch.digest is not None}
    drawn = side.recording.steps("rollout")
    lacking = [step for step in drawn if step not in recorded_steps]
    if lacking and (not recorded_steps or not side.recording.records.manifest.framework):
        yield f"the {side.name} has no digest of the prompts of step {lacking[0]}: nothing confirms what was rolled out"


def _drawn(e: Evidence) -> list[str]:
    """Find unknown or impossible temperatures: the margins depend on the temperature."""
    if e.mode != "coupled":
        return []
    sentences = []
    for side in e.sides:
        temperature = side.recording.records.requested_sampling.get("temperature")
        value = number(temperature)
        if temperature is None:
            sentences.append(f"at which temperature the {side.name} drew is not recorded")
        elif not math.isfinite(value) or value < LOWEST:
            sentences.append(
                f"the {side.name} drew coupled samples at temperature {temperature!r}, where nothing is drawn"
            )
    return sentences


def filtered(side: RecordedSide) -> bool:
    """Whether filters remove tokens before one is drawn. A single one may then remain, with an infinite margin."""
    sampling = side.recording.records.requested_sampling
    return any(parameter.restricts(number(sampling.get(parameter.name), parameter.off)) for parameter in FILTERS)
