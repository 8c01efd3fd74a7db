"""docs/reference/verdicts.md describes the verdict that the code has."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from reports import render
from reports.limits import LIMITS
from reports.model import (
    AUDIT_EXIT_CODES,
    AUDIT_VERDICTS,
    EXIT_CODES,
    SCHEMA_VERSION,
    SUSPICIONS,
    TRIAGE_EXIT_CODES,
    TRIAGE_VERDICTS,
    VERDICTS,
    Cause,
    Check,
    Finding,
    Node,
    Parity,
    Party,
    PhaseMemory,
    Place,
    Proof,
    RunSummary,
    Triage,
    Verdict,
    Wait,
)
from reports.renderers import names

DOCUMENT = (Path(__file__).parents[3] / "docs" / "reference" / "verdicts.md").read_text("utf-8")


@pytest.mark.parametrize(
    "kind", [Verdict, Parity, Place, Check, Finding, Cause, Proof, RunSummary, PhaseMemory, Triage, Party, Node, Wait]
)
def test_every_field_is_documented(kind):
    for field in dataclasses.fields(kind):
        assert f"`{field.name}`" in DOCUMENT, f"{kind.__name__}.{field.name}"


def test_verdicts_exit_codes_and_precedence():
    rows = dict(re.findall(r"^\| `([A-Z]+)` \| (\d) \|", DOCUMENT, re.M))
    assert {name: int(code) for name, code in rows.items()} == EXIT_CODES | TRIAGE_EXIT_CODES | AUDIT_EXIT_CODES
    for name, answer in (AUDIT_VERDICTS | TRIAGE_VERDICTS | VERDICTS).items():
        assert f"| `{name}` | {answer.exit_code} | {answer.meaning}" in DOCUMENT
    assert "`ERROR`, `INCONCLUSIVE`, `DIVERGENT`, `CONFOUNDED`, `EQUIVALENT`" in DOCUMENT


def test_the_eleven_suspicions():
    rows = re.findall(r"^\| (\d+) \| ([^|]+?) \|", DOCUMENT, re.M)
    assert {int(number): name for number, name in rows} == SUSPICIONS


def test_every_source_of_a_limit_is_named():
    for limit in LIMITS.values():
        for source in re.findall(r"\(([^)]+)\)", limit.text):
            assert source in DOCUMENT


@pytest.mark.slow
def test_the_example_is_a_verdict_that_renders():
    example = json.loads(re.findall(r"```json\n(.*?)```", DOCUMENT, re.S)[0])
    verdict = Verdict.from_dict(example)
    assert verdict.schema_version == SCHEMA_VERSION and verdict.exit_code == EXIT_CODES[verdict.verdict]
    assert json.loads(verdict.to_json()) == example
    for format in names("parity"):
        assert "DIVERGENT" in render(verdict, format)
