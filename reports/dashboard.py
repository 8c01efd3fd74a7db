"""The dashboard of a history: one page with every cell over the nights, and one page per cell. Static and offline.

Pages are built from strings, so that ten thousand of them are written in seconds. Every text from a history passes
`_text`.
"""

from __future__ import annotations

import base64
import hashlib
import html
import itertools
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from probes.format import number
from probes.redaction import scrub
from reports.nightly_model import LABELS, to_read
from reports.sections import nightly as arrange
from reports.text import clean, counted, figure

MARKER = "index.html"
SPARKS = ("max_delta_logprob", "k1", "compared_tokens", "seconds")
RECENT = 10  # nights in the table of a cell, besides those that changed something
_WIDTH, _HEIGHT = 6, 16  # size of a night in the heat map, in pixels

_CSS = """
:root { color-scheme: light dark; --ink: #1b2130; --paper: #fff; --muted: #5a6374; --rule: #dde1e8;
  --ok: #1f7f50; --bad: #c02626; --warn: #9a6700; --known: #2f73a8; --none: #dde1e8; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ef; --paper: #14171d; --muted: #9ba5b6; --rule: #2d333f;
  --ok: #4cb98a; --bad: #ff6b6b; --warn: #e6b450; --known: #7db7e4; --none: #2d333f; } }
body { margin: 0; padding: 1.6rem; background: var(--paper); color: var(--ink);
  font: 14px/1.5 system-ui, "Noto Sans", "DejaVu Sans", sans-serif; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.05rem; margin-top: 2rem; } a { color: inherit; }
table { border-collapse: collapse; } td, th { padding: .15rem .8rem .15rem 0; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--rule); white-space: nowrap; }
.courses td, .courses th { vertical-align: middle; }
td.told { white-space: normal; overflow-wrap: anywhere; min-width: 16rem; } h1 { overflow-wrap: anywhere; }
tr { content-visibility: auto; contain-intrinsic-size: auto 1.4rem; }
.muted { color: var(--muted); } svg { vertical-align: middle; }
.ok { fill: var(--ok); color: var(--ok); } .bad { fill: var(--bad); color: var(--bad); }
.warn { fill: var(--warn); color: var(--warn); } .known { fill: var(--known); color: var(--known); }
.none { fill: var(--none); } path { fill: none; stroke: var(--ink); stroke-width: 1.2; } .mark { fill: var(--bad); }
b.ok, b.bad, b.warn, b.known { font-weight: 650; }
@media (max-width: 48rem) { body { padding: 1rem; } tr.head, td.told:empty { display: none; } svg { max-width: 100%; }
  table, tbody, tr { display: block; } tr { border-bottom: 1px solid var(--rule); padding: .4rem 0; }
  td, th { display: inline-block; border: 0; vertical-align: middle; } td.told, .courses th { display: block; } }
"""
_POLICY = base64.b64encode(hashlib.sha256(_CSS.encode()).digest()).decode()


def write(
    folder: Path, nights: Sequence[tuple[int, str]], rows: Iterable[Any], save: Callable[[Path, bytes], None]
) -> int:
    """Write all pages; returns how many cells there are. `nights`: number and start, the oldest first. `rows`: by cell,
    then by night, as `harness.nightly.history` has them. `save` writes a file below `folder`, whose folder `cells` is
    there. Raises OSError."""
    places = {night: index for index, (night, _) in enumerate(nights)}
    started = dict(nights)
    lines: list[tuple[int, str, str]] = []
    for name, group in itertools.groupby(rows, key=lambda row: row.name):
        course = [row for row in group if row.night_id in places]
        if course:
            page = f"cells/{hashlib.sha256(name.encode()).hexdigest()[:20]}.html"
            metrics = [_metrics(row) for row in course]
            save(folder / page, _cell(folder, name, course, metrics, started).encode())
            lines.append(_line(name, page, course, metrics, places, len(nights)))
    save(folder / MARKER, _index(nights, [line for *_, line in sorted(lines)]).encode())
    return len(lines)


class _Metrics(msgspec.Struct):
    """The metrics that are drawn; others are skipped when parsing. "nan" stands for no number."""

    max_delta_logprob: float | str = "nan"
    k1: float | str = "nan"
    compared_tokens: float | str = "nan"


_parse = msgspec.json.Decoder(_Metrics).decode


def _metrics(row: Any) -> dict[str, float]:
    parsed = _parse(row.metrics.encode())
    values = {name: number(getattr(parsed, name)) for name in _Metrics.__struct_fields__}
    return values | {"seconds": row.seconds}


def _line(
    name: str, page: str, course: Sequence[Any], metrics: Sequence[dict[str, float]], places: dict[int, int], width: int
) -> tuple[int, str, str]:
    """Return a row of the heat map, and its sort key: what is wrong now comes first."""
    last = course[-1]
    tone = _tone(last)
    order = ("bad", "warn", "known", "ok").index(tone)
    cells = (
        f'<td class="told"><a href="{page}">{_text(name)}</a></td><td><b class="{tone}">{_text(last.status)}</b></td>'
        f"<td>{_heat(course, places, width)}</td>"
        f"<td>{_spark([night[SPARKS[0]] for night in metrics])}</td><td>{arrange.duration(last.seconds)}</td>"
    )
    return order, name, f"<tr>{cells}</tr>\n"


def _tone(row: Any) -> str:
    return arrange.tone(row.status, '"new": []' not in row.changes)


def _heat(course: Sequence[Any], places: dict[int, int], width: int) -> str:
    """Draw the nights of a cell. Neighbouring nights of one tone are one rectangle, which keeps ten thousand rows
    small.
    """
    tones = ["none"] * width
    for row in course:
        tones[places[row.night_id]] = _tone(row)
    at, parts = 0, []
    for tone, run in itertools.groupby(tones):
        length = len(list(run))
        parts.append(f'<rect class="{tone}" x="{at * _WIDTH}" width="{length * _WIDTH - 1}" height="{_HEIGHT}"/>')
        at += length
    return f'<svg width="{width * _WIDTH}" height="{_HEIGHT}" role="img" aria-label="nights">{"".join(parts)}</svg>'


def _spark(values: Sequence[float], width: int = 120, height: int = 18) -> str:
    """Draw the values of a metric over time; a value that is not a number breaks the line."""
    finite = [value for value in values if abs(value) < float("inf")]
    if not finite:
        return ""
    low, span = min(finite), max(finite) - min(finite)
    if not span:  # a line in the middle
        low, span = low - 0.5, 1.0
    step, moved, parts = width / max(1, len(values) - 1), True, []
    for index, value in enumerate(values):
        if not abs(value) < float("inf"):
            moved = True
            continue
        y = height - 1 - (value - low) / span * (height - 2)
        parts.append(f"{'M' if moved else 'L'}{index * step:.0f} {y:.1f}")
        moved = False
    return f'<svg width="{width}" height="{height}" role="img" aria-label="course"><path d="{"".join(parts)}"/></svg>'


def _cell(
    folder: Path, name: str, course: Sequence[Any], metrics: Sequence[dict[str, float]], started: dict[int, str]
) -> str:
    parts = [f'<p><a href="../{MARKER}">all cells</a></p>\n<h1>{_text(name)}</h1>\n<table class="courses">\n']
    for metric in SPARKS:
        values = [night[metric] for night in metrics]
        if spark := _spark(values, 360, 40):
            finite = [value for value in values if math.isfinite(value)]
            span = f"{figure(min(finite))} to {figure(max(finite))}"
            cells = f'<td>{figure(values[-1])}</td><td class="muted">{span}</td>'
            parts.append(f"<tr><th>{_text(LABELS.get(metric, metric))}</th><td>{spark}</td>{cells}</tr>\n")
    parts.append("</table>\n<h2>Nights</h2>\n<table>\n")
    for index in range(len(course) - 1, -1, -1):
        row = course[index]
        if index >= len(course) - RECENT or row.status != "OK":
            parts.append(_night(folder, row, started[row.night_id]))
    return _page(name, "".join(parts) + "</table>\n")


def _night(folder: Path, row: Any, start: str) -> str:
    tone = _tone(row)
    report = ""
    if row.path and not row.removed and (file := Path(to_read(row.path, row.verdict))).is_file():
        report = f'<a href="{quote(os.path.relpath(file, folder / "cells"))}">{file.stem}</a>'
    changes = "<br>".join(_changes(row.changes))
    return (
        f'<tr><td>{row.night_id}</td><td>{_text(_minute(start))}</td><td><b class="{tone}">{_text(row.status)}</b></td>'
        f"<td>{_text(row.verdict)}</td><td class='told'>{changes}</td><td>{report}</td></tr>\n"
    )


def _changes(changes: str) -> Iterator[str]:
    """Yield what the night reported about the cell, escaped. `changes`: JSON as the history has it."""
    if '"text"' not in changes and '"confirmation": ""' in changes:
        return
    value = scrub(json.loads(changes))
    for title, key in (("new", "new"), ("others since then", "explains"), ("gone", "gone"), ("as before", "standing")):
        yield from (f"{title}: {_text(change['text'])}" for change in value[key])
    yield from (f"known: {_text(text)}" for text in value["known"])
    if value["confirmation"]:
        yield f"confirmed: {_text(value['confirmation'])}"


def _index(nights: Sequence[tuple[int, str]], lines: Sequence[str]) -> str:
    span = "no night"
    if nights:
        span = f"nights {nights[0][0]} to {nights[-1][0]}, the last of {_text(_minute(nights[-1][1]))}"
    key = ", ".join(f'<b class="{tone}">{status}</b>' for status, tone in arrange.TONES.items())
    key += ", grey: did not run"
    head = "<tr class='head'><th>cell</th><th>last</th><th>nights, the newest on the right</th>"
    head += f"<th>{LABELS[SPARKS[0]]}</th><th>time</th></tr>"
    body = f'<h1>Nightly</h1>\n<p class="muted">{counted(len(lines), "cell")}, {span}. {key}</p>\n'
    return _page("Nightly", f"{body}<table>\n{head}\n{''.join(lines)}</table>\n")


def _minute(started: str) -> str:
    """Shorten 2026-11-26T09:04:26+00:00 to the minute."""
    return f"{started[:16].replace('T', ' ')}{' UTC' if started.endswith('+00:00') else started[19:]}"


def _page(title: str, body: str) -> str:
    policy = f"default-src 'none'; style-src 'sha256-{_POLICY}'"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{_text(title)}</title>\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f'<meta name="viewport" content="width=device-width"><style>{_CSS}</style></head>\n'
        f"<body>\n{body}</body></html>\n"
    )


@lru_cache(4096)
def _text(text: str) -> str:
    return html.escape(clean(text))
