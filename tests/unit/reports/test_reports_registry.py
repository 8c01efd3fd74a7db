"""Formats: found by being there, taken from strangers, refused in one sentence."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import reports_examples as examples

import reports
from harness import cli
from probes.plugins import PluginError
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

class Raises(Shout):
    def render(self, subject):
        raise KeyError("lost")

class Leaves(Shout):
    def render(self, subject):
        raise SystemExit(0)

class Nothing(Shout):
    def render(self, subject):
        return None

class Writes(Shout):
    def write(self, subject, stream, *, verbose=False):
        raise SystemExit(0)

class Unmade(Shout):
    def __init__(self):
        raise SystemExit(0)

class Text(Shout):
    takes = "parity"
"""
PACKAGE = {
    "their_formats.py": STRANGER,
    "theirs-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: theirs\nVersion: 1\n",
    "theirs-1.dist-info/entry_points.txt": "[rlhf_harness.renderers]\n"
    + "".join(f"{name.lower()} = their_formats:{name}\n" for name in ("Shout", "Raises", "Leaves", "Missing"))
    + "json = their_formats:Shout\n",
}


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, text in PACKAGE.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "their_formats", raising=False)
    renderers._installed.cache_clear()
    yield
    renderers._installed.cache_clear()


def test_every_format_names_itself_and_the_kinds_it_takes() -> None:
    assert renderers.names("parity") == renderers.names("triage") == [
        "github", "html", "issue", "json", "junit", "line", "md", "openmetrics", "perfetto", "text",
    ]  # fmt: skip
    assert renderers.names("doctor") == ["json", "junit", "md", "text"]
    assert renderers.names("nightly") == ["github", "json", "junit", "md", "text"]
    assert renderers.names("run") == ["html", "json", "md", "openmetrics", "perfetto", "text"]
    suffixes = [renderers.find(name).suffix for name in renderers.names()]
    assert all(suffix.startswith(".") for suffix in suffixes) and len(set(suffixes)) == len(suffixes)


def test_a_class_of_a_stranger_is_a_format(stranger: None) -> None:
    assert render(examples.equivalent(), "their_formats:Shout") == "EQUIVALENT!\n"


def test_an_entry_point_is_a_format_and_is_listed(stranger: None) -> None:
    assert "shout" in renderers.names("parity") and render(examples.torn(), "shout") == "INCONCLUSIVE!\n"


def test_plugins_that_bring_no_format_are_told(stranger: None) -> None:
    assert [str(error) for error in renderers.refused()] == [
        "the renderer plug-in 'json' of theirs 1 (their_formats:Shout) cannot be used: the name 'json' is taken by the "
        "harness (reports.renderers.json)",
        "the renderer plug-in 'missing' of theirs 1 (their_formats:Missing) cannot be loaded: AttributeError: module "
        "'their_formats' has no attribute 'Missing'",
    ]
    assert render(examples.torn(), "json").startswith("{")


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("Raises", "raised KeyError: 'lost'"),
        ("Leaves", "raised SystemExit: 0"),
        ("Nothing", "raised TypeError: render() returned NoneType, which is no str"),
        ("Writes", "raised SystemExit: 0"),
        ("Unmade", "cannot be used: SystemExit: 0"),
        ("Text", "cannot be used: `takes` is no set of names"),
    ],
)
def test_what_a_strangers_renderer_does_is_its_own_fault(stranger: None, name: str, what: str) -> None:
    with pytest.raises(PluginError) as failed:
        reports.write(examples.torn(), f"their_formats:{name}", io.StringIO())
    assert str(failed.value) == f"the renderer their_formats:{name} {what}"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["raises", "leaves", "missing"])
def test_a_format_that_fails_ends_the_command_with_its_name(
    stranger: None, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "verdict.json").write_text(examples.torn().to_json())
    assert cli.main(["report", str(tmp_path), "--format", name]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(f"harness: the renderer plug-in {name!r} of theirs 1 (their_formats:")
    assert second == f"  fix: harness report {tmp_path} --format text"


def test_a_closed_output_is_no_fault_of_a_renderer(stranger: None) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        reports.write(examples.torn(), "shout", Closed())


@pytest.mark.parametrize(
    ("format", "kind", "words"),
    [
        (
            "pdf",
            "parity",
            "'pdf': it is one of github, html, issue, json, junit, line, md, openmetrics, perfetto, text, ",
        ),
        (
            "html",
            "doctor",
            "format 'html' does not take a verdict of doctor: it takes audit, parity, run, triage; json, junit",
        ),
        ("no_such_module:X", "parity", "cannot be loaded: ModuleNotFoundError: No module named 'no_such_module'"),
        ("their_formats:Missing", "parity", "cannot be loaded: AttributeError"),
        ("their_formats:Quiet", "parity", "cannot be used: it is no subclass of reports.renderers.Renderer"),
        (":", "parity", "cannot be loaded"),
    ],
)
def test_what_is_no_format_is_refused_in_one_sentence(stranger: None, format: str, kind: str, words: str) -> None:
    with pytest.raises((renderers.UnknownFormat, PluginError)) as refused:
        renderers.find(format, kind)
    assert words in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.slow
@pytest.mark.parametrize("command", [["report", "x"], ["triage"], ["doctor"], ["diff", "a", "b"], ["watch", "true"]])
def test_the_command_line_refuses_it_before_anything_starts(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    name, *arguments = command
    assert cli.main([name, "--format", "pdf", *arguments]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("harness: there is no format 'pdf'")
    assert said[1].split() == ["fix:", "harness", name, "--format", "text", *arguments]


def test_help_lists_the_formats(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert cli.main(["doctor", "--help"]) == 0
    assert "json|junit|md|text|MODULE:CLASS" in capsys.readouterr().out
