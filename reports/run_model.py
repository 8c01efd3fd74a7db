"""A summary of one recorded run: where it is, what it was, and the metrics of each step."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from probes import redaction
from probes.format import TOKENS, Run


@dataclass(frozen=True)
class RecordedRun:
    """What `harness run` prints about its recording.

    `steps`: every metric of every step, by name. `watched`: it is a record of `harness watch`, without rollouts.
    """

    kind: ClassVar[str] = "run"
    run: str
    backend: str | None
    command: str
    complete: bool
    steps: list[dict[str, Any]]
    watched: bool = False

    def to_json(self) -> str:
        return json.dumps(vars(self), indent=2) + "\n"

    @staticmethod
    def of(folder: Path) -> RecordedRun:
        run = Run(folder, strict=False)
        manifest = redaction.scrub(run.manifest)  # another framework may have written it
        steps = [
            {"step": event.get("step"), **metrics}
            for event in run.events(kind="step")
            if isinstance(metrics := event.get("metrics"), dict)
        ]
        return RecordedRun(
            str(folder),
            manifest.get("backend"),
            str(manifest.get("command", "")),
            run.complete,
            steps,
            watched=manifest.get("watch") is True and not (folder / TOKENS).is_dir(),
        )
