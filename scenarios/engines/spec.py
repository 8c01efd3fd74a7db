"""An engine as data: everything that the harness, the judge and the triage know about it, besides its code.

Standard library only, because the controller, the judge and the triage read it too. The engine's own code is named
here and imported only in its own interpreter.
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
    """Return the longest sequence that is scored: one token less than the context, because a token is drawn
    after it.
    """
    return max(0, int(resolved.get("max_model_len") or 0) - 1)


@dataclass(frozen=True)
class FramePattern:
    """A stack frame of an engine or a framework that triage recognises.

    `kind`: one of `harness.triage.places`. `function`: a pattern that the last part of the function's name must match
    fully. `file`: a pattern that is searched in the file's path. `op`: what the process waits for; empty for the
    function's name.
    """

    kind: str
    function: str
    file: str = ""
    op: str = ""

    def __post_init__(self) -> None:
        re.compile(self.function), re.compile(self.file)


@dataclass(frozen=True)
class EngineSpec:
    """Everything about one engine besides its code.

    `name`: on the command line and in recordings. `title`: in a sentence. `factory`: "module:Class", called as (model
    path, scenario, mode=, device=, pure=, mapping=); returns a `scenarios.engines.engine_interface.Bare`. `embedded`:
    it runs in the harness's own interpreter and needs no environment. `recipes`: the folder with the recipes of its
    environments, NAME-cpu.toml and NAME-cuda.toml; empty for `harness/recipes`. `distributions`: Python packages; the
    first installed one gives the engine's version. `entry_points`: entry points of ours for its processes, by group.
    `coupled_variables`: environment variables that make a framework's own engine obey the draws in its requests.

    `accepts`: "module:function", called in the engine's own interpreter; returns a
    `scenarios.engines.accepted.Accepted`; empty where the accepted arguments are unknown before a start. `maps`: our
    own mapping from `engine_asked` and the model's longest context to its arguments, for what asks before a start
    (`ahead.py`, `harness/parity/runs/fits.py`); a live engine passes the same function to `map_engine`. `machine`:
    further arguments that the harness needs. `longer_context`: the variable that allows a longer context than the model
    was made for.

    `engine_arguments`, `sampling_arguments`, `carried_arguments`: canonical name -> native argument. A sampling
    parameter that is not listed has its canonical name and default in this engine too; None: the engine has no such
    parameter. `always`: native sampling arguments that our mapping always passes. `without_argument`: canonical
    engine parameter without an argument -> what the engine does. `refusal`: returns why it cannot sample this
    faithfully in that mode, empty where it can. Its last argument is whether the mapping is our own: what a user's
    mapping makes unfaithful is found by the comparison instead. `unlike`: returns canonical parameters that mean
    something else in its own sampler. `most_scored`: returns how many tokens of a sequence it scores at most, by what
    it resolved; 0 where it does not tell.

    `spellings`: option of its server, as it is typed, -> the argument that it gives, where that is another word.

    `learners_code`: it computes with the learner's own code. `logprobs`: the distribution whose log-probabilities its
    own sampler reports by default. `pads`: it may put pads around the samples of a batch. `reloads_modules`: a weight
    sync must contain all tensors of a module. `routed`: a router can be placed in front of several (`engine.router`).
    `defaults_at_endpoint_only`: generation_config.json applies at its OpenAI endpoint only. `process`: how to recognise
    its processes. `frames`: where they compute, wait and sleep. `preload`: modules that every start on a CPU imports,
    without starting a thread and without Ray; its own processes may be forked after that.
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
    spellings: Mapping[str, str] = field(default_factory=dict)
    without_argument: Mapping[str, str] = field(default_factory=dict)
    refusal: Callable[[Sampling, Mode, bool], str] = lambda sampling, mode, ours: ""
    unlike: Callable[[Values], dict[str, str]] = lambda values: {}
    most_scored: Callable[[Values], int] = fits_the_context
    learners_code: bool = False
    logprobs: Literal["raw", "tempered"] = "raw"
    pads: bool = True
    reloads_modules: bool = False
    routed: bool = False
    defaults_at_endpoint_only: bool = False
    process: EngineProcess = field(default_factory=EngineProcess)
    frames: tuple[FramePattern, ...] = ()
    preload: tuple[str, ...] = ()

    def ranks(self, engine: Engine) -> int:
        """Return how many processes of one engine with these settings hold a part of the model."""
        return engine.tensor_parallel if "tensor_parallel" in self.engine_arguments else 1

    def workers(self, engine: Engine) -> int:
        """Return how many processes a weight sync reaches with these settings."""
        return self.ranks(engine) * engine.engines

    def make(self, *args: Any, **named: Any) -> Any:
        """Return a live engine. Imports its code."""
        module, _, kind = self.factory.partition(":")
        return getattr(importlib.import_module(module), kind)(*args, **named)
