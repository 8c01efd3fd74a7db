"""What several commands take: durations and sizes."""

from __future__ import annotations

from typing import Any

import pytest

from harness import cli
from harness.errors import BadInput
from harness.quantities import seconds, size, stall_seconds


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("60s", 60.0),
        ("5m", 300.0),
        ("1h", 3600.0),
        ("90", 90.0),
        ("1.5m", 90.0),
        ("500ms", 0.5),
        ("60", 60),
        ("1.5 h", 5400),
        ("2min", 120),
        ("3sec", 3),
    ],
)
def test_durations(text: str, value: float) -> None:
    assert seconds(text) == pytest.approx(value)


@pytest.mark.parametrize(
    "text", ["", "0", "soon", "-5s", "5 days", "5x", "-3s", "0s", "s", "1h30", "nan", "inf", "1e3s"]
)
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(BadInput, match="is not a duration"):
        seconds(text)


def test_zero_watches_nothing_where_a_command_allows_it() -> None:
    assert stall_seconds("0") == stall_seconds(" 0s ") == 0.0 and stall_seconds("90s") == 90.0
    with pytest.raises(BadInput, match="is not a duration"):
        stall_seconds("0x")


@pytest.mark.parametrize(
    ("text", "value"), [("4096", 4096), ("64K", 64 << 10), ("500M", 500 << 20), ("1.5g", 3 << 29), ("2GiB", 2 << 30)]
)
def test_sizes(text: str, value: int) -> None:
    assert size(text) == value


@pytest.mark.parametrize("text", ["", "0", "x", "-1M", "1P", "M"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(BadInput, match="is not a size"):
        size(text)


@pytest.mark.slow
@pytest.mark.parametrize("columns", [40, 80, 200])
def test_help_is_cut_nowhere(columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))

    def walk(command: Any, words: tuple[str, ...]) -> None:
        assert cli.main([*words, "--help"]) == 0
        lines = capsys.readouterr().out.splitlines()
        for line in lines:  # only a word that cannot be broken may be wider
            assert len(line) <= columns or max(map(len, line.split())) > columns - 16, line
        told = "".join("".join(lines).split())  # a line may end at any hyphen
        texts = [(command.help or "").split("\n\n")[0], *(item.help or "" for item in command.params)]
        options = [item for item in command.params if item.param_type_name == "option"]
        names = [name for item in options for name in item.opts]
        children = getattr(command, "commands", {})
        texts += [(child.help or "").split("\n\n")[0] for child in children.values()]
        for text in (*texts, *names, *children):
            assert "".join(text.split()) in told, (words, text)
        for name, child in children.items():
            walk(child, (*words, name))

    walk(cli.commands(), ())
