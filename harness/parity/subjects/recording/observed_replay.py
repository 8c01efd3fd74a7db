"""Replays: the steps that one covers, and whether the recorded training half and the recorded rollouts hold.

A replay feeds the recorded rollouts to a fresh trainer, and the candidate's engine only scores them. What the trainer
makes of them is a statement about the recorded training. What the engine scores is a statement about the recorded
rollouts.
"""

from __future__ import annotations

from harness.recordings.store import Recording
from reports.model import SUSPICIONS, Check, Finding, Verdict

TRAINING, ROLLOUTS = "replay: training half", "replay: rollout half"
# Names of the checks that speak for each half; the first that is confirmed is quoted.
_TRAINING = ("trained-tokens", "experience", "rewards", "learner")
_SCORES = ("logprobs",)
# These depend on the recorded learner, so they speak about the rollouts only if the training half agrees.
_LEARNED = ("engine-against-learner", SUSPICIONS[10], "weight-sync")


def replayed(candidate: Recording) -> range | None:
    """Return the steps that a replay covers, from its run.json; None for any other recording."""
    return candidate.records.manifest.replayed_steps


def answer(verdict: Verdict, halves: list[Finding]) -> str:
    """Return whether the rollouts or the training differ; "" where nothing could be compared, or the runs are
    confounded.
    """
    effects = {half.name: half.effect for half in halves}
    if not effects or verdict.verdict not in ("EQUIVALENT", "DIVERGENT", "INCONCLUSIVE"):
        return ""
    return _ANSWERS[effects[ROLLOUTS], effects[TRAINING]]


_ANSWERS = {  # (rollouts, training)
    ("agrees", "agrees"): "it is neither the rollouts nor the training",
    ("parts", "agrees"): "it is the rollouts, not the training",
    ("agrees", "parts"): "it is the training, not the rollouts",
    ("parts", "parts"): "it is both the rollouts and the training",
    ("parts", "not tested"): "it is the rollouts; whether it is the training too is not known",
    ("not tested", "parts"): "it is the training; whether it is the rollouts too is not known",
    ("agrees", "not tested"): "it is not the rollouts; whether it is the training is not known",
    ("not tested", "agrees"): "it is not the training; whether it is the rollouts is not known",
    ("not tested", "not tested"): "whether it is the rollouts or the training is not known",
}


def halves(verdict: Verdict, steps: range) -> list[Finding]:
    """Return a finding for each half: it agrees, it does not, or nothing is known; [] where nothing was compared."""
    if verdict.parity is None:
        return []
    checks = {check.name: check for check in verdict.parity.checks}
    where = f"steps {steps.start} to {steps.stop - 1}" if len(steps) > 1 else f"step {steps.start}"
    training = [checks[name] for name in _TRAINING if name in checks]
    sound = all(check.state == "ruled out" for check in training)
    rollouts = [checks[name] for name in (*_SCORES, *(_LEARNED if sound else ())) if name in checks]
    return [
        _half(
            TRAINING,
            training,
            checks["learner"],
            good=f"the recorded rollouts of {where}, trained on again, give the recorded learner",
            bad="the recorded training is not what this trainer makes of the recorded rollouts",
            where="learner",
        ),
        _half(
            ROLLOUTS,
            rollouts,
            checks["logprobs"],
            good=f"the candidate scores the recorded rollouts of {where} as they were recorded",
            bad="the recorded rollouts are not what the candidate and the learner make of the same tokens",
            where="baseline",
        ),
    ]


def _half(name: str, checks: list[Check], quoted: Check, *, good: str, bad: str, where: str) -> Finding:
    wrong = [check for check in checks if check.state == "confirmed"]
    untested = [check for check in checks if check.state == "not tested"]
    states = {check.name: check.state for check in checks}
    if wrong:
        return Finding(name, f"{bad}: {wrong[0].evidence}", "parts", "warning", where, states)
    if untested:
        text = f"not known: {untested[0].name}: {untested[0].evidence}"
        return Finding(name, text, "not tested", "warning", where, states)
    return Finding(name, f"{good}: {quoted.evidence}", "agrees", "info", where, states)
