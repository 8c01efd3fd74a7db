"""`make unit` runs each test file in one of its parts."""

from __future__ import annotations

from pathlib import Path

import in_parts
import pytest


def test_each_file_is_in_one_part(tmp_path: Path) -> None:
    sizes = {"a/test_1.py": 9, "a/test_2.py": 5, "a/test_3.py": 4, "b/test_1.py": 1, "b/test_2.py": 1}
    for name, size in sizes.items():
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text("#" * size)
    files = [tmp_path / name for name in sizes]
    parts = in_parts.parts_of(files, 2)
    assert sorted(file for part in parts for file in part) == sorted(files)
    assert [sum(file.stat().st_size for file in part) for part in parts] == [10, 10]


@pytest.mark.slow
def test_the_worst_exit_code_is_the_answer(tmp_path: Path) -> None:
    (tmp_path / "test_good.py").write_text("def test_good(): pass\n")
    (tmp_path / "test_bad.py").write_text("def test_bad(): assert False  # longer, so that it is in the first part\n")
    assert in_parts.run(2, [str(tmp_path)]) == 1
    (tmp_path / "test_bad.py").unlink()
    assert in_parts.run(1, [str(tmp_path), "-q"]) == 0
