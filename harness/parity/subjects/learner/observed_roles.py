"""Faults of a learner's roles that one run's own records show: tokens that a role did not score, and a reference model
that follows the policy.

Only the reference scenario is held to these rules. A framework's job may cut prompts, or renew its reference model.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from harness.parity.subjects.ranks.observed import Ranks
from harness.parity.subjects.ranks.observed_faults import RankFault, What, merged
from harness.recordings.records.weight_sync import LEARNER
from harness.recordings.store import Recording
from probes.format import number, whole

FORWARD = "_forward"  # suffix of the phases in which a role scores samples
SCORING = ("actor", "reference", "critic")  # roles that score prompts and responses as they are
FEWEST_TOKENS = 100  # prompts and responses of a step: chosen, so that equal numbers are no chance


def role_faults(ranks: Ranks) -> tuple[RankFault, ...]:
    """Return a fault for each kind and role, with all its steps and the text of the first."""
    if ranks.recording.records.manifest.framework:
        return ()
    return merged([*_other_tokens(ranks.recording), *_following_reference(ranks)])


def _other_tokens(recording: Recording) -> Iterator[RankFault]:
    """Find roles that scored other numbers of tokens than a step's prompts and responses have, of as many samples."""
    experiences = {whole(event.get("step"), -1): event for event in recording.shapes_of("experience")}
    scored = {role: _scored(recording, role) for role in SCORING}
    for step, event in sorted(experiences.items()):
        samples, tokens = (number(event.get(key)) for key in ("samples", "real_tokens"))
        counts = {role: by_step[step][1] for role, by_step in scored.items() if by_step.get(step, ())[:1] == (samples,)}
        if tokens not in counts.values():
            continue  # no role agrees: they may count otherwise
        for role, count in counts.items():
            if count != tokens:
                text = f"in step {step} the {role} scored {count:,.0f} tokens of {samples:,.0f} samples, whose prompts "
                text += f"and responses have {tokens:,.0f}"
                yield RankFault(What.TOKENS, role, (), (step,), text)


def _scored(recording: Recording, role: str) -> dict[int, tuple[float, float]]:
    """Return step -> the number of samples and of real tokens that a role scored, over its ranks."""
    totals: dict[int, tuple[float, float]] = {}
    for _, columns in recording.numbers("shapes", f'"{role}{FORWARD}"', ("step", "samples", "real_tokens")):
        for step in np.unique(columns["step"][np.isfinite(columns["step"])]):
            at = columns["step"] == step
            samples, tokens = totals.get(int(step), (0.0, 0.0))
            totals[int(step)] = samples + columns["samples"][at].sum(), tokens + columns["real_tokens"][at].sum()
    return totals


def _following_reference(ranks: Ranks) -> Iterator[RankFault]:
    """Find steps in which the reference model has every log-probability of a policy that has been trained."""
    recording = ranks.recording
    if recording.records.settings.model.dtype != "float32":
        return  # in half precision a small update may leave every rounded number as it was
    versions = {version: record.digests for version, record in recording.records.digests_of(LEARNER)}
    initial = versions.get(min(versions, default=0))
    scored = _scored(recording, "actor")
    for step in recording.steps("experience"):
        [*used] = {*recording.values_of("experience", step, "weight_version")}
        actor, reference = (ranks.shares.get((step, role), {}) for role in ("actor", "reference"))
        if len(used) != 1 or versions.get(used[0], initial) == initial or not actor or actor != reference:
            continue
        tokens = scored.get(step, (0.0, 0.0))[1]
        if tokens >= FEWEST_TOKENS and all(share.digest for share in actor.values()):
            text = f"in step {step} the reference has each log-probability of the actor, bit by bit, though the "
            text += "actor's weights are no longer the initial ones"
            yield RankFault(What.FOLLOWED, "reference", (), (step,), text)
