"""`harness doctor`: what will break a run on this machine or cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.command_options import of_options
from harness.commands.showing import format_option, show
from harness.commands.typed_options import refuse_idle
from harness.doctor.doctor_options import DoctorOptions
from harness.errors import BadInput
from probes import redaction


@of_options
def doctor(
    context: typer.Context,
    options: DoctorOptions,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="also print each check that passed, with what was measured")
    ] = False,
    format: Annotated[str, format_option("doctor")] = "text",
) -> None:
    """Find what will break an RLHF run on this machine or cluster. Exits with 1 if anything will, else with 0.

    With --against two jobs are compared before either runs: exits with 1 if a setting makes them other runs.

    \b
    Example:
      harness doctor
      harness doctor -- python -m verl.trainer.main_ppo trainer.nnodes=2
    """
    import sys

    from harness.envs.progress import console
    from harness.frameworks import detection

    command, framework = options.command, options.framework
    if framework != detection.AUTO:
        detection.framework_named(framework)  # an unknown name is refused first
        if not command:
            raise BadInput("--framework is about a command", fix="-- python train.py")
    if options.against:
        if not command:
            raise BadInput("--against compares with a command", fix="-- python train.py   # the other command")
        machine = ("address", "ray", "nodes", "stall", "imports", "engines")
        refuse_idle(context, machine, "--against compares commands and looks at no machine")
        from harness.doctor.examine import compared

        with console("doctor") as view:
            report = compared(options, reproduce=_command(sys.argv), progress=view.step)
        show(report, format, verbose=verbose)
    if options.address and options.own_ray:
        raise BadInput(
            "--address joins a cluster and --ray starts one: choose", fix="   # or without --address", instead="--ray"
        )
    from harness.doctor.examine import examine

    with console("doctor") as view:
        report = examine(options, reproduce=_command(sys.argv), progress=view.step)
    show(report, format, verbose=verbose)


def _command(argv: list[str]) -> str:
    import shlex

    return shlex.join(redaction.arguments(["harness", *argv[1:]])) if "doctor" in argv else "harness doctor"
