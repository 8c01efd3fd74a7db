"""A value that an option cannot take is refused with the value, and with what is wanted."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import cli
from harness.errors import BadInput
from harness.quantities import seconds
from probes.files import make_folder


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[str, str]:
    """The sentence and the fix of a command line that ends with 2."""
    assert cli.main([*words]) == 2
    sentence, fix = capsys.readouterr().err.splitlines()
    return sentence, fix.removeprefix("  fix: ")


@pytest.mark.parametrize("below", ["", "/y", "/y/z"])
def test_a_folder_below_a_file_names_the_file(tmp_path: Path, below: str) -> None:
    file = tmp_path / "x.jpg"
    file.write_text("")
    with pytest.raises(NotADirectoryError) as refusal:
        make_folder(f"{file}{below}")
    assert refusal.value.filename == str(file) and str(file) in (refusal.value.strerror or "")
    assert [*tmp_path.iterdir()] == [file]


@pytest.mark.parametrize(("text", "is_above"), [("0s", True), ("0", True), ("soon", False), ("-5s", False)])
def test_a_duration_of_nothing_is_told_from_no_duration(text: str, is_above: bool) -> None:
    with pytest.raises(BadInput) as refusal:
        seconds(text)
    assert repr(text) in refusal.value.message and ("above 0" in refusal.value.message) is is_above


@pytest.mark.parametrize(
    ("words", "value", "wanted"),
    [
        (("parity", "vllm", "sglang", "--steps", "three"), "'three'", "a whole number"),
        (("watch", "--keep", "1", "--", "true"), "'1'", "greater than or equal to 2"),
        (("mapping", "file.py", "--timeout", "long"), "'long'", "a number"),
    ],
)
def test_a_number_that_is_none_is_quoted_with_what_is_wanted(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], value: str, wanted: str
) -> None:
    sentence, _ = refused(capsys, *words)
    assert value in sentence and wanted in sentence and words[-2 if words[-1] != "true" else 1] in sentence


def test_an_out_without_an_export_is_what_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two").mkdir()
    sentence, fix = refused(capsys, "report", "two", "--out", "foo")
    assert "--export" in sentence and fix == "harness report two --format text > foo"


def test_json_that_is_no_verdict_is_not_judged_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "x.json"
    file.write_text("{}")
    sentence, fix = refused(capsys, "report", str(file))
    assert str(file) in sentence and "harness diff" not in fix


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("report", "x", "--format", "line", "--format", "md"), "--format"),
        (("watch", "--stall", "5s", "--stall=6s", "--", "true"), "--stall"),
        (("faults", "list", "--suite", "hang", "--suite", "hang"), "--suite"),
    ],
)
def test_an_option_of_one_value_is_given_once(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], option: str
) -> None:
    sentence, fix = refused(capsys, *words)
    assert sentence.startswith(f"harness: {option} ") and option in fix


def test_what_may_be_repeated_may_be_given_twice() -> None:
    """Options of several values, flags, and whatever the watched command takes."""
    assert cli.parsed("mapping", ["f.py", "--function", "a", "--function", "b"]).params["function"] == ["a", "b"]
    assert cli.parsed("report", ["x", "--verbose", "--verbose"]).params["verbose"] is True
    command = ["train.py", "--stall", "1", "--stall", "2"]
    assert cli.parsed("watch", ["--stall", "5s", "--", *command]).params["command"] == command
