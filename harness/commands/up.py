"""`harness up`, `harness ps` and `harness down`: engines that are kept up between comparisons."""

from __future__ import annotations

from typing import Annotated

import typer

from harness import completion
from harness.command_options import of_options
from harness.commands.options import TextOrJson
from harness.commands.showing import say, show_json
from harness.parity.runs.run_options import Device, Scenario, ScenarioOptions
from harness.quantities import seconds
from reports.layout import Page
from reports.text import clean


@of_options
def up(
    backends: Annotated[
        list[str],
        typer.Argument(
            help="the engines to start, ENGINE or ENGINE@ENVIRONMENT, one for each side of a comparison",
            autocompletion=completion.engines,
        ),
    ],
    *,
    scenario: Scenario = "ppo-tiny",
    options: ScenarioOptions,
    native: Annotated[
        bool, typer.Option("--native/--no-native", help="also start a second engine of each for the native stage")
    ] = True,
    device: Device = "auto",
    idle: Annotated[
        str, typer.Option(help="end the engines when nobody has used them for this long: 90s, 5m, 1h")
    ] = "30m",
) -> None:
    """Start engines and keep them up; harness parity and harness run then use those that fit.

    \b
    Example:
      harness up vllm sglang
    """
    from harness.parity.runs.own_arguments import mapped_on
    from harness.warm.up import up as start

    idle_s = seconds(idle, "--idle")
    with mapped_on({}):
        settings = options.settings(scenario)
    kept = start(backends, settings, native=native, device=device, idle_s=idle_s, say=say)
    print(f"{kept.names} up; they end after {idle} without use, or with: harness down")


def ps(format: TextOrJson = "text") -> None:
    """List the engines that are kept up.

    \b
    Example:
      harness ps
    """
    from harness.warm.up import listed

    rows = listed(say)
    if format == "json":
        return show_json(rows)
    if not rows:
        print("No engines are up. Start some with: harness up vllm sglang")
        return

    cells = []
    for row in rows:
        ends = "-" if row.used_by else f"{row.ends_in_s / 60:.0f} min"
        memory, user = f"{row.memory_bytes / 2**20:.0f} MiB", f"pid {row.used_by}" if row.used_by else "-"
        values = row.backend, row.stage, row.version, row.pid, memory, row.since, ends, user
        cells.append([clean(value) for value in values])
    with Page() as page:
        page.table(("backend", "stage", "version", "pid", "memory", "since", "ends in", "used by"), cells)


def down() -> None:
    """End the engines that are kept up.

    \b
    Example:
      harness down
    """
    from harness.warm.up import down as end

    kept = end(say)
    print(f"{kept.names} ended" if kept is not None else "No engines are up.")
