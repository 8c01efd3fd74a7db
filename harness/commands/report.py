"""`harness report`: show a verdict again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.commands.options import Format, Verbose
from harness.commands.showing import show


def report(
    run: Annotated[str, typer.Argument(help="a directory with a verdict.json, or that file", show_default=False)],
    format: Format = "text",
    verbose: Verbose = False,
) -> None:
    """Show a verdict again, in any format."""
    import json

    from harness.errors import BadInput
    from reports.model import EXIT_CODES, Verdict

    path = Path(run) / "verdict.json" if Path(run).is_dir() else Path(run)
    try:
        verdict = Verdict.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError as error:
        raise BadInput(f"{path} does not exist", fix="harness parity … --out DIR writes one") from error
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"{path} is no verdict of this version: {error}") from error
    if verdict.kind == "parity" and verdict.exit_code != EXIT_CODES.get(verdict.verdict):
        raise BadInput(f"{path} says {verdict.verdict!r} with exit code {verdict.exit_code!r}: it was edited")
    show(verdict, format, verbose=verbose)
