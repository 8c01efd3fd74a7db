"""JSON Schemas of what `--format json` prints, made from the types that are printed. docs/generate.py publishes
them."""

from __future__ import annotations

import numbers
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NotRequired, TypedDict

import msgspec

from harness.bundle.manifest import Packed
from harness.envs.checking import Check
from harness.envs.environment import Environment
from harness.frameworks.symbols import Checked
from harness.glossary import Entry
from harness.mapping.judge import Mapping
from harness.triage.folding import Folded
from harness.warm.up import Listed
from reports.bisect_model import Bisection
from reports.doctor_model import Report
from reports.model import Verdict
from reports.nightly_model import CellDifference, Course, Night, NightRow
from reports.run_model import RecordedRun
from scenarios.engines.accepted import Accepted

DIALECT = "https://json-schema.org/draft/2020-12/schema"


class CheckedEnvironment(TypedDict):
    environment: Environment
    checks: list[Check]


class Fault(TypedDict):
    name: str
    suite: Literal["hang", "parity"]
    kind: str
    expected: str
    culprits: list[str]
    cycle: list[str]
    summary: str
    engine: str
    dumps: bool
    world: int
    side: NotRequired[str]


class Suite(TypedDict):
    suite: Literal["hang", "parity"]
    outcomes: list[dict[str, Any]]
    score: dict[str, Any]
    stall_s: NotRequired[float]


@dataclass(frozen=True)
class Schema:
    """The schema of one output. `commands`: those that print it, without `harness`. `more`: derived properties of
    the type."""

    name: str
    kind: Any
    commands: tuple[str, ...]
    more: tuple[tuple[str, str], ...] = ()  # name, type

    def json(self) -> dict[str, Any]:
        made = msgspec.json.schema(self.kind, schema_hook=_foreign)
        listed = made.get("items", made)
        if self.more:
            body = made["$defs"][listed["$ref"].rpartition("/")[2]]
            body["properties"] |= {name: {"type": kind} for name, kind in self.more}
            body["required"] = [*body.get("required", []), *(name for name, _ in self.more)]
        return {"$schema": DIALECT, "title": self.name, **made}


@cache
def schemas() -> tuple[Schema, ...]:
    return (
        Schema(
            "verdict",
            Verdict,
            ("parity", "replay", "diff", "audit", "report", "triage", "watch"),
            (("headline", "string"), ("reservations", "array")),
        ),
        Schema("recorded-run", RecordedRun, ("run", "report")),
        Schema("doctor-report", Report, ("doctor",), (("exit_code", "integer"), ("reason", "string"))),
        Schema("night", Night, ("nightly", "history show"), (("exit_code", "integer"), ("reason", "string"))),
        Schema("nights", list[NightRow], ("history list",)),
        Schema("night-differences", list[CellDifference], ("history compare",)),
        Schema("metric-course", Course, ("history metric",)),
        Schema("bisection", Bisection, ("bisect",), (("exit_code", "integer"),)),
        Schema("bundle", Packed, ("bundle",)),
        Schema("explanations", list[Entry], ("explain",)),
        Schema("stacks", Folded, ("stacks",)),
        Schema("kept-engines", list[Listed], ("ps",)),
        Schema("environments", list[Environment], ("env list",)),
        Schema("environment-checks", list[CheckedEnvironment], ("env check",)),
        Schema("engine-arguments", Accepted, ("env arguments",)),
        Schema("adapters", list[Checked], ("adapters check",), (("ok", "boolean"),)),
        Schema(
            "mapping",
            Mapping,
            ("mapping",),
            (("verdict", "string"), ("arrived", "object"), ("exit_code", "integer"), ("reason", "string")),
        ),
        Schema("faults", list[Fault], ("faults list",)),
        Schema("fault-suite", Suite, ("faults run",)),
    )


def _foreign(kind: Any) -> dict[str, Any]:
    if kind is numbers.Real:  # `reports.codec.Number`: JSON has no number for these
        return {"anyOf": [{"type": "number"}, {"enum": ["nan", "inf", "-inf"]}]}
    raise NotImplementedError
