"""Judge tonight's observation of a cell against its earlier nights: pure functions over rows.

A night has a set of problems: a failing verdict, a cause, a metric beyond its band or no longer measured, fewer
tests, a slower phase, a new warning. The new, gone and standing problems are the differences between tonight's set
and that of the night before. A number is a problem only where it exceeds both an absolute ceiling and the cell's own
band, which is the median plus a multiple of the MAD over the nights on which the number was no problem. With fewer
than `COLD` such nights the ceiling alone decides.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

from harness.nightly.observation import Observation, group_and_name, metric
from reports.nightly_model import LABELS, Change, Kind, Status
from reports.text import counted, figure

WINDOW = 28  # nights; a level that has lasted this long is the cell's new normal
COLD = 5  # nights; the MAD of fewer values is meaningless
# The MAD of normally distributed values is 0.674 of their standard deviation. A value exceeds 5 standard deviations
# on one of 3.5 million nights. Real values have longer tails, hence the additional ceiling and the second run.
WIDTH = 5 * 1.4826
LARGEST = 0.1  # of the cap: the parity judge already fails a difference above its tolerance, which is at most the cap
SYSTEMATIC = 0.01  # of the cap; a mean over thousands of tokens varies far less than the largest difference
COLD_SLOWER = math.log(4)  # with fewer than COLD nights, because a single night is a poor measure of a phase
SLOWER = math.log(1.5)  # of the growth in seconds per step, relative to the other phases of the same run
BRIEF = 0.02  # seconds per step; the duration of a shorter phase depends on the scheduler
FEWER_TOKENS = 0.98  # of the median; another version of an engine may stop a sample elsewhere
_FEWER = {"steps": 1.0, "samples": 1.0, "native_samples": 1.0, "compared_tokens": FEWER_TOKENS}
_NUMBERS = ("max_delta_logprob", "k1")
_ERROR = ("verdict", "ERROR")
_CAP = 1e-4  # nats: float32's (subjects/precision/observed_floor.py), the strictest; used where a verdict has none


@dataclass(frozen=True)
class Past:
    """An earlier night of a cell.

    observation: what was observed.
    problems: the keys of the problems that the night had.
    night: its number.
    """

    observation: Observation
    problems: frozenset[tuple[str, str]] = frozenset()
    night: int = 0


@dataclass(frozen=True)
class Judgement:
    """The comparison of a night with the nights before.

    problems: all problems of the night.
    new: problems that the night before did not have.
    standing: problems that it had too.
    fixed: its problems that are gone.
    explains: packages and settings that changed since then.
    first: there is no earlier night.
    error: the night gave no verdict.
    """

    problems: tuple[Change, ...] = ()
    new: tuple[Change, ...] = ()
    standing: tuple[Change, ...] = ()
    fixed: tuple[Change, ...] = ()
    explains: tuple[Change, ...] = ()
    first: bool = False  # there is no earlier night
    error: bool = False

    def shows(self, change: Change) -> bool:
        return any(problem.key == change.key for problem in self.problems)


def judge(tonight: Observation, history: Sequence[Past]) -> Judgement:
    """Compare with earlier nights, oldest first.

    Nights without a verdict are skipped, except that the cell's not running is compared with the last night.
    """
    before = [past for past in history if not past.observation.error][-WINDOW:]
    last = history[-1] if history else None
    problems = list(_verdict(tonight))
    if before and not tonight.error:
        problems += [*_fewer(tonight, before), *_missing(tonight, before), *_numbers(tonight, before)]
        problems += [*_slower(tonight, before), *_warnings(tonight, before)]
    earlier_keys = last.problems if last else frozenset()
    if tonight.error:  # nothing was observed, so the earlier problems still stand
        problems += [_lasting(key, ": not looked at tonight") for key in sorted(earlier_keys) if key != _ERROR]
    keys = {problem.key for problem in problems}
    return Judgement(
        problems=tuple(problems),
        new=tuple(problem for problem in problems if problem.key not in earlier_keys),
        standing=tuple(problem for problem in problems if problem.key in earlier_keys),
        fixed=tuple(_lasting(key) for key in sorted(earlier_keys - keys)),
        explains=tuple(_moved(tonight, before[-1].observation)) if before and not tonight.error else (),
        first=not history,
        error=tonight.error,
    )


@dataclass(frozen=True)
class Settled:
    """The final status of a cell.

    status: the status that the report shows.
    new: problems that the night before did not have.
    standing: problems that it had too. The next night is compared with `new` and `standing`.
    fixed: problems that are gone.
    confirmation: the result of the second run, in words.
    """

    status: Status
    new: tuple[Change, ...]
    standing: tuple[Change, ...]
    fixed: tuple[Change, ...] = ()
    confirmation: str = ""


def settle(first: Judgement, again: Judgement | None = None, itself: Observation | None = None) -> Settled:
    """Decide the status of a cell.

    again: a second run of a changed cell, judged against the same nights. A change that the second run does not show
    counts neither as a problem nor as a fix.
    itself: the observation of the baseline against itself.
    """
    if first.error:
        return Settled("COULD NOT RUN", first.new, first.standing)
    new, fixed, relapsed, confirmation = _confirmed(first, again)
    if new and itself is not None:
        self_result = (
            f"is {itself.verdict}: the candidate need not be at fault" if itself.exit_code else "shows no difference"
        )
        confirmation += f"; the baseline against itself {self_result}"
    standing = (*first.standing, *relapsed)
    flaky = not new and bool(first.new or relapsed)
    if flaky and not first.standing:
        return Settled("FLAKY", first.new, standing, fixed, confirmation)
    reasons: tuple[tuple[Status, object], ...] = (
        ("NEW", first.first),
        ("REGRESSED", new),
        ("STILL FAILING", standing),
        ("FIXED", fixed),
        ("OK", True),
    )
    status = next(status for status, applies in reasons if applies)
    return Settled(status, new, standing, fixed, confirmation)


Changes = tuple[Change, ...]


def _confirmed(first: Judgement, again: Judgement | None) -> tuple[Changes, Changes, Changes, str]:
    """Return what a second run left of the first: (new, fixed, fixed but there again, what it showed)."""
    if again is None:
        return first.new, first.fixed, (), ""
    if again.error:
        return first.new, first.fixed, (), "the second run gave no verdict"
    new = tuple(change for change in first.new if again.shows(change))
    fixed = tuple(change for change in first.fixed if not again.shows(change))
    fixed_keys = {earlier.key for earlier in first.fixed}
    relapsed = tuple(problem for problem in again.problems if problem.key in fixed_keys)
    same = len(new) == len(first.new) and not relapsed
    confirmation = "a second run showed the same" if same else "a second run did not show all of it"
    return new, fixed, relapsed, confirmation


def _lasting(key: tuple[str, str], state: str = "") -> Change:
    kind, subject = key
    return Change(cast("Kind", kind), subject, f"{kind} {subject}{state}")


def _verdict(tonight: Observation) -> Iterable[Change]:
    if tonight.exit_code:
        yield Change("verdict", tonight.verdict, f"{tonight.verdict}: {tonight.reason}")
    for cause in tonight.causes:
        yield Change("cause", cause, f"cause {cause}")


def _fewer(tonight: Observation, before: Sequence[Past]) -> Iterable[Change]:
    """Yield where a test covers less than before.

    The expected checks are those of the last night on which no check was missing.
    """
    usual = _healthy(before, ("fewer", "checks"))
    lost = sorted(usual[-1].tested - tonight.tested) if usual else []
    if lost:
        now = f"{counted(len(tonight.tested), 'check')} tested, {len(usual[-1].tested)} before"
        yield Change("fewer", "checks", f"{now}; no longer: {', '.join(lost)}")
    for name, share in _FEWER.items():
        value = tonight.metrics.get(name, math.nan)
        values = _values(before, ("fewer", name), partial(_metric, name))
        if not math.isfinite(value) or not values:
            continue
        median, width = _band(values)
        if value < share * median and value < median - width:
            yield Change("fewer", name, f"{figure(value)} {_label(name)}, {figure(median)} before")


def _missing(tonight: Observation, before: Sequence[Past]) -> Iterable[Change]:
    """Yield the judged numbers that each of the last nights had and tonight lacks: without them nothing would be
    judged.
    """
    metric_names = sorted({name for past in before for name in past.observation.metrics})
    for name in metric_names:
        if name not in _FEWER and group_and_name(name)[1] not in _NUMBERS:
            continue
        value, usual = tonight.metrics.get(name), _healthy(before, ("fewer", name))[-COLD:]
        if value is not None and math.isfinite(value):
            continue
        values = [observation.metrics.get(name, math.nan) for observation in usual]
        if all(map(math.isfinite, values)):
            now = "absent" if value is None else figure(value)
            yield Change("fewer", name, f"{_label(name)} {now}, {figure(statistics.median(values))} before")


def _label(name: str) -> str:
    group, kind = group_and_name(name)
    return metric(group, LABELS.get(kind, kind))


def _numbers(tonight: Observation, before: Sequence[Past]) -> Iterable[Change]:
    """Yield the regressions of the largest and the mean difference, between the engines and between each engine and
    its learner.
    """
    cap = tonight.metrics.get("cap", _CAP)
    cap = cap if cap > 0 else _CAP  # also replaces NaN
    for name, value in tonight.metrics.items():
        group, kind = group_and_name(name)
        if kind not in _NUMBERS or not math.isfinite(value):
            continue
        values = _values(before, ("metric", name), partial(_metric, name))
        if not values:
            continue
        median, width = _band(values)
        if kind == "max_delta_logprob":
            if value - median > width and value > LARGEST * cap and value - median > LARGEST * cap:
                text = f"{_label(name)} {figure(value)}, {figure(median)} before"
                yield Change("metric", name, text)
        elif abs(value - median) > max(width, SYSTEMATIC * cap, half := _half_width(tonight, group)):
            text = f"{_label(name)} {figure(value)} ± {figure(half)}, {figure(median)} before"
            yield Change("metric", name, text)


def _half_width(observation: Observation, group: str) -> float:
    """Return half the 99.7 % interval of a signed mean Δ.

    k3 is E[Δ²]/2 for small Δ (Schulman 2020), so the standard deviation is √(2 k3).
    """
    k3, tokens = (observation.metrics.get(metric(group, name), math.nan) for name in ("k3", "tokens"))
    return 3 * math.sqrt(2 * k3 / tokens) if k3 >= 0 and tokens > 0 else 0.0


def _metric(name: str, observation: Observation) -> float | None:
    return observation.metrics.get(name)


def _slower(tonight: Observation, before: Sequence[Past]) -> Iterable[Change]:
    """Yield the phases that take longer relative to the other phases of the same run; a slow machine slows all of
    them.
    """
    usual = _usual_seconds(tonight.phases, before)
    for name, seconds in tonight.phases.items():
        if name not in usual or seconds < BRIEF:
            continue
        values = _values(before, ("slower", name), partial(_excess, name, usual))
        excess = _excess(name, usual, tonight)
        if excess is None or not values:
            continue
        median, width = _band(values)
        if excess - median > max(SLOWER if len(values) >= COLD else COLD_SLOWER, width):
            factor = math.exp(excess - median)
            yield Change("slower", name, f"{name} takes {factor:.1f} times as long as before, beside the other phases")


def _usual_seconds(phases: Iterable[str], before: Sequence[Past]) -> dict[str, float]:
    """Return the median seconds of these phases on the nights that had them."""
    usual: dict[str, float] = {}
    for name in phases:
        earlier = [past.observation.phases.get(name, 0) for past in before]
        values = [seconds for seconds in earlier if seconds > 0]
        if values:
            usual[name] = statistics.median(values)
    return usual


def _excess(name: str, usual: dict[str, float], observation: Observation) -> float | None:
    """Return the logarithm of a phase's growth over its usual seconds, minus that of the run's median phase."""
    changes = {phase: math.log(seconds / usual[phase]) for phase, seconds in observation.phases.items()
               if phase in usual and seconds > 0}  # fmt: skip
    return changes[name] - statistics.median(changes.values()) if name in changes else None


def _warnings(tonight: Observation, before: Sequence[Past]) -> Iterable[Change]:
    """Yield the findings of severity `warning` that earlier nights did not have. Informational findings are not
    problems.
    """
    for name, severity in tonight.facts.findings.items():
        usual = _healthy(before, ("finding", name))
        if severity == "warning" and usual and usual[-1].facts.findings.get(name) != "warning":
            yield Change("finding", name, f"finding {name}, which drops or alters what was asked for")


def _moved(tonight: Observation, last: Observation) -> Iterable[Change]:
    kinds: tuple[tuple[Kind, Mapping[str, str], Mapping[str, str]], ...] = (
        ("moved", last.facts.versions, tonight.facts.versions),
        ("setting", last.facts.settings, tonight.facts.settings),
    )
    for kind, old, new in kinds:
        for name in sorted({**old, **new}) if old and new else ():
            if old.get(name) != new.get(name):
                yield Change(kind, name, f"{name} {old.get(name, 'absent')} → {new.get(name, 'absent')}")


def _healthy(before: Sequence[Past], key: tuple[str, str]) -> list[Observation]:
    """Return the nights without this problem, or all nights where every one had it."""
    healthy = [past for past in before if key not in past.problems]
    return [past.observation for past in healthy or before]


def _values(before: Sequence[Past], key: tuple[str, str], value: Callable[[Observation], float | None]) -> list[float]:
    amounts = (value(observation) for observation in _healthy(before, key))
    return [amount for amount in amounts if amount is not None and math.isfinite(amount)]


def _band(values: Sequence[float]) -> tuple[float, float]:
    """Return the median and the allowed distance from it. The distance is 0 with too few values, so that the ceiling
    decides.
    """
    median = statistics.median(values)
    if len(values) < COLD:
        return median, 0.0
    return median, WIDTH * statistics.median(abs(value - median) for value in values)
