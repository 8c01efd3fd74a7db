"""Measures one node: what `harness.doctor.facts` holds, as plain dictionaries.

Everything here runs on the standard library and `probes.environment` alone, because Ray ships it by value to workers
that may not have the harness. Nothing here judges.
"""

from harness.doctor.gather.node import SECTIONS, SLOW, node

__all__ = ["SECTIONS", "SLOW", "node"]
