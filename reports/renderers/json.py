"""The verdict as JSON, the form on disk: nothing is left out and nothing is rounded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reports.renderers import Renderer

if TYPE_CHECKING:
    from reports.renderers import Subject


class JsonRenderer(Renderer):
    name = "json"
    suffix = ".json"
    takes = frozenset({"parity", "audit", "triage", "doctor", "run", "nightly", "bisect"})

    def render(self, subject: Subject) -> str:
        return subject.to_json()
