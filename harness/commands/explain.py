"""`harness explain`: what a name in a report means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from harness import completion
from harness.commands.options import TextOrJson
from harness.commands.showing import say, show_json
from reports.layout import Page

if TYPE_CHECKING:
    from harness.glossary import Entry
    from reports.layout import Page


def explain(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="names as a report prints them: INCONCLUSIVE, 'STALE_WEIGHTS(lm_head.weight)', weight-sync, "
            "'HUNG K10'; a term; or an exit code; default: list all",
            show_default=False,
            autocompletion=completion.explained,
        ),
    ] = None,
    format: TextOrJson = "text",
) -> None:
    """Say what a verdict, a cause, a check, a hang, a term or a section's title in a report means, or an exit code, and
    what to do.

    \b
    Example:
      harness explain 'STALE_WEIGHTS(lm_head.weight)' K10
    """
    from harness import extras, glossary

    entries = glossary.find_words(names) if names else glossary.entries()
    for error in glossary.refused():
        say(str(error))
    if not names and glossary.lacking():
        say(f"causes and checks of two runs are not listed: {extras.install_command('diff')}")
    if format == "json":
        return show_json(entries)

    with Page() as page:
        if names:
            for entry in entries:
                _print(page, entry)
        else:
            page.table(("name", "kind", "meaning"), [(entry.name, entry.kind, entry.meaning) for entry in entries])


def _print(page: Page, entry: Entry) -> None:
    from rich.text import Text

    page.prose(Text.assemble((entry.name, "bold"), f"  {entry.kind}"))
    page.prose(entry.meaning, "  ")
    if entry.fix:
        page.prose(entry.fix, "  fix: ")
    for detail, meaning in entry.details.items():
        page.prose(meaning, f"  {detail}: ")
    for rival, signs in entry.rivals.items():
        page.prose(rival, "  looks the same: ")
        for sign in signs:
            page.prose(sign, "    not if ", "           ")
