"""`harness run`: record one run of a scenario."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.commands.options import (
    MAPPING,
    Address,
    Cold,
    Device,
    Mode,
    Model,
    Out,
    Prompts,
    RolloutOnly,
    Seed,
    Set,
    Stall,
    Steps,
)
from harness.commands.showing import format_option, progress, show
from harness.quantities import stall_seconds
from reports.run_model import RecordedRun


def run(
    scenario: Annotated[
        str, typer.Argument(help="the scenario: a name of the catalog, or the path of a .toml file", show_default=False)
    ],
    backend: Annotated[
        str, typer.Option(help="the rollout engine: ENGINE, ENGINE@ENVIRONMENT or ENGINE@VERSION")
    ] = "hf",
    set: Set = [],  # noqa: B006
    model: Model = "",
    prompts: Prompts = "",
    mode: Mode = None,
    steps: Steps = None,
    seed: Seed = None,
    rollout_only: RolloutOnly = False,
    mapping: Annotated[
        str,
        typer.Option(
            help=MAPPING,
            show_default=False,
        ),
    ] = "",
    resume: Annotated[
        str, typer.Option(help="continue from this checkpoint: RUN/checkpoints/step-N", show_default=False)
    ] = "",
    out: Out = "",
    address: Address = None,
    device: Device = "auto",
    cold: Cold = False,
    stall: Stall = "60s",
    format: Annotated[
        str, format_option("run", "the format of what is printed; text: the directory alone, for scripts")
    ] = "text",
) -> None:
    """Record one run of a scenario on one backend.

    \b
    Example:
      harness run ppo-tiny --backend vllm
    """
    from harness.config import overrides
    from harness.parity.runs.options import RunOptions
    from harness.parity.runs.run import run_scenario

    with progress() as view:
        options = RunOptions(
            overrides=overrides(set, model, prompts),
            mode=mode,
            seed=seed,
            steps=steps,
            rollout_only=rollout_only,
            mapping=mapping or None,
            out=out or None,
            address=address,
            device=device,
            cold=cold,
            stall_s=stall_seconds(stall),
            progress=view.update,
        )
        folder = run_scenario(scenario, options, backend=backend, resume=resume or None)
    if format == "text":  # a script reads it
        print(folder)
        return
    show(RecordedRun.of(folder), format)
