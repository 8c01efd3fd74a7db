"""`make unit` runs each test file in one of its parts."""

from __future__ import annotations

import shutil
from pathlib import Path

import in_parts
import pytest


def test_each_file_is_in_one_part(tmp_path: Path) -> None:
    sizes = {"a/test_1.py": 9, "a/test_2.py": 5, "a/test_3.py": 4, "b/test_1.py": 1, "b/test_2.py": 1}
    files = [tmp_path / name for name in sizes]
    for file, size in zip(files, sizes.values(), strict=True):
        file.parent.mkdir(exist_ok=True)
        file.write_text("#" * size)
    parts = [in_parts.part_of(files, part) for part in ("1/2", "2/2")]
    assert sorted(file for part in parts for file in part) == sorted(files)
    assert [sum(file.stat().st_size for file in part) for part in parts] == [10, 10]


@pytest.mark.slow
def test_the_worst_exit_code_is_the_answer(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(Path(__file__).parents[1] / "support", tmp_path / "support")
    shutil.copy(Path(__file__).parents[1] / "conftest.py", tmp_path)
    (tmp_path / "test_good.py").write_text("def test_good(): pass\n")
    (tmp_path / "test_bad.py").write_text("def test_bad(): assert False  # longer, so that it is in the first part\n")
    assert in_parts.run(2, [str(tmp_path)]) == 1
    printed = capfd.readouterr().out
    assert printed.count("1 failed") == printed.count("1 passed") == 1
    (tmp_path / "test_bad.py").unlink()
    assert in_parts.run(1, [str(tmp_path)]) == 0
