"""The options of `harness doctor`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from harness.command_options import duration, option
from harness.parity.runs.run_options import nonempty_address
from harness.quantities import seconds


def _folder(text: str | None) -> Path | None:
    return Path(text) if text else None


@dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    """What is examined.

    `address`: of a Ray cluster to join. `own_ray`: start a local cluster for the comparison. `imports`: also do what
    takes long, such as imports. `engines`: import each engine too. `command`: a framework's job, whose settings are
    checked as well. `nodes`: a folder where the nodes of this job leave their facts to be compared.
    """

    command: Annotated[
        Sequence[str],
        typer.Argument(help="a job of OpenRLHF, verl or TRL, whose settings are checked too; it is not started"),
    ] = option((), parameter=list[str])
    framework: Annotated[
        str,
        typer.Option(
            help="the framework, as harness adapters list names it; auto: found from the command and its scripts"
        ),
    ] = "auto"
    address: Annotated[
        str | None,
        typer.Option(
            help="the address of a Ray cluster: also check each of its nodes, from a worker there",
            show_default=False,
            callback=nonempty_address,
        ),
    ] = None
    own_ray: Annotated[
        bool, typer.Option("--ray", help="start a local Ray and also check a worker of it (about 10 s)")
    ] = option(False, "ray")
    nodes: Annotated[
        Path | None,
        typer.Option(
            help="compare this node's Python and packages with those of the job's other nodes: a directory that all of "
            "them can write, where each leaves what it has",
            show_default=False,
        ),
    ] = option(None, parameter=str, read=_folder)
    stall_s: Annotated[float, typer.Option(help="the --stall that you will give to harness watch")] = option(
        60.0, "stall", parameter=str, read=seconds, written=duration
    )
    imports: Annotated[
        bool, typer.Option("--imports/--no-imports", help="try to import torch and other compiled packages")
    ] = True
    engines: Annotated[bool, typer.Option("--engines", help="also try to import the engines, 10 to 40 s each")] = False
    against: Annotated[
        str,
        typer.Option(
            help="compare the job with this one, a command in quotes, and look at nothing else: every setting that is "
            "another one, or means another thing there",
            show_default=False,
        ),
    ] = ""
    strict: Annotated[
        bool, typer.Option("--strict", help="exit with 1 for a warning, and with 3 for what --against did not compare")
    ] = False
