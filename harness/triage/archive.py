"""Packs an evidence directory into a zip, and unpacks a zip or a tar from anybody: no path leaves the directory, and
its size is bounded."""

from __future__ import annotations

import bz2
import json
import lzma
import os
import shlex
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from harness import exit_cleanup
from harness.errors import BadInput
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
_START = f"import sys; sys.path.insert(0, {_ROOT!r}); from {__name__} import main; main(*sys.argv[1:])"
_BY_HAND = "unpack it, then harness triage DIR"
TAR_HEADER = 512  # bytes of a tar's first header, with the format's name at 257 (POSIX.1-1988)
HEAD = 64 << 10  # bytes of a compressed file that are looked at for it
_ENDED = "{file} ended the process that unpacked it: refused"


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

    A separate process unpacks it, with limits on memory and time. Raises BadInput, and leaves nothing behind, for a
    file that is neither, is damaged, is too large when unpacked, or has a member whose path would leave the directory.
    """
    folder = Path(tempfile.mkdtemp(prefix="harness-evidence-")).resolve()
    words = [str(Path(file).resolve()), str(folder), str(max_bytes), str(max_files)]
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", _START, *words], capture_output=True, stdin=subprocess.DEVNULL, cwd="/",
            timeout=DEADLINE_S,
        )  # fmt: skip
        ended = {"error": _ENDED.format(file=file), "fix": _look(file)}
        outcome = json.loads(done.stdout) if done.returncode == 0 else ended
    except (subprocess.TimeoutExpired, ValueError, OSError):
        outcome = {"error": f"{file} was not unpacked within {DEADLINE_S:.0f} s: refused", "fix": _BY_HAND}
    if outcome["error"]:
        shutil.rmtree(folder, ignore_errors=True)
        raise BadInput(outcome["error"], fix=outcome.get("fix"))
    exit_cleanup.then(lambda: shutil.rmtree(folder, ignore_errors=True))
    displayed_paths.unpacked(str(folder), str(file))
    return folder


def is_tar(file: Path) -> bool:
    """Whether a file is a tar: plain, or packed by gzip, bzip2 or xz. Reads its beginning only."""
    try:
        with open(file, "rb") as stream:
            data = stream.read(HEAD)
        if data.startswith(b"\x1f\x8b"):
            data = zlib.decompressobj(wbits=zlib.MAX_WBITS + 16).decompress(data, TAR_HEADER)
        elif data.startswith(b"BZh"):
            data = bz2.BZ2Decompressor().decompress(data, TAR_HEADER)
        elif data.startswith(b"\xfd7zXZ\0"):
            data = lzma.LZMADecompressor(memlimit=MEMORY_BYTES).decompress(data, TAR_HEADER)
    except (OSError, EOFError, zlib.error, lzma.LZMAError):
        return False
    return data[257:262] == b"ustar"


def is_evidence(file: Path) -> bool:
    """Whether a zip holds an evidence directory, by the names of its members."""
    try:
        with zipfile.ZipFile(file) as zipped:
            names = [PurePosixPath(name) for name in zipped.namelist()]
    except (zipfile.BadZipFile, OSError, ValueError):
        return True  # whoever reads it says what is wrong with it
    return any(name.name == INDEX or "processes" in name.parts for name in names)


def unpack_into(folder: Path, file: Path, max_bytes: int, max_files: int) -> None:
    """Unpack `file` into `folder`, in the separate process. Raises BadInput."""
    try:
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as zipped:
                members = [member for member in zipped.infolist() if not member.is_dir()]
                top = _top(members)
                _extract_all(_of_zip(zipped, members, top), folder, file, max_bytes, max_files)
        else:
            with tarfile.open(file, "r|*") as tarred:
                _extract_all(_of_tar(tarred), folder, file, max_bytes, max_files)
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


def main(file: str, folder: str, max_bytes: str, max_files: str) -> None:
    cap(MEMORY_BYTES, int(DEADLINE_S), int(max_bytes) + BLOCK)
    os.umask(0o077)
    outcome: dict[str, str | None] = {"error": ""}
    try:
        unpack_into(Path(folder), Path(file), int(max_bytes), int(max_files))
    except BadInput as error:
        outcome = {"error": error.message, "fix": error.fix}
    sys.stdout.write(json.dumps(outcome))


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


def _extract_all(members: Iterator[_Member], folder: Path, file: Path, max_bytes: int, max_files: int) -> None:
    remaining_bytes = max_bytes
    for number, member in enumerate(members):
        if number == max_files:
            raise BadInput(f"{file} holds more than {max_files} files", fix=_BY_HAND)
        remaining_bytes = _extract(member, folder / _safe(file, member), remaining_bytes, file)


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


def _extract(member: _Member, target: Path, remaining_bytes: int, file: Path) -> int:
    """Unpack one member. Counts the bytes that really come out, not those that the header promises; returns how many
    are left."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target, "xb") as sink:
        while member.content is not None and (block := member.content.read(BLOCK)):
            remaining_bytes -= len(block)
            if remaining_bytes < 0:
                raise BadInput(f"{file} is too large when it is unpacked", fix=_BY_HAND)
            sink.write(block)
    return remaining_bytes
