"""`--format`, and how every command prints what it found: the formats and their help come from `reports.renderers`."""

from __future__ import annotations

import contextlib
import difflib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import typer

import reports
from harness.aside import print_aside
from harness.errors import BadInput, closest
from probes.plugins import PluginError
from reports import codec, renderers
from reports.progress import progress as view
from reports.text import clean_lines

if TYPE_CHECKING:
    from reports.renderers import Subject


def format_option(kind: str, help: str = "the format of what is printed; progress goes to stderr") -> Any:
    """The option of a command that prints this kind of verdict; an unknown format is refused before anything starts."""

    def check(format: str) -> str:
        try:
            renderers.find(format, kind)
        except (renderers.UnknownFormat, PluginError) as error:
            formats = [name for name in renderers.names(kind) if name != format]  # it may be one that cannot be loaded
            near = difflib.get_close_matches(format, formats, n=1)
            fix = f"--format {near[0] if near else 'text'}"
            raise BadInput(f"{error}{closest(format, formats)}", fix=fix) from error
        return format

    metavar = "|".join([*renderers.names(kind), "MODULE:CLASS"])
    return typer.Option("--format", help=help, metavar=metavar, callback=check)


def show(subject: Subject, format: str, *, verbose: bool = False) -> NoReturn:
    """Print it and leave with its exit code."""
    try:
        reports.write(subject, format, sys.stdout, verbose=verbose)
    except (renderers.UnknownFormat, PluginError) as error:  # of a command that shows more than one kind; or it raises
        raise BadInput(str(error), fix="--format text") from error
    raise typer.Exit(getattr(subject, "exit_code", 0))


def show_json(value: Any) -> None:
    """Print plain data, dataclasses among it, as JSON."""
    print(codec.dumps(codec.builtins(value)), end="")


def show_aside(subject: Subject, format: str) -> None:
    """Print it to stderr, where stdout is the command's own; as text where a plug-in's format raises, since that must
    not end the command."""
    try:
        reports.write(subject, format, sys.stderr)
    except PluginError as error:
        say(str(error))
        reports.write(subject, "text", sys.stderr)


@contextlib.contextmanager
def progress() -> Iterator[Any]:
    """The progress of a run, on stderr."""
    from reports.console import terminal_console

    with view(terminal_console(stderr=True)) as live_view:
        yield live_view


def say(line: str) -> None:
    """Print a line for the user to stderr."""
    print_aside(clean_lines(f"harness: {line}"))
