"""Reads what torch's own analysis of recorder dumps prints: `torch.distributed.flight_recorder.fr_trace` of torch
2.13, and the page of `torch.distributed.debug`'s server that has its tables.

It compares the dumps of a folder, group by group. Its words say less than the dumps: neither what a missing rank did
last, nor whether a ring has lost it, and of operations that differ its culprit is whoever differs from the first rank.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from harness.triage.evidence import RecorderFinding
from probes.limits import RANKS

SIGNS = (
    "Not all ranks joining collective, ", "Collective sequence number: ", "Input/output mismatch in the collective ",
    "Missing dump files from ranks ", "we missed FR dumps from ranks ", "=== FR Trace ===", "(input_sizes=[",
)  # fmt: skip
MAX_FINDINGS = 1_000  # of one text
MAX_WORDS = 300  # characters of what differs
_BEGINNINGS = (
    ("missing", re.compile(r"Not all ranks joining collective, sequence number: (\d{1,12})")),
    ("differs", re.compile(r"Collective sequence number: (\d{1,12}) has errors")),
    ("sizes", re.compile(r"Input/output mismatch in the collective sequence number: (\d{1,12})")),
)
_FIELD = re.compile(r"(group info|collective|missing ranks|expected ranks|collective state|error msg): (.{1,4000})")
_NO_DUMP = re.compile(r"(?:Missing dump files from|we missed FR dumps from) ranks \(?\{([\d, ]{1,4000})\}")
_TABLE = re.compile(r"=== FR Trace(?: NCCL)? ===|Rank \d+(?:\s{2,}Rank \d+)*\s*$")
_CELL = re.compile(r"\w+\(input_sizes=\[.*state=\w+\)")  # fr_trace -j
_OPERATION = re.compile(r"(?:\w+:)?(\w{1,80})")
_NUMBER = re.compile(r"\d{1,9}")


def findings(file: str, text: str) -> Iterator[RecorderFinding]:
    """Yield what it found of each operation; of its tables, of which nothing is read, one finding without a rank."""
    if not any(map(text.__contains__, SIGNS)):
        return
    yield from list(_of_operations(file, text))[:MAX_FINDINGS]
    lines = text.splitlines()
    has_cells = any(map(_CELL.search, lines))
    tables = (at for at, line in enumerate(lines, 1) if _TABLE.match(line) and (has_cells or line.startswith("===")))
    if (line := next(tables, 0)) and not any(map(_of_any_beginning, lines)):
        yield RecorderFinding(file, line, "table")


def _of_operations(file: str, text: str) -> Iterator[RecorderFinding]:
    begun: tuple[int, str, int] | None = None  # line, kind, sequence number
    fields: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if no_dump := _NO_DUMP.search(line):
            yield RecorderFinding(file, number, "no dump", ranks=_ranks(no_dump[1]))
        elif (beginning := _of_any_beginning(line)) is not None:
            if begun is not None:
                yield _finding(file, begun, fields)
            begun, fields = (number, *beginning), {}
        elif begun is not None and (field := _FIELD.search(line)):
            fields.setdefault(field[1], field[2].strip())
    if begun is not None:
        yield _finding(file, begun, fields)


def _of_any_beginning(line: str) -> tuple[str, int] | None:
    matches = ((kind, pattern.search(line)) for kind, pattern in _BEGINNINGS)
    return next(((kind, int(match[1])) for kind, match in matches if match), None)


def _finding(file: str, begun: tuple[int, str, int], fields: dict[str, str]) -> RecorderFinding:
    line, kind, seq = begun
    error = fields.get("error msg", "")
    odd = re.findall(r"Culprit rank (\d{1,9})", error)
    operation = _OPERATION.match(fields.get("collective", ""))
    return RecorderFinding(
        file,
        line,
        kind,
        op=operation[1] if operation else "a collective",
        seq=seq,
        group=fields.get("group info", "")[:MAX_WORDS],
        ranks=_ranks(" ".join(odd)) if kind == "differs" else _ranks(fields.get("missing ranks", "")),
        expected=_ranks(fields.get("expected ranks", "")),
        state=fields.get("collective state", "")[:MAX_WORDS],
        error=error.partition("Error type: ")[2].partition(", Culprit rank")[0][:MAX_WORDS],
    )


def _ranks(text: str) -> tuple[int, ...]:
    return tuple(sorted({rank for number in _NUMBER.findall(text) if (rank := int(number)) <= RANKS}))
