"""Launchers: each writes the files with which a scheduler starts the harness, and is a command of `harness render`.

The file's name is the command's name. Its function `command` ends with a call of `write`. Its `Options` are a frozen
dataclass, whose fields are annotated as Typer expects of a command's parameters. A file whose name begins with an
underscore is not a launcher, but holds code that several launchers share.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from harness.commands.showing import say
from harness.errors import BadInput
from harness.other_paths import disk_of
from probes import files as files_of
from probes import limits, redaction
from probes.errors import FULL

WRITTEN_BY = "# Written by this command; edit the command, not the file:"
# References that are expanded where the file is used: `TOKEN="$(cat FILE)"`, `${TOKEN:-}`, `${{ secrets.TOKEN }}`.
EXPANDED = re.compile(r"""\$\{\{[^{}]*\}\}|["']?(?:\$\(|`)|\$\{\w+:?(?:[+?]|[-=]\})""")
_HIDDEN = "read the secret where the job runs, --setup 'export NAME=$(cat FILE)', or from the scheduler's own secrets"
SHEBANG = "#!/bin/bash\n"  # stays the first line of a script


def launchers() -> dict[str, Callable[..., None]]:
    """Return every launcher by the name that a user types."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))
    return {name.replace("_", "-"): importlib.import_module(f"{__name__}.{name}").command for name in names}


def write(files: Mapping[str, str], out: Path, command: str) -> None:
    """Write files below `out`, each whole or not at all, headed by the command that makes them again, and name them on
    stdout. One that holds a secret of the user's words or manifest is readable by the user alone, and said on stderr.
    Raises BadInput rather than replace a file that no such command wrote."""
    for path in (out / name for name in files):
        if path.exists() and not _is_rendered(path):
            raise BadInput(f"{path} was not written by harness render", fix="--out DIR   # or move the file away")
    try:
        with files_of.folder_or_nothing(out):
            for name, text in files.items():
                _write_file(out / name, text, command)
    except OSError as error:
        why = error.strerror
        fix = f"{disk_of(out)}   # free some space, or --out DIR" if error.errno in FULL else "--out DIR"
        raise BadInput(f"{error.filename or out} cannot be written: {why}", fix=fix) from error


def _write_file(file: Path, text: str, command: str) -> None:
    body = text.removeprefix(SHEBANG)
    shebang = SHEBANG if text.startswith(SHEBANG) else ""
    secret = _holds_secret([command, *_values(file.name, body)])
    mode = file.stat().st_mode & 0o777 if file.exists() else files_of.FILE_MODE
    whole = f"{shebang}{WRITTEN_BY}\n# {' '.join(command.splitlines())}\n{body}"
    files_of.write_whole(file, whole.encode(), files_of.FILE_MODE if secret else mode)
    print(file)
    if secret:
        say(f"{file} holds a secret in clear, and only you may read it; fix: {_HIDDEN}")


def _is_rendered(path: Path) -> bool:
    """Whether `harness render` wrote this file."""
    try:
        with limits.open_file(path) as stream:
            head = stream.read(len(SHEBANG) + len(WRITTEN_BY.encode()))
    except OSError:
        return False
    return head.removeprefix(SHEBANG.encode()).startswith(WRITTEN_BY.encode())


def _values(name: str, text: str) -> list[Any]:
    """Return a script as text, and a manifest as its parsed values, because a reference to a secret may span several
    of them.
    """
    if not name.endswith((".yaml", ".yml")):
        return [text]
    import yaml

    return list(yaml.safe_load_all(text))


def _holds_secret(value: Any) -> bool:
    """Whether a value holds a secret. Nested values are checked by themselves: a field named like a secret may hold a
    reference.
    """
    is_table = isinstance(value, dict)
    flat: dict[Any, Any] = {}
    for name, part in value.items() if is_table else enumerate(value):
        if isinstance(part, dict | list):
            if _holds_secret(part):
                return True
        else:
            flat[name] = EXPANDED.sub("$X ", part) if isinstance(part, str) else part
    flat_values = flat if is_table else list(flat.values())  # the words of a list may be a command line
    return bool(redaction.scrub(flat_values) != flat_values)
