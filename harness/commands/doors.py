"""The commands by what brings a user to them, in the order and below the titles of the README. `harness --help` lists
them so."""

from __future__ import annotations

import typer

_REPORTS = ("report", "explain", "bundle")
_MACHINES = ("env", "up", "ps", "down", "adapters", "faults", "help")
DOORS: dict[str, tuple[str, ...]] = {
    "It hangs now": ("triage", "stacks", "watch"),
    "Two engines differ": ("parity", "record", "diff", "replay", "run"),
    "My own mapping from vLLM to SGLang": ("mapping",),
    "It is green and learns nothing": ("audit", "doctor"),
    "Gate a change": ("nightly", "history", "bisect", "render"),
    "Reports, engines and machines": (*_REPORTS, *_MACHINES),
}


def group(help: str, *examples: str) -> typer.Typer:
    """An empty group of commands, whose help ends with these command lines."""
    lines = "\n".join(f"  {example}" for example in examples)
    return typer.Typer(no_args_is_help=True, help=f"{help}\n\n\b\nExample:\n{lines}")
