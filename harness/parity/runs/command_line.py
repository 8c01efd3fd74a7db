"""The command line that repeats a function call, built from its arguments: a notebook or pytest has none of ours."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

from probes import redaction


def command_line(*words: str | Path, **options: Any) -> str:
    """Return `harness WORDS --option value ...`, quoted for a shell, without secrets.

    None and False leave an option out, True makes it a flag, a list repeats it. A Path is written in full, so that the
    command does the same from every folder.
    """
    line = ["harness", *map(_text, words)]
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        if value is None or value is False:
            continue
        if value is True:
            line.append(option)
        else:
            for item in value if isinstance(value, (list, tuple)) else (value,):
                line += [option, _text(item)]
    return shlex.join(redaction.arguments(line))


def scenario_word(name: str) -> str | Path:
    """Return a scenario as `command_line` takes it: a name of the catalog, or a file."""
    return Path(name) if name.endswith(".toml") else name


def _text(value: Any) -> str:
    return os.path.abspath(value.expanduser()) if isinstance(value, Path) else str(value)


def duration(seconds: float) -> str:
    """Return seconds as `--stall` reads them."""
    return f"{seconds:.3f}".rstrip("0").rstrip(".") + "s" if seconds else "0"
