"""Launchers: each writes the files with which a scheduler starts the harness, and is a command of `harness render`.

The file's name is the command's name. Its function `command` ends with a call of `write`. Its `Options` are a frozen
dataclass, whose fields are annotated as Typer expects of a command's parameters. A file whose name begins with an
underscore is not a launcher, but holds code that several launchers share.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from harness.commands.showing import say
from harness.errors import BadInput, refuse
from harness.other_paths import disk_of, free_path
from probes import files as files_of
from probes import limits, redaction
from probes.errors import FULL

Recreate = Annotated[bool, typer.Option("--recreate", help="replace files of harness render that have other content")]
WRITTEN_BY = "# Written by this command; edit the command, not the file:"
# References that are expanded where the file is used: `TOKEN="$(cat FILE)"`, `${TOKEN:-}`, `${{ secrets.TOKEN }}`.
EXPANDED = re.compile(r"""\$\{\{[^{}]*\}\}|["']?(?:\$\(|`)|\$\{\w+:?(?:[+?]|[-=]\})""")
_HIDDEN = "read the secret where the job runs, --setup 'export NAME=$(cat FILE)', or from the scheduler's own secrets"
SHEBANG = "#!/bin/bash\n"  # stays the first line of a script


def launchers() -> dict[str, Callable[..., None]]:
    """Return every launcher by the name that a user types."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))
    return {name.replace("_", "-"): importlib.import_module(f"{__name__}.{name}").command for name in names}


def write(files: Mapping[str, str], out: Path, command: str, *, recreate: bool = False) -> None:
    """Write files below `out`, each whole or not at all, headed by the command that makes them again, and name them on
    stdout. One that holds a secret of the user's words or manifest is readable by the user alone, and said on stderr.

    Raises BadInput rather than replace a file that no such command wrote; and, without `recreate`, one with other
    content, which its user may have edited or wants to keep.
    """
    texts = {out / name: _headed(text, command) for name, text in files.items()}
    refuse([mistake for file, text in texts.items() if (mistake := _kept_from(file, text, recreate))])
    try:
        with files_of.folder_or_nothing(out):
            for (name, body), (file, text) in zip(files.items(), texts.items(), strict=True):
                _write_file(file, text, secret=_holds_secret([command, *_values(name, body)]))
    except OSError as error:
        why = error.strerror
        fix = f"{disk_of(out)}   # free some space, or --out DIR" if error.errno in FULL else "--out DIR"
        raise BadInput(f"{error.filename or out} cannot be written: {why}", fix=fix) from error


def _write_file(file: Path, text: str, *, secret: bool) -> None:
    mode = file.stat().st_mode & 0o777 if file.exists() else files_of.FILE_MODE
    files_of.write_whole(file, text.encode(), files_of.FILE_MODE if secret else mode)
    print(file)
    if secret:
        say(f"{file} holds a secret in clear, and only you may read it; fix: {_HIDDEN}")


def _headed(text: str, command: str) -> str:
    """The text with the command that makes it, below the line that says which program runs it."""
    shebang, body = (SHEBANG, text.removeprefix(SHEBANG)) if text.startswith(SHEBANG) else ("", text)
    return f"{shebang}{WRITTEN_BY}\n# {' '.join(command.splitlines())}\n{body}"


def _kept_from(file: Path, text: str, recreate: bool) -> BadInput | None:
    """Why this text may not take the place of the file; None where it may."""
    if not os.path.lexists(file):
        return None
    if not _is_rendered(file):
        other = shlex.quote(str(free_path(file.parent)))
        return BadInput(f"{file} was not written by harness render", fix=f"--out {other}   # or move the file away")
    if recreate or _has_text(file, text):
        return None
    what = "was edited, or written by another command or version"
    return BadInput(f"{file} {what}", fix="--recreate   # replaces it; or move it away")


def _has_text(file: Path, text: str) -> bool:
    try:
        return limits.read_text(file) == text
    except (OSError, UnicodeDecodeError):
        return False


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
