"""The last line of a log, and of each process that writes to it: where a start-up stopped, if nothing else says so."""

from __future__ import annotations

import re
from collections.abc import Iterator

from harness.triage.collect import redact
from harness.triage.evidence import LogEnd
from harness.triage.pasted import naming
from harness.triage.pasted.errors import OF_SLURM, scheduler, stamp_of
from harness.triage.pasted.naming import NOBODY, Name
from harness.triage.pasted.text import MAX_LINE, Pasted, cut
from reports.sections.triage import ranks

MAX_TAIL = 256 << 10  # characters at the end of a text in which last lines are looked for
MAX_ENDS = 8  # different last lines of one file; the rarest are told
MAX_TEXT = 200  # characters of a line that are kept
MAX_NAMES = 8  # processes of one last line that are named
# What stands before the words of a line: a date and a time, a level, a place in a source file.
_BEFORE = re.compile(
    r"(?:(?:INFO|WARNING|ERROR|DEBUG)\b[ :]{0,10}|\[?(?:\d{4}-)?\d\d-\d\d[ T]\d\d:\d\d:\d\d[\d.,]{0,10}[^\]]{0,40}\] ?"
    r"|(?:\d{4}-)?\d\d-\d\d[ T]\d\d:\d\d:\d\d[\d.,]{0,10} ?|\[[\w./-]{1,100}:\d{1,6}\] ?){1,6}"
)
_REPEATED = re.compile(r" ?\[repeated \d{1,6}x across cluster\].{0,200}")


def ends_of(file: str, pasted: Pasted) -> Iterator[LogEnd]:
    """The last line of each process that wrote to the end of a text, equal ones together; of the text if no line names
    its writer."""
    tail = pasted.text[-MAX_TAIL:]
    lines = [line[:MAX_LINE] for line in re.split(r"[\r\n]", tail)]
    first = pasted.text.count("\n", 0, len(pasted.text) - len(tail)) + tail.count("\n") - len(lines) + 2
    last: dict[Name, tuple[int, str]] = {}
    for number, line in enumerate(lines, first):
        writer, rest = naming.split(line)
        if rest.strip() and not rest.startswith(OF_SLURM):
            last[scheduler(rest, writer)] = number, rest.strip()
    if not last:
        return
    count = pasted.text.rstrip().count("\n") + 1
    named = {name: end for name, end in last.items() if name is not NOBODY} or last
    grouped: dict[str, list[tuple[int, Name, str]]] = {}
    for name, (number, line) in named.items():
        grouped.setdefault(_plain(line, name.rank), []).append((number, name, line))
    for its in sorted(grouped.values(), key=len)[:MAX_ENDS]:
        number, _, line = max(its, key=lambda end: end[0])
        yield LogEnd(
            file=file,
            lines=count,
            line=number,
            text=redact.text(cut(_words(line), MAX_TEXT)),
            who=_names([name for _, name, _ in its if name is not NOBODY]),
            processes=len(its),
            at=stamp_of(line),
        )


def _words(line: str) -> str:
    """The words of a line, without its time and place."""
    return _REPEATED.sub("", _BEFORE.sub("", line, count=1)).strip() or line.strip()


def _plain(line: str, rank: int | None) -> str:
    """The words of a line, without what differs by rank alone."""
    words = _words(line)
    return re.sub(rf"(?i)\b(rank[ _=:]?){rank}\b", r"\1N", words) if rank is not None else words


def _names(names: list[Name]) -> str:
    """The processes in few words; empty if nobody is named."""
    numbers = sorted({name.rank for name in names if name.rank is not None})
    others = sorted({_name(name) for name in names if name.rank is None})
    hidden = len(others) - MAX_NAMES
    parts = [f"rank{'s' if len(numbers) > 1 else ''} {ranks(numbers)}"] if numbers else []
    return ", ".join(parts + others[:MAX_NAMES] + ([f"{hidden} more"] if hidden > 0 else []))


def _name(name: Name) -> str:
    pid = f"pid {name.pid}" if name.pid else ""
    return f"{name.role} ({pid})" if name.role and pid else name.role or pid or name.host
