"""What a verdict looks like: a `reports.model.Verdict` in, text out. Nothing here launches, judges or reads a clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from probes import redaction

if TYPE_CHECKING:
    from reports.model import Verdict

FORMATS = ("text", "json", "md", "html", "junit")


def render(verdict: Verdict, format: str = "text") -> str:
    """The verdict in one of `FORMATS`, scrubbed of secrets; ValueError on another. Each renderer is imported when it is
    asked for."""
    verdict = redaction.scrub(verdict)
    if format == "text":
        from reports import terminal

        return terminal.render(verdict)
    if format == "json":
        return verdict.to_json()
    if format == "md":
        from reports import markdown

        return markdown.render(verdict)
    if format == "html":
        from reports import html

        return html.render(verdict)
    if format == "junit":
        from reports import junit

        return junit.render(verdict)
    raise ValueError(f"format {format!r} is none of {', '.join(FORMATS)}")
