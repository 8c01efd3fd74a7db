"""The phases of a log that have a progress bar of tqdm, and how long each took.

A bar is the only line of most logs that says how long something took without the clocks of two lines. Its form is that
of tqdm 4 and of vLLM and SGLang, which write a word in place of the drawing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from harness.triage.collect import redact
from harness.triage.evidence import LogPhase
from harness.triage.pasted import naming
from harness.triage.pasted.text import Pasted

MAX_PHASES = 8  # of one text; the longest are kept
MAX_BARS = 100_000  # places of a text that are tried
MAX_LINE = 400  # characters before the times of a bar; a terminal's width, and a prefix
MAX_COUNT = 60  # characters of the count and the time that has gone
_REST = re.compile(r"<(?:\d{1,4}:)?(?:\d\d:\d\d|\?), ")  # the rest of the time, which stands in no other line
_COUNT = re.compile(
    r"[ |](?P<done>[\d.]{1,12})[kMGT]?/(?P<total>[\d.]{1,12})[kMGT]? "
    r"\[(?:(?P<hours>\d{1,4}):)?(?P<minutes>\d\d):(?P<seconds>\d\d)$"
)
_PERCENT = re.compile(r"(?::|^) {0,4}\d{1,3}%")
_END_OF_LINE = re.compile(r"[\r\n]")


def phases_of(file: str, pasted: Pasted) -> list[LogPhase]:
    """The phases of a text, the longest first. A bar that was drawn again counts with its longest time."""
    longest: dict[tuple[naming.Name, str], LogPhase] = {}
    for phase, writer in _bars(file, pasted.text):
        before = longest.get((writer, phase.name))
        if before is None or before.took_s <= phase.took_s:
            longest[writer, phase.name] = phase
    return sorted(longest.values(), key=lambda phase: -phase.took_s)[:MAX_PHASES]


def _bars(file: str, text: str) -> Iterator[tuple[LogPhase, naming.Name]]:
    """Each state of a bar, and who drew it."""
    line, counted = 1, 0
    for rest in islice(_REST.finditer(text), MAX_BARS):
        head = text[max(0, rest.start() - MAX_LINE) : rest.start()]
        writer, bar = naming.split(_END_OF_LINE.split(head)[-1])
        count, percent = _COUNT.search(bar[-MAX_COUNT:]), _PERCENT.search(bar)
        if count is None or percent is None:
            continue
        line, counted = line + text.count("\n", counted, rest.start()), rest.start()
        phase = LogPhase(
            file=file,
            line=line,
            name=redact.text(bar[: percent.start()].strip()),
            finished=count["done"] == count["total"],
            took_s=int(count["hours"] or 0) * 3600 + int(count["minutes"]) * 60 + int(count["seconds"]),
        )
        yield phase, writer
