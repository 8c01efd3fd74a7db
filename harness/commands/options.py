"""Options that several commands share, each written once, and the durations and sizes that some of them take."""

from __future__ import annotations

import json
import math
import re
from typing import Annotated, Literal

import typer

from harness.commands.showing import format_option

_UNITS = {"ms": 0.001, "s": 1.0, "sec": 1.0, "": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_SIZES = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}  # powers of two


def _finite(cap: float | None) -> float | None:
    from harness.errors import BadInput

    if cap == float("inf"):
        raise BadInput("--cap inf would believe any noise: nothing could differ", fix="--cap 0.05   # in nats")
    return cap


Format = Annotated[str, format_option("parity")]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="print the tables too: both runs, metrics, every check and finding")
]
Scenario = Annotated[str, typer.Option(help="a scenario of the catalog, or the path of a .toml file")]
Set = Annotated[
    list[str], typer.Option("--set", help="section.key=value, on every side; may be repeated", show_default=False)
]
Model = Annotated[str, typer.Option(help="a Hugging Face directory; default: the scenario's", show_default=False)]
Prompts = Annotated[str, typer.Option(help="a JSONL or Parquet file; default: the scenario's", show_default=False)]
Mode = Annotated[
    Literal["coupled", "native", "greedy"] | None,
    typer.Option(help="of sampling; default: the scenario's", show_default=False),
]
Steps = Annotated[int | None, typer.Option(help="PPO steps; default: the scenario's", show_default=False)]
Seed = Annotated[int | None, typer.Option(help="of everything; default: the scenario's", show_default=False)]
RolloutOnly = Annotated[bool, typer.Option("--rollout-only", help="no training: generation at fixed weights")]
Out = Annotated[
    str, typer.Option(help="directory of the recording; default: a new one under runs/", show_default=False)
]
Address = Annotated[str, typer.Option(help="join this Ray cluster instead of starting one", show_default=False)]
Device = Annotated[
    Literal["auto", "cpu", "cuda"], typer.Option(help="of the learner; auto: CUDA where the cluster has it")
]
Cold = Annotated[bool, typer.Option("--cold", help="start engines, even where some that fit are up (harness up)")]
Stall = Annotated[
    str, typer.Option(help="without progress for so long, a run is looked at and ended if it hangs; 0: never")
]
Cap = Annotated[
    float | None,
    typer.Option(
        help="largest rounding noise to believe, in nats; default: the dtype's",
        min=0,
        callback=_finite,
        show_default=False,
    ),
]


def overrides(settings: list[str], model: str, prompts: str) -> list[str]:
    """`--set`, `--model` and `--prompts` as settings of the scenario."""
    named = (("model.path", model), ("prompts.path", prompts))
    return [*settings, *(f"{key}={json.dumps(value)}" for key, value in named if value)]


def seconds(text: str, option: str = "--stall") -> float:
    """A duration such as 90s, 1.5m or 1h, in seconds; BadInput for anything else, which names `option`."""
    from harness.errors import BadInput

    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*(ms|s|sec|min|m|h|)", text.strip())
    value = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if not 0 < value < math.inf:
        raise BadInput(f"{option} {text!r} is no duration", fix=f"{option} 90s   # or 5m, 1h")
    return value


def stall_seconds(text: str) -> float:
    """A duration as `seconds` reads it, or 0 for a run that nobody watches."""
    return 0.0 if text.strip() in ("0", "0s") else seconds(text)


def size(text: str, option: str = "--keep-size") -> int:
    """A number of bytes such as 500M, 1G or 1.5GiB (powers of two); BadInput for anything else."""
    from harness.errors import BadInput

    match = re.fullmatch(r"(\d+(?:\.\d*)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    value = int(float(match[1]) * 2 ** _SIZES[match[2].upper()]) if match else 0
    if not value:
        raise BadInput(f"{option} {text!r} is no size", fix=f"{option} 500M   # or 1G")
    return value
