"""`harness stacks`: the stacks of a job in one view."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from harness.commands.options import TextOrJson
from harness.commands.showing import say, show_json
from reports.layout import Page
from reports.sections.triage import ranks
from reports.text import agreeing, clean, counted

if TYPE_CHECKING:
    from harness.triage.folding import Folded, FoldedStack
    from reports.layout import Page

MAX_STACKS = 40  # in the text; --all prints the rest, JSON has all
MAX_NAMED = 4  # processes without a rank that a line names


def stacks(
    what: Annotated[
        list[str],
        typer.Argument(
            help="whose stacks: pids of a job that runs here, files or folders with pasted stacks (py-spy dump, "
            "pystack, gdb, faulthandler), - for the standard input, or evidence",
            show_default=False,
        ),
    ],
    all: Annotated[bool, typer.Option("--all", help=f"print every stack, not only the first {MAX_STACKS}")] = False,
    format: TextOrJson = "text",
) -> None:
    """Print the stacks of all processes in one view: equal ones once with their ranks, the rarest first.

    `>` marks your own code. Main threads come before other threads. Nothing is judged and nothing is kept.

    \b
    Example:
      harness stacks 7461
    """
    from harness.triage.folding import fold
    from harness.triage.run import look

    folded = fold(look(what, tell=say))
    if format == "json":
        return show_json(folded)
    displayed = folded.stacks if all else folded.stacks[:MAX_STACKS]
    with Page() as page:
        for stack in displayed:
            _print(page, stack, folded)
        if more := len(folded.stacks) - len(displayed):
            page.line(f"{counted(more, 'more stack')}: --all")
        for note in folded.notes:
            page.prose(_clean(note), "note  ")


def _print(page: Page, stack: FoldedStack, folded: Folded) -> None:
    from rich.text import Text

    numbers = f"{agreeing(len(stack.ranks), 'rank', 'ranks')} {ranks(stack.ranks)}" if stack.ranks else ""
    more = f" and {len(stack.processes) - MAX_NAMED} more" if len(stack.processes) > MAX_NAMED else ""
    unnamed = ", ".join(stack.processes[:MAX_NAMED]) + more
    who = _clean("; ".join(filter(None, (numbers, unnamed))))
    if stack.main:
        count = f"{stack.threads} of {counted(folded.processes, 'main thread')}"
    else:
        count = f"{counted(stack.threads, 'thread')} {_clean(stack.thread)}"
    doing = stack.doing + (f": {_clean(stack.op)}" if stack.op and stack.op != stack.doing else "")
    page.prose(Text.assemble((who, "bold"), f"   {count}, {doing}"))
    for frame in stack.frames:
        partly = f", in {frame.threads} of {stack.threads}" if frame.threads < stack.threads else ""
        line = _clean(f"{frame.function} ({frame.file}:{frame.line}){partly}")
        page.line(Text.assemble("  > " if frame.user else "    ", (line, "bold" if frame.user else "dim")))
    page.line()


def _clean(text: str) -> str:
    return clean(text)
