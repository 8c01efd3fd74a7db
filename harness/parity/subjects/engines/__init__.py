"""Engines: routing, placement, sleep and wake, memory, and whether an engine agrees with itself."""
