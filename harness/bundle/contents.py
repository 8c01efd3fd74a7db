"""Select the files of a directory that go into a bundle: exactly those that `diff`, `report` and `triage` read."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from harness.bundle.manifest import Kind
from harness.bundle.opening import is_bundle
from harness.errors import BadInput
from harness.nearest_run import MAKES, not_a_run
from harness.triage import archive, directory, pasted
from harness.triage.run import WATCH, newest
from harness.verdict_file import NAME as VERDICT
from probes.format import EVENTS, INDEX, LIFTED, MANIFEST, SIDES, TOKENS
from probes.heartbeat import WATCHDOG


@dataclass(frozen=True)
class Contents:
    """The contents of a bundle. `files` maps the path within the bundle to the source file."""

    kind: Kind
    files: dict[str, Path]


def contents(paths: list[Path]) -> Contents:
    """List the contents of one directory (a run, a pair of runs, evidence, or a watched job) or of two runs.

    Raises BadInput for anything else.
    """
    if len(paths) == 2:
        for path in paths:
            if not (path / MANIFEST).is_file():
                raise not_a_run(f"{path} is not a run directory: it has no {MANIFEST}", path)
        sides = zip(SIDES, paths, strict=True)
        return Contents("pair", {name: file for side, path in sides for name, file in _run(path, f"{side}/")})
    [path] = paths
    if is_bundle(path):
        raise BadInput(f"{path} is a bundle already", fix=f"harness report {path}")
    if not path.exists():
        raise BadInput(f"{path}: no such file or directory", fix=f"ls {shlex.quote(str(_existing(path)))}")
    if path.is_file():
        raise BadInput(f"{path} is a file, and a bundle is made of a directory", fix=_triaged(path))
    if (path / MANIFEST).is_file():
        return Contents("run", dict([*_named(path, VERDICT), *_run(path), *_newest_evidence(path)]))
    if all((path / side / MANIFEST).is_file() for side in SIDES):
        files = [*_named(path, VERDICT), *_newest_evidence(path / WATCH, f"{WATCH}/")]
        return Contents("pair", dict([*files, *(entry for side in SIDES for entry in _run(path / side, f"{side}/"))]))
    evidence = path if directory.is_evidence(path) else newest(path) or newest(path / WATCH)
    if evidence is None or evidence.is_file():
        raise _nothing_in(path)
    return Contents("evidence", dict(_evidence(evidence)))


def _nothing_in(path: Path) -> BadInput:
    """The error for a folder without anything to bundle. Its fix names the newest of what is right below it."""
    message = f"{path} holds neither a run ({MANIFEST}), nor a pair of runs, nor evidence of a hang"
    below = [folder for folder in path.iterdir() if folder.is_dir() and _is_bundled(folder)]
    if not below:
        return BadInput(message, fix=_triaged(path) if _to_triage(path) else MAKES)
    youngest = max(below, key=lambda folder: folder.stat().st_mtime)
    which = "   # the newest of several" if len(below) > 1 else ""
    return BadInput(f"{message} itself", fix=shlex.quote(str(youngest)) + which, instead=str(path))


def _is_bundled(folder: Path) -> bool:
    pair = all((folder / side / MANIFEST).is_file() for side in SIDES)
    return pair or (folder / MANIFEST).is_file() or directory.is_evidence(folder)


def _to_triage(folder: Path) -> bool:
    """Whether it holds recorder dumps, or text in which something was recognised."""
    evidence = pasted.evidence([str(folder)])
    found = evidence is not None and (evidence.processes or evidence.errors or evidence.dumps)
    return bool(found) or any(map(directory.is_dump, folder.iterdir()))


def _triaged(path: Path) -> str:
    """The commands that make evidence of recorder dumps or pasted stacks, which is then bundled."""
    words, out = shlex.quote(str(path)), shlex.quote(f"{path.resolve().name or 'hang'}-evidence")
    return f"harness triage {words} --out {out}; harness bundle {out}   # if it holds stacks or recorder dumps"


def _existing(path: Path) -> Path:
    """The last folder on the way to a path that exists."""
    return next(folder for folder in (path.parent, *path.parent.parents, Path("/")) if folder.is_dir())


def _run(run: Path, prefix: str = "") -> list[tuple[str, Path]]:
    parts = [(run, prefix)]
    if (run / LIFTED / MANIFEST).is_file():
        parts.insert(0, (run / LIFTED, f"{prefix}{LIFTED}/"))  # the run's index lists its files
    copy = shlex.quote(f"{run}-copy")
    for folder, _ in parts:
        if not _plain(folder / MANIFEST):
            raise BadInput(
                f"{folder / MANIFEST} is a link, and a bundle follows none",
                fix=f"cp -rL {shlex.quote(str(run))} {copy} && harness bundle {copy}",
            )
    return [
        entry
        for folder, before in parts
        for entry in (
            *_named(folder, MANIFEST, before),
            *_all(folder, EVENTS, "*.jsonl", before),
            *_all(folder, TOKENS, "*.bin", before),
            *_named(folder, INDEX, before),
        )
    ]


def _evidence(folder: Path, prefix: str = "") -> list[tuple[str, Path]]:
    return [
        *_named(folder, archive.INDEX, prefix),
        *_named(folder, VERDICT, prefix),
        *_all(folder, directory.PROCESSES, "*.json", prefix),
        *_all(folder, directory.RECORDER, "*", prefix),
    ]


def _newest_evidence(run: Path, prefix: str = "") -> list[tuple[str, Path]]:
    evidence = newest(run)
    if evidence is None or not evidence.is_dir():
        return []
    return [*_named(run, WATCHDOG, prefix), *_evidence(evidence, f"{prefix}evidence/{evidence.name}/")]


def _named(folder: Path, name: str, prefix: str = "") -> list[tuple[str, Path]]:
    return [(f"{prefix}{name}", folder / name)] if _plain(folder / name) else []


def _all(folder: Path, part: str, pattern: str, prefix: str) -> list[tuple[str, Path]]:
    return [(f"{prefix}{part}/{file.name}", file) for file in sorted((folder / part).glob(pattern)) if _plain(file)]


def _plain(file: Path) -> bool:
    return file.is_file() and not file.is_symlink()
