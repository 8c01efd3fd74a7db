"""The largest numbers that are accepted from a file that somebody else may have written.

Such a number may size a loop or a list, so it is checked where the file is parsed. A file with a larger number is
damaged or hostile, and the reader says so in one sentence.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

from probes.errors import FormatError

RANKS = 1_000_000  # of a job; the largest published jobs have about 100,000 GPUs
STEPS = 1_000_000  # of a run; a run of one step a minute would take two years
SAMPLES = 100_000_000  # of one step
ENGINES = 10_000  # of a run; the largest published jobs have about 12,500 hosts
WHOLE = (1 << 63) - 1  # of any other whole number: what 64 bits hold
BEYOND_WHOLE = "a recording's whole numbers are signed, of 64 bits"

TOKEN_IDS = 1 << 24  # of a vocabulary; the largest published ones have about 300,000
# Array of a frame -> the least and the largest number that it may hold. -1 is a place without another token. Ids that
# an engine drew or was given are not listed: one beyond the vocabulary is a difference of its own.
COLUMNS = {"sample": (0, SAMPLES * STEPS), "cached": (0, SAMPLES), "runner_up": (-1, TOKEN_IDS)}

MOST_DIGITS = 20  # of a number in a text: more than 64 bits take

NOT_REGULAR = "it is not a regular file"

EARLIER = 100  # versions of one run.json; a run writes one to three
FILES = 200_000  # of a run: two of each process, and 100,000 processes

FILE_BYTES = 64 << 20  # of a file that is read whole: run.json, a verdict, TOML; those of real runs have some 100 KiB
LINE_BYTES = 64 << 20  # of a journal; the longest that was seen, the digests of a large model, has some 100 KiB


def open_file(file: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file for reading. Raises OSError for anything else: a pipe waits for a writer, and a device need
    not end.
    """
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)  # opening a pipe waits too
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(file))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, NOT_REGULAR, os.fspath(file))
        return os.fdopen(descriptor, "rb")
    except OSError:
        os.close(descriptor)
        raise


def read_file(file: str | os.PathLike[str]) -> bytes:
    """A regular file of at most `FILE_BYTES`. Raises OSError (EFBIG) where it is larger, whatever it says of its size,
    and what `open_file` raises.
    """
    with open_file(file) as stream:
        data = stream.read(FILE_BYTES + 1)
    if len(data) > FILE_BYTES:
        raise OSError(errno.EFBIG, f"it has more than {FILE_BYTES >> 20} MiB", os.fspath(Path(file)))
    return data


def read_text(file: str | os.PathLike[str]) -> str:
    """The text of a file of UTF-8. Raises what `read_file` does, and UnicodeDecodeError."""
    return read_file(file).decode()


def bounded(value: int, limit: int, name: str, *, least: int = 0) -> int:
    """Return `value`, which the file calls `name`. Raises FormatError where it is not between `least` and `limit`."""
    if least <= value <= limit:
        return value
    text = str(value) if abs(value) <= WHOLE else f"a number of {len(hex(value))} hexadecimal digits"
    raise FormatError(f"{name} is {text}: a number from {least} to {limit:,} was expected")


def whole_text(text: str | None) -> int | None:
    """The whole number of at most `MOST_DIGITS` digits that a text is; None for any other text."""
    return int(text) if text is not None and text.isdecimal() and len(text) <= MOST_DIGITS else None


def rank(text: str | None) -> int | None:
    """A rank or the size of a world that a text says; None where it says none, or more than `RANKS`."""
    value = whole_text(text)
    return value if value is not None and value <= RANKS else None


# Numbers of run.json that size a loop or a list, with the largest that is read. Those of the scenario are counts.
_NUMBERS = {
    ("scenario", "steps"): STEPS,
    ("scenario", "rollout", "prompts_per_step"): SAMPLES,
    ("scenario", "rollout", "samples_per_prompt"): SAMPLES,
    ("scenario", "engine", "engines"): ENGINES,
    ("scenario", "ppo", "world_size"): RANKS,
    ("scenario", "engine", "tensor_parallel"): RANKS,
    ("replay", "first_step"): STEPS,
    ("replay", "stop"): STEPS,
    ("lifted", "first_step"): STEPS,
    ("lifted", "stop"): STEPS,
    ("resumed", "step"): STEPS,
}


# What a writer of format 4 writes into every run.json, beside its version and its checksum.
_REQUIRED: dict[str, tuple[type, str]] = {"id": (str, "a string"), "index": (bool, "true or false"),
                                          "records": (list, "a list of kinds of events")}  # fmt: skip


def check_manifest(manifest: Any, *, typed: bool) -> None:
    """Raise FormatError for a number in run.json that is too large to be read, or negative where it counts.

    `typed`: and, as from format 4 on, for a required key that is missing or of another type, and for what is no whole
    number where one belongs.
    """
    if typed:
        _check_types(manifest)
    for path, limit in _NUMBERS.items():
        value = _at(manifest, path)
        if isinstance(value, int) and not isinstance(value, bool):
            bounded(value, limit, ".".join(path), least=0 if path[0] == "scenario" else -limit)
        elif typed and value is not None:
            raise FormatError(f"{'.'.join(path)} is {value!r:.60}: a whole number was expected")
    check_whole(manifest)


def _check_types(manifest: dict[str, Any]) -> None:
    for key, (kind, words) in _REQUIRED.items():
        if not isinstance(manifest.get(key), kind) or manifest[key] == "":
            raise FormatError(f"{key} is {manifest.get(key)!r:.60}: {words} was expected")
    if not all(isinstance(kind, str) for kind in manifest["records"]):
        raise FormatError("records holds what is not a kind of event: a list of kinds of events was expected")
    # A framework's job may not know how many steps it will have.
    scenario = manifest.get("scenario")
    if isinstance(scenario, dict) and "framework" not in manifest and scenario.get("steps") is None:
        raise FormatError("scenario.steps is missing: a whole number was expected")


def _at(manifest: Any, path: tuple[str, ...]) -> Any:
    value = manifest
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def check_whole(value: Any, name: str = "a number") -> None:
    """Raise FormatError where a decoded JSON value, which the file calls `name`, contains a whole number of more than
    64 bits."""
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            waiting.extend(part.values())
        elif isinstance(part, (list, tuple)):
            waiting.extend(part)
        elif isinstance(part, int):
            bounded(part, WHOLE, name, least=-WHOLE - 1)
