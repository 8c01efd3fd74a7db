"""A planted fault of parity: plain data that says what is changed, on which side, and what the right verdict is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from scenarios.lifted import HALF
from scenarios.plants import Injection, Plants

ROOM = "scenarios.planted.differences"
INSIDE = f"{ROOM}.inside"  # the module that an engine's own processes import
READY = Plants(inside=INSIDE)  # no fault yet, but the same engine may get one later


@dataclass(frozen=True)
class Fault:
    """A fault, or a control where `expected` is not DIVERGENT.

    Everything is applied to the side at fault, except `scenario`, which sets up both sides. Strings of settings are
    section.key=value.
    """

    name: str = ""
    summary: str = ""
    side: Literal["baseline", "candidate"] = "candidate"
    scenario: tuple[str, ...] = ()  # settings of both sides
    settings: tuple[str, ...] = ()  # settings of the side at fault only
    native: tuple[str, ...] = ()  # settings of both sides in the native stage alone, which a coupled stage refuses
    engine: Mapping[str, Any] = field(
        default_factory=dict
    )  # keyword arguments of scenarios.planted.differences.faulty_engine.FaultyEngine
    trainer: Mapping[str, Any] = field(default_factory=dict)  # of scenarios.planted.differences.trainer.TrainerPlants
    mapping: Mapping[str, Any] = field(default_factory=dict)  # edits of what the parameter mapping produces
    recording: Mapping[str, Any] = field(default_factory=dict)  # damage done to the recording afterwards
    stage: Literal["coupled", "native", "greedy", "lifted"] = "coupled"
    model: str = ""  # the policy of both sides, as in `model.path`; "" for that of the suite
    pair: tuple[str, str] | None = None  # the backends that it needs; None: those of the suite
    cap: float | None = None  # the largest accepted floor, in nats; None: the dtype's own
    expected: str = "DIVERGENT"  # the right verdict
    or_untested: bool = False  # the recording may not suffice; then INCONCLUSIVE is right too
    causes: tuple[str, ...] = ()  # each must be named; without a parenthesis any detail is accepted
    party: str | tuple[str, ...] = ""  # the right party of all causes, or one for each; empty where none may be named
    findings: tuple[str, ...] = ()  # names that must be among the findings
    absent: tuple[str, ...] = ()  # names that must not be among the findings
    confounders: tuple[str, ...] = ()  # the same as `findings`, among the confounders
    told: Mapping[str, str] = field(default_factory=dict)  # cause or finding -> words that its text must contain
    # Fields with other values where learner and engines compute in half precision. None: left out there, because it
    # is too small to be told from rounding, or no fault at all.
    half: Mapping[str, Any] | None = field(default_factory=dict)

    def at(self, dtype: str) -> Fault | None:
        """Return the fault as it is planted in this dtype; None where it is left out."""
        if (
            dtype not in HALF
            or self.stage == "lifted"
            or any(override.startswith("model.dtype=") for override in self.scenario)
        ):
            return self
        return None if self.half is None else replace(self, half={}, **self.half)

    @property
    def of_both(self) -> tuple[str, ...]:
        """Return the settings of both sides."""
        return (*self.scenario, f"model.path={self.model}") if self.model else self.scenario

    @property
    def folder(self) -> str:
        """Return the name of the folder of its runs."""
        return f"{self.name}-{self.model.partition(':')[2]}" if self.model else self.name

    @property
    def label(self) -> str:
        """Return the name, with the policy where it is not that of the suite."""
        return f"{self.name} ({self.model})" if self.model else self.name

    @property
    def parties(self) -> tuple[str, ...]:
        """Return the right party of each cause."""
        return (self.party,) * len(self.causes) if isinstance(self.party, str) else tuple(self.party)

    def plants(self) -> Plants:
        """Return what a run of the side at fault gets."""
        return Plants(
            name=self.name,
            summary=self.summary,
            engine=Injection(f"{ROOM}.faulty_engine:wrap", dict(self.engine)) if self.engine else None,
            trainer=Injection(f"{ROOM}.trainer:plant", dict(self.trainer)) if self.trainer else None,
            mapping=dict(self.mapping),
            inside=INSIDE,
        )

    @property
    def control(self) -> bool:
        """Whether nothing is wrong here, or there is too little data to say so."""
        return self.expected in ("EQUIVALENT", "INCONCLUSIVE") and not self.causes


def matches(expected: str, named: str) -> bool:
    """Whether the cause `named` is the expected one: exactly, or with any detail where `expected` has no
    parenthesis.
    """
    return named == expected or ("(" not in expected and named.partition("(")[0] == expected)
