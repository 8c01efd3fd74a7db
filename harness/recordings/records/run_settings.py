"""What run.json says of a run: how it was configured (its scenario), and what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.recordings.records.engine_info import SamplingParameters
from harness.recordings.records.values import (
    Parameters,
    filled_text,
    flag,
    integer,
    name_list,
    parameters,
    whole_number,
    written,
)
from probes.format import number


@dataclass(frozen=True)
class ModelSettings:
    """The policy."""

    path: str | None
    dtype: str | None

    @classmethod
    def of(cls, section: Parameters) -> ModelSettings:
        return cls(path=filled_text(section.get("path")), dtype=filled_text(section.get("dtype")))


@dataclass(frozen=True)
class EngineSettings:
    """The engine that was asked for: `parameters` by canonical name, and those of them that the judge counts with."""

    parameters: Parameters
    seed: int | None
    engines: int | None
    router: str | None
    sleep_level: int | None
    tensor_parallel: int | None

    @classmethod
    def of(cls, section: Parameters) -> EngineSettings:
        return cls(
            parameters=section,
            seed=integer(section.get("seed")),
            engines=integer(section.get("engines")),
            router=filled_text(section.get("router")),
            sleep_level=whole_number(section.get("sleep_level")),
            tensor_parallel=whole_number(section.get("tensor_parallel")),
        )


@dataclass(frozen=True)
class RolloutSettings:
    """How many samples a step draws, and how."""

    mode: str | None
    prompts_per_step: int | None
    samples_per_prompt: int | None

    @classmethod
    def of(cls, section: Parameters) -> RolloutSettings:
        return cls(
            mode=written(section.get("mode")),
            prompts_per_step=whole_number(section.get("prompts_per_step")),
            samples_per_prompt=whole_number(section.get("samples_per_prompt")),
        )


@dataclass(frozen=True)
class LearnerSettings:
    """The section `ppo`."""

    world_size: int | None
    epochs: int | None
    train_batch_size: int | None
    normalize_advantages: bool | None
    gamma: float
    gae_lambda: float
    kl_coef: float
    entropy_coef: float
    value_coef: float

    @classmethod
    def of(cls, section: Parameters) -> LearnerSettings:
        return cls(
            world_size=integer(section.get("world_size")),
            epochs=whole_number(section.get("epochs")),
            train_batch_size=whole_number(section.get("train_batch_size")),
            normalize_advantages=flag(section.get("normalize_advantages")),
            gamma=number(section.get("gamma")),
            gae_lambda=number(section.get("gae_lambda")),
            kl_coef=number(section.get("kl_coef")),
            entropy_coef=number(section.get("entropy_coef")),
            value_coef=number(section.get("value_coef")),
        )


@dataclass(frozen=True)
class NativeSettings:
    """The native stage: samples of its first draw and of each later one, the most in multiples of the first, its error
    rate, and the margin of what counts as equal.
    """

    samples: float
    further: float
    draws: float
    alpha: float
    margin: float

    @classmethod
    def of(cls, section: Parameters) -> NativeSettings:
        return cls(*(number(section.get(name)) for name in ("samples", "further", "draws", "alpha", "margin")))


@dataclass(frozen=True)
class RunSettings:
    """The scenario of run.json. `recorded`: it has one; a framework's job may have none. `placement`: what nodes the
    engine and the learner were to have."""

    recorded: bool
    name: str | None
    seed: int | None
    trains: bool | None
    model: ModelSettings
    sampling: SamplingParameters
    engine: EngineSettings
    rollout: RolloutSettings
    learner: LearnerSettings
    native: NativeSettings
    placement: Mapping[str, str]

    @classmethod
    def of(cls, scenario: Parameters) -> RunSettings:
        sections = {name: parameters(scenario.get(name)) for name in _SECTIONS}
        return cls(
            recorded=bool(scenario),
            name=filled_text(scenario.get("name")),
            seed=integer(scenario.get("seed")),
            trains=flag(scenario.get("train")),
            model=ModelSettings.of(sections["model"]),
            sampling=SamplingParameters(sections["sampling"]),
            engine=EngineSettings.of(sections["engine"]),
            rollout=RolloutSettings.of(sections["rollout"]),
            learner=LearnerSettings.of(sections["ppo"]),
            native=NativeSettings.of(sections["native"]),
            placement={kind: place for kind, place in sections["placement"].items() if isinstance(place, str)},
        )


_SECTIONS = ("model", "sampling", "engine", "rollout", "ppo", "native", "placement")


@dataclass(frozen=True)
class RunManifest:
    """The rest of run.json. `framework`: None for the harness's own runs. `seeds`: by what they seed. `resumed_step`:
    the first step of a run that continued `resumed_path`. `replayed_steps`: those that a replay covers.
    `lifted_steps`: those that a lifted stage has to hold, `lifted_skipped`: why it holds none. `hosts`: engine, learner
    -> hosts that offered what their placement asks for. `unrecorded`: what a framework's adapter cannot record, each
    with the reason."""

    framework: str | None
    backend: str | None
    sampling_mode: str | None
    guided: bool | None
    exit_code: Any
    seeds: Parameters
    resumed_step: int | None
    resumed_path: str | None
    replayed_steps: range | None
    is_lifted: bool
    lifted_steps: range | None
    lifted_skipped: str
    hosts: Mapping[str, frozenset[str]]
    promised_kinds: tuple[str, ...]
    unrecorded: tuple[str, ...]

    @classmethod
    def of(cls, manifest: Parameters) -> RunManifest:
        resumed, lifted = parameters(manifest.get("resumed")), parameters(manifest.get("lifted"))
        return cls(
            framework=filled_text(manifest.get("framework")),
            backend=filled_text(manifest.get("backend")),
            sampling_mode=written(manifest.get("sampling_mode")),
            guided=flag(manifest.get("guided")),
            exit_code=manifest.get("exit_code"),
            seeds=parameters(manifest.get("seeds")),
            resumed_step=integer(resumed.get("step")),
            resumed_path=filled_text(resumed.get("path")),
            replayed_steps=_steps(parameters(manifest.get("replay"))),
            is_lifted=bool(manifest.get("lifted")),
            lifted_steps=_steps(lifted),
            lifted_skipped=str(lifted.get("skipped") or ""),
            hosts={kind: _hosts(place) for kind, place in parameters(manifest.get("placement")).items()},
            promised_kinds=_promised(name_list(manifest.get("records")) or ()),
            unrecorded=name_list(manifest.get("missing")) or (),
        )


# Events that each run that promises any has recorded, though the first of them did not promise these.
_UNPROMISED = ("engine_stats", "group")
TRAINED = "learner"  # promised by the runs of the harness that train, which promise everything that they record


def _promised(kinds: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*kinds, *_UNPROMISED))) if TRAINED in kinds else kinds


def _steps(part: Parameters) -> range | None:
    """The steps from `first_step` to before `stop`, where these are the ends of any."""
    first, stop = integer(part.get("first_step")), integer(part.get("stop"))
    return range(first, stop) if first is not None and stop is not None and 0 <= first < stop else None


def _hosts(place: Any) -> frozenset[str]:
    return frozenset(name_list(parameters(place).get("hosts")) or ())
