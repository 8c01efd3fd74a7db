"""The program that a command starts: where it is, or why it cannot be started."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.errors import BadInput
from harness.exit_codes import NOT_FOUND, NOT_RUNNABLE
from harness.other_paths import nearest_folder
from harness.similar_names import edits, similar
from probes import limits, redaction

SURE = 5  # letters for each that differs: torchrn is torchrun; nope is not node, which would run and do something else


class CommandNotRun(BadInput):
    """The command could not be started."""

    def __init__(self, message: str, code: int, fix: str | None = None) -> None:
        super().__init__(message, fix=fix)
        self.exit_code = code


def find_program(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return the path of the program that the command starts. Raises CommandNotRun where there is none."""
    if not command:
        raise BadInput("there is no command to watch", fix="-- python train.py   # your command")
    executable = shutil.which(command[0], path=environment.get("PATH"))
    if executable is None:
        exists = os.path.exists(command[0])
        # Scrub before quoting: quotes within quotes would hide a secret from the scrubber of the output.
        word = shlex.quote(redaction.text(command[0]))
        what = "is not found"
        fix = _similar(command, environment)
        if exists:
            what, fix = _unrunnable(command, word)
        if os.path.isdir(command[0]):
            what, fix = "is a directory", f"ls {word}   # and name the program in it"
        if command[0].isdecimal() and len(command) == 1:
            pid = int(command[0])
            fix = f"harness watch --pid {pid}"
        if re.match(r"[A-Za-z_]\w*=", command[0]) and not exists:  # only a shell would read it as a variable
            fix = shlex.join(["--", "env", *command])
        raise CommandNotRun(f"the command {command[0]!r} {what}", NOT_RUNNABLE if exists else NOT_FOUND, fix)
    return executable


def _similar(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """The fix for a program that is not found: the command with one of a similar name, else where to look for it."""
    program = command[0]
    if os.sep in program:
        return f"ls {shlex.quote(str(nearest_folder(Path(program))))}   # and name the program that is there"
    folders = environment.get("PATH", os.defpath).split(os.pathsep)
    names = {name for folder in folders for name in _names(folder)}
    near = [name for name in similar(program, sorted(names)) if edits(program, name) * SURE <= len(name)]
    if near:
        return shlex.join(["--", near[0], *command[1:]])
    return "echo $PATH   # the folders that are searched; name a program elsewhere with its whole path"


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # PATH may name folders that are not there
        return []


def _unrunnable(command: Sequence[str], word: str) -> tuple[str, str]:
    """For a command whose file cannot be executed: what that is, and how to start it."""
    file = command[0]
    try:
        with limits.open_file(file) as stream:
            begin = stream.read(4)
    except OSError:
        begin = b""
    if begin.startswith((b"#!", b"\x7fELF")):
        return "is not executable", f"chmod +x {word}"
    for suffix, interpreter in ((".py", "python"), (".sh", "bash")):
        if file.endswith(suffix):
            return "is not executable", shlex.join(["--", interpreter, *command])
    return "is a file and no program", "-- python train.py   # the command of the job"
