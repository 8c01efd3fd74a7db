"""The check of several engines in one run: whether each drew its own samples, and whether one of them alone differs."""

from __future__ import annotations

from collections import Counter

from harness.parity.checks.registry import Outcome, check, outcome
from harness.parity.facts.evidence import Evidence, Side
from harness.parity.subjects.engines.observed import (
    LEAST_OTHERS,
    answered,
    differing,
    drawn,
    engines,
    engines_asked_for,
    numbered,
    routed,
    rows,
)
from reports.model import Finding
from reports.text import counted, part_of
from scenarios.fleet import engine_of


def _several(e: Evidence) -> bool:
    return any(engines(side) > 1 for side in e.sides)


@check("engines", required=_several, applies=_several, alone=True)
def one_of_several(e: Evidence) -> Outcome:
    """Whether the differences are those of one engine among several, and whether each drew its own samples: those of
    the rule, or of a router, where every request has one answer of one engine."""
    # `astray`: a fault. `silent`: what was not recorded. `texts`: the shares, which are told in any case.
    texts, astray, silent = [], [], []
    findings = []
    alone: dict[tuple[str, str], list[str]] = {}  # (what differs, shares) -> sides for which that holds
    for side in e.sides:
        if engines(side) < 2:
            continue
        by, rule = drawn(side, e.steps), _rule(side)
        if routed(side):
            dealt = rows(side, e.steps)
            astray += _answered_again(side, {sample for _, sample in dealt})
            silent += _unanswered(side, sorted(set(dealt) - set(by)))
            findings += _idle(side, by)
        elif rule is None:
            silent.append(f"the {side.name}'s scenario does not say which engine had to draw which sample")
        else:
            astray += _astray(side, by, *rule)
        # An engine behind a router may have drawn nothing, and belongs to the shares all the same.
        apart, drew = differing(e, side), Counter(by.values())
        numbers = numbered(side) if routed(side) else sorted(drew)
        shares = ", ".join(f"engine {engine}: {part_of(apart[engine], drew[engine], 'sample')}" for engine in numbers)
        texts.append(f"{side.name}, samples that differ: {shares}")
        lone_engine = _alone(apart, drew)
        if lone_engine is not None:
            alone.setdefault((f"only samples of engine {lone_engine} of {len(drew)} differ", shares), []).append(
                side.name
            )
    findings += [
        Finding("one engine of several", shares, effect=effect, severity="warning", where=" and ".join(sides))
        for (effect, shares), sides in alone.items()
    ]
    text = "; ".join([*astray, *silent, *texts])
    if astray or findings:
        return outcome("engines", "confirmed", text, decides=bool(astray), findings=findings)
    return outcome("engines", "not tested" if silent else "ruled out", text)


def _alone(apart: Counter[int], drew: Counter[int]) -> int | None:
    """Return the only engine whose samples differ, where the others drew enough samples that do not; else None."""
    if len(apart) != 1:
        return None
    (alone,) = apart
    return alone if sum(drew.values()) - drew[alone] >= LEAST_OTHERS else None


def _answered_again(side: Side, samples: set[int]) -> list[str]:
    """Return in words the requests that engines behind a router answered more than once."""
    again = sorted((at, by) for at, by in answered(side).items() if len(by) > 1 and at[0] in samples)
    if not again:
        return []
    (sample, _), by = again[0]
    who = " and ".join(f"engine {engine}" for engine in sorted(set(by)))
    text = f"{side.name}: {counted(len(again), 'request')} answered more than once behind the router, the first of them"
    return [f"{text} sample {sample}, by {who}"]


def _unanswered(side: Side, lost: list[tuple[int, int]]) -> list[str]:
    """Return in words the samples, by (step, number), that came through a router but that no engine reports to have
    drawn.
    """
    if not lost:
        return []
    step, sample = lost[0]
    text = f"{side.name}: no engine says that it drew {counted(len(lost), 'sample')}, the first of them"
    return [f"{text} sample {sample} of step {step}"]


def _idle(side: Side, by: dict[tuple[int, int], int]) -> list[Finding]:
    """Return a finding for engines that a router sent nothing. Only proofs compare their weights and settings."""
    drew, number = Counter(by.values()), engines(side)
    idle = [engine for engine in range(number) if not drew[engine]]
    if not idle or not drew:
        return []
    who = f"engine {' and '.join(map(str, idle))} of {number}"
    policy = side.recording.records.settings.engine.router
    summary = f"the router ({policy}) sent no sample to {who}"
    return [Finding("idle engine", summary, f"{who} drew nothing that was compared", "warning", side.name)]


def _rule(side: Side) -> tuple[int, int] | None:
    """Return (samples per prompt, engines), by which samples were dealt; None where it was not recorded."""
    per_prompt, number = side.recording.records.settings.rollout.samples_per_prompt, engines_asked_for(side)
    return (per_prompt, number) if per_prompt is not None and per_prompt > 0 and number else None


def _astray(side: Side, by: dict[tuple[int, int], int], per_prompt: int, number: int) -> list[str]:
    """Return in words the samples that another engine drew than the rule says."""
    wrong = [(*at, engine) for at, engine in sorted(by.items()) if engine_of(at[1], per_prompt, number) != engine]
    if not wrong:
        return []
    step, sample, wrong_engine = wrong[0]
    right = engine_of(sample, per_prompt, number)
    return [
        f"{side.name}: {counted(len(wrong), 'sample')} drawn by another engine than the rule says, the first of them "
        f"sample {sample} of step {step}, by engine {wrong_engine} instead of {right}"
    ]
