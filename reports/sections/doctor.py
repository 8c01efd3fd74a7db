"""The content of a doctor's report, arranged once for every renderer: hazards by severity, unchecked ones together."""

from __future__ import annotations

from reports.doctor_model import SEVERITIES, Hazard, Report, Severity, Unchecked

TITLES: dict[Severity, str] = {"error": "Will fail", "warning": "May fail", "info": "Good to know"}
COMPARED: dict[Severity, str] = {
    "error": "Makes them other runs", "warning": "May make them other runs",
    "unknown": "Differs, and what it changes is not known",
    "info": "Differs on purpose, or changes no result",
}  # fmt: skip


def by_severity(report: Report) -> list[tuple[str, list[Hazard]]]:
    """Return (title, hazards) of each severity that occurs, the worst first."""
    titles = COMPARED if report.compared else TITLES
    groups = [(titles.get(name, ""), [item for item in report.hazards if item.severity == name]) for name in SEVERITIES]
    return [(title, hazards) for title, hazards in groups if hazards]


def unchecked(report: Report) -> list[tuple[list[str], list[str], str, str]]:
    """Return (checks, places, reason, how to have them checked). Without a cluster, a whole family has one reason."""
    groups: dict[tuple[str, str], list[Unchecked]] = {}
    for item in report.unchecked:
        groups.setdefault((item.reason, item.fix), []).append(item)
    return [
        (
            list(dict.fromkeys(item.check for item in items)),
            list(dict.fromkeys(place for item in items for place in item.where)),
            reason,
            fix,
        )
        for (reason, fix), items in groups.items()
    ]
