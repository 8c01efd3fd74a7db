"""The doctors of a job's nodes, which meet in a folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from doctor_support import healthy

from harness.doctor import beside
from harness.doctor.outcome import Fine, Problem, Unseen
from harness.errors import BadInput


def another(folder: Path, **software: object) -> None:
    """What this node has left becomes that of another one."""
    [mine] = {*folder.glob("software-*.json")} - {folder / "software-other.json"}
    left = json.loads(mine.read_text())
    left["where"], left["software"] = "other", {**left["software"], **software}
    (folder / "software-other.json").write_text(json.dumps(left))


def test_the_first_node_has_nothing_to_compare_with(tmp_path: Path) -> None:
    assert beside.compare(tmp_path, healthy()) == []


def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is no directory"):
        beside.compare(tmp_path / "typo", healthy())
    assert not (tmp_path / "typo").exists()


def test_where_a_file_has_the_name_another_folder_is_named(tmp_path: Path) -> None:
    file = tmp_path / "note.txt"
    file.touch()
    with pytest.raises(BadInput) as refused:
        beside.compare(file, healthy())
    assert str(refused.value.fix).startswith(f"mkdir -p {file}.nodes;")


def test_another_python_is_told_with_its_node_and_an_equal_one_is_fine(tmp_path: Path) -> None:
    beside.compare(tmp_path, healthy())
    another(tmp_path)
    [(_, fine)] = beside.compare(tmp_path, healthy())
    assert isinstance(fine, Fine)
    another(tmp_path, python="3.12.1")
    [(where, problem)] = beside.compare(tmp_path, healthy())
    assert where == "other" and isinstance(problem, Problem) and problem.severity == "error"
    assert "there 3.12.1" in problem.measured


def test_what_cannot_be_read_is_not_checked(tmp_path: Path) -> None:
    (tmp_path / "software-other.json").write_text('{"where": "oth')
    [(where, outcome)] = beside.compare(tmp_path, healthy())
    assert where == "software-other.json" and isinstance(outcome, Unseen)


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match="is no directory"):
        beside.compare(tmp_path / "file", healthy())
