"""The wait graph over all layers: which process waits for which other one, since when, and what proves it.

`subjects` says what each process does and `edges` which process it waits for. `shape` finds where waiting ends: at a
process that waits for nobody, or in a cycle.
"""

from __future__ import annotations

from harness.triage.graph.build import Graph, build
from harness.triage.graph.subjects import Subject

__all__ = ["Graph", "Subject", "build"]
