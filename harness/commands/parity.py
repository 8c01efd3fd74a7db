"""`harness parity`: one scenario, or a framework's own job, on two backends."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from harness.commands.options import (
    MAPPING,
    Address,
    Cap,
    Cold,
    Device,
    Format,
    Mode,
    Model,
    Out,
    Prompts,
    RolloutOnly,
    Scenario,
    Seed,
    Set,
    Stall,
    Steps,
    Strict,
    Verbose,
)
from harness.commands.showing import progress, say, show
from harness.errors import BadInput
from harness.quantities import stall_seconds

WITH_A_COMMAND = ("framework", "repeat", "out", "cap", "strict", "stall", "format", "verbose", "seed", "mode")


def parity(
    context: typer.Context,
    baseline: Annotated[
        str,
        typer.Argument(
            help="the backend to compare with: ENGINE, ENGINE@ENVIRONMENT or ENGINE@VERSION", show_default=False
        ),
    ],
    candidate: Annotated[
        str, typer.Argument(help="the backend that is judged, named in the same way", show_default=False)
    ],
    command: Annotated[
        list[str] | None,
        typer.Argument(help="a job of OpenRLHF, verl or TRL, which is run on both backends instead of a scenario"),
    ] = None,
    framework: Annotated[
        str, typer.Option(help="the framework of the command; auto: found from the command and its scripts")
    ] = "auto",
    scenario: Scenario = "ppo-tiny",
    set: Set = [],  # noqa: B006
    candidate_set: Annotated[
        list[str],
        typer.Option(
            "--candidate-set",
            help="a setting of the scenario, section.key=value, for the candidate only; may be repeated",
            show_default=False,
        ),
    ] = [],  # noqa: B006
    model: Model = "",
    prompts: Prompts = "",
    repeat: Annotated[
        Literal["baseline", "both", "none"] | None,
        typer.Option(
            help="which sides of a job are run a second time, to measure the floor; default: the baseline with --mode "
            "coupled, else none",
            show_default=False,
        ),
    ] = None,
    mode: Mode = None,
    steps: Steps = None,
    seed: Seed = None,
    rollout_only: RolloutOnly = False,
    free: Annotated[
        bool,
        typer.Option("--free", help="let each run go its own way; else the candidate follows the baseline's tokens"),
    ] = False,
    native: Annotated[
        bool, typer.Option("--native/--no-native", help="compare the engines' own samplers in a short stage at the end")
    ] = True,
    lifted: Annotated[
        bool | None,
        typer.Option(
            "--lifted/--no-lifted",
            help="repeat half precision's computation in float32 with the same weights; default: where memory allows",
            show_default=False,
        ),
    ] = None,
    attribution: Annotated[
        bool,
        typer.Option(
            "--attribution/--no-attribution",
            help="look for the cause of a divergence by interventions on the live engines",
        ),
    ] = True,
    fault: Annotated[
        str,
        typer.Option(
            help="plant this fault, to see that it is found; harness faults list --suite parity lists them",
            show_default=False,
        ),
    ] = "",
    mapping: Annotated[
        str,
        typer.Option(
            help=f"for the candidate, {MAPPING}",
            show_default=False,
        ),
    ] = "",
    baseline_mapping: Annotated[str, typer.Option(help=f"for the baseline, {MAPPING}", show_default=False)] = "",
    cap: Cap = None,
    strict: Strict = False,
    out: Out = "",
    address: Address = None,
    device: Device = "auto",
    cold: Cold = False,
    stall: Stall = "60s",
    format: Format = "text",
    verbose: Verbose = False,
) -> None:
    """Run one scenario, or a framework's own job, on two backends, and say whether, where and why they differ.

    With a command after `--`, only these options are accepted: --framework, --repeat, --out, --cap, --strict, --stall,
    --format, --verbose, --seed and --mode coupled.

    \b
    Example:
      harness parity vllm sglang
      harness parity vllm@0.31 vllm@0.32 --rollout-only
    """
    _count(context, bool(command) or framework != "auto", mode)
    if command or framework != "auto":
        from harness.frameworks.parity import JobOptions, run_framework_parity

        coupled = mode == "coupled"
        job = JobOptions(
            framework=framework,
            out=out or None,
            cap=cap,
            strict=strict,
            stall_s=stall_seconds(stall) or None,
            seed=None if coupled else seed,
            coupled=(seed or 0) if coupled else None,
            repeat=repeat,
        )
        show(run_framework_parity(baseline, candidate, command or [], job, say), format, verbose=verbose)
    from harness.config import overrides
    from harness.parity.runs.options import ParityOptions
    from harness.parity.runs.run import run_parity

    with progress() as view:
        options = ParityOptions(
            scenario=scenario,
            overrides=overrides(set, model, prompts),
            candidate_overrides=candidate_set,
            mode=mode,
            seed=seed,
            steps=steps,
            rollout_only=rollout_only,
            free=free,
            native=native,
            lifted=lifted,
            attribution=attribution,
            fault=fault or None,
            mapping=mapping or None,
            baseline_mapping=baseline_mapping or None,
            cap=cap,
            strict=strict,
            out=out or None,
            address=address,
            device=device,
            cold=cold,
            stall_s=stall_seconds(stall),
            progress=view.update,
        )
        verdict = run_parity(baseline, candidate, options)
    show(verdict, format, verbose=verbose)


def _count(context: typer.Context, command: bool, mode: str | None) -> None:
    """An option that would not count is refused: a job of hours must not run without what was asked of it."""
    explicit_options = [
        name
        for name in context.params
        if (source := context.get_parameter_source(name)) is not None and source.name == "COMMANDLINE"
    ]
    if not command:
        if "repeat" in explicit_options:
            raise BadInput(
                "--repeat runs a job a second time: there is none",
                fix="harness parity A B --repeat baseline -- COMMAND",
            )
        return
    idle = [name for name in explicit_options if name not in (*WITH_A_COMMAND, "baseline", "candidate", "command")]
    if idle:
        named = ", ".join(f"--{name.replace('_', '-')}" for name in idle)
        counting = ", ".join(f"--{name}" for name in WITH_A_COMMAND)
        raise BadInput(
            f"{named}: of no use with a job's command, with which only {counting} count", fix=f"leave out {named}"
        )
    if mode not in (None, "coupled"):
        raise BadInput(
            f"--mode {mode}: a job draws with its own sampler, or coupled (--mode coupled)",
            fix="--mode coupled   # or leave it out",
        )
