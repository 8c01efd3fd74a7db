"""`harness bundle`: a run, a pair of runs or evidence as one file to hand over."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from harness.bundle.manifest import Packed
from harness.commands.options import TextOrJson
from harness.commands.showing import say, show_json
from harness.errors import BadInput
from harness.quantities import size
from reports.text import counted


def bundle(
    what: Annotated[
        list[str],
        typer.Argument(
            help="one run, two runs, a directory of harness parity, or evidence of a hang", show_default=False
        ),
    ],
    out: Annotated[
        str,
        typer.Option(help="the file to write; default: NAME.bundle.zip in the current directory", show_default=False),
    ] = "",
    hash_prompts: Annotated[
        bool, typer.Option("--hash-prompts", help="replace prompts by hashes; outputs stay as they are")
    ] = False,
    max_size: Annotated[
        str, typer.Option(help="the most bytes that its files may have before they are packed: 500M, 1G")
    ] = "1G",
    format: TextOrJson = "text",
) -> None:
    """Pack a run, a pair of runs or the evidence of a hang into one file without secrets, which opens as a web page.

    \b
    Example:
      harness bundle runs/mine
    """
    from pathlib import Path

    from harness.bundle.packing import pack

    if len(what) > 2:
        raise BadInput(
            f"{len(what)} paths: a bundle holds one run, a pair of runs or one evidence directory",
            fix=shlex.join(["harness", "bundle", *what[:2]]),
        )
    paths = [Path(path) for path in what]
    target = Path(out or f"{paths[0].resolve().name or 'run'}.bundle.zip")
    manifest = pack(paths, target, hash_prompts=hash_prompts, max_bytes=size(max_size, "--max-size"))
    packed = Packed(str(target), target.stat().st_size, manifest)
    if format == "json":
        return show_json(packed)
    for note in manifest.notes:
        say(f"left out: {note}")
    say(f"{counted(len(manifest.files), 'file')}, {packed.bytes:,} bytes; look at index.html in it before you send it")
    print(target)
