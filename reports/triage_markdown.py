"""The body of a triage verdict as Markdown: culprits, cycle, victims, what to try; processes folded away."""

from __future__ import annotations

from reports import triage_arrange as arrange
from reports.markdown import code, escape, table
from reports.model import Triage


def body(triage: Triage) -> list[str]:
    """Lines between the reason and what is missing."""
    lines: list[str] = []
    rows = [(escape(row.who), escape(row.role), code(row.process), escape(row.why),
             code(row.frame) if row.frame else "") for row in arrange.culprits(triage)]  # fmt: skip
    if rows:
        lines += ["### Culprits", "", *table(("", "role", "process", "why", "frame"), rows)]
    steps = arrange.cycle(triage)
    if steps:
        lines += ["### Cycle: everybody waits for the next one", ""]
        lines += [f"{number}. <b>{escape(step.waiter)}</b> waits for <b>{escape(step.target)}</b>: "
                  f"{escape(step.because)}" for number, step in enumerate(steps, 1)]  # fmt: skip
        lines += [""]
    groups = arrange.victims(triage)
    if groups:
        lines += ["### Waiting: victims, not causes", ""]
        lines += [f"- {escape(group.line)} ({escape(group.who)})" for group in groups] + [""]
    if triage.next:
        steps_on = [f"{number}. {escape(step)}" for number, step in enumerate(triage.next, 1)]
        lines += ["### What to try", "", *steps_on, ""]
    processes = [(escape(party), escape(label), code(key), escape(state))
                 for party, label, key, state in arrange.processes(triage)]  # fmt: skip
    if processes:
        more = arrange.left_out(triage)
        lines += [f"<details><summary>Processes ({len(triage.nodes)})</summary>", "",
                  *table(("", "process", "host:pid", "state"), processes)]  # fmt: skip
        lines += [f"{more} more are in the JSON.", ""] if more else []
        lines += ["</details>", ""]
    return lines
