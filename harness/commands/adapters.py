"""`harness adapters`: what the hooks of a framework need, and whether an installation has it."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from harness.commands.doors import group
from harness.commands.options import TextOrJson
from harness.commands.showing import say, show_json
from harness.errors import BadInput

app = group("Adapters of RLHF frameworks: list them, check their symbols.", "harness adapters check --framework verl")


@app.command("list")
def list_() -> None:
    """List the frameworks, their tested versions, and how many hooks each has.

    \b
    Example:
      harness adapters list
    """
    from harness.frameworks.spec import frameworks, refused

    for name, framework in frameworks().items():
        first, end = framework.adapter.versions
        print(f"{name:10} {first} to before {end:8} {len(framework.adapter.hooks)} hooks")
    for error in refused():
        say(str(error))


@app.command()
def check(
    framework: Annotated[
        str,
        typer.Option(help="check only this framework; default: every one that the interpreter has", show_default=False),
    ] = "",
    python: Annotated[
        str, typer.Option(help="the Python interpreter that has the framework; default: this one", show_default=False)
    ] = "",
    format: TextOrJson = "text",
) -> None:
    """Check that the installed framework has every symbol that the hooks need, without importing it.

    \b
    Example:
      harness adapters check --framework verl
    """
    from harness.frameworks.detection import framework_named
    from harness.frameworks.spec import frameworks, names
    from harness.frameworks.symbols import check as look

    wanted = [framework_named(framework)] if framework else list(frameworks().values())
    python = python or sys.executable
    installations = [
        installation for installation in (look(each.adapter, python) for each in wanted) if installation.version
    ]
    if not installations:
        fix = "which -a python python3   # --python takes the one that runs the job"
        raise BadInput(f"{python} has none of: {names(wanted)}", fix=fix)
    if format == "json":
        import dataclasses

        show_json([dataclasses.asdict(installation) | {"ok": installation.ok} for installation in installations])
    else:
        for installation in installations:
            first, end = installation.range
            within = "" if installation.tested else f": outside the tested range ({first} to before {end})"
            print(f"{installation.framework} {installation.version}{within}")
            for symbol in installation.symbols:
                print(f"  moved  {symbol.symbol}: {symbol.trouble}" if symbol.trouble else f"  ok     {symbol.symbol}")
            good = len(installation.symbols) - len(installation.moved)
            print(f"  {good} of {len(installation.symbols)} symbols are where the hooks expect them")
    raise typer.Exit(0 if all(installation.ok for installation in installations) else 1)
