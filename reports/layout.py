"""Lays out lines for a terminal or a pipe: words wrap at blanks, a path is never cut, an ASCII terminal gets ASCII.

Rich's own tables fold a word that is wider than its column, and a path that is folded over two lines cannot be
copied. So rows are laid out here: a row with a word wider than its column becomes one line per cell.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Self

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from reports.console import terminal_console
from reports.pipe import outlive_reader

Cell = str | Text
_GAP = 2  # between the columns of a table

_ASCII = {
    "–": "-",
    "≠": "#",
    "✓": "+",
    "✗": "X",
    "○": "?",
    "·": "|",
    "─": "-",
    "━": "=",
    "┃": "|",
    "×": "x",
    "Δ": "d",
    "≤": "<=",
    "≥": ">=",
}


class Page:
    """Writes to a console, one whole line per call, at most `columns` (40 to 120) wide where the words allow it.

    In a `with` block, output is silenced when its reader goes away (`reports.pipe`).
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console = console or terminal_console()
        self._reader = outlive_reader(console)
        self.columns = max(40, min(console.width, 120))
        self._unicode = (console.encoding or "").lower().startswith("utf")

    def __enter__(self) -> Self:
        self._reader.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._reader.__exit__(*raised)

    def line(self, text: Cell = "") -> None:
        """Print one line unchanged: neither wrapped nor cut, so that a terminal wraps it and a pipe keeps it whole."""
        styled = _text(text)
        styled.rstrip()
        if not self._unicode and not styled.plain.isascii():
            styled = Text("".join(map(to_ascii, styled.plain)), styled.style)
        self.console.print(styled, soft_wrap=True, highlight=False, markup=False, emoji=False)

    def prose(self, text: Cell, first: Cell = "", indent: Cell | None = None) -> None:
        """Print a paragraph wrapped at blanks: `first` before its first line, `indent` (or blanks) before the others.

        On a terminal, a list that is wider than a line, as in the name of a cause, is broken after commas, and a text
        of special tokens after those. A path is never broken.
        """
        lead = cell_len(_text(first).plain)
        indent = " " * lead if indent is None else indent
        width = self.columns - max(lead, cell_len(_text(indent).plain))
        for index, part in enumerate(wrap(text, width, fold=self.console.is_terminal)):
            self.line(Text.assemble(_text(indent if index else first), part))

    def command(self, text: Cell, label: Cell = "", remark: str = "") -> None:
        """Print a command that can be copied, with a remark behind `#`.

        It is one line in a pipe, and on a terminal where it fits. Otherwise it is broken with backslashes, and the
        remark gets lines of its own.
        """
        command, lead = _text(text), cell_len(_text(label).plain)
        comment = Text(f"   # {remark}" if remark else "", "dim")
        if not self.console.is_terminal or lead + command.cell_len + comment.cell_len <= self.columns:
            self.line(Text.assemble(_text(label), command, comment))
            return
        indent, lines = " " * lead, [Text()]
        for word in _words(command):
            if lines[-1].cell_len and lines[-1].cell_len + 1 + word.cell_len + 2 > self.columns - lead:
                lines.append(word)
            else:
                lines[-1] = Text.assemble(lines[-1], " ", word) if lines[-1].cell_len else word
        for index, part in enumerate(lines):
            more = " \\" if index < len(lines) - 1 else ""
            self.line(Text.assemble(indent if index else _text(label), part, more))
        if remark:
            self.prose(Text(remark, "dim"), f"{indent}# ", f"{indent}# ")

    def path(self, text: Cell, label: Cell) -> None:
        """Print a path after its label; on a line of its own where both do not fit on a terminal. A path is never
        broken.
        """
        path, label = _text(text), _text(label)
        if self.console.is_terminal and label.cell_len + path.cell_len > self.columns:
            self.line(label)
            self.line(path)
        else:
            self.line(Text.assemble(label, path))

    def rule(self, char: str = "─", style: str = "dim") -> None:
        self.line(Text(char * self.columns, style))

    def heading(self, title: str, note: str = "") -> None:
        """Print a section's title with a remark, between an empty line and a rule."""
        self.line()
        self.prose(Text.assemble((title, "bold"), (f"   {note}" if note else "", "dim")))
        self.rule()

    def row(self, cells: Sequence[Cell], widths: Sequence[int], names: Sequence[str], gap: int = 1) -> None:
        """Print one row of a table: cells wrapped in columns of `widths`, or one line per cell where a word or the
        row is too wide.

        `names` label those lines. A cell with an empty name stays on the row's first line.
        """
        fits = sum(widths) + gap * (len(widths) - 1) <= self.columns
        if fits and all(_widest_word(cell) <= width for cell, width in zip(cells, widths, strict=True)):
            self._aligned(cells, widths, gap)
        else:
            self._stacked(cells, widths, names, gap)

    def fits(self, names: Sequence[str], rows: Sequence[Sequence[Cell]]) -> bool:
        """Whether `table` prints one line per row: always in a pipe, and on a terminal that is wide enough."""
        return not self.console.is_terminal or _width(_column_widths(names, rows)) <= self.console.width

    def table(self, names: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
        """Print a head and one line per row. On a terminal that is too narrow, print one line per cell below the
        row's first cell.
        """
        if not self.fits(names, rows):
            for row in rows:
                self._stacked(row, [0] * len(row), ["", *names[1:]], gap=0)
            return
        widths = _column_widths(names, rows)
        for line in ([Text(name, "bold") for name in names], *rows):
            padded = [Text.assemble(_text(cell), " " * (width - _text(cell).cell_len))
                      for cell, width in zip(line, widths, strict=True)]  # fmt: skip
            self.line(Text(" " * _GAP).join(padded))

    def _aligned(self, cells: Sequence[Cell], widths: Sequence[int], gap: int) -> None:
        parts = [wrap(cell, width) for cell, width in zip(cells, widths, strict=True)]
        for index in range(max(len(part) for part in parts)):
            line = Text()
            for part, width in zip(parts, widths, strict=True):
                cell = part[index] if index < len(part) else Text()
                line = Text.assemble(line, cell, " " * (width - cell.cell_len + gap))
            self.line(line)

    def _stacked(self, cells: Sequence[Cell], widths: Sequence[int], names: Sequence[str], gap: int) -> None:
        head, indent = Text(), widths[0] + gap + 2
        for cell, width, name in zip(cells, widths, names, strict=True):
            if not name:
                head = Text.assemble(head, _text(cell), " " * (max(0, width - _text(cell).cell_len) + gap))
        head.rstrip()
        self.prose(head, indent=" " * indent)
        pad = label_width(names)
        for cell, name in zip(cells, names, strict=True):
            if name and _text(cell).plain:
                label = Text.assemble(" " * indent, (name + " " * max(0, pad - cell_len(name)), "dim"), "  ")
                self.prose(_text(cell), label)


def _column_widths(names: Sequence[str], rows: Sequence[Sequence[Cell]]) -> list[int]:
    return [max(_text(cell).cell_len for cell in column) for column in zip(names, *rows, strict=True)]


def _width(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * (len(widths) - 1)


def label_width(names: Iterable[str]) -> int:
    """Return the width to which labels are padded: the longest of those with at most 24 cells."""
    return max((cell_len(name) for name in names if cell_len(name) <= 24), default=0)


def wrap(cell: Cell, width: int, *, fold: bool = False) -> list[Text]:
    """Return lines of at most `width` cells; a longer word stays whole.

    With `fold`, a longer word that is not a path is broken after commas and special tokens.
    """
    text = _text(cell)
    if text.cell_len <= width:
        return [text]
    lines: list[Text] = []
    for word in text.split(" ", allow_blank=True):
        first, *following = _folded(word, width) if fold else [word]
        if lines and (not lines[-1].cell_len or lines[-1].cell_len + 1 + first.cell_len <= width):
            lines[-1] = Text.assemble(lines[-1], " ", first) if lines[-1].cell_len else first
        else:
            lines.append(first)
        lines += following
    return lines


def _folded(word: Text, width: int) -> list[Text]:
    """Split a word after commas and special tokens (<|end|>) into parts of at most `width` cells where possible."""
    if word.cell_len <= width or "/" in word.plain:
        return [word]
    parts: list[Text] = []
    for piece in re.finditer(r"[^,>]*[,>]?", word.plain):
        part = word[piece.start() : piece.end()]
        if parts and parts[-1].cell_len + part.cell_len <= width:
            parts[-1] = Text.assemble(parts[-1], part)
        elif part.cell_len:
            parts.append(part)
    return parts


def _words(command: Text) -> list[Text]:
    """Return the words of a shell command; quoted ones stay whole."""
    spans = [match.span() for match in re.finditer(r"""(?:[^\s'"]|'[^']*'|"[^"]*"|['"])+""", command.plain)]
    return [command[start:end] for start, end in spans]


def _text(cell: Cell) -> Text:
    return cell.copy() if isinstance(cell, Text) else Text(cell)


def _widest_word(cell: Cell) -> int:
    return max(cell_len(word) for word in _text(cell).plain.split(" "))


def to_ascii(char: str) -> str:
    """Return a character's replacement on a terminal that has only ASCII."""
    return char if char.isascii() else _ASCII.get(char) or char.encode("ascii", "backslashreplace").decode()
