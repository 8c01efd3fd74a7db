"""One wait graph over all layers: who waits for whom, since when, because of what.

`subjects` says what each process does, `edges` who it waits for, `shape` finds where waiting ends: at a process that
waits for nobody, or in a cycle.
"""

from __future__ import annotations

from harness.triage.graph.build import Graph, build
from harness.triage.graph.subjects import Subject

__all__ = ["Graph", "Subject", "build"]
