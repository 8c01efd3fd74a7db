"""What every renderer shows, and in which order: changed rows first, the eleven suspicions by number, warnings
apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from probes.format import number
from reports.limits import limit_of
from reports.model import (
    PROVEN,
    SUSPICIONS,
    UNEXPLAINED,
    Cause,
    Check,
    Finding,
    Parity,
    PhaseMemory,
    Place,
    Proof,
    RunSummary,
    Subject,
    Verdict,
)
from reports.text import clean, figure, flatten, reads_same, show, show_apart

MARKS = {"ruled out": "✓", "confirmed": "✗", "not tested": "○", "undecided": "?"}  # mark of a check, by its state
_NAMES = ("seed",)  # rows whose integer is an identifier, not an amount
ELEVEN, OTHERS = "The eleven suspicions", "Other checks"
CONFOUNDERS = "Confounders", "what had to be equal and is not"


@dataclass(frozen=True)
class Row:
    """A row of the side-by-side table. `state`: changed, equal, measured. `ratio`: for measured rows, last over first
    value.
    """

    title: str
    values: tuple[str, ...]
    state: str
    ratio: str = ""

    @property
    def changed(self) -> bool:
        return self.state == "changed"


@dataclass(frozen=True)
class Metric:
    """A metric with the limit that others publish for it. `outside`: its authors would warn."""

    group: str
    name: str
    value: str
    limit: str = ""
    outside: bool = False

    @property
    def deep(self) -> bool:
        """Whether it is in a group within a group, such as buckets: for a page rather than a terminal."""
        return " / " in self.group


@dataclass(frozen=True)
class Fact:
    """A named value of a free dictionary (coverage, floor, figures), with the group that contains it."""

    name: str
    value: str
    group: str = ""


def side_by_side(runs: list[RunSummary]) -> list[Row]:
    """Return rows of all runs by title: changed ones first, then equal ones, then measured ones, each in the given
    order.
    """
    rows = [_row(title, values) for title, values in _by_title([run.rows for run in runs])]
    if any(run.backend for run in runs):
        rows.insert(0, _row("backend", [run.backend for run in runs]))
    measured = [_measured(title, values) for title, values in _by_title([run.measured for run in runs])]
    return [*sorted(rows, key=lambda row: not row.changed), *measured]


def _by_title(tables: list[dict[str, Any]]) -> Iterator[tuple[str, list[Any]]]:
    """Yield each title of any table with the value of every table, None where it has none."""
    for title in dict.fromkeys(title for table in tables for title in table):
        yield title, [table.get(title) for table in tables]


def _row(title: str, values: list[Any]) -> Row:
    if any(not reads_same(value, values[0]) for value in values[1:]):
        return Row(clean(title), tuple(show_apart(values, group=title not in _NAMES)), "changed")
    return Row(clean(title), tuple(show(value, group=title not in _NAMES) for value in values), "equal")


def _measured(title: str, values: list[Any]) -> Row:
    first, last = number(values[0]), number(values[-1])
    ratio = f"×{last / first:.2f}" if len(values) == 2 and first > 0 and 0 < last < 1e4 * first else ""
    return Row(clean(title), tuple(show(value, group=True) for value in values), "measured", ratio)


_MEMORY = {
    "rss": "resident, MiB",
    "rss_change": "its change",
    "cuda_allocated": "CUDA allocated, MiB",
    "cuda_reserved": "CUDA reserved, MiB",
    "cuda_reserved_change": "its change",
    "dev_shm": "/dev/shm, MiB",
    "kv_usage": "KV pool in use",
}


def memory(runs: list[RunSummary]) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return the names of the columns that any run has, and a row for each role and phase.

    A row has the role, the phase, then all runs' values of the first column, all of the second, and so on.
    """
    places: dict[tuple[str, str], list[PhaseMemory | None]] = {}  # (role, phase) -> the usage of each run
    for index, run in enumerate(runs):
        for usage in run.memory:
            places.setdefault((usage.role, usage.phase), [None] * len(runs))[index] = usage
    usages = [usage for by_run in places.values() for usage in by_run]
    columns = [what for what in _MEMORY if any(getattr(usage, what, None) is not None for usage in usages)]
    rows = []
    for role, phase in sorted(places, key=lambda place: place[0]):
        values = [_memory(usage, what) for what in columns for usage in places[role, phase]]
        rows.append((clean(role), clean(phase), *values))
    return [_MEMORY[what] for what in columns], rows


def _memory(usage: PhaseMemory | None, what: str) -> str:
    value = getattr(usage, what, None)
    if value is None:
        return ""
    if what == "kv_usage":
        return f"{value:.1%}"
    return f"{value / 2**20:+,.1f}" if what.endswith("_change") else f"{value / 2**20:,.0f}"


def suspicions(parity: Parity) -> list[Check]:
    """Return the user's eleven suspicions in order. One that the verdict does not mention was not tested.

    For an audit of one run, only those that one run can show; for a replay, those that it can.
    """
    checks: list[Check] = []
    for index, name in SUSPICIONS.items():
        made = [check for check in parity.checks if check.number == index]
        if not made and not parity.alone and name not in parity.not_applicable:
            made = [Check(name, "not tested", "this verdict holds no evidence on it", index)]
        checks += made
    return checks


def other_checks(parity: Parity) -> list[Check]:
    """Return checks that are not among the eleven: confirmed, undecided, not tested, ruled out."""
    order = {"confirmed": 0, "undecided": 1, "not tested": 2, "ruled out": 3}
    checks = [check for check in parity.checks if check.number not in SUSPICIONS]
    return sorted(checks, key=lambda check: order.get(check.state, 0))


def check_tables(parity: Parity) -> list[tuple[str, list[Check]]]:
    """Return the checks under their titles, those without a check left out."""
    tables = [(ELEVEN, suspicions(parity)), (OTHERS, other_checks(parity))]
    return [(title, checks) for title, checks in tables if checks]


def tally(checks: list[Check]) -> str:
    """Return text such as `1 confirmed, 2 not tested, 8 ruled out`, without states that do not occur."""
    states = dict.fromkeys(["confirmed", "undecided", "not tested", "ruled out", *(check.state for check in checks)])
    counts = [(sum(check.state == state for check in checks), state) for state in states]
    return ", ".join(f"{count:,} {clean(state)}" for count, state in counts if count)


NOT_AS_ASKED, NOT_SHOWN, WARNINGS = "Not as you asked", "Faults that could not have shown", "Warnings"
UNNOTICED, NOT_CALLED = "Damage that could not have been noticed", "Functions of the mapping that were not called"


def warnings(verdict: Verdict) -> list[tuple[str, list[Finding]]]:
    """Return findings that limit a pass under their titles, the gravest first. They are shown above the verdict."""
    titles: dict[Subject, str] = {
        "setting": NOT_AS_ASKED,
        "mapping": NOT_CALLED,
        "scenario": NOT_SHOWN,
        "recording": UNNOTICED,
        "": WARNINGS,
    }
    groups = [(title, verdict.reserving(about)) for about, title in titles.items()]
    return [(title, findings) for title, findings in groups if findings]


def notes(verdict: Verdict) -> list[Finding]:
    """Return the other findings."""
    return [finding for finding in verdict.findings if not finding.reserves]


def proofs(cause: Cause) -> list[str]:
    """Return a cause's proofs as sentences: what was done, how much it removed, on what, in how long.

    A named cause without a proof gets one sentence that says so.
    """
    if not cause.proofs and cause.key != UNEXPLAINED:
        return ["not proven: what was recorded supports it, and no intervention removed the difference"]
    return [_proof(proof) for proof in cause.proofs]


def _proof(proof: Proof) -> str:
    removed, unit = proof.before - proof.after, clean(proof.unit)
    if removed > 0:
        word = "proven" if proof.removed >= PROVEN else "in part"
        amount = f"removed {figure(removed)} of {figure(number(proof.before))} {unit}"
    else:
        word = "proven" if proof.removed >= PROVEN else "not proven"
        amount = f"left {figure(proof.after)} of {figure(number(proof.before))} {unit}"
    where = "live" if proof.on == "live engines" else "on the recordings"
    seconds = f", {show(round(proof.seconds, 2))} s" if proof.seconds else ""
    return f"{word}: {clean(proof.intervention)} {amount}, {where}{seconds}"


def metrics(parity: Parity) -> list[Metric]:
    """Return every metric, nested groups flattened, each with its published limit."""
    flat_metrics = []
    for group, name, value in flatten({key: _folded(value) for key, value in parity.metrics.items()}):
        metric = Metric(group, name, show(value, group=True))
        if limit := limit_of(name):
            metric = replace(metric, limit=limit.text, outside=limit.outside(value))
        flat_metrics.append(metric)
    return flat_metrics


def exceeded(metrics: dict[str, Any]) -> list[str]:
    """Return one sentence for each metric beyond a published limit, without those of buckets."""
    sentences = []
    for group, name, value in flatten(metrics):
        limit = limit_of(name)
        if limit is not None and limit.outside(value) and " / " not in group:
            sentences.append(f"{name} of {group} is {show(value, group=True)}, the published limit {limit.text}")
    return sentences


def beyond_limits(verdict: Verdict) -> list[str]:
    """Return the published limits that a passing verdict exceeds, to be shown above it."""
    return exceeded(verdict.parity.metrics) if verdict.parity and verdict.exit_code == 0 else []


def _folded(data: Any) -> Any:
    """Replace each row of nested tables of like rows (a bucket -> its tokens, mean and maximum) by one text."""
    if not isinstance(data, dict):
        return data
    if _is_table_of_rows(data):
        return {key: show(row, group=True) for key, row in data.items()}
    return {key: _folded(value) for key, value in data.items()}


def _is_table_of_rows(data: dict[str, Any]) -> bool:
    """Whether every value is a row of one to four plain values, under the same names in each row."""
    rows = list(data.values())
    if not rows or not all(isinstance(row, dict) and 0 < len(row) <= 4 for row in rows):
        return False
    if any(row.keys() != rows[0].keys() for row in rows):
        return False
    return not any(isinstance(value, dict) for row in rows for value in row.values())


def facts(data: dict[str, Any]) -> list[Fact]:
    """Return a free dictionary as named values, whatever its keys are, so that a new key appears without new code."""
    return [
        Fact(name.replace("_", " "), show(value, group=True), group.replace("_", " "))
        for group, name, value in flatten(data)
    ]


def fact_sections(verdict: Verdict) -> list[tuple[str, list[Fact]]]:
    """Return the free dictionaries of a verdict under their titles, those without a value left out."""
    sections = [
        ("Floor and tolerance", _floor(verdict.parity.floor) if verdict.parity else []),
        ("Coverage", facts(verdict.coverage)),
        ("Figures", facts(verdict.figures)),
    ]
    return [(title, values) for title, values in sections if values]


def _floor(floor: dict[str, Any]) -> list[Fact]:
    """Return the floor with its unit behind each figure."""
    figures, unit = facts({key: value for key, value in floor.items() if key != "unit"}), floor.get("unit")
    if not unit:
        return figures
    return [
        fact if math.isnan(number(fact.value)) else replace(fact, value=f"{fact.value} {clean(unit)}")
        for fact in figures
    ]


def sources(place: Place, *, alone: bool) -> tuple[str, str]:
    """Return where the two values of a place are from. `alone`: whether one run was looked at by itself."""
    if place.phase == "floor":  # one engine's own two answers
        return "as drawn", "asked again"
    return ("in the run", "expected") if alone else ("baseline", "candidate")


def place_facts(parity: Parity) -> list[Fact]:
    """Return the first divergence: five facts that say where, then field, values and context; empty without one."""
    place = parity.first_divergence
    if place is None:
        return []
    baseline, candidate = show_apart([place.baseline, place.candidate], digits=7)
    names = sources(place, alone=parity.alone)
    where = {"step": place.step, "phase": place.phase, "rank": place.rank, "sample": place.sample}
    place_facts = [Fact(name, show(None if value == -1 else value)) for name, value in where.items()]
    place_facts += [
        Fact("position", "not per token" if place.position == -1 else show(place.position)),
        Fact("field", show(place.field)),
        Fact(names[0], baseline),
        Fact(names[1], candidate),
    ]
    if isinstance(place.baseline, float) and isinstance(place.candidate, float):
        difference = place.candidate - place.baseline
        if math.isfinite(difference):
            place_facts.append(Fact("difference", show(difference)))
    if place.margin is not None:
        place_facts.append(Fact("margin", f"{show(place.margin)} nats between the learner's best two tokens there"))
    if place.context:
        place_facts.append(Fact("context", clean(place.context)))
    return place_facts


def paths(verdict: Verdict) -> list[tuple[str, str]]:
    """Return where things are: the runs, then what the verdict names."""
    run_paths = [(run.side, run.path) for run in verdict.runs if run.path and run.side not in verdict.paths]
    return [(clean(name), clean(path)) for name, path in [*run_paths, *verdict.paths.items()]]


def backends(verdict: Verdict) -> str:
    """Return `vllm against sglang`, or the one backend; "" where no run is known."""
    return " against ".join(clean(run.backend) for run in verdict.runs if run.backend)


def heading(verdict: Verdict) -> str:
    """Return `parity: vllm against sglang`, or the kind alone."""
    return ": ".join(filter(None, (clean(verdict.kind), backends(verdict))))
