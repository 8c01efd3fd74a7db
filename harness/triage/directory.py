"""The evidence directory: plain files that hold one `Evidence`, readable without the run (docs/reference/evidence.md).

Everything is JSON except flight recorder dumps, which are stored as the job wrote them. A directory (or its zip) may
come from a stranger, so paths that leave it are refused, sizes are bounded, and nothing in it is executed or unpickled.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import shutil
import stat
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from harness import extras
from harness.errors import BadInput
from harness.other_paths import another_out
from harness.triage import archive
from harness.triage.archive import INDEX
from harness.triage.copied_frames import own_frames
from harness.triage.evidence import Evidence, Process
from harness.verdict_file import NAME as VERDICT
from probes import redaction
from probes.errors import FormatError
from probes.files import make_folder, write_whole
from probes.format import MANIFEST, decode_json, encode_json
from probes.limits import RANKS, WHOLE, bounded
from reports import codec

FORMAT_VERSION = 1  # version of the evidence directory's format
PROCESSES, RECORDER = "processes", "recorder"
# Limit of the index. A process with a thousand threads is under 1 MiB. The worst case, 16 MiB of empty lists, takes 395
# MiB for a moment.
MAX_JSON_BYTES = 16 << 20  # bytes
# Limits of one process file (two looks at 300 threads of 40 frames each), and of all together (10,000 with 25 kB, as of
# 60 threads).
MAX_PROCESS_BYTES, MAX_PROCESSES_BYTES = 4 << 20, 256 << 20
KIND_BYTES = 4_096  # bytes of a file by which it is recognised
MAX_TEXT, MAX_ITEMS = 20_000, 100_000  # limits of a field: characters, and items of a list or object
MAX_DEPTH = 16  # nesting depth of a file
MAX_PROCESSES, MAX_NOTES, MAX_NOTE = 20_000, 2_000, 1_000
_OF_RANKS = frozenset({"rank", "world_size", "expected_world"})  # fields with a rank, or how many there are
T = TypeVar("T")
READS = (
    "harness triage --help   # what it reads: the pid of any process of the job while it stands, stacks, logs, dumps"
)


def write(evidence: Evidence, directory: str | os.PathLike[str], *, complete: bool = True) -> None:
    """Write every file of `evidence` except its dumps, each whole or not at all. Raises OSError if that fails.

    `complete=False`: a collector is still at work, which readers of the directory will report.
    """
    folder = Path(directory)
    names: dict[str, Process] = {}
    for process in evidence.processes:
        names[_free_name(process, names)] = process
    # Scrubbed together: each call looks through the variables of this process for secrets first.
    contents = redaction.scrub([msgspec.to_builtins(process) for process in names.values()])
    make_folder(folder / PROCESSES)
    for name, content in zip(names, contents, strict=True):
        _write(folder / PROCESSES / name, content)
    fields = msgspec.to_builtins(dataclasses.replace(evidence, processes=()))
    del fields["path"]
    index = {"format_version": FORMAT_VERSION, "complete": complete, **fields, "processes": list(names)}
    _write(folder / INDEX, redaction.scrub(index))


def write_process(process: Process, directory: str | os.PathLike[str], name: str = "") -> None:
    """Write the file of one process. A collector calls this as soon as it has something."""
    folder = Path(directory) / PROCESSES
    make_folder(folder)
    _write(folder / (name or file_name(process.host, process.pid)), redaction.scrub(msgspec.to_builtins(process)))


def file_name(host: str, pid: int, suffix: str = ".json") -> str:
    """The name of a file about one process, in characters that every file system accepts."""
    return f"{re.sub(r'[^A-Za-z0-9_.-]', '_', host)[:100]}-{pid}{suffix}"


def read(path: str | os.PathLike[str]) -> Evidence:
    """Read the evidence in a directory, in its zip, or in a bare directory of flight recorder dumps.

    A damaged or missing file is left out and named in `notes`. A zip is unpacked into a temporary directory, which is
    `path` of the result and is removed when this process ends. Raises BadInput if there is nothing to read.
    """
    source = Path(path)
    if not source.exists():
        raise BadInput(f"{source}: no such file or directory", fix=f"ls {shlex.quote(str(source.parent))}")
    folder = archive.unpack(source) if source.is_file() else source
    try:
        entries = sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        raise BadInput(
            f"{source} cannot be read: {error.strerror}", fix=f"ls -ld {shlex.quote(str(source))}"
        ) from error
    if not entries:
        raise BadInput(f"{source} is empty: there is no evidence in it", fix=READS)
    if INDEX not in entries and PROCESSES not in entries:
        return _bare(folder, source)
    notes: list[str] = []
    index = _index(folder, notes)
    processes = _processes(folder, index.pop("processes", []), notes)
    evidence = _decoded({**index, "path": str(folder)}, notes)
    dumps = {name: dump for name, dump in evidence.dumps.items() if _inside(folder, dump, notes)}
    processes = tuple(_within_world(process, evidence.expected_world, notes) for process in processes)
    bounded_notes = tuple(note[:MAX_NOTE] for note in (*evidence.notes, *notes)[:MAX_NOTES])
    return dataclasses.replace(evidence, processes=processes, dumps=dumps, notes=bounded_notes)


def keep(evidence: Evidence, directory: Path) -> None:
    """Write evidence that was read from dumps or from pasted text, with its dumps, as an evidence directory. Raises
    BadInput if there is one already, and OSError.
    """
    if (directory / INDEX).exists():
        raise BadInput(
            f"{directory} already holds evidence, and that is never overwritten",
            fix=another_out(directory),
        )
    kept: dict[str, Path] = {}  # the dump's file in the directory -> where it is read
    for dump in evidence.dumps.values():
        source = Path(evidence.path) / dump
        name = source.name if source.name not in kept else f"{len(kept)}-{source.name}"
        kept[name] = source
        make_folder(directory / RECORDER)
        write_whole(directory / RECORDER / name, source.read_bytes())
    dumps = dict(zip(evidence.dumps, (f"{RECORDER}/{name}" for name in kept), strict=True))
    source_name = "directory" if evidence.source == "dumps" else evidence.source
    write(dataclasses.replace(evidence, source=source_name, dumps=dumps), directory)


def pack(directory: str | os.PathLike[str]) -> Path:
    """Zip an evidence directory next to itself, to send it to a colleague. Returns the path of the zip."""
    return archive.pack(Path(directory))


def adopt(file: Path, into: Path) -> Evidence:
    """Read the evidence in a zip, and copy its dumps into the evidence directory `into`, where they keep their
    names."""
    folder = archive.unpack(file)
    try:
        part = read(folder)
        for process in part.processes:
            if process.dump:
                make_folder((into / process.dump).parent)
                write_whole(into / process.dump, (folder / process.dump).read_bytes())
        return part
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def readable(path: Path) -> bool:
    """Whether a directory holds evidence or flight recorder dumps."""
    try:
        return is_evidence(path) or any(is_dump(file) and file.stat().st_size for file in path.iterdir())
    except OSError:  # it may not be listed
        return False


def is_evidence(path: str | os.PathLike[str]) -> bool:
    """Whether `path` looks like an evidence directory or a zip, so that it is read and not taken for a live run."""
    location = Path(path)
    return (location / INDEX).is_file() or (location / PROCESSES).is_dir() or location.suffix == ".zip"


# --- reading


def _index(folder: Path, notes: list[str]) -> dict[str, Any]:
    try:
        index = _load(folder / INDEX)
    except (OSError, ValueError, RecursionError) as error:
        notes.append(f"{INDEX} cannot be read ({_why(error)}): only what the process files say is known")
        return {"source": "directory", "taken": "", "stall_s": 0.0}
    version = index.pop("format_version", None)
    if not isinstance(version, int) or version < 1:
        notes.append(f"{INDEX} has no format_version: it is read as version {FORMAT_VERSION}")
    elif version > FORMAT_VERSION:
        raise BadInput(
            f"{folder / INDEX}: format_version is {version}, the newest that this installation reads is "
            f"{FORMAT_VERSION}",
            fix=extras.upgrade_command(),
        )
    if not index.pop("complete", True):
        notes.append("the collector was cut short: what it had by then is here")
    return index


def _processes(folder: Path, listed: Any, notes: list[str]) -> tuple[Process, ...]:
    """The processes that the index names, in its order, then those of other files in the folder."""
    try:
        file_names = sorted(file.name for file in (folder / PROCESSES).glob("*.json"))
    except OSError as error:
        notes.append(f"{PROCESSES}/ cannot be read: {_why(error)}")
        file_names = []
    names = [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
    processes, size = [], 0
    present_names = set(file_names)
    wanted = list(dict.fromkeys([*names, *file_names]))
    if len(wanted) > MAX_PROCESSES:
        notes.append(f"{PROCESSES}/ has {len(wanted):,} files: the first {MAX_PROCESSES:,} are read")
    for name in wanted[:MAX_PROCESSES]:
        if name not in present_names:
            notes.append(f"{PROCESSES}/{name[:100]} is missing")
            continue
        if size > MAX_PROCESSES_BYTES:
            most = f"{MAX_PROCESSES_BYTES >> 20} MiB"
            notes.append(f"{PROCESSES}/ is larger than {most}: {name[:100]} and what follows it is not read")
            break
        try:
            fields = _load(folder / PROCESSES / name, MAX_PROCESS_BYTES)
            size += (folder / PROCESSES / name).stat().st_size
            process = own_frames(decode(Process, fields))
        except (OSError, ValueError, RecursionError) as error:
            notes.append(f"{PROCESSES}/{name} cannot be read: {_why(error)}")
            continue
        if process.dump and not _inside(folder, process.dump, notes):
            process = dataclasses.replace(process, dump="")
        processes.append(process)
    return tuple(processes)


def _within_world(process: Process, expected_world: int | None, notes: list[str]) -> Process:
    """The process without a rank that its world cannot have: nobody knows which one it is."""
    world = process.world_size or expected_world
    if process.rank is None or not world or process.rank < world:
        return process
    notes.append(f"{process.key}: its rank is {process.rank:,} of a world of {world:,}, so it is not known")
    return dataclasses.replace(process, rank=None)


def _decoded(fields: dict[str, Any], notes: list[str]) -> Evidence:
    """The evidence of an index. Fields that do not fit keep their defaults and are named in `notes`."""
    hints = typing.get_type_hints(Evidence, include_extras=True)  # the bounds are in the extras
    kept: dict[str, Any] = {"source": "directory", "taken": "", "stall_s": 0.0}
    for key, value in fields.items():
        if key in hints:
            try:
                kept[key] = decode(hints[key], value, key)
            except FormatError as error:
                notes.append(f"{INDEX}: {error}")
            except ValueError as error:
                notes.append(f"{INDEX}: {key}: {error}")
    return Evidence(**kept)


def _bare(folder: Path, source: Path) -> Evidence:
    """The evidence of a bare directory of flight recorder dumps: one file per rank, JSON or pickle."""
    dumps = {file.name: file.name for file in sorted(folder.iterdir()) if is_dump(file)}
    if not dumps:
        raise BadInput(
            f"{source} holds neither evidence ({INDEX}) nor flight recorder dumps (one JSON or pickle file a rank) "
            "nor stacks of py-spy, pystack, gdb or faulthandler",
            fix=READS,
        )
    return Evidence(path=str(folder), source="dumps", taken="", stall_s=0.0, dumps=dumps)


def loose(dumps: Mapping[str, str]) -> Evidence:
    """The evidence in flight recorder dumps that were named one by one, or lie in several folders: name -> path."""
    return Evidence(path="", source="directory", taken="", stall_s=0.0, dumps=dict(dumps))


def is_dump(file: Path) -> bool:
    """Whether a file is a dump by its first byte: `{` for JSON, 0x80 for a pickle. An empty file with a number is a
    lost dump."""
    if file.name.startswith(".") or file.is_symlink() or not file.is_file():
        return False
    try:
        with open(file, "rb") as stream:
            head = stream.read(KIND_BYTES)
    except OSError:
        return True  # the reader of dumps reports why it cannot be read
    return begins_dump(file, head) if head else file.stem[-1:].isdigit()


def begins_dump(file: Path, head: bytes) -> bool:
    """Whether a file that begins so is a dump. `head`: empty for an empty file. JSON lines are text."""
    if head[:1] not in (b"{", b"\x80") or file.name in (MANIFEST, VERDICT):
        return False
    first, _, rest = head.partition(b"\n")
    return file.suffix != ".jsonl" and not (first.rstrip().endswith(b"}") and rest.lstrip().startswith(b"{"))


def _inside(folder: Path, relative: str, notes: list[str]) -> bool:
    """Whether a dump is inside the directory. Symbolic links and `..` may not lead out of it."""
    try:
        target = Path(os.path.realpath(folder / relative))  # a link to itself resolves to itself, which is no file
        if not target.is_relative_to(os.path.realpath(folder)):
            notes.append(f"a dump called {relative!r} lies outside the evidence and is ignored")
            return False
        if not target.is_file():
            notes.append(f"the flight recorder dump {relative} is missing")
            return False
    except (OSError, ValueError):
        notes.append(f"a dump called {relative[:100]!r} has an impossible name and is ignored")
        return False
    return True


def _load(file: Path, most: int = MAX_JSON_BYTES) -> dict[str, Any]:
    file_stat = file.lstat()
    if not stat.S_ISREG(file_stat.st_mode):  # a link may lead out of the directory, a pipe never ends
        raise ValueError("not a plain file")
    if file_stat.st_size > most:
        raise ValueError(f"it is larger than {most >> 20} MiB")
    value = decode_json(file.read_bytes())
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def _why(error: BaseException) -> str:
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)[:200]


# --- plain data to dataclasses


def decode(kind: type[T], value: Any, name: str = "$") -> T:
    """Decode JSON values into a type of harness.triage.evidence. Unknown keys are ignored. `name`: of the value.

    What was withheld because its name sounds like a secret's, and does not fit, counts as not recorded.
    Raises ValueError that names the place that does not fit or exceeds its bound.
    """
    bounded_value = _bounded(value, name)
    try:
        return msgspec.convert(bounded_value, kind, dec_hook=_number)
    except msgspec.ValidationError as error:
        shown = _without_withheld(bounded_value)
        try:
            return msgspec.convert(shown, kind, dec_hook=_number)
        except msgspec.ValidationError:
            raise ValueError(str(error)) from error


def _without_withheld(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_withheld(item) for key, item in value.items() if item != redaction.WITHHELD}
    return [_without_withheld(item) for item in value] if isinstance(value, list) else value


def _number(kind: Any, value: Any) -> float:
    return float(codec.number(kind, value))


def _bounded(value: Any, where: str, depth: int = 0) -> Any:
    """Return the value with texts cut to their bound. Raises ValueError for anything else that exceeds its bound."""
    if isinstance(value, str):
        return value[:MAX_TEXT]
    if isinstance(value, int):
        is_rank = where.rpartition(".")[2] in _OF_RANKS
        bounded(value, RANKS if is_rank else WHOLE, where.removeprefix("$."), least=0 if is_rank else -WHOLE - 1)
    if not isinstance(value, list | dict):
        return value
    if depth > MAX_DEPTH:
        raise ValueError(f"{where} is nested too deeply")
    if len(value) > MAX_ITEMS:
        raise ValueError(f"{where} has {len(value):,} items, at most {MAX_ITEMS:,} are read")
    if isinstance(value, list):
        return [_bounded(item, where, depth + 1) for item in value]
    if any(len(key) > MAX_TEXT for key in value):
        raise ValueError(f"{where} has a key of more than {MAX_TEXT:,} characters")
    return {key: _bounded(item, f"{where}.{key}", depth + 1) for key, item in value.items()}


def _free_name(process: Process, used_names: dict[str, Process]) -> str:
    name = first = file_name(process.host, process.pid)
    number = 2
    while name in used_names:
        name = f"{first.removesuffix('.json')}_{number}.json"
        number += 1
    return name


def _write(file: Path, scrubbed: dict[str, Any]) -> None:
    write_whole(file, encode_json(scrubbed).encode("ascii") + b"\n")
