"""Measures one node: the content of `harness.doctor.facts`, as plain dictionaries.

Everything here uses only the standard library and `probes.environment`, because Ray ships it by value to workers that
may not have the harness. Nothing here judges.
"""

from harness.doctor.gather.node import SECTIONS, SLOW, node

__all__ = ["SECTIONS", "SLOW", "node"]
