"""One line for a script, a pager or a chat: the verdict, its reason, the cause, what is missing, and the fix."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from reports.model import Verdict
from reports.renderers import Renderer
from reports.sections import answer
from reports.text import agreeing, clean

if TYPE_CHECKING:
    from reports.renderers import Subject

CAUSES = "cause", "unequal", "culprit"  # labels of what is to blame
MISSING = 3  # sentences about what is missing; a line with more of them is not read


class LineRenderer(Renderer):
    name = "line"
    suffix = ".line"
    takes = frozenset({"parity", "audit", "triage"})

    def render(self, subject: Subject) -> str:
        verdict = cast("Verdict", subject)
        summary = answer.of(verdict)
        missing = [clean(sentence) for sentence in verdict.missing if sentence != verdict.reason]
        causes = [f"{label}: {text}" for label, text in summary.parts if label in CAUSES]
        sentences = [f"{summary.title} {summary.reason}", *causes, *missing[:MISSING]]
        if more := len(missing[MISSING:]):
            sentences.append(f"{more} more {agreeing(more, 'thing is', 'things are')} missing")
        sentences += [f"fix: {text}" for label, text in summary.parts if label == "fix"]  # last, to be copied
        return " ".join("; ".join(sentences).split()) + "\n"
