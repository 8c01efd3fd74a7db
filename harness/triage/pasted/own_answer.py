"""Recognises what the harness itself printed, so that an answer that is given to triage again is taken for no log."""

from __future__ import annotations

import json
import re

from reports import doctor_model
from reports.model import AUDIT_VERDICTS, TRIAGE_VERDICTS, VERDICTS, Verdict
from reports.sections.answer import of

_WORDS = (*VERDICTS, *AUDIT_VERDICTS, *TRIAGE_VERDICTS, *doctor_model.VERDICTS)
# The last line of an answer in a pipe, and the first one of Markdown.
_LINE = re.compile(rf"(?:## )?((?:{'|'.join(_WORDS)})\b.*?) \(exit code \d\)(?:: (.+))?")


def of_text(text: str) -> tuple[str, str] | None:
    """The title and the reason of an answer in a text; None in any other text."""
    lines = [line.strip() for line in text.strip().splitlines()]
    match = next((match for line in (*lines[-1:], *lines[:1]) if (match := _LINE.fullmatch(line))), None)
    return (match[1], match[2] or "") if match else None


def of_json(text: str) -> tuple[str, str] | None:
    """The title and the reason of a verdict as JSON; None for anything else."""
    try:
        answer = of(Verdict.from_dict(json.loads(text)))
    except (ValueError, RecursionError):
        return None
    return answer.title, answer.reason
