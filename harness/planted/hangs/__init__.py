"""Run the planted hangs under the watchdog, and score the verdicts."""
