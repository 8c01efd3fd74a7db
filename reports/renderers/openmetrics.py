"""Figures as OpenMetrics text, for a Prometheus textfile collector or a push gateway: one sample per line, no times.

https://github.com/prometheus/OpenMetrics, version 1.0: the media type is application/openmetrics-text.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

from probes.format import number
from reports.renderers import Renderer
from reports.text import clean, flatten

if TYPE_CHECKING:
    from reports.model import Verdict
    from reports.renderers import Subject
    from reports.run_model import RecordedRun

MOST_STEPS = 1000  # most steps of a run; each makes one series per metric

Sample = tuple[Mapping[str, object], float]


class OpenMetricsRenderer(Renderer):
    name = "openmetrics"
    suffix = ".prom"
    takes = frozenset({"parity", "audit", "triage", "run"})

    def render(self, subject: Subject) -> str:
        made = _run(cast("RecordedRun", subject)) if subject.kind == "run" else _verdict(cast("Verdict", subject))
        return "\n".join(
            [*(line for name, help, samples in made for line in _family(name, help, samples)), "# EOF", ""]
        )


def _verdict(verdict: Verdict) -> list[tuple[str, str, list[Sample]]]:
    labels: dict[str, object] = {"kind": verdict.kind, "verdict": verdict.verdict}
    labels |= {run.side or f"run{index}": run.backend for index, run in enumerate(verdict.runs)}
    labels |= {"hang": verdict.triage.hang} if verdict.triage else {}
    body = verdict.parity
    states = [check.state for check in verdict.checks]
    return [
        ("verdict", "1: the verdict that the labels name", [(labels, 1.0)]),
        ("exit_code", "exit code of the command", [({}, verdict.exit_code)]),
        ("causes", "causes that were named", [({"cause": cause.name}, 1.0) for cause in verdict.causes]),
        ("findings", "findings", [({}, len(verdict.findings))]),
        ("checks", "checks by state", [({"state": state}, states.count(state)) for state in dict.fromkeys(states)]),
        ("coverage", "what was compared", _numbers(verdict.coverage)),
        ("figure", "times and amounts", _numbers(verdict.figures)),
        ("floor", "rounding that was measured, in nats", _numbers(body.floor) if body else []),
        ("metric", "of the whole comparison", _numbers(body.metrics) if body else []),
    ]


def _run(run: RecordedRun) -> list[tuple[str, str, list[Sample]]]:
    samples: list[Sample] = []
    for step in run.steps[-MOST_STEPS:]:
        of_step = {"step": step.get("step"), "backend": run.backend or ""}
        for name, value in step.items():
            if name != "step" and isinstance(value, (int, float)):
                samples.append(({"metric": name, **of_step}, number(value)))
    return [("complete", "1: every process closed its recording", [({}, run.complete)]), ("step", "by step", samples)]


def _numbers(values: Mapping[str, Any]) -> list[Sample]:
    """Return the numbers of nested tables, each under its path."""
    return [
        ({"name": f"{group} / {name}" if group else name}, number(value))
        for group, name, value in flatten(dict(values))
        if isinstance(value, (int, float))
    ]


def _family(name: str, help: str, samples: Iterable[Sample]) -> list[str]:
    kept: dict[str, float] = {}
    for labels, value in samples:
        kept.setdefault(_labels(labels), value)  # a series may occur only once
    full = f"rlhf_harness_{name}"
    head = [f"# TYPE {full} gauge", f"# HELP {full} {_escaped(help)}"] if kept else []
    return head + [f"{full}{labels} {_number(value)}" for labels, value in kept.items()]


def _labels(labels: Mapping[str, object]) -> str:
    escaped = {name: _escaped(value) for name, value in labels.items()}
    pairs = ",".join(f'{name}="{value}"' for name, value in escaped.items() if name.isidentifier())
    return f"{{{pairs}}}" if pairs else ""


def _escaped(text: object) -> str:
    return clean(text).replace("\\", "\\\\").replace('"', '\\"')


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return ("+Inf" if value > 0 else "-Inf") if math.isinf(value) else repr(float(value))
