"""Runs: from a command to a verdict. Run two sides, run one, replay a recording, judge recordings."""
