"""A verdict or a recorded run as one self-contained HTML file that works offline, with at most one script.

Everything from the verdict passes autoescaping. The content security policy lets nothing load. By their hashes it
admits exactly one style sheet and, where the recordings are available, the script of the sample browser. Two
renderings of one verdict are the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
from collections.abc import Iterable
from importlib import resources
from typing import TYPE_CHECKING, Any, cast

from reports.renderers import Renderer
from reports.sections import answer, recorded, samples
from reports.sections import charts as drawing
from reports.sections import graph as triage_graph
from reports.sections import parity as arrange
from reports.sections import triage as triage_arrange
from reports.sections.parity import MARKS
from reports.sections.svg import StyleSheet
from reports.text import clean

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

    from reports.model import Parity, Triage, Verdict
    from reports.renderers import Subject
    from reports.run_model import RecordedRun
    from reports.sections.svg import StyleSheet

TONES = {"EQUIVALENT": "ok", "INCONCLUSIVE": "warn", "CONFOUNDED": "warn", "SLOW": "warn", "INSUFFICIENT": "warn"}
STATES = {"ruled out": "ok", "confirmed": "bad", "not tested": "warn", "undecided": "warn"}
_TILES = 7  # a choice: one row of a wide window
MOST_STEPS = 1000  # steps in the table of a recorded run: a browser lays out this many at once


class HtmlRenderer(Renderer):
    name = "html"
    suffix = ".html"
    takes = frozenset({"parity", "audit", "triage", "run"})

    def render(self, subject: Subject) -> str:
        return _run(cast("RecordedRun", subject)) if subject.kind == "run" else _page(cast("Verdict", subject))


def _run(run: RecordedRun) -> str:
    """Render a recorded run: where it is, and the metrics of its steps."""
    from markupsafe import Markup

    css = resources.files("reports").joinpath("templates/report.css").read_text("utf-8")
    names, rows = recorded.table(run, all_metrics=True)
    return (
        _environment()
        .get_template("run.html")
        .render(
            run=run,
            css=Markup(css),
            css_hash=_digest(css),
            title=recorded.title(run),
            state=recorded.state(run),
            names=names,
            rows=rows[:MOST_STEPS],
            left_out=max(0, len(rows) - MOST_STEPS),
        )
    )


def _page(verdict: Verdict) -> str:
    from markupsafe import Markup

    sheet, parity = StyleSheet(), verdict.parity
    drawn = importlib.util.find_spec("matplotlib") is not None
    charts = _charts(parity, sheet) if parity and drawn else []
    css = resources.files("reports").joinpath("templates/report.css").read_text("utf-8") + sheet.css()
    coverage = arrange.facts(verdict.coverage)
    return (
        _environment()
        .get_template("report.html")
        .render(
            v=verdict,
            answer=answer.of(verdict),
            css=Markup(css),
            css_hash=_digest(css),
            heading=arrange.heading(verdict),
            tone="warn" if verdict.reservations else TONES.get(verdict.verdict, "bad" if verdict.exit_code else "ok"),
            tones=STATES,
            marks=MARKS,
            tiles=[fact for fact in coverage if len(fact.value) <= 12 and not fact.group][:_TILES],
            facts=arrange.facts,
            tally=arrange.tally,
            proofs=arrange.proofs,
            warnings=arrange.warnings(verdict),
            beyond=arrange.beyond_limits(verdict),
            notes=arrange.notes(verdict),
            paths=arrange.paths(verdict),
            charts=charts,
            drawn=drawn,
            charts_extra="pip install matplotlib",
            title=triage_arrange.title(verdict),
            t=verdict.triage,
            fact_sections=arrange.fact_sections(verdict),
            confounders=arrange.CONFOUNDERS,
            **_of_samples(parity),
            **_of_runs(parity),
            **_of_hang(verdict.triage),
        )
    )


def _charts(parity: Parity, sheet: StyleSheet) -> list[dict[str, Any]]:
    from markupsafe import Markup

    return [
        {"title": chart.title, "note": chart.note, "legend": chart.legend, "svg": Markup(chart.svg)}
        for chart in drawing.charts(parity, sheet)
    ]


def _of_samples(parity: Parity | None) -> dict[str, Any]:
    """Return the sample browser with its script, or why there is none."""
    from markupsafe import Markup

    browser = samples.of(parity) if parity else ""
    if isinstance(browser, samples.Samples):
        script = resources.files("reports").joinpath("templates/samples.js").read_text("utf-8")
        return {"samples": browser, "no_samples": "", "script": Markup(script), "script_hash": _digest(script)}
    return {"samples": None, "no_samples": browser, "script": Markup(""), "script_hash": _digest("")}


def _of_runs(parity: Parity | None) -> dict[str, Any]:
    """Return what the page shows of two runs; empty values for a hang."""
    if parity is None:
        nothing = dict.fromkeys(("place", "runs", "rows", "metrics", "check_tables"), ())
        return {**nothing, "memory": ([], []), "changed": 0}
    rows = arrange.side_by_side(parity.runs)
    return {
        "place": arrange.place_facts(parity),
        "runs": parity.runs,
        "rows": rows,
        "memory": arrange.memory(parity.runs),
        "changed": sum(row.changed for row in rows),
        "metrics": arrange.metrics(parity),
        "check_tables": arrange.check_tables(parity),
    }


def _of_hang(triage: Triage | None) -> dict[str, Any]:
    """Return what the page shows of a hang; empty values for two runs."""
    from markupsafe import Markup

    if triage is None:
        nothing = dict.fromkeys(("culprits", "victims", "cycle", "processes", "stacks"), ())
        return {**nothing, "left_out": 0, "graph": ""}
    return {
        "culprits": triage_arrange.culprits(triage),
        "victims": triage_arrange.victims(triage),
        "cycle": triage_arrange.cycle(triage),
        "processes": triage_arrange.processes(triage),
        "stacks": triage_arrange.stacks(triage),
        "left_out": triage_arrange.left_out(triage),
        "graph": Markup(triage_graph.svg(triage)),
    }


def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    def cleaned(value: Any) -> Any:
        return value if isinstance(value, Markup) else clean(value)

    environment = Environment(
        loader=PackageLoader("reports"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=cleaned,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"groupby_order": _grouped, "whole": _unbroken}
    return environment


def _unbroken(text: str) -> Markup:
    """Return text as markup in which no line ends inside |Δ|; a browser may break a line behind the first bar."""
    from markupsafe import Markup, escape

    return Markup(str(escape(clean(text))).replace("|Δ|", '<span class="whole">|Δ|</span>'))


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _grouped(items: Iterable[Any]) -> list[tuple[str, list[Any]]]:
    """Return items by their `group`, groups in order of first appearance (jinja2's own filter sorts them)."""
    groups: dict[str, list[Any]] = {}
    for item in items:
        groups.setdefault(item.group, []).append(item)
    return list(groups.items())
