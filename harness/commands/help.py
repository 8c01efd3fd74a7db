"""`harness help`: the help of a command, as its own `--help` prints it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from harness import completion


def help(
    context: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            help="a command, such as triage or env create; default: all of them",
            metavar="COMMAND",
            autocompletion=completion.commands,
        ),
    ] = None,
) -> None:
    """Print the help of a command, or the list of all.

    \b
    Example:
      harness help env create
    """
    parent: Any = context.parent
    for word in words or []:
        group = parent.command
        if not hasattr(group, "commands"):
            break
        name, command, _ = group.resolve_command(parent, [word])
        parent = type(parent)(command, info_name=name, parent=parent)
    print(parent.get_help())
