"""A file that is larger than any of its kind costs no memory: it is refused by its name, or is damage."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from recordings import make, scenario

from harness import cli, config, verdict_file
from harness.bisect.journal import Journal
from harness.errors import BadInput
from harness.nightly import matrix
from harness.recordings.store import Recording
from probes import limits
from probes.format import FormatError, Run, read_manifest

SPARSE = 40 << 30  # bytes that a file says it has, and the disk does not hold


def sparse(file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("ab") as stream:
        stream.truncate(SPARSE)
    return file


def endless(file: Path) -> Path:
    file.symlink_to("/dev/zero")
    return file


def test_a_file_is_read_up_to_the_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FILE_BYTES", 3)
    (tmp_path / "a").write_bytes(b"abc")
    assert limits.read_file(tmp_path / "a") == b"abc"
    (tmp_path / "a").write_bytes(b"abcd")
    with pytest.raises(OSError, match="more than"):
        limits.read_file(tmp_path / "a")


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "refusal"), [(sparse, "MiB"), (endless, "not a regular file")])
def test_files_that_are_read_whole(kind: Callable[[Path], Path], refusal: str, tmp_path: Path) -> None:
    for read in (matrix.read, lambda file: config.load(str(file))):
        file = kind(tmp_path / f"{len(os.listdir(tmp_path))}.toml")
        with pytest.raises(BadInput, match=refusal):
            read(file)
    with pytest.raises(FormatError, match="MiB"):
        read_manifest(sparse(tmp_path / "run" / "run.json").parent)
    with pytest.raises(BadInput, match="MiB"):
        verdict_file.read(sparse(tmp_path / "verdict.json"))
    with pytest.raises(BadInput, match="MiB"):
        Journal.load(sparse(tmp_path / "search" / "bisect.jsonl").parent)


@pytest.mark.slow
@pytest.mark.parametrize("reader", [Recording, lambda path: Run(path, strict=False)])
def test_a_line_that_does_not_end_is_damage(reader: object, tmp_path: Path) -> None:
    assert callable(reader)
    run = make("baseline", scenario(steps=1, prompts=2, group=2, max_tokens=4)).write(tmp_path / "run")
    journal = sorted((run / "events").glob("*.jsonl"))[0]
    sparse(journal)
    assert any(journal.name in name and "MiB" in why for name, why in reader(run).torn)


def test_memory_that_is_not_enough_is_no_defect(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli._tell(MemoryError(), []) == 2
    assert "defect" not in capsys.readouterr().err
