"""Fixes for a path that cannot be written to name a free path, and a disk that is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.cli import _fix_of
from harness.other_paths import another_out, disk_of, free_path, similar_path


def test_a_free_path_is_beside_the_one_that_exists(tmp_path: Path) -> None:
    assert free_path(tmp_path / "run") == tmp_path / "run"
    (tmp_path / "run").mkdir()
    (tmp_path / "run-2").symlink_to("nowhere")
    (tmp_path / "b.zip").touch()
    assert free_path(tmp_path / "run") == tmp_path / "run-3"
    assert another_out(tmp_path / "b.zip") == f"--out {tmp_path}/b-2.zip"


def test_the_disk_of_a_file_that_is_not_there_is_that_of_its_folder(tmp_path: Path) -> None:
    file = tmp_path / "absent" / "x.sbatch"
    assert disk_of(file) == f"df -h {tmp_path}"
    assert _fix_of(OSError(28, "No space left on device", str(file))).startswith(f"df -h {tmp_path}   #")
    assert _fix_of(PermissionError(13, "Permission denied", str(file))).startswith(f"ls -ld {tmp_path}   #")


@pytest.mark.parametrize(
    ("name", "others", "meant"),
    [
        ("nonexist.py", ["none.py"], None),
        ("rum", ["run", "other"], "run"),
        ("trian.py", ["brain.py", "train.py"], "train.py"),
        ("my_mapping", ["my_mapping.py", "mapping.py"], "my_mapping.py"),
        ("mine.json", ["mine.jsonl", "mine.md"], "mine.jsonl"),
    ],
)
def test_a_path_is_meant_only_where_its_name_is_close(name: str, others: list[str], meant: str | None) -> None:
    near = similar_path(Path(name), map(Path, others))
    assert near == (Path(meant) if meant else None)
