"""Options that several commands share, each written once; those of a run and of its judge are in
`harness/parity/runs/run_options.py`.
"""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from harness.commands.showing import format_option

Format = Annotated[str, format_option("parity")]
TextOrJson = Annotated[
    Literal["text", "json"], typer.Option("--format", help="the format: text for people, json for programs")
]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose",
        "-v",
        help="also print the tables: every metric of a run; both runs, every metric, check and finding of a comparison",
    ),
]
TokenFile = Annotated[
    str,
    typer.Option(
        "--token-file",
        help="the file with the token that watches serve evidence with; default: the variable RLHF_HARNESS_TOKEN",
        show_default=False,
    ),
]
