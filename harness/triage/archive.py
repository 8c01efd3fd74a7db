"""Packs an evidence directory into a zip, and unpacks zips and tars from anybody: no path leaves the directory, and
their size is bounded."""

from __future__ import annotations

import json
import lzma
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO

from harness import exit_cleanup
from harness.errors import BadInput
from harness.triage import compressed
from probes.files import FILE_MODE
from reports import displayed_paths

MAX_BYTES = 4 << 30  # unpacked size; 1,024 dumps of 2,000 entries are about 1 GiB
MAX_FILES = 20_000  # chosen: 1,024 ranks with a dump and a process file each are a tenth of it
MAX_DEPTH, MAX_NAME = 8, 1_000  # folders and characters of a member's path
MEMORY_BYTES = 1 << 30  # memory of the process that unpacks; a directory of 20,000 members takes some 30 MiB
DEADLINE_S = 300.0  # 4 GiB take 20 s
INDEX = "evidence.json"
BLOCK = 1 << 20  # bytes read at a time
_ROOT = str(Path(__file__).resolve().parents[2])
# -I: neither the current folder nor PYTHONPATH affects imports
_START = f"import sys; sys.path.insert(0, {_ROOT!r}); from {__name__} import main; main()"
_BY_HAND = "unpack it, then harness triage DIR"
TAR_HEADER = 512  # bytes of a tar's first header, with the format's name at 257 (POSIX.1-1988)
HEAD = 64 << 10  # bytes of a compressed file that are looked at for it
_TOO_LARGE = "{file} is too large when it is unpacked"
_ENDED = "{file} ended the process that unpacked it: refused"
# A folder of a job holds zips that are no archives of evidence, such as what torch.save writes.
_NAMED = re.compile(r"(?<=.)(\.tar)?\.(zip|tar|tgz|tbz2?|txz|tzst|gz|bz2|xz|zst)$", re.IGNORECASE)


@dataclass
class Room:
    """What may still be unpacked: bytes and files of all archives together."""

    bytes: int = MAX_BYTES
    files: int = MAX_FILES


def pack(folder: Path, target: Path | None = None) -> Path:
    """Zip `folder` into `target`, by default `<folder>.zip`, and replace an earlier zip. Links are left out.

    Raises BadInput if there is no such folder.
    """
    if not folder.is_dir():
        raise BadInput(f"{folder}: no such directory", fix=f"ls {shlex.quote(str(folder.parent))}")
    folder = folder.resolve()
    target = target or folder.with_name(f"{folder.name}.zip")
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with (
            os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE), "wb") as stream,
            zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=6, strict_timestamps=False) as zipped,
        ):
            for file in sorted(folder.rglob("*")):
                if file.is_file() and not file.is_symlink() and file != temporary:
                    zipped.write(file, file.relative_to(folder).as_posix())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    return target


def unpack(file: Path, *, max_bytes: int = MAX_BYTES, max_files: int = MAX_FILES) -> Path:
    """Unpack a zip or a tar into a temporary directory that is removed when this process ends.

    Raises BadInput, and leaves nothing behind, for a file that is neither, is damaged, is too large when unpacked, or
    has a member whose path would leave the directory.
    """
    [outcome] = unpack_all([file], Room(max_bytes, max_files))
    if isinstance(outcome, BadInput):
        raise outcome
    return outcome


def unpack_all(files: Sequence[Path], room: Room) -> list[Path | BadInput]:
    """Unpack each archive as `unpack` does, all within `room`; the error in place of the folder for one that is
    refused.

    A separate process unpacks them, with limits on memory and time.
    """
    folders = [exit_cleanup.temporary_folder("harness-evidence-") for _ in files]
    order = {"files": [[str(Path(file).resolve()), str(folder)] for file, folder in zip(files, folders, strict=True)],
             "room": [room.bytes, room.files]}  # fmt: skip
    slow = False
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", _START], capture_output=True, input=json.dumps(order).encode(), cwd="/",
            timeout=DEADLINE_S,
        )  # fmt: skip
        printed = done.stdout
    except subprocess.TimeoutExpired as expired:
        printed, slow = expired.stdout or b"", True
    except OSError:
        printed, slow = b"", True
    answers = [json.loads(line) for line in printed.splitlines(keepends=True) if line.endswith(b"\n")]
    outcomes: list[Path | BadInput] = []
    for at, (file, folder) in enumerate(zip(files, folders, strict=True)):
        answer = answers[at] if at < len(answers) else _unanswered(file, slow=slow)
        room.bytes, room.files = answer.get("room", (room.bytes, room.files))
        if answer["error"]:
            shutil.rmtree(folder, ignore_errors=True)
            outcomes.append(BadInput(answer["error"].replace(str(Path(file).resolve()), str(file)), fix=answer["fix"]))
            continue
        displayed_paths.unpacked(str(folder), displayed_paths.displayed(str(file)))
        outcomes.append(folder)
    return outcomes


def _unanswered(file: Path, *, slow: bool) -> dict[str, Any]:
    """The answer for an archive at which the process ended, or that it did not reach."""
    if slow:
        return {"error": f"{file} was not unpacked within {DEADLINE_S:.0f} s: refused", "fix": _BY_HAND}
    return {"error": _ENDED.format(file=file), "fix": _look(file)}


def is_archive(file: Path) -> bool:
    """Whether a file is a zip or a tar."""
    return is_tar(file) or zipfile.is_zipfile(file)


def in_folder(file: str | os.PathLike[str]) -> bool:
    """Whether a file that lies in a folder is an archive, also by its name."""
    return bool(_NAMED.search(os.path.basename(file))) and is_archive(Path(file))


def bare(file: Path) -> Path:
    """Its path without what its name says of packing."""
    return file.with_name(_NAMED.sub("", file.name)) if _NAMED.search(file.name) else file


def is_tar(file: Path) -> bool:
    """Whether a file is a tar: plain, or packed. Reads its beginning only."""
    try:
        with open(file, "rb") as stream:
            data = stream.read(HEAD)
    except OSError:
        return False
    if compressed.is_packed(data):
        data = compressed.unpacked(data, TAR_HEADER)[0]
    return data[257:262] == b"ustar"


def is_evidence(file: Path) -> bool:
    """Whether a zip holds an evidence directory, by the names of its members."""
    try:
        with zipfile.ZipFile(file) as zipped:
            names = [PurePosixPath(name) for name in zipped.namelist()]
    except (zipfile.BadZipFile, OSError, ValueError):
        return True  # whoever reads it says what is wrong with it
    return any(name.name == INDEX or "processes" in name.parts for name in names)


def unpack_into(folder: Path, file: Path, room: Room) -> None:
    """Unpack `file` into `folder`, in the separate process, and take what it needs of `room`. Raises BadInput."""
    try:
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as zipped:
                members = [member for member in zipped.infolist() if not member.is_dir()]
                if sum(member.file_size for member in members) > room.bytes:  # as its directory has it: seen at once
                    raise BadInput(_TOO_LARGE.format(file=file), fix=_BY_HAND)
                top = _top(members)
                _extract_all(_of_zip(zipped, members, top), folder, file, room)
        else:
            with open(file, "rb") as stream, _tar(stream) as tarred:
                _extract_all(_of_tar(tarred), folder, file, room)
    except (
        zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, NotImplementedError, RuntimeError,
        ValueError, OSError, MemoryError,
    ) as error:  # fmt: skip
        # RuntimeError: encrypted; NotImplementedError: a compression that Python lacks; ValueError: an impossible name
        raise BadInput(
            f"{file} is not a readable zip or tar: {error}",
            fix=f"sha256sum {shlex.quote(str(file))}   # as at the sender's? if not, copy it again",
        ) from error


def _look(file: Path) -> str:
    listing = "unzip -l" if zipfile.is_zipfile(file) else "tar -tvf"
    return f"{listing} {shlex.quote(str(file))}   # its members; ask the sender for another"


def _tar(stream: BinaryIO) -> tarfile.TarFile:
    head = stream.read(len(compressed.ZSTD))
    stream.seek(0)
    if head == compressed.ZSTD:  # tarfile reads it from Python 3.14 on
        return tarfile.open(fileobj=compressed.zstd_stream(stream), mode="r|")
    return tarfile.open(fileobj=stream, mode="r|*")


def main() -> None:
    """Unpack what the standard input lists, and print a line for each archive."""
    order = json.load(sys.stdin)
    room = Room(*order["room"])
    cap(MEMORY_BYTES, int(DEADLINE_S), room.bytes + BLOCK)
    os.umask(0o077)
    for file, folder in order["files"]:
        answer: dict[str, object] = {"error": "", "fix": ""}
        before = room.bytes, room.files
        try:
            unpack_into(Path(folder), Path(file), room)
        except BadInput as error:
            answer = {"error": error.message, "fix": error.fix}
            shutil.rmtree(folder, ignore_errors=True)
            room.bytes, room.files = before
        sys.stdout.write(json.dumps({**answer, "room": [room.bytes, room.files]}) + "\n")
        sys.stdout.flush()


def cap(memory: int, seconds: int, file_bytes: int) -> None:
    """Limit this process's address space, processor time and file size."""
    import resource

    wanted = ((resource.RLIMIT_AS, memory), (resource.RLIMIT_CPU, seconds), (resource.RLIMIT_FSIZE, file_bytes))
    for limit, value in wanted:
        _, hard = resource.getrlimit(limit)
        resource.setrlimit(limit, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


def _top(members: list[zipfile.ZipInfo]) -> str:
    """The folder that contains everything in the zip, if the directory itself was zipped; empty otherwise."""
    heads = {member.filename.split("/", 1)[0] for member in members if "/" in member.filename}
    flat = any("/" not in member.filename for member in members)
    [head] = heads if len(heads) == 1 else [""]
    indexed = any(member.filename == f"{head}/{INDEX}" for member in members)
    return f"{head}/" if head and not flat and (indexed or head not in ("processes", "recorder")) else ""


@dataclass(frozen=True)
class _Member:
    """A file in an archive. `name`: as the archive has it; `path`: where it goes; `link`: it is no plain file."""

    name: str
    path: str
    link: bool
    content: IO[bytes] | None


def _of_zip(zipped: zipfile.ZipFile, members: list[zipfile.ZipInfo], top: str) -> Iterator[_Member]:
    for member in members:
        kind = stat.S_IFMT(member.external_attr >> 16)
        link = kind not in (0, stat.S_IFREG)  # a link, a device or a pipe
        with zipped.open(member) as content:
            yield _Member(member.filename, member.filename.removeprefix(top), link, content)


def _of_tar(tarred: tarfile.TarFile) -> Iterator[_Member]:
    """The plain files of a tar. Links are passed over: people pack a folder with its link to the latest run."""
    for member in tarred:
        if member.isfile():
            yield _Member(member.name, member.name, False, tarred.extractfile(member))


def _extract_all(members: Iterator[_Member], folder: Path, file: Path, room: Room) -> None:
    most = room.files
    for member in members:
        if not room.files:
            raise BadInput(f"{file} holds more than {most} files", fix=_BY_HAND)
        room.files -= 1
        _extract(member, folder / _safe(file, member), file, room)


def _safe(file: Path, member: _Member) -> PurePosixPath:
    path = PurePosixPath(member.path)
    if len(path.parts) > MAX_DEPTH or len(member.path) > MAX_NAME:
        raise BadInput(
            f"{file}: the member {member.path[:100]!r} has too long a path: nothing was unpacked", fix=_look(file)
        )
    odd = "\\" in member.path or "\0" in member.path or not path.parts
    if member.link or path.is_absolute() or ".." in path.parts or odd:
        raise BadInput(
            f"{file}: the member {member.name[:100]!r} would leave the directory: nothing was unpacked",
            fix=_look(file),
        )
    return path


def _extract(member: _Member, target: Path, file: Path, room: Room) -> None:
    """Unpack one member. Counts the bytes that really come out, not those that the header promises."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target, "xb") as sink:
        while member.content is not None and (block := member.content.read(BLOCK)):
            room.bytes -= len(block)
            if room.bytes < 0:
                raise BadInput(_TOO_LARGE.format(file=file), fix=_BY_HAND)
            sink.write(block)
