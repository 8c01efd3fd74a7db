"""Resolve a path that may name a bundle, or a folder within one, to a directory. All commands open bundles through
here.

A bundle may come from an untrusted source. So a process with limited memory and time unpacks it
(`harness.triage.archive`), and every file must have the size and the digest that the manifest lists.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import msgspec

from harness import extras
from harness.bundle.manifest import BUNDLE_VERSION, NAME, Manifest, Member
from harness.errors import BadInput
from harness.nearest_run import not_a_run
from harness.triage import archive

AGAIN = "harness bundle RUN   # pack it again where the run is"
MAX_MANIFEST = 16 << 20  # a choice: the manifest has one entry for each file
_FIRST = b"PK\x03\x04"  # the header of a zip's first member; the member's name begins at byte 30


def resolve(path: str | os.PathLike[str]) -> Path:
    """Return the directory to read for `path`.

    For a bundle, or a folder of one (`FILE/baseline`), this is a temporary directory that is removed when the process
    ends. Any other path is returned unchanged. Raises BadInput for a bundle that cannot be trusted.
    """
    location = Path(path)
    file = _file(location)
    if file is None:
        return location
    inside = location.relative_to(file)
    if ".." in inside.parts:
        raise BadInput(f"{location} leads out of the bundle", fix=f"harness report {file}")
    return _opened(file, file.resolve())[0] / inside


def resolve_runs(*paths: str | os.PathLike[str]) -> list[Path]:
    """Resolve the runs of a command.

    Raises BadInput for a file that is not a bundle, and for runs whose prompts were hashed with different keys.
    """
    files = [_file(Path(path)) for path in paths]
    for path, file in zip(paths, files, strict=True):
        plain = _regular(Path(path))
        if file is None and plain is not None:
            raise not_a_run(f"{plain} is a file, and no bundle", Path(path))
    folders = [resolve(path) for path in paths]
    keys = set(map(prompt_key, paths))
    if len(keys) > 1:
        raise BadInput(
            "the prompts of these runs were hashed apart: none of them could be equal",
            fix="harness bundle RUN RUN --hash-prompts",
        )
    return folders


def prompt_key(path: str | os.PathLike[str]) -> str:
    """Return the name of the key with which a bundle's prompts were hashed.

    It is empty where the prompts were not hashed, and for a path that is not in a bundle.
    """
    file = _file(Path(path))
    return _opened(file, file.resolve())[1].prompt_key if file is not None else ""


def is_bundle(path: str | os.PathLike[str]) -> bool:
    """Whether `path` is a bundle or lies within one."""
    return _file(Path(path)) is not None


def _file(path: Path) -> Path | None:
    """Return the bundle that `path` is or lies in. Only the header of the first zip member is read to recognize it."""
    file = _regular(path)
    if file is None:
        return None
    try:
        with open(file, "rb") as stream:
            head = stream.read(30 + len(NAME))
    except OSError:
        return None
    return file if head.startswith(_FIRST) and head[30:] == NAME.encode() else None


def _regular(path: Path) -> Path | None:
    """Return the file that `path` is or lies below."""
    return next((candidate for candidate in (path, *path.parents) if os.path.isfile(candidate)), None)


@cache
def _opened(file: Path, target: Path) -> tuple[Path, Manifest]:
    """Unpack and verify `file`. `target` is its resolved path, so that the cache does not depend on the working
    directory.
    """
    folder = archive.unpack(file)
    manifest = _manifest(file, folder / NAME)
    present_files = {entry.relative_to(folder).as_posix() for entry in folder.rglob("*") if entry.is_file()} - {NAME}
    for name in sorted(present_files ^ set(manifest.files)):
        what = "is not in its manifest" if name in present_files else "is missing"
        raise BadInput(f"{file}: the file {name[:100]!r} {what}: it was changed since it was packed", fix=AGAIN)
    for name, member in manifest.files.items():
        if Member.of(folder / name) != member:
            raise BadInput(
                f"{file}: the file {name[:100]!r} is not what its manifest says: it was changed or damaged", fix=AGAIN
            )
    return folder, manifest


def _manifest(file: Path, path: Path) -> Manifest:
    if path.stat().st_size > MAX_MANIFEST:
        raise BadInput(f"{file}: its manifest is larger than {MAX_MANIFEST >> 20} MiB", fix=AGAIN)
    data = path.read_bytes()
    try:
        version = msgspec.json.decode(data, type=dict[str, msgspec.Raw]).get("bundle_version", b"0")
        if int(bytes(version)) > BUNDLE_VERSION:
            raise BadInput(
                f"{file} is a bundle of version {int(bytes(version))}; the newest that this installation reads is "
                f"{BUNDLE_VERSION}",
                fix=extras.upgrade_command(),
            )
        return msgspec.json.decode(data, type=Manifest)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BadInput(f"{file} has no manifest of a bundle: {str(error)[:200]}", fix=AGAIN) from error
