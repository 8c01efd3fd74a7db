"""Renders verdicts: a verdict in, text out. Nothing here launches, judges or reads a clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

from probes import redaction
from reports import displayed_paths

if TYPE_CHECKING:
    from reports.renderers import Subject


def render(subject: Subject, format: str = "text") -> str:
    """Return a verdict, a doctor's report or a recorded run in one of the formats of `reports.renderers`, without
    secrets.

    Raises UnknownFormat, a ValueError, where there is no such format.
    """
    from reports import renderers

    return renderers.find(format, subject.kind).render(redaction.scrub(displayed_paths.displayed(subject)))


def write(subject: Subject, format: str, stream: TextIO, *, verbose: bool = False) -> None:
    """Write the same to a stream. Text fits a terminal's width and has its colours."""
    from reports import renderers

    renderers.find(format, subject.kind).write(
        redaction.scrub(displayed_paths.displayed(subject)), stream, verbose=verbose
    )
