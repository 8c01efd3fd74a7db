"""Run and score the planted faults of parity."""
