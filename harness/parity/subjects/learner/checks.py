"""Checks 3 and 11: the shapes of the experience batches, and why one step takes much longer than the others."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from harness.parity.checks.registry import Outcome, check, outcome, trains
from harness.parity.checks.summary import spans_by_step, step_seconds
from harness.parity.facts.evidence import Evidence, Side
from harness.parity.subjects.learner.observed_passes import Passes, other_passes, shape_of, sizes_of
from harness.parity.subjects.ranks.observed_shapes import unequal_ranks
from harness.parity.subjects.recording.checks import effect
from reports.model import SUSPICIONS, Finding
from reports.text import and_more, counted, figure, part_of, show

Shapes = dict[int, dict[str, Any]]  # step -> shape (is compared), sizes (of each rank)


@check(SUSPICIONS[3], 3)
def experience_matrix_shapes(e: Evidence) -> Outcome:
    """Shapes, padding, skew and longest sample of each experience batch, and the padded batches of each rank."""
    conclude = partial(outcome, SUSPICIONS[3], number=3)
    # Only steps that both runs recorded, and in which nothing confounds their batches, say something of the learners.
    by_side = [_shapes(side) for side in e.sides]
    recorded = set.intersection(*map(set, by_side))
    steps = _unconfounded(e, recorded)
    skews = [_skew(shapes, steps) for shapes in by_side] if steps else []
    if not any(skew["longest"] for skew in skews):
        return conclude("not tested", "no shapes of an experience batch that both runs share")
    details: dict[str, Any] = {side.name: skew for side, skew in zip(e.sides, skews, strict=True)}
    for side in e.sides:
        _name_longest(side, details[side.name])
    skew_text = "; ".join(_skew_text(side, skew) for side, skew in details.items())
    wrong = [step for step in steps if by_side[0][step]["shape"] != by_side[1][step]["shape"]]
    # Other tokens make other shapes of every pass: only passes over the same tokens say something of the learner.
    passes = other_passes(e, set(steps).difference(wrong, e.experience.other_tokens))
    shapes_text = _other_shapes(e, by_side, steps, wrong) if wrong else ""
    rank_texts = [unequal.text for unequal in unequal_ranks(e)]
    differing = [*filter(None, [shapes_text, *rank_texts, _other_batches(passes)])]
    if differing:
        text = "; ".join([*differing, skew_text])
        finding = Finding("experience shapes", text, effect(e))
        return conclude("confirmed", text, decides=False, findings=[finding], **details)
    # Nothing differs. That is ruled out only where shapes of every judged step were recorded.
    absent = [step for step in e.judged_steps if step not in recorded]
    if absent and trains(e):
        text = f"no shapes of an experience batch in step {absent[0]} of both runs; {skew_text}"
        return conclude("not tested", text, **details)
    equal = f"equal in {counted(len(steps), 'step')}"
    if passes.equal:
        equal += f", and so are all {counted(passes.equal, 'shape')} that were recorded"
    return conclude("ruled out", f"{equal}; {skew_text}", **details)


def _unconfounded(e: Evidence, recorded: set[int]) -> list[int]:
    """Return the judged steps in which nothing confounds the batches."""
    judged = sorted(recorded.difference(e.unjudged_steps))
    return [step for step in judged if e.confounded("everything", "prompts", "experience", step=step) is None]


def _skew_text(side: str, skew: dict[str, Any]) -> str:
    text = f"{side} padding ×{skew['padding']:.2f}, longest {skew['longest']:g} tokens "
    return text + f"(×{skew['skew']:.1f} its step's mean)"


def _other_shapes(e: Evidence, by_side: list[Shapes], steps: list[int], wrong: list[int]) -> str:
    """Return in words the steps whose batches have other shapes, and what differs in the first."""
    first = wrong[0]
    parts = _apart(*(shapes[first]["shape"] for shapes in by_side))
    why = " (the runs trained on other tokens)" if first in e.experience.other_tokens else ""
    return f"shapes differ in {part_of(len(wrong), len(steps), 'step')}, first step {first}{why}: {parts}"


def _other_batches(passes: Passes) -> str:
    """Return in words the first pass that was given other batches of the same tokens; "" for none."""
    if passes.other is None:
        return ""
    step, phase, *batch_pair = passes.other
    return f"{phase} was given other batches in step {step} of the same experience: {_apart(*batch_pair)}"


def _apart(baseline_batches: list[dict[str, Any]], candidate_batches: list[dict[str, Any]]) -> str:
    """Return in words the first few entries that differ, of the first batch that has any."""
    if len(baseline_batches) != len(candidate_batches):
        return f"{len(baseline_batches):,} against {len(candidate_batches):,} batches"
    batch_pairs = zip(baseline_batches, candidate_batches, strict=True)
    first = next(((a, b) for a, b in batch_pairs if a != b), None)
    if first is None:
        return ""
    a, b = first
    keys = [key for key in {**a, **b} if a.get(key) != b.get(key)]
    entries = [f"{key} {_described(a.get(key))} against {_described(b.get(key))}" for key in keys[:3]]
    return ", ".join(entries) + and_more(len(keys) - 3)


def _described(value: Any) -> str:
    """Return [[3, 20], "int64"] as `3×20 int64`."""
    if isinstance(value, list) and len(value) == 2 and isinstance(value[0], list):
        return f"{'×'.join(show(size) for size in value[0]) or 'scalar'} {show(value[1])}"
    return show(value)


def _shapes(side: Side) -> Shapes:
    by_step: Shapes = {}
    for event in side.recording.shapes_of("experience"):
        if isinstance(event.get("step"), int):
            entry = by_step.setdefault(event["step"], {"shape": [], "sizes": []})
            entry["shape"].append(shape_of(event))
            entry["sizes"].append(sizes_of(event))
    return by_step


def _skew(shapes: Shapes, steps: list[int]) -> dict[str, Any]:
    """Return the padding (padded over real tokens), the longest sample with its step, and how far it exceeds the
    mean.
    """
    sizes = [(step, size) for step in steps for size in shapes[step]["sizes"]]
    padded, real = (sum(size[key] for _, size in sizes) for key in ("padded_tokens", "real_tokens"))
    nothing: tuple[int, dict[str, float]] = (-1, {})
    step, widest = max(sizes, key=lambda step_size: step_size[1]["longest"], default=nothing)
    mean = widest.get("real_tokens", 0) / max(1, widest.get("samples", 0))

    def padding(step_size: tuple[int, dict[str, float]]) -> float:
        return step_size[1]["padded_tokens"] / max(1, step_size[1]["real_tokens"])

    worst = sorted(sizes, key=padding, reverse=True)[:3]
    return {
        "padding": padded / real if real else float("nan"),
        "longest": widest.get("longest", 0),
        "longest in step": step,
        "skew": widest.get("longest", 0) / mean if mean else float("nan"),
        "most padding": [{"step": at, **size} for at, size in worst],
    }


def _name_longest(side: Side, skew: dict[str, Any]) -> None:
    """Add the number of the sample that is the longest of its step."""
    if skew["longest in step"] < 0:
        return
    table = side.recording.table("rollout", skew["longest in step"])
    if table is None:
        return
    if (recorded := table.together("prompt", "output")) is not None:
        prompt, output = recorded
        skew["longest sample"] = int(table.sample[int(np.argmax(prompt.lengths + output.lengths))])


SLOW = 5.0  # times the median step of the run
SLOW_SECONDS = 5.0  # seconds beyond the median: for steps of a tenth of a second, a factor of five means nothing
ENOUGH = 8  # steps that a line through times and sizes needs
EXPLAINED = 0.5  # share of a step's time beyond the median that its size must explain to be the reason


@check(SUSPICIONS[11], 11, alone=True)
def sizes_and_times(e: Evidence) -> Outcome:
    """Input sizes and time of every step: does one take far longer than its run's median, and does its size say why?"""
    conclude = partial(outcome, SUSPICIONS[11], number=11)
    seconds = {side.name: step_seconds(side) for side in e.sides}
    if not all(seconds.values()):
        return conclude("not tested", "no step times were recorded")
    sizes = {side.name: _step_sizes(side) for side in e.sides}
    slow = [(side, step) for side, times in seconds.items() for step in _slow_steps(times)]
    details: dict[str, Any] = {
        side.name: {
            "slowest": _slowest(side, seconds[side.name], sizes[side.name]),
            "seconds by tokens": _fit(seconds[side.name], sizes[side.name]),
            "seconds": seconds[side.name],
        }
        for side in e.sides
    }
    if slow:
        side, step = max(slow, key=lambda slow_step: seconds[slow_step[0]][slow_step[1]])
        t, median = seconds[side][step], _median(list(seconds[side].values()))
        text = f"the {side}'s step {step} took {t:.1f} s, its median step {median:.1f} s"
        text += _because(step, t, median, seconds[side], sizes[side])
        finding = Finding("slow step", text, where=side, details={"slowest": details[side]["slowest"]})
        return conclude("confirmed", text, decides=False, findings=[finding], **details)
    parts, unsized = [], []
    for side, times in seconds.items():
        worst = max(times, key=times.__getitem__)
        parts.append(
            f"{side} median {_median(list(times.values())):.2f} s, longest {times[worst]:.2f} s "
            f"(step {worst}{_size_of(sizes[side], worst)})"
        )
        unsized += [f"step {step} of the {side}" for step in times if "tokens" not in sizes[side].get(step, {})]
    times_text = "; ".join(parts)
    if trains(e) and unsized:
        return conclude("not tested", f"no input sizes of {unsized[0]} were recorded; {times_text}", **details)
    return conclude("ruled out", f"no step stands out: {times_text}", **details)


def _slow_steps(times: dict[int, float]) -> list[int]:
    """Return the steps that took far longer than the run's median, without the first, which warms up."""
    median = _median(list(times.values()))
    least = max(SLOW * median, median + SLOW_SECONDS)
    return [step for step, seconds in times.items() if seconds > least and step != min(times)]


def _step_sizes(side: Side) -> dict[int, dict[str, float]]:
    """Return what made each step large: tokens and padding of its batch, tokens generated, load of the engine."""
    by_step: dict[int, dict[str, float]] = {}
    for step, entry in _shapes(side).items():
        sums = {key: float(sum(size[key] for size in entry["sizes"])) for key in ("real_tokens", "padded_tokens")}
        longest = max(size["longest"] for size in entry["sizes"])
        by_step[step] = {"tokens": sums["real_tokens"], "padded_tokens": sums["padded_tokens"], "longest": longest}
    for stats in side.recording.records.engine_stats:
        if stats.step is not None and stats.step >= 0:
            figures = {
                "generated_tokens": stats.generated_tokens,
                "kv_usage": stats.kv_usage,
                "running": stats.running,
                "waiting": stats.waiting,
            }
            by_step.setdefault(stats.step, {}).update({key: value for key, value in figures.items() if value == value})
    return by_step


def _slowest(side: Side, times: dict[int, float], sizes: dict[int, dict[str, float]]) -> list[dict[str, Any]]:
    """Return the three slowest steps with their phases and sizes."""
    spans = spans_by_step(side.recording)
    worst = sorted(times, key=lambda step: times[step], reverse=True)[:3]
    return [
        {
            "step": step,
            "seconds": times[step],
            **{phase: value for (phase, at), value in spans.items() if at == step and phase != "step"},
            **sizes.get(step, {}),
        }
        for step in worst
    ]


def _fit(times: dict[int, float], sizes: dict[int, dict[str, float]], without: int = -1) -> dict[str, float]:
    """Fit a step's seconds as a line in its tokens; {} for too few steps. The first step is left out, since it warms
    up.
    """
    left_out = (without, min(times)) if times else (without,)
    sized = [step for step in times if "tokens" in sizes.get(step, {})]
    pairs = [(sizes[step]["tokens"], times[step]) for step in sized if step not in left_out]
    # A line through steps of one or two sizes would fit whatever their times are.
    if len(pairs) < ENOUGH or len({tokens for tokens, _ in pairs}) < 3:
        return {}
    x, y = (np.array(column, np.float64) for column in zip(*pairs, strict=True))
    slope, intercept = np.polyfit(x, y, 1)
    spread = float(((y - y.mean()) ** 2).sum())
    residual = float(((y - slope * x - intercept) ** 2).sum())
    share = 1.0 - residual / spread if spread > 0 else 0.0
    return {"steps": len(pairs), "seconds per 1,000 tokens": 1e3 * slope, "seconds at none": intercept, "r2": share}


def _because(step: int, t: float, median: float, times: dict[int, float], sizes: dict[int, dict[str, float]]) -> str:
    """Return in words whether the step's size explains its time, by the line through the other steps."""
    step_size = sizes.get(step, {})
    size_text = _size_of(sizes, step)
    if "tokens" not in step_size:
        return "; its size was not recorded"
    usual = _median([size["tokens"] for size in sizes.values() if "tokens" in size])
    text = f"{size_text}: {step_size['tokens'] / max(1.0, usual):.1f} times the median's tokens"
    # The step in question has no part in the line, or it would explain itself.
    line = _fit(times, sizes, without=step)
    if not line:
        return f"{text}; too few steps to tell whether that explains it"
    expected = line["seconds at none"] + line["seconds per 1,000 tokens"] * step_size["tokens"] / 1e3
    if expected - median >= EXPLAINED * (t - median):
        return f"{text}, which explain {expected:.1f} s of it by the other steps' seconds per token"
    return f"{text}, which explain no more than {max(expected, 0.0):.1f} s by the other steps' seconds per token"


def _size_of(sizes: dict[int, dict[str, float]], step: int) -> str:
    step_size = sizes.get(step, {})
    if "tokens" not in step_size:
        return ""
    text = f", {figure(step_size['tokens'])} tokens, longest {figure(step_size['longest'])}"
    text += f", padding ×{step_size['padded_tokens'] / step_size['tokens']:.2f}" if step_size["tokens"] else ""
    return text + (f", KV pool {step_size['kv_usage']:.0%} full" if "kv_usage" in step_size else "")


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2] if values else float("nan")
