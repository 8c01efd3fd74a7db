"""What the processes of an engine recorded of it: its parameters when it was up, and what it was to sample with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from harness.recordings.records.values import (
    Parameters,
    filled_text,
    integer,
    lists_by_name,
    name_list,
    parameters,
    text,
    token_ids,
    whole_number,
)
from probes.format import number

OURS = "ours"  # the mapping of parameters that the harness itself applies


@dataclass(frozen=True, eq=False)
class SamplingParameters(Mapping[str, Any]):
    """Canonical sampling parameters by name, as they were recorded; empty where none were. Those that the judge counts
    with have a property of their own."""

    by_name: Parameters = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        return self.by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.by_name)

    def __len__(self) -> int:
        return len(self.by_name)

    @property
    def temperature(self) -> float:
        return number(self.by_name.get("temperature"))

    @property
    def max_tokens(self) -> float:
        return number(self.by_name.get("max_tokens"))

    @property
    def min_tokens(self) -> float:
        return number(self.by_name.get("min_tokens"))

    @property
    def stop_token_ids(self) -> tuple[int, ...] | None:
        """Tokens that end a response beside the model's own."""
        return token_ids(self.by_name.get("stop_token_ids"))

    @property
    def end_ids(self) -> tuple[int, ...] | None:
        """Every token that ends a response, where the engine says them all."""
        return token_ids(self.by_name.get("end_ids"))

    @property
    def ignore_eos(self) -> bool:
        """Are the model's own end tokens to be drawn over? No where it was not recorded."""
        return bool(self.by_name.get("ignore_eos"))


@dataclass(frozen=True)
class Resolved:
    """What a live engine reports of itself: `parameters` by canonical name, empty where it reported nothing."""

    parameters: Parameters

    @property
    def dtype(self) -> str | None:
        return filled_text(self.parameters.get("dtype"))

    @property
    def device(self) -> str | None:
        return filled_text(self.parameters.get("device"))

    @property
    def seed(self) -> int | None:
        return integer(self.parameters.get("seed"))

    @property
    def prefix_caching(self) -> bool | None:
        value = self.parameters.get("prefix_caching")
        return value if isinstance(value, bool) else None

    @property
    def logprobs_mode(self) -> str | None:
        """What the engine calls the log-probabilities that it returns."""
        return filled_text(self.parameters.get("logprobs_mode"))

    @property
    def forbids_tf32(self) -> bool:
        """Does it say that float32 numbers are multiplied as such?"""
        return self.parameters.get("tf32") is False

    @property
    def end_ids(self) -> tuple[int, ...] | None:
        """Tokens that end a response by the model's files."""
        return token_ids(self.parameters.get("end_ids"))

    @property
    def default_sampling(self) -> Parameters:
        """Values of sampling parameters that a request leaves out, from the model's generation_config.json."""
        return parameters(self.parameters.get("default_sampling"))

    @property
    def reads_generation_config(self) -> bool:
        return bool(self.parameters.get("generation_config"))


@dataclass(frozen=True)
class EngineInfo:
    """One `engine_info` event. By canonical name, `requested` parameters are those that were asked of the engine and
    `received` those that its mapping made of them; `arguments` are the engine's own. `moves`: canonical name -> the
    arguments that change with it. `replaced`: parts of the engine that the harness replaced. `file`: the journal;
    `engine_number`: its place among the engines of the run."""

    file: str
    role: str | None
    engine_number: int
    engine: str | None
    version: str | None
    mapping: str | None
    start_seconds: float
    requested: Parameters
    received: Parameters
    arguments: Parameters
    moves: Mapping[str, tuple[str, ...]]
    resolved: Resolved
    replaced: tuple[str, ...] | None

    @classmethod
    def of(cls, event: Mapping[str, Any]) -> EngineInfo:
        # The event has other names: `canonical` is what was requested, `asked` are the engine's own arguments.
        return cls(
            file=str(event.get("file")),
            role=filled_text(event.get("role")),
            engine_number=whole_number(event.get("rank")) or 0,
            engine=filled_text(event.get("engine")),
            version=filled_text(event.get("version")),
            mapping=filled_text(event.get("mapping")),
            start_seconds=number(event.get("start_seconds")),
            requested=parameters(event.get("canonical")),
            received=parameters(event.get("given")),
            arguments=parameters(event.get("asked")),
            moves=lists_by_name(event.get("moves")),
            resolved=Resolved(parameters(event.get("resolved"))),
            replaced=name_list(event.get("replaced")),
        )

    @property
    def engine_name(self) -> str:
        """`engine`, and "" where it was not recorded."""
        return self.engine or ""

    @property
    def mapped_by_others(self) -> bool:
        """Did a mapping that is not the harness's own make its arguments?"""
        return self.mapping not in (None, OURS)


@dataclass(frozen=True)
class SamplingRequest:
    """One `sampling` event: what an engine was to sample with in a mode. Fields as those of `EngineInfo`; `unlike`:
    parameters that mean something else in this engine, and what."""

    file: str
    engine_number: int
    mode: str | None
    mapping: str | None
    requested: SamplingParameters
    received: SamplingParameters
    arguments: Parameters
    moves: Mapping[str, tuple[str, ...]]
    unlike: Mapping[str, Any]

    @classmethod
    def of(cls, event: Mapping[str, Any]) -> SamplingRequest:
        # As in `EngineInfo.of`, except that this event calls the engine's own arguments `native`.
        return cls(
            file=str(event.get("file")),
            engine_number=whole_number(event.get("rank")) or 0,
            mode=text(event.get("mode")),
            mapping=filled_text(event.get("mapping")),
            requested=SamplingParameters(parameters(event.get("canonical"))),
            received=SamplingParameters(parameters(event.get("given"))),
            arguments=parameters(event.get("native")),
            moves=lists_by_name(event.get("moves")),
            unlike=parameters(event.get("unlike")),
        )

    @property
    def mapped_by_others(self) -> bool:
        """Did a mapping that is not the harness's own make its arguments?"""
        return self.mapping not in (None, OURS)

    @cached_property
    def effective(self) -> SamplingParameters:
        """What the engine samples with: what it received, and of the rest what was requested."""
        return SamplingParameters({**self.requested, **self.received})


NOTHING_REPORTED = EngineInfo.of({})  # of an engine that recorded nothing of itself
NOTHING_REQUESTED = SamplingRequest.of({})  # of a mode in which no engine recorded a request
