"""The program that a command starts: where it is, or why it cannot be started."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from harness.errors import BadInput
from harness.exit_codes import NOT_FOUND, NOT_RUNNABLE
from harness.other_paths import nearest_folder
from harness.similar_names import edits, similar
from probes import limits, redaction

SURE = 5  # letters for each that differs: torchrn is torchrun; nope is not node, which would run and do something else

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_MISSING_MODULE = re.compile(r"No module named '?(\w+)")


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
        if len(command) == 1 and (words := _quoted(command[0], environment)):
            fix = shlex.join(["--", *words])
        if command[0].isdecimal() and len(command) == 1:
            pid = int(command[0])
            fix = f"harness watch --pid {pid}"
        if _ASSIGNMENT.match(command[0]) and not exists:  # only a shell would read it as a variable
            fix = shlex.join(["--", "env", *command])
        raise CommandNotRun(f"the command {command[0]!r} {what}", NOT_RUNNABLE if exists else NOT_FOUND, fix)
    return executable


def set_by_env(command: Sequence[str], name: str) -> Iterator[int]:
    """Yield the place of each word by which `env` sets this variable: env -u OTHER NAME=VALUE PROGRAM."""
    of_env, value_of_option = False, False
    for place, word in enumerate(command):
        program = os.path.basename(word)
        if program.startswith("python") or word.endswith(".py"):
            return  # what follows are words of the job's own program
        if value_of_option:
            value_of_option = False
        elif of_env and _ASSIGNMENT.match(word):
            if word.startswith(f"{name}="):
                yield place
        elif of_env and word.startswith("-"):
            value_of_option = word in ("-u", "--unset", "-C", "--chdir")
        else:
            of_env = program == "env"


def with_path_first(command: Sequence[str], folder: str) -> list[str]:
    """The command with a folder before the PYTHONPATH that `env` sets in it. Otherwise a job inherits the variable."""
    words = list(command)
    for place in set_by_env(words, "PYTHONPATH"):
        words[place] = f"PYTHONPATH={folder}{os.pathsep}{words[place].partition('=')[2]}".rstrip(os.pathsep)
    return words


def missing_module_fix(last_words: str, command: Sequence[str], environment: Mapping[str, str], folder: Path) -> str:
    """The fix for a job that ended because Python did not find a module which is in its `folder`: Python searches the
    folder of the script. Empty for any other end."""
    missing = _MISSING_MODULE.search(last_words)
    places = list(set_by_env(command, "PYTHONPATH"))
    if missing is None or not any((folder / f"{missing[1]}{suffix}").exists() for suffix in ("", ".py")):
        return ""
    path = command[places[-1]].partition("=")[2] if places else environment.get("PYTHONPATH", "")
    if {"", "."} & {*path.split(os.pathsep)} and path:
        return ""  # the folder was searched
    assignment = "PYTHONPATH=" + os.pathsep.join(filter(None, (".", path)))
    words = [*command]
    if places:
        words[places[-1]] = assignment
    else:
        words[:0] = ["env", assignment]
    return shlex.join(["--", *words])


def _quoted(text: str, environment: Mapping[str, str]) -> list[str]:
    """The words of a command line that was given as one word, in quotes; [] where it does not name a program."""
    try:
        words = shlex.split(text)
    except ValueError:
        return []
    return words if len(words) > 1 and shutil.which(words[0], path=environment.get("PATH")) else []


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
