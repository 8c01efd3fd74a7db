"""The options of a run, of a pair of runs, and of their judge. A command or a caller makes them once and passes them
on.

Each is declared here alone: as the parameter of a command, as a field, and as a word of the command line that repeats
the run (`harness.command_options`).
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from harness import completion
from harness.command_options import duration, option, scenario_word
from harness.errors import BadInput
from harness.quantities import stall_seconds
from reports.progress import ProgressEvent

if TYPE_CHECKING:
    from scenarios.settings import Scenario as ScenarioSettings

STALL_S = 60.0  # a built-in step takes 2 s; weight sync and start-up of an engine use their CPU
MAPPING = (
    "a Python file that defines ENGINE_engine or ENGINE_sampling, each (asked, ours) -> a dict of the engine's own "
    "arguments; asked: canonical parameters, ours: what the harness makes of them"
)


def _finite(cap: float | None) -> float | None:
    if cap == float("inf"):
        raise BadInput("--cap inf would believe any noise: nothing could differ", fix="--cap 0.05   # in nats")
    return cap


def nonempty_address(address: str | None) -> str | None:
    """Raises BadInput for an empty address, of a variable that is not set say: the command would run here."""
    if address == "":
        raise BadInput("--address is empty", fix="--address HEAD:6379   # or leave it out")
    return address


# What several commands declare.
Scenario = Annotated[str, typer.Option(help="the scenario: a name of the catalog, or the path of a .toml file")]
Device = Annotated[
    Literal["auto", "cpu", "cuda"], typer.Option(help="the device of the learner; auto: CUDA where the cluster has it")
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


def silent(event: ProgressEvent) -> None:
    """Ignore progress events."""


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """How something is run.

    `out`: the directory of the recording; None: a new one under runs/. `address`: of a Ray cluster to join. `stall_s`:
    after so many seconds without progress a run is examined, and ended if it hangs; 0: no watching. `cold`: use no
    engine that `harness up` keeps.
    """

    out: Annotated[
        str | os.PathLike[str] | None,
        typer.Option(help="the directory to record into; default: a new one under runs/", show_default=False),
    ] = option(None, parameter=str | None, repeated=False)
    address: Annotated[
        str | None,
        typer.Option(
            help="join this Ray cluster instead of starting one", show_default=False, callback=nonempty_address
        ),
    ] = None
    device: Device = "auto"
    cold: Annotated[
        bool, typer.Option("--cold", help="start new engines, even where harness up keeps some that fit")
    ] = False
    stall_s: Annotated[
        float,
        typer.Option(help="examine a run that made no progress for this long, and end it if it hangs; 0: never"),
    ] = option(STALL_S, "stall", parameter=str, read=stall_seconds, written=duration)
    progress: Callable[[ProgressEvent], None] = silent

    def say(self, line: str) -> None:
        """Report a sentence about the whole run as progress."""
        self.progress(ProgressEvent("", "", message=line))


@dataclass(frozen=True, kw_only=True)
class ReplayOptions(LaunchOptions):
    """How a recorded run is replayed and judged.

    `backend`: what scores the recorded tokens. `steps`: replay this many steps, counted from the run's beginning; None:
    all that it holds completely. `from_step`: begin at the last checkpoint that the run wrote before this step (at step
    0 without one). `cap`: the largest rounding noise that is believed, in nats. `strict`: a pass with reservations has
    exit code 3.
    """

    backend: Annotated[
        str,
        typer.Option(
            help="the engine that scores the recorded tokens: ENGINE, ENGINE@ENVIRONMENT or ENGINE@VERSION",
            autocompletion=completion.engines,
        ),
    ] = "hf"
    steps: Annotated[
        int | None,
        typer.Option(help="replay the run up to this number of steps; default: all of it", min=1, show_default=False),
    ] = None
    from_step: Annotated[
        int, typer.Option("--from-step", help="begin at the last checkpoint that the run saved before this step", min=0)
    ] = 0
    cap: Cap = None
    strict: Strict = False


@dataclass(frozen=True, kw_only=True)
class ScenarioOptions:
    """Changes of a scenario. None: the scenario's own value.

    `overrides`: section.key=value, any iterable; `model` and `prompts` come after them.
    """

    overrides: Annotated[
        Iterable[str],
        typer.Option(
            help="a setting of the scenario, section.key=value, for every side; may be repeated", show_default=False
        ),
    ] = option((), "set", parameter=list[str])
    model: Annotated[
        str,
        typer.Option(help="the directory of a Hugging Face model; default: the scenario's model", show_default=False),
    ] = ""
    prompts: Annotated[
        str,
        typer.Option(help="a JSONL or Parquet file of prompts; default: the scenario's prompts", show_default=False),
    ] = ""
    mode: Annotated[
        Literal["coupled", "native", "greedy"] | None,
        typer.Option(help="how tokens are sampled; default: the scenario's mode", show_default=False),
    ] = None
    seed: Annotated[
        int | None,
        typer.Option(
            help="the seed of prompts, sampling and training; default: the scenario's seed", show_default=False
        ),
    ] = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "overrides", tuple(self.overrides))

    def settings(self, scenario: str) -> ScenarioSettings:
        """Return the scenario of that name (or file) with the changes of these options. Raises BadInput."""
        from harness import config  # with its libraries, which the help of a command does not need

        named = (("model.path", self.model), ("prompts.path", self.prompts), ("rollout.mode", self.mode))
        changes = [f"{key}={json.dumps(value)}" for key, value in named if value]
        return config.load(scenario, [*self.overrides, *changes], **self._top_level())

    def _top_level(self) -> dict[str, Any]:
        """Return the fields of the scenario itself that are replaced; None leaves one as it is."""
        return {"seed": self.seed}


@dataclass(frozen=True, kw_only=True)
class RunOptions(ScenarioOptions, LaunchOptions):
    """Options of a scenario's run. `mapping`: a user's parameter mapping, a file (docs/reference/parameters.md)."""

    steps: Annotated[
        int | None, typer.Option(help="the number of PPO steps; default: the scenario's number", show_default=False)
    ] = None
    rollout_only: Annotated[
        bool, typer.Option("--rollout-only", help="do not train: only generate, at fixed weights")
    ] = False
    mapping: Annotated[str | None, typer.Option(help=MAPPING, show_default=False)] = option(None, written=Path)

    def _top_level(self) -> dict[str, Any]:
        return super()._top_level() | {"steps": self.steps, "train": False if self.rollout_only else None}


@dataclass(frozen=True, kw_only=True)
class JudgeOptions:
    """How a pair is judged.

    `cap`: the largest rounding noise that is believed, in nats, instead of the dtype's own. `native`: compare the
    engines' own samplers at the end. `lifted`: compute again in float32 with the weights of half precision
    (docs/explanation/lifted.md); None: where they fit into memory. `attribution`: when the runs diverge, intervene on
    the engines that are still up (docs/explanation/attribution.md). `strict`: a pass with reservations has exit code 3.
    """

    native: Annotated[
        bool, typer.Option("--native/--no-native", help="compare the engines' own samplers in a short stage at the end")
    ] = True
    lifted: Annotated[
        bool | None,
        typer.Option(
            "--lifted/--no-lifted",
            help="repeat half precision's computation in float32 with the same weights; default: where memory allows",
            show_default=False,
        ),
    ] = None
    attribution: Annotated[
        bool,
        typer.Option(
            "--attribution/--no-attribution",
            help="look for the cause of a divergence by interventions on the live engines",
        ),
    ] = True
    cap: Cap = None
    strict: Strict = False


@dataclass(frozen=True, kw_only=True)
class ParityOptions(JudgeOptions, RunOptions):
    """Options of one scenario on two backends.

    `overrides` change both sides, `candidate_overrides` (`--candidate-set`) only the candidate. `mapping` is the
    candidate's, `baseline_mapping` the baseline's. `free`: the candidate is not guided along the baseline's tokens.
    `fault`: a fault to plant in one side (`harness faults list`).
    """

    scenario: Scenario = option("ppo-tiny", written=scenario_word)
    candidate_overrides: Annotated[
        Iterable[str],
        typer.Option(
            help="a setting of the scenario, section.key=value, for the candidate only; may be repeated",
            show_default=False,
        ),
    ] = option((), "candidate_set", parameter=list[str])
    mapping: Annotated[str | None, typer.Option(help=f"for the candidate, {MAPPING}", show_default=False)] = option(
        None, written=Path
    )
    baseline_mapping: Annotated[str | None, typer.Option(help=f"for the baseline, {MAPPING}", show_default=False)] = (
        option(None, written=Path)
    )
    free: Annotated[
        bool,
        typer.Option("--free", help="let each run go its own way; else the candidate follows the baseline's tokens"),
    ] = False
    fault: Annotated[
        str | None,
        typer.Option(
            help="plant this fault, to see that it is found; harness faults list --suite parity lists them",
            show_default=False,
        ),
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "candidate_overrides", tuple(self.candidate_overrides))

    def shared(self) -> ScenarioSettings:
        """Return the scenario of both sides. Raises BadInput."""
        settings = self.settings(self.scenario)
        return dataclasses.replace(settings, guided=False) if self.free else settings
