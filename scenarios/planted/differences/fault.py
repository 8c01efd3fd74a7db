"""What a planted fault of parity is: plain data that says what is changed, on which side, and what is true of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from scenarios.lifted import HALF
from scenarios.plants import Injection, Plants

ROOM = "scenarios.planted.differences"
INSIDE = f"{ROOM}.inside"  # what an engine's own processes import
READY = Plants(inside=INSIDE)  # sound, but the same engine may be given a fault later


@dataclass(frozen=True)
class Fault:
    """A fault, or a control when `expected` is not DIVERGENT.

    Everything is applied to the side at fault, but for `scenario`, which sets up both. Strings of settings are
    section.key=value.
    """

    name: str = ""
    summary: str = ""
    side: Literal["baseline", "candidate"] = "candidate"
    scenario: tuple[str, ...] = ()  # settings of both sides
    settings: tuple[str, ...] = ()  # settings of the side at fault only
    native: tuple[str, ...] = ()  # settings of both sides in the native stage alone: what a coupled one refuses
    engine: Mapping[str, Any] = field(
        default_factory=dict
    )  # keyword arguments of scenarios.planted.differences.engine.FaultyEngine
    trainer: Mapping[str, Any] = field(default_factory=dict)  # of scenarios.planted.differences.trainer.TrainerPlants
    mapping: Mapping[str, Any] = field(default_factory=dict)  # edits of what the parameter mapping produces
    recording: Mapping[str, Any] = field(default_factory=dict)  # damage done to the recording afterwards
    stage: Literal["coupled", "native", "greedy", "lifted"] = "coupled"
    pair: tuple[str, str] | None = None  # backends that it needs; None: those of the suite
    cap: float | None = None  # the largest floor that is believed, in nats; None: the dtype's own
    expected: str = "DIVERGENT"  # the right verdict
    or_untested: bool = False  # what is recorded may not suffice to tell: then INCONCLUSIVE is right as well
    causes: tuple[str, ...] = ()  # each must be named; without a parenthesis any detail is right
    party: str | tuple[str, ...] = ""  # the right party of all causes, or one for each; empty where none may be named
    findings: tuple[str, ...] = ()  # names that must stand among the findings
    absent: tuple[str, ...] = ()  # names that must not
    confounders: tuple[str, ...] = ()  # the same as `findings`, among the confounders
    told: Mapping[str, str] = field(default_factory=dict)  # cause or finding -> words of what is said of it
    # Fields that are others where learner and engines compute in half precision. None: too small to be told there from
    # rounding, or no fault there, and left out.
    half: Mapping[str, Any] | None = field(default_factory=dict)

    def at(self, dtype: str) -> Fault | None:
        """The fault as it is planted in this dtype."""
        if dtype not in HALF or self.stage == "lifted" or any(one.startswith("model.dtype=") for one in self.scenario):
            return self
        return None if self.half is None else replace(self, half={}, **self.half)

    @property
    def parties(self) -> tuple[str, ...]:
        """The right party of each cause."""
        return (self.party,) * len(self.causes) if isinstance(self.party, str) else tuple(self.party)

    def plants(self) -> Plants:
        """What a run of the side at fault is given."""
        return Plants(
            name=self.name,
            summary=self.summary,
            engine=Injection(f"{ROOM}.engine:wrap", dict(self.engine)) if self.engine else None,
            trainer=Injection(f"{ROOM}.trainer:plant", dict(self.trainer)) if self.trainer else None,
            mapping=dict(self.mapping),
            inside=INSIDE,
        )

    @property
    def control(self) -> bool:
        """Nothing is wrong here, or there is too little to say so."""
        return self.expected in ("EQUIVALENT", "INCONCLUSIVE") and not self.causes


def matches(expected: str, named: str) -> bool:
    """Whether the cause `named` is the one expected: exactly, or any detail where `expected` has no parenthesis."""
    return named == expected or ("(" not in expected and named.partition("(")[0] == expected)
