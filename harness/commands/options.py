"""Options that several commands share, each written once."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from harness.commands.showing import format_option
from harness.errors import BadInput

MAPPING = (
    "a Python file that defines ENGINE_engine or ENGINE_sampling, each (asked, ours) -> a dict of the engine's own "
    "arguments; asked: canonical parameters, ours: what the harness makes of them"
)


def _finite(cap: float | None) -> float | None:
    if cap == float("inf"):
        raise BadInput("--cap inf would believe any noise: nothing could differ", fix="--cap 0.05   # in nats")
    return cap


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
Scenario = Annotated[str, typer.Option(help="the scenario: a name of the catalog, or the path of a .toml file")]
Set = Annotated[
    list[str],
    typer.Option(
        "--set",
        help="a setting of the scenario, section.key=value, for every side; may be repeated",
        show_default=False,
    ),
]
Model = Annotated[
    str, typer.Option(help="the directory of a Hugging Face model; default: the scenario's model", show_default=False)
]
Prompts = Annotated[
    str, typer.Option(help="a JSONL or Parquet file of prompts; default: the scenario's prompts", show_default=False)
]
Mode = Annotated[
    Literal["coupled", "native", "greedy"] | None,
    typer.Option(help="how tokens are sampled; default: the scenario's mode", show_default=False),
]
Steps = Annotated[
    int | None, typer.Option(help="the number of PPO steps; default: the scenario's number", show_default=False)
]
Seed = Annotated[
    int | None,
    typer.Option(help="the seed of prompts, sampling and training; default: the scenario's seed", show_default=False),
]
RolloutOnly = Annotated[bool, typer.Option("--rollout-only", help="do not train: only generate, at fixed weights")]
Out = Annotated[
    str, typer.Option(help="the directory to record into; default: a new one under runs/", show_default=False)
]


def nonempty_address(address: str | None) -> str | None:
    """Raises BadInput for an empty address, of a variable that is not set say: the command would run here."""
    if address == "":
        raise BadInput("--address is empty", fix="--address HEAD:6379   # or leave it out")
    return address


Address = Annotated[
    str | None,
    typer.Option(help="join this Ray cluster instead of starting one", show_default=False, callback=nonempty_address),
]
Device = Annotated[
    Literal["auto", "cpu", "cuda"], typer.Option(help="the device of the learner; auto: CUDA where the cluster has it")
]
Cold = Annotated[bool, typer.Option("--cold", help="start new engines, even where harness up keeps some that fit")]
Stall = Annotated[
    str, typer.Option(help="examine a run that made no progress for this long, and end it if it hangs; 0: never")
]
TokenFile = Annotated[
    str,
    typer.Option(
        "--token-file",
        help="the file with the token that watches serve evidence with; default: the variable RLHF_HARNESS_TOKEN",
        show_default=False,
    ),
]
Strict = Annotated[
    bool,
    typer.Option("--strict", help="end with exit code 3 where the verdict is EQUIVALENT, but ..., or SOUND, but ..."),
]
Cap = Annotated[
    float | None,
    typer.Option(
        help="the largest rounding noise to accept, in nats; default: that of the dtype",
        min=0,
        callback=_finite,
        show_default=False,
    ),
]
