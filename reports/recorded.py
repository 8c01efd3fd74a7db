"""One recorded run in a few words: where it is, what it was, what came of each step."""

from __future__ import annotations

import json
import re
from pathlib import Path

from probes import redaction
from probes.format import Run
from reports.markdown import code

SHOWN = ("step", "reward_mean", "kl_mean", "length_mean", "seconds")


def render(folder: Path, format: str) -> str:
    """`text`: the directory alone, for scripts; `json`: every metric of every step; `md`: a table of a few of them."""
    if format == "text":
        return f"{folder}\n"
    run = Run(folder, strict=False)
    run.manifest = redaction.scrub(run.manifest)  # another framework may have written it
    steps = [{"step": event["step"], **event["metrics"]} for event in run.events(kind="step")]
    command = str(run.manifest.get("command", ""))
    if format == "json":
        told = {"run": str(folder), "backend": run.manifest.get("backend"), "command": command}
        return json.dumps({**told, "complete": run.complete, "steps": steps}, indent=2) + "\n"
    names = [name for name in SHOWN if all(name in step for step in steps)]
    rows = [names, ["---"] * len(names), *([f"{float(step[name]):.4g}" for name in names] for step in steps)]
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    return f"{_code(command)} recorded in {_code(str(folder))}\n\n{table}"


def _code(text: str) -> str:
    return f"`{text}`" if re.fullmatch(r"[\w ./=,:+-]*", text, re.ASCII) else code(text)
