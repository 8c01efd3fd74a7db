"""The options of a run, of a pair of runs, and of their judge. A command or a caller makes them once and passes them
on.

`command_options` turns options back into words of a command line, with which a recording names the command that repeats
it.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import config
from harness.parity.runs.command_line import duration, scenario_word
from reports.progress import ProgressEvent
from scenarios.settings import Mode, Scenario

STALL_S = 60.0  # a built-in step takes 2 s; weight sync and start-up of an engine use their CPU


def silent(event: ProgressEvent) -> None:
    """Ignore progress events."""


def _option(name: str | None, *, written: Callable[[Any], str | Path] | None = None) -> dict[str, Any]:
    """Return a field's metadata: its option on the command line (None: no option), and how its value is written
    there.
    """
    return {"option": name, "written": written}


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """How something is run.

    `out`: the directory of the recording; None: a new one under runs/. `address`: of a Ray cluster to join. `stall_s`:
    after so many seconds without progress a run is examined, and ended if it hangs; 0: no watching. `cold`: use no
    engine that `harness up` keeps.
    """

    out: str | os.PathLike[str] | None = field(default=None, metadata=_option(None))
    address: str | None = None
    device: str = "auto"
    stall_s: float = field(default=STALL_S, metadata=_option("stall", written=duration))
    cold: bool = False
    progress: Callable[[ProgressEvent], None] = field(default=silent, metadata=_option(None))

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

    backend: str = field(default="hf", metadata=_option(None))  # the command line names these five itself, first
    steps: int | None = field(default=None, metadata=_option(None))
    from_step: int = field(default=0, metadata=_option(None))
    cap: float | None = field(default=None, metadata=_option(None))
    strict: bool = field(default=False, metadata=_option(None))


@dataclass(frozen=True, kw_only=True)
class RunOptions(LaunchOptions):
    """Options of a scenario's run. None: the scenario's own value.

    `overrides`: section.key=value, any iterable. `mapping`: a user's parameter mapping, a file
    (docs/reference/parameters.md).
    """

    overrides: Iterable[str] = field(default=(), metadata=_option("set"))
    mode: Mode | None = None
    seed: int | None = None
    steps: int | None = None
    rollout_only: bool = False
    mapping: str | None = field(default=None, metadata=_option("mapping", written=Path))

    def __post_init__(self) -> None:
        object.__setattr__(self, "overrides", tuple(self.overrides))

    def settings(self, scenario: str) -> Scenario:
        """Return the scenario of that name (or file) with the changes of these options. Raises BadInput."""
        mode = [f"rollout.mode={self.mode}"] if self.mode else []
        train = False if self.rollout_only else None
        return config.load(scenario, [*self.overrides, *mode], seed=self.seed, steps=self.steps, train=train)


@dataclass(frozen=True, kw_only=True)
class JudgeOptions:
    """How a pair is judged.

    `cap`: the largest rounding noise that is believed, in nats, instead of the dtype's own. `native`: compare the
    engines' own samplers at the end. `lifted`: compute again in float32 with the weights of half precision
    (docs/explanation/lifted.md); None: where they fit into memory. `attribution`: when the runs diverge, intervene on
    the engines that are still up (docs/explanation/attribution.md). `strict`: a pass with reservations has exit code 3.
    """

    cap: float | None = None
    native: bool = True
    lifted: bool | None = None
    attribution: bool = True
    strict: bool = False


@dataclass(frozen=True, kw_only=True)
class ParityOptions(JudgeOptions, RunOptions):
    """Options of one scenario on two backends.

    `overrides` change both sides, `candidate_overrides` only the candidate. `mapping` is the candidate's,
    `baseline_mapping` the baseline's. `free`: the candidate is not guided along the baseline's tokens. `fault`: a fault
    to plant in one side (`harness faults list`).
    """

    scenario: str = field(default="ppo-tiny", metadata=_option("scenario", written=scenario_word))
    candidate_overrides: Iterable[str] = field(default=(), metadata=_option("candidate_set"))
    baseline_mapping: str | None = field(default=None, metadata=_option("baseline_mapping", written=Path))
    free: bool = False
    fault: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "candidate_overrides", tuple(self.candidate_overrides))

    def shared(self) -> Scenario:
        """Return the scenario of both sides. Raises BadInput."""
        settings = self.settings(self.scenario)
        return dataclasses.replace(settings, guided=False) if self.free else settings


def command_options(options: LaunchOptions | JudgeOptions) -> dict[str, Any]:
    """Return the options that differ from their defaults, as `command_line` takes them."""
    arguments: dict[str, Any] = {}
    for item in dataclasses.fields(options):
        value = getattr(options, item.name)
        name = item.metadata.get("option", item.name)
        if name is None or value == item.default or value == "":
            continue
        written = item.metadata.get("written")
        if value is False:
            arguments[f"no_{name}"] = True
        else:
            arguments[name] = written(value) if written else value
    return arguments
