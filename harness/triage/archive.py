"""An evidence directory as a zip, and a zip from anybody as a directory: no path leaves it, and its size is bounded."""

from __future__ import annotations

import atexit
import os
import shutil
import stat
import tempfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath

from harness.errors import BadInput

MAX_BYTES = 4 << 30  # unpacked; 1,024 dumps of 2,000 entries are about 1 GiB
MAX_FILES = 20_000
INDEX = "evidence.json"
BLOCK = 1 << 20


def pack(folder: Path) -> Path:
    """Zip `folder` into `<folder>.zip`, replacing an earlier one; links are left out. BadInput where there is none."""
    if not folder.is_dir():
        raise BadInput(f"{folder}: no such directory", mend="harness triage PID --out DIR")
    folder = folder.resolve()
    target = folder.with_name(f"{folder.name}.zip")
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=6, strict_timestamps=False) as zipped:
            for file in sorted(folder.rglob("*")):
                if file.is_file() and not file.is_symlink() and file != temporary:
                    zipped.write(file, file.relative_to(folder).as_posix())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    return target


def unpack(file: Path, *, max_bytes: int = MAX_BYTES, max_files: int = MAX_FILES) -> Path:
    """The zip's files in a temporary directory that goes when this process ends.

    Raises BadInput, and leaves nothing behind, for a file that is no zip, is damaged, is too large when unpacked, or
    has a member whose path would leave the directory.
    """
    folder = Path(tempfile.mkdtemp(prefix="harness-evidence-"))
    try:
        with zipfile.ZipFile(file) as zipped:
            members = [member for member in zipped.infolist() if not member.is_dir()]
            if len(members) > max_files:
                raise BadInput(f"{file} holds {len(members)} files; evidence has at most {max_files}")
            top = _top(members)
            left = max_bytes
            for member in members:
                left = _extract(zipped, member, folder / _safe(file, member, top), left, file)
    except BadInput:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, OSError) as error:
        # RuntimeError: encrypted; NotImplementedError: a compression that Python lacks; ValueError: an impossible name
        shutil.rmtree(folder, ignore_errors=True)
        raise BadInput(f"{file} is not a readable zip of evidence: {error}", mend="unzip -t FILE") from error
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _top(members: list[zipfile.ZipInfo]) -> str:
    """The folder that the whole zip lies in, when somebody zipped the directory itself; empty otherwise."""
    heads = {member.filename.split("/", 1)[0] for member in members if "/" in member.filename}
    flat = any("/" not in member.filename for member in members)
    [head] = heads if len(heads) == 1 else [""]
    indexed = any(member.filename == f"{head}/{INDEX}" for member in members)
    return f"{head}/" if head and not flat and (indexed or head not in ("processes", "recorder")) else ""


def _safe(file: Path, member: zipfile.ZipInfo, top: str) -> PurePosixPath:
    name = member.filename.removeprefix(top)
    path = PurePosixPath(name)
    link = stat.S_ISLNK(member.external_attr >> 16)
    if link or path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name or not path.parts:
        raise BadInput(f"{file}: the member {member.filename[:100]!r} would leave the directory: nothing was unpacked")
    return path


def _extract(zipped: zipfile.ZipFile, member: zipfile.ZipInfo, target: Path, left: int, file: Path) -> int:
    """Unpack one member, counting what really comes out, not what its header promises; bytes still allowed."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with zipped.open(member) as source, open(target, "xb") as sink:
        while block := source.read(BLOCK):
            left -= len(block)
            if left < 0:
                raise BadInput(f"{file} is too large when it is unpacked", mend="unzip FILE, then harness triage DIR")
            sink.write(block)
    return left
