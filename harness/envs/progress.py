"""Progress of making an environment: a bar on a terminal, otherwise one plain line per step."""

from __future__ import annotations

import re
import sys
import time
from typing import Any, Protocol, Self, TextIO

from harness.aside import print_aside


class Progress(Protocol):
    """Receives the progress of a long operation: `step` starts a step, `detail` is a line of output within it."""

    def step(self, text: str) -> None: ...
    def detail(self, line: str) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None: ...


class Silent:
    """Shows no progress."""

    def step(self, text: str) -> None:
        pass

    def detail(self, line: str) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Plain(Silent):
    """Prints one line per step with the seconds since the start, for logs and CI."""

    def __init__(self, title: str, stream: TextIO) -> None:
        self._title = title
        self._stream = stream
        self._start = time.monotonic()

    def step(self, text: str) -> None:
        print_aside(f"{self._title}: {text} [{time.monotonic() - self._start:.0f} s]", self._stream)


def announce(text: str) -> None:
    """What is about to be done unasked, before it begins."""
    print_aside(f"harness: {text}")


class Downloads:
    """The requested and received megabytes, parsed from uv's output. They are only displayed, so unknown lines do no
    harm.
    """

    _STARTED = re.compile(r"\s*Downloading (\S+) \(([\d.]+)([KMG])iB\)")
    _DONE = re.compile(r"\s*Downloaded (\S+)")

    def __init__(self) -> None:
        self._sizes: dict[str, float] = {}
        self.done = 0.0

    @property
    def total(self) -> float:
        return sum(self._sizes.values())

    def read(self, line: str) -> bool:
        """Whether the line was about a download. Its numbers are counted."""
        if match := self._STARTED.match(line):
            self._sizes[match[1]] = float(match[2]) * {"K": 1 / 1024, "M": 1.0, "G": 1024.0}[match[3]]
        elif match := self._DONE.match(line):
            self.done += self._sizes.get(match[1], 0.0)
        return match is not None


class Bar:
    """A progress bar of rich: the step, uv's output, the megabytes where they are known, and the time."""

    def __init__(self, title: str, stream: TextIO) -> None:
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        from reports.console import terminal_console

        self._rich = Progress(
            SpinnerColumn(),
            TextColumn("[bold]{task.fields[title]}[/] {task.description}"),
            BarColumn(bar_width=24),
            TextColumn("[dim]{task.fields[detail]}"),
            TimeElapsedColumn(),
            console=terminal_console(file=stream),
            transient=False,
        )
        self._task = self._rich.add_task("", title=title, detail="", total=None)
        self._downloads = Downloads()

    def step(self, text: str) -> None:
        self._rich.update(self._task, description=text, detail="", total=None)

    def detail(self, line: str) -> None:
        if self._downloads.read(line):
            done, total = self._downloads.done, self._downloads.total
            text = f"{done:,.0f} of {total:,.0f} MiB"
            # One more than the total: a task that was ever complete stops its clock, and more steps follow.
            self._rich.update(self._task, completed=done, total=total + 1, detail=text)
        else:
            from rich.markup import escape

            self._rich.update(self._task, detail=escape(line.strip()[:60]))

    def __enter__(self) -> Self:
        self._rich.start()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None:
            self._rich.update(self._task, total=1, completed=1, detail="")
        self._rich.stop()


def console(title: str, stream: TextIO | None = None) -> Progress:
    """Return a bar when the stream (default: stderr) is a terminal, else plain lines."""
    stream = sys.stderr if stream is None else stream
    return Bar(title, stream) if stream.isatty() else Plain(title, stream)
