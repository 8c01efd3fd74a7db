"""A recorded run in words: what ran, whether its recording is complete, and the metrics of its steps."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING

from reports.text import clean, counted, show

if TYPE_CHECKING:
    from reports.run_model import RecordedRun

KEY_METRICS = ("step", "reward_mean", "kl_mean", "length_mean", "seconds")


def title(run: RecordedRun) -> str:
    return f"{clean(run.backend or 'unknown backend')}, {counted(len(run.steps), 'step')}"


def state(run: RecordedRun) -> str:
    if run.watched:
        return "This is a record of harness watch, without rollouts."
    if run.complete:
        return "Every process closed its recording."
    return "The recording is incomplete: a process was ended, or still runs, or files are missing or damaged."


def judged_by(run: RecordedRun) -> tuple[str, str]:
    """Return (what it asks, the command that judges it)."""
    question, command = ("how it ended", "triage") if run.watched else ("is it sound", "audit")
    return question, f"harness {command} {shlex.quote(clean(run.run))}"


def table(run: RecordedRun, *, all_metrics: bool = False) -> tuple[list[str], list[list[str]]]:
    """Return names of metrics, and a row of their values for each step.

    Without `all_metrics`, only a few that say how the run went; all where it has none of those.
    """
    names = list(dict.fromkeys(name for step in run.steps for name in step))
    key_metrics = [name for name in KEY_METRICS if name in names]
    chosen = names if all_metrics or len(key_metrics) < 2 else key_metrics
    rows = [[_value(step, name) for name in chosen] for step in run.steps]
    return [clean(name) for name in chosen], rows


def _value(step: Mapping[str, float], name: str) -> str:
    """Return a metric of a step as text; the number of a step is no amount, and has no thousands separators."""
    return show(step[name], group=name != "step") if name in step else ""
