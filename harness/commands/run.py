"""`harness run`: record one run of a scenario."""

from __future__ import annotations

from typing import Annotated

import typer

from harness import completion
from harness.command_options import of_options
from harness.commands.showing import format_option, progress, show
from harness.errors import BadInput
from harness.misplaced_words import first_scenario, is_engine
from harness.parity.runs.run_options import RunOptions
from reports.run_model import RecordedRun


@of_options
def run(
    scenario: Annotated[
        str, typer.Argument(help="the scenario: a name of the catalog, or the path of a .toml file", show_default=False)
    ],
    *,
    backend: Annotated[
        str,
        typer.Option(
            help="the rollout engine: ENGINE, ENGINE@ENVIRONMENT or ENGINE@VERSION", autocompletion=completion.engines
        ),
    ] = "hf",
    options: RunOptions,
    resume: Annotated[
        str, typer.Option(help="continue from this checkpoint: RUN/checkpoints/step-N", show_default=False)
    ] = "",
    format: Annotated[
        str, format_option("run", "the format of what is printed; text: the directory alone, for scripts")
    ] = "text",
) -> None:
    """Record one run of a scenario on one backend.

    \b
    Example:
      harness run ppo-tiny --backend vllm
    """
    from harness.parity.runs.run import run_scenario

    if is_engine(scenario):
        engine = f" --backend {scenario}" if backend == "hf" else ""
        raise BadInput(f"{scenario} is an engine, and a run is of a scenario", fix=first_scenario() + engine,
                       instead=scenario)  # fmt: skip
    with progress() as view:
        folder = run_scenario(scenario, options, backend=backend, resume=resume or None, progress=view.update)
    if format == "text":  # a script reads it
        print(folder)
        return
    show(RecordedRun.of(folder), format)
