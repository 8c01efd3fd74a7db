"""`harness doctor`: what will break a run on this machine or cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.commands.options import nonempty_address
from harness.commands.showing import format_option, show
from harness.errors import BadInput
from harness.quantities import seconds
from probes import redaction


def doctor(
    command: Annotated[
        list[str] | None,
        typer.Argument(help="a job of OpenRLHF, verl or TRL, whose settings are checked too; it is not started"),
    ] = None,
    framework: Annotated[
        str,
        typer.Option(
            help="the framework, as harness adapters list names it; auto: found from the command and its scripts"
        ),
    ] = "auto",
    address: Annotated[
        str | None,
        typer.Option(
            help="the address of a Ray cluster: also check each of its nodes, from a worker there",
            show_default=False,
            callback=nonempty_address,
        ),
    ] = None,
    ray: Annotated[
        bool, typer.Option("--ray", help="start a local Ray and also check a worker of it (about 10 s)")
    ] = False,
    nodes: Annotated[
        str,
        typer.Option(
            help="compare this node's Python and packages with those of the job's other nodes: a directory that all of "
            "them can write, where each leaves what it has",
            show_default=False,
        ),
    ] = "",
    stall: Annotated[str, typer.Option(help="the --stall that you will give to harness watch")] = "60s",
    imports: Annotated[
        bool, typer.Option("--imports/--no-imports", help="try to import torch and other compiled packages")
    ] = True,
    engines: Annotated[bool, typer.Option("--engines", help="also try to import the engines, 10 to 40 s each")] = False,
    against: Annotated[
        str,
        typer.Option(
            help="compare the job with this one, a command in quotes, and look at nothing else: every setting that is "
            "another one, or means another thing there",
            show_default=False,
        ),
    ] = "",
    strict: Annotated[bool, typer.Option("--strict", help="exit with 1 for a warning too")] = False,
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

    if address and ray:
        raise BadInput("--address joins a cluster and --ray starts one: choose", fix="harness doctor --address auto")
    if framework != detection.AUTO and detection.framework_named(framework) and not command:
        raise BadInput("--framework is about a command", fix=f"harness doctor --framework {framework} -- COMMAND")
    stall_s = seconds(stall)
    if against:
        from harness.doctor.examine import compared

        if not command:
            raise BadInput("--against compares with a command", fix="harness doctor --against 'COMMAND B' -- COMMAND A")
        report = compared(command, against, framework=framework, strict=strict, reproduce=_command(sys.argv))
        show(report, format, verbose=verbose)
    from harness.doctor.examine import DoctorOptions, examine

    with console("doctor") as view:
        options = DoctorOptions(
            address=address,
            own_ray=ray,
            stall_s=stall_s,
            imports=imports,
            engines=engines,
            command=command or (),
            framework=framework,
            nodes=Path(nodes) if nodes else None,
        )
        report = examine(options, strict=strict, reproduce=_command(sys.argv), progress=view.step)
    show(report, format, verbose=verbose)


def _command(argv: list[str]) -> str:
    import shlex

    return shlex.join(redaction.arguments(["harness", *argv[1:]])) if "doctor" in argv else "harness doctor"
