"""A recording that only says things: run.json's scenario and events, without files."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from harness.recordings.records.catalogue import Records


def recording_of(scenario: dict[str, Any], events: dict[str, list[dict[str, Any]]], **more: Any) -> SimpleNamespace:
    """A recording with this scenario in its run.json, and these events by kind. `more`: other attributes of it."""

    def of_kind(kind: str) -> list[dict[str, Any]]:
        return events.get(kind, [])

    records = Records({"scenario": scenario}, of_kind)
    return SimpleNamespace(scenario=scenario, manifest={}, all=of_kind, records=records, **more)
