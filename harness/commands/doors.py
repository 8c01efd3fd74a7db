"""The commands by what brings a user to them, in the order of the README. `harness --help` lists them so."""

from __future__ import annotations

DOORS: dict[str, tuple[str, ...]] = {
    "A job hangs": ("triage", "stacks", "watch"),
    "Two engines or two runs differ": ("parity", "diff", "replay", "run", "record"),
    "My own mapping of settings": ("mapping",),
    "It is green and learns nothing": ("audit",),
    "Gate a change": ("nightly", "history", "bisect", "render"),
    "Read a report and hand it over": ("report", "explain", "bundle"),
    "Machines, engines and environments": ("doctor", "env", "up", "ps", "down", "adapters", "faults", "help"),
}
