"""What an engine is, as data: everything that the harness, the judge and the triage know of one beside its code.

Standard library only: the controller, the judge and the triage read it too. The engine's own code is named, and
imported only in its own interpreter.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from probes.engines import EngineProcess
from scenarios.engines.native import Native, Values

if TYPE_CHECKING:
    from scenarios.settings import Engine, Mode, Sampling


def fits_the_context(resolved: Values) -> int:
    """A token is drawn behind what is scored."""
    return max(0, int(resolved.get("max_model_len") or 0) - 1)


@dataclass(frozen=True)
class FramePattern:
    """A frame that triage knows, of an engine or of a framework: a kind of `harness.triage.places`, a pattern that the
    last part of the function's name matches in full, one that is found anywhere in the file's path, and what is being
    waited for; empty: the function's name."""

    kind: str
    function: str
    file: str = ""
    op: str = ""

    def __post_init__(self) -> None:
        re.compile(self.function), re.compile(self.file)


@dataclass(frozen=True)
class EngineSpec:
    """`name`: on the command line and in recordings. `title`: in a sentence. `factory`: "module:Class", called as
    (model path, scenario, mode=, device=, pure=, mapping=), which returns a `scenarios.engines.engine.Bare`.

    `embedded`: it runs in the harness's own interpreter and takes no environment. `recipes`: the folder of its
    environments' recipes, NAME-cpu.toml and NAME-cuda.toml; empty: `harness/recipes`. `distributions`: whose version is
    the engine's, the first that is installed. `entry_points`: of ours that its processes find, by group.
    `coupled_variables`: by which a framework's own engine obeys the draws that its requests bring.

    `accepts`: "module:function", called in the engine's own interpreter, which returns a
    `scenarios.engines.accepted.Accepted`; empty: what it takes is not known before it starts. `maps`: our own mapping
    of `engine_asked` and the model's longest context to its arguments, and `machine`: what the harness needs of it
    beside them. `longer_context`: the variable with which it takes a context that the model was not made for.

    `engine_arguments`, `sampling_arguments`, `carried_arguments`: canonical name -> native argument. A sampling
    parameter that is not named has its canonical name and default in this engine too; None: the engine has no such
    parameter. `always`: native sampling arguments that our mapping gives whatever is asked. `without_argument`:
    canonical engine parameter that no argument sets -> what the engine does. `refusal`: why it cannot sample this
    faithfully in that mode; empty where it can. Its last argument: whether the mapping is our own; what a user's
    mapping makes unfaithful is found by the comparison instead. `unlike`: canonical parameters that mean something
    else in its own sampler. `most_scored`: tokens of the longest sequence that it scores, by what it resolved; 0
    where it does not say.

    `learners_code`: it computes with the learner's own code. `logprobs`: of which distribution its own sampler reports
    log-probabilities unless told otherwise. `reloads_modules`: a weight sync must hold all tensors of a module.
    `routed`: a router can stand before several (`engine.router`).
    `defaults_at_endpoint_only`: generation_config.json counts at its OpenAI endpoint only. `process`: how its processes
    are told. `frames`: where they compute, wait and sleep. `preload`: modules that every start of it on a CPU imports,
    without a thread and without Ray; its own processes may be forked after that.
    """

    name: str
    title: str
    factory: str
    embedded: bool = False
    recipes: str = ""
    distributions: tuple[str, ...] = ()
    entry_points: Mapping[str, str] = field(default_factory=dict)
    coupled_variables: Mapping[str, str] = field(default_factory=dict)
    accepts: str = ""
    maps: Callable[[dict[str, Any], int], dict[str, Any]] | None = None
    machine: Callable[[dict[str, Any]], dict[str, Any]] = lambda requested: {}
    longer_context: str = ""
    engine_arguments: Mapping[str, Native] = field(default_factory=dict)
    sampling_arguments: Mapping[str, Native | None] = field(default_factory=dict)
    carried_arguments: Mapping[str, Native] = field(default_factory=dict)
    always: Values = field(default_factory=dict)
    without_argument: Mapping[str, str] = field(default_factory=dict)
    refusal: Callable[[Sampling, Mode, bool], str] = lambda sampling, mode, ours: ""
    unlike: Callable[[Values], dict[str, str]] = lambda values: {}
    most_scored: Callable[[Values], int] = fits_the_context
    learners_code: bool = False
    logprobs: Literal["raw", "tempered"] = "raw"
    reloads_modules: bool = False
    routed: bool = False
    defaults_at_endpoint_only: bool = False
    process: EngineProcess = field(default_factory=EngineProcess)
    frames: tuple[FramePattern, ...] = ()
    preload: tuple[str, ...] = ()

    def ranks(self, engine: Engine) -> int:
        """Processes of one engine with these settings that hold a part of the model."""
        return engine.tensor_parallel if "tensor_parallel" in self.engine_arguments else 1

    def workers(self, engine: Engine) -> int:
        """Processes that a weight sync of engines with these settings reaches."""
        return self.ranks(engine) * engine.engines

    def make(self, *args: Any, **named: Any) -> Any:
        """A live engine. Imports its code."""
        module, _, kind = self.factory.partition(":")
        return getattr(importlib.import_module(module), kind)(*args, **named)
