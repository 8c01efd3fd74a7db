"""The commands by what brings a user to them, in the order of the README. `harness --help` lists them so."""

from __future__ import annotations

import typer

DOORS: dict[str, tuple[str, ...]] = {
    "A job hangs": ("triage", "stacks", "watch"),
    "Two engines or two runs differ": ("parity", "diff", "replay", "run", "record"),
    "My own mapping of settings": ("mapping",),
    "It is green and learns nothing": ("audit",),
    "Gate a change": ("nightly", "history", "bisect", "render"),
    "Read a report and hand it over": ("report", "explain", "bundle"),
    "Machines, engines and environments": ("doctor", "env", "up", "ps", "down", "adapters", "faults", "help"),
}


def group(help: str, *examples: str) -> typer.Typer:
    """An empty group of commands, whose help ends with these command lines."""
    lines = "\n".join(f"  {example}" for example in examples)
    return typer.Typer(no_args_is_help=True, help=f"{help}\n\n\b\nExample:\n{lines}")
