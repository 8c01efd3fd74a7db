"""Make a bundle: copy the contents without secrets, render the HTML page that it opens with, and zip both."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import msgspec

import harness
import reports
from harness import verdict_file
from harness.bundle import redacted
from harness.bundle.contents import Contents, contents
from harness.bundle.manifest import BUNDLE_VERSION, INDEX, NAME, Manifest, Member
from harness.errors import BadInput, HarnessError
from harness.other_paths import another_out
from harness.triage import directory, judge
from harness.verdict_file import NAME as VERDICT
from probes import redaction
from probes.files import FILE_MODE
from probes.format import MANIFEST, SIDES, read_manifest
from reports.model import Verdict
from reports.run_model import RecordedRun

if TYPE_CHECKING:
    from harness.bundle.prompt_hashes import HashedRun
    from reports.model import Verdict
    from reports.renderers import Subject

MAX_BYTES = 1 << 30  # the limit before compression; a run of 1 M events and 10 M tokens has about 700 MiB
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the time of every member, so that the same run gives the same bundle


def pack(paths: list[Path], out: Path, *, hash_prompts: bool = False, max_bytes: int = MAX_BYTES) -> Manifest:
    """Write the bundle of a run, a pair of runs or evidence to the new file `out`.

    `max_bytes` limits the uncompressed size. Raises BadInput for wrong input, and FormatError for a run that cannot
    be read.
    """
    if out.exists():
        raise BadInput(f"{out} exists: a bundle never overwrites a file", fix=another_out(out))
    bundle_contents = contents(paths)
    for file in bundle_contents.files.values():
        if file.name == MANIFEST:
            read_manifest(file.parent)
    size = sum(file.stat().st_size for file in bundle_contents.files.values())
    if size > max_bytes:
        name, largest = max(bundle_contents.files.items(), key=lambda item: item[1].stat().st_size)
        raise BadInput(
            f"{paths[0]} has {size:,} bytes, a bundle at most {max_bytes:,}; the largest file is {name} with "
            f"{largest.stat().st_size:,}",
            fix=f"--max-size {-(-size >> 20)}M",
        )
    with tempfile.TemporaryDirectory(prefix="harness-bundle-") as folder:
        staging = Path(folder)
        manifest = _staged(bundle_contents, staging, hash_prompts)
        subject = _subject(bundle_contents, staging)
        (staging / INDEX).write_text(_page(subject, staging), encoding="utf-8")
        names = sorted(file.relative_to(staging).as_posix() for file in staging.rglob("*") if file.is_file())
        manifest = dataclasses.replace(manifest, files={name: Member.of(staging / name) for name in names})
        _zip(staging, manifest, out)
    return manifest


def _staged(bundle_contents: Contents, staging: Path, hash_prompts: bool) -> Manifest:
    """Copy every file to `staging`. A file from which secrets cannot be removed is left out, and noted in the
    manifest.
    """
    notes, runs = [], _Hashes(bundle_contents) if hash_prompts else None
    for own_name, source in bundle_contents.files.items():
        run = runs.of(own_name) if runs is not None else None
        name = redaction.file_name(own_name)
        try:
            redacted.copy(
                name,
                source,
                staging / name,
                run.event if run is not None else lambda event: event,
                run.frame if run is not None else lambda frame: frame,
            )
        except (ValueError, RecursionError) as error:
            (staging / name).unlink(missing_ok=True)
            notes.append(f"{name} cannot be read, so it cannot be cleared of secrets: {error}")
        except OSError as error:
            fix = f"ls -l {shlex.quote(str(source))}; df -h {tempfile.gettempdir()}"
            raise HarnessError(f"{source} cannot be copied: {error.strerror}", fix=fix) from error
    key = runs.key if runs is not None else ""
    return Manifest(BUNDLE_VERSION, bundle_contents.kind, harness.__version__, {}, key, notes)


class _Hashes:
    """The recordings of a bundle with hashed prompts, by the folder that contains them."""

    def __init__(self, bundle_contents: Contents) -> None:
        from harness.bundle.prompt_hashes import HashedRun, PromptHash  # imported late: it reads recordings

        key = PromptHash()
        self.key = key.name
        self._runs = {
            PurePosixPath(name).parent: HashedRun(file.parent, key)
            for name, file in bundle_contents.files.items()
            if PurePosixPath(name).name == MANIFEST
        }

    def of(self, name: str) -> HashedRun | None:
        return self._runs.get(PurePosixPath(name).parent.parent)


def _subject(bundle_contents: Contents, staging: Path) -> Subject:
    """Return what the page shows: the stored verdict, the recorded run where there is only a run, or a new verdict.

    A new verdict is also written into `staging`.
    """
    if (staging / VERDICT).is_file():
        return verdict_file.read(staging)
    if bundle_contents.kind == "run":
        return dataclasses.replace(RecordedRun.of(staging), run="this bundle")
    verdict = _within(_judged(bundle_contents, staging), staging)
    (staging / VERDICT).write_text(verdict.to_json(), encoding="utf-8")
    return verdict


def _judged(bundle_contents: Contents, staging: Path) -> Verdict:
    if bundle_contents.kind == "evidence":
        return dataclasses.replace(judge.triage(directory.read(staging)), reproduce="harness triage BUNDLE")
    from harness.parity.verdict import judge as judge_pair

    verdict = judge_pair(*(staging / side for side in SIDES))
    return dataclasses.replace(verdict, reproduce="harness diff BUNDLE")


def _within(verdict: Verdict, staging: Path) -> Verdict:
    """Return the verdict with paths relative to the bundle."""
    if verdict.parity is None:
        return dataclasses.replace(verdict, paths={})
    runs = [
        dataclasses.replace(run, path=run.side if (staging / run.side).is_dir() else run.path)
        for run in verdict.parity.runs
    ]
    return dataclasses.replace(verdict, parity=dataclasses.replace(verdict.parity, runs=runs), paths={})


def _page(subject: Subject, staging: Path) -> str:
    """Render the page, with paths relative to the bundle."""
    if isinstance(subject, Verdict):
        subject = _within(subject, staging)
    with contextlib.chdir(staging):  # the page shows samples from this folder
        return reports.render(subject, "html")


def _zip(staging: Path, manifest: Manifest, out: Path) -> None:
    """Write the zip file atomically. The manifest is its first member, by which `opening` recognizes a bundle."""
    temporary = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE)
        with os.fdopen(handle, "wb") as stream, zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as zipped:
            zipped.writestr(zipfile.ZipInfo(NAME, _EPOCH), msgspec.json.format(msgspec.json.encode(manifest)))
            for name in _page_first(manifest):
                entry = zipfile.ZipInfo(name, _EPOCH)
                entry.compress_type = zipfile.ZIP_DEFLATED
                with open(staging / name, "rb") as source, zipped.open(entry, "w") as sink:
                    while block := source.read(1 << 20):
                        sink.write(block)
        os.replace(temporary, out)
    except OSError as error:
        raise HarnessError(f"{out} cannot be written: {error.strerror}", fix="--out FILE") from error
    finally:
        with contextlib.suppress(OSError):  # fails on a read-only file system
            temporary.unlink()


def _page_first(manifest: Manifest) -> Iterator[str]:
    yield INDEX
    yield from (name for name in manifest.files if name != INDEX)
