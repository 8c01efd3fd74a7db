"""What TRL's processes are started with besides their number: accelerate's mixed precision."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from harness.frameworks import launcher
from harness.frameworks.argv import Start
from harness.frameworks.launcher import PROCESSES, Launch
from harness.frameworks.settings import SHELL
from harness.frameworks.trl.traps import MIXED

_SPAWNS = re.compile(r"\b(?:notebook_launcher|debug_launcher|elastic_launch|start_processes|spawn)\b")


def launched(
    start: Start, is_trl_command: bool, source: str, package: Path | None, environ: Mapping[str, str]
) -> Launch:
    """What is known about the processes and their precision.

    `is_trl_command`: whether it is the `trl` command, which passes unknown options to accelerate. `source`: text of the
    script. `package`: TRL's own. `environ`: of the job.
    """
    words = start.arguments if is_trl_command else None
    launch = launcher.launched(start, environ, accelerated=words, package=package)
    values, unknown = dict(launch.values), dict(launch.unknown)
    precision = launch.accelerate.get("mixed_precision", environ.get("ACCELERATE_MIXED_PRECISION", ""))
    values.pop(MIXED, None)
    if launch.trouble or SHELL.search(precision):
        unknown[MIXED] = launch.trouble or f"mixed_precision is {precision}, which only the shell knows"
    elif precision:
        values[MIXED] = precision
    if _SPAWNS.search(source) and PROCESSES not in values:
        unknown[PROCESSES] = f"{start.entry} starts processes itself"
    return replace(launch, values=values, unknown=unknown)
