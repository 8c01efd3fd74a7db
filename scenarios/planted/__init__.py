"""Planted faults and their controls: `differences` between two runs, and `hangs`. No production module imports them."""
