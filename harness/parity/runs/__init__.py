"""From a command to a verdict: run two sides, run one, replay a recording, judge two recordings."""
