"""Formats: found by being there, taken from strangers, refused in one sentence."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import reports_examples as examples

from harness import cli
from reports import render, renderers

STRANGER = """
from reports.renderers import Renderer

class Shout(Renderer):
    name = "shout"
    suffix = ".txt"
    def render(self, subject):
        return subject.verdict.upper() + "!\\n"

class Quiet:
    name = "quiet"
"""


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "their_formats.py").write_text(STRANGER)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "their_formats", raising=False)


def test_every_format_names_itself_and_the_kinds_it_takes() -> None:
    assert renderers.names("parity") == renderers.names("triage") == [
        "html", "issue", "json", "junit", "md", "openmetrics", "perfetto", "text",
    ]  # fmt: skip
    assert renderers.names("doctor") == ["json", "junit", "md", "text"]
    assert renderers.names("nightly") == ["github", "json", "junit", "md", "text"]
    assert renderers.names("run") == ["html", "json", "md", "openmetrics", "perfetto", "text"]
    suffixes = [renderers.find(name).suffix for name in renderers.names()]
    assert all(suffix.startswith(".") for suffix in suffixes) and len(set(suffixes)) == len(suffixes)


def test_a_class_of_a_stranger_is_a_format(stranger: None) -> None:
    assert render(examples.equivalent(), "their_formats:Shout") == "EQUIVALENT!\n"


def test_an_entry_point_is_a_format_and_is_listed(stranger: None, monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("shout", "their_formats:Shout", renderers.GROUP)
    monkeypatch.setattr(renderers, "_installed", lambda: {"shout": point})
    assert renderers.names("parity")[-1] == "shout" and render(examples.torn(), "shout") == "INCONCLUSIVE!\n"


@pytest.mark.parametrize(
    ("format", "kind", "words"),
    [
        (
            "pdf",
            "parity",
            "'pdf': it is one of html, issue, json, junit, md, openmetrics, perfetto, text, or package.module:Class",
        ),
        (
            "html",
            "doctor",
            "format 'html' does not take a verdict of doctor: it takes parity, run, triage; json, junit",
        ),
        ("no_such_module:X", "parity", "cannot be loaded: ModuleNotFoundError: No module named 'no_such_module'"),
        ("their_formats:Missing", "parity", "cannot be loaded: AttributeError"),
        ("their_formats:Quiet", "parity", "their_formats:Quiet is no subclass of reports.renderers.Renderer"),
        (":", "parity", "cannot be loaded"),
    ],
)
def test_what_is_no_format_is_refused_in_one_sentence(stranger: None, format: str, kind: str, words: str) -> None:
    with pytest.raises(renderers.UnknownFormat) as refused:
        renderers.find(format, kind)
    assert words in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("command", [["report", "x"], ["triage"], ["doctor"], ["diff", "a", "b"], ["watch", "true"]])
def test_the_command_line_refuses_it_before_anything_starts(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    name, *arguments = command
    assert cli.main([name, "--format", "pdf", *arguments]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("harness: there is no format 'pdf'") and said[1] == "  fix: --format text"


def test_help_lists_the_formats(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert cli.main(["doctor", "--help"]) == 0
    assert "json|junit|md|text|MODULE:CLASS" in capsys.readouterr().out
