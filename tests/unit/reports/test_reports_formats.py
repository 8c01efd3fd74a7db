"""Any verdict round-trips through JSON and renders in every format; Markdown and JUnit in particular."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import subprocess
import sys
from xml.etree import ElementTree

import numpy
import pytest
import reports_examples as examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reports import render
from reports.model import (
    EXIT_CODES,
    STRICT,
    SUSPICIONS,
    TRIAGE_EXIT_CODES,
    Cause,
    Check,
    Finding,
    Parity,
    Place,
    RunSummary,
    Verdict,
)
from reports.renderers import names as formats

text = st.text(max_size=12) | st.sampled_from(
    ["nan", "|", "<b>", "`", "\x00", "\ud800", examples.HOSTILE, "1. x", "a/b", "kl"]
)
floats = st.floats() | st.sampled_from([0.0, 1e-30, 1e30, 1.0])
leaves = st.none() | st.booleans() | st.integers() | floats | text
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(text, inner, max_size=2), max_leaves=4
)
tables = st.dictionaries(text, values, max_size=2)
names = st.sampled_from(
    ["reward", "kl", "length_max", "seconds", "sync_seconds", "real_tokens", "step", "max_delta_logprob", "flips"]
)
series = st.dictionaries(names | text, st.lists(floats, max_size=4), max_size=2)
findings = st.lists(
    st.builds(Finding, text, text, text, st.sampled_from(["info", "warning"]), text, tables), max_size=2
)
places = st.builds(
    Place,
    st.integers(),
    text,
    st.integers(),
    st.integers(),
    st.integers(-1),
    text,
    values,
    values,
    st.none() | floats,
    text,
)
checks = st.builds(
    Check, text, st.sampled_from(["ruled out", "confirmed", "not tested"]), text, st.integers(-1, 12), tables
)
runs = st.lists(st.builds(RunSummary, text, text, text, tables, series, tables), max_size=3)
bodies = st.builds(Parity, st.none() | places, tables, st.lists(checks, max_size=2), runs, tables, series)
answers = st.sampled_from([
    *(("parity", name, code) for name, code in EXIT_CODES.items()), ("parity", "EQUIVALENT", STRICT),
    *(("triage", name, code) for name, code in TRIAGE_EXIT_CODES.items()),
])  # fmt: skip
verdicts = st.builds(
    lambda answer, *fields: Verdict(*answer, *fields),
    answers,
    text,
    findings,
    st.lists(st.builds(Cause, text, text, text, text, tables), max_size=1),
    findings,
    st.lists(text, max_size=2),
    tables,
    tables,
    st.none() | bodies,
    st.none(),  # test_reports_triage has the bodies of triage
    text,
    st.dictionaries(text, text, max_size=2),
    text,
)


@pytest.mark.slow
@settings(suppress_health_check=list(HealthCheck))
@given(verdicts)
def test_any_verdict_round_trips_and_a_stored_one_renders_as_a_fresh_one(verdict):
    stored = verdict.to_json()
    again = Verdict.from_dict(json.loads(stored))
    assert again.to_json() == stored
    for format in ("text", "md", "junit", "json"):
        assert render(again, format) == render(verdict, format)


@pytest.mark.slow
@settings(suppress_health_check=list(HealthCheck))
@given(verdicts)
def test_any_verdict_renders_as_html(verdict):
    page = render(verdict, "html")
    page.encode("utf-8")
    assert page.rstrip().endswith("</html>") and "<script" not in page


@pytest.mark.slow
@settings(suppress_health_check=list(HealthCheck))
@given(verdicts)
def test_any_verdict_is_well_formed_junit(verdict):
    root = ElementTree.fromstring(render(verdict, "junit").encode())
    cases = root.findall("testsuite/testcase")
    assert len(cases) == int(root.get("tests"))
    assert len(root.findall(".//failure")) == int(root.get("failures"))
    assert (len(cases[0].findall("failure")) + len(cases[0].findall("error"))) == bool(verdict.exit_code)


@pytest.mark.slow
@pytest.mark.parametrize("format", sorted({*formats("parity")} - {"html"}))  # test_reports_html has those
@pytest.mark.parametrize("example", examples.ALL)
def test_every_example_renders(example, format):
    assert render(example(), format).endswith("\n")


def test_an_unknown_format_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="html, issue, json, junit, line, md, openmetrics, perfetto, text"):
        render(examples.nothing(), "pdf")


def test_junit_has_one_case_per_check_and_one_for_the_verdict():
    root = ElementTree.fromstring(render(examples.stale_tensor(), "junit").encode())
    cases = {case.get("name"): case for case in root.iter("testcase")}
    assert [name for name in cases if name[:2].isdigit()] == [
        f"{number:02d} {name}" for number, name in SUSPICIONS.items()
    ]
    assert cases["verdict"].find("failure").get("type") == "DIVERGENT"
    assert cases["weight-sync"].find("failure") is not None and cases["native"].find("failure") is None
    assert root.attrib == {"tests": "16", "failures": "4", "errors": "0", "skipped": "0"}


@pytest.mark.by_day(3)
@pytest.mark.slow
@pytest.mark.parametrize("format", ["md", "html", "junit"])
@pytest.mark.parametrize("kind", ["findings", "confounders"])
def test_a_finding_has_its_side_and_its_effect_in_every_format(format, kind):
    item = Finding("a stale cache", "it could not have shown", "equality says less", "warning", "of the baseline")
    text = render(dataclasses.replace(examples.stale_tensor(), **{kind: [item]}), format)
    assert all(part in " ".join(text.split()) for part in (item.name, item.where, item.summary, item.effect))


def test_a_run_that_tested_nothing_is_not_green():
    root = ElementTree.fromstring(render(examples.torn(), "junit").encode())
    assert root.attrib == {"tests": "12", "failures": "0", "errors": "1", "skipped": "11"}
    assert root.find("testsuite/testcase/error").get("message").startswith("INCONCLUSIVE (exit code 3)")


def test_markdown_says_the_verdict_first_and_lists_changed_rows_first():
    lines = render(examples.stale_tensor(), "md").splitlines()
    assert lines[0] == "## DIVERGENT (exit code 1)"
    rows = [line for line in lines if line.startswith("| ≠ |")]
    assert [row.split(" | ")[1] for row in rows] == [
        "backend",
        "engine version",
        "attention backend",
        "reward, last step",
        "cache hit rate",
    ]
    assert lines.index(rows[-1]) < next(i for i, line in enumerate(lines) if "| scenario |" in line)
    assert "| 11 | per-step input sizes and times | ruled out |" in "\n".join(lines)
    assert examples.stale_tensor().reproduce in lines


def test_markdown_tables_keep_their_columns_and_nothing_becomes_markup():
    page = render(examples.hostile(), "md")
    outside = page.split("### Reproduce")[0]
    assert "<script" not in outside and not re.search(r"(?<!\\)\]\(|(?<!\\)`", outside)
    width = 0
    for line in outside.splitlines():
        cells = line.replace("\\|", "").count("|")
        assert cells == width or not (line.startswith("|") and width)
        width = cells if line.startswith("|") else 0
    fence = page.split("### Reproduce")[1].split("\n\n")[1].splitlines()
    assert len(fence) == 3 and fence[0] == "```sh" and fence[2] == "```" and "<script>" in fence[1]


def test_a_command_with_backticks_stays_in_its_fence():
    page = render(Verdict("parity", "ERROR", 2, "", reproduce="a ```` b"), "md")
    assert "`````sh\na ```` b\n`````" in page


def test_numpy_figures_are_numbers_in_json():
    verdict = Verdict(
        "parity", "ERROR", 2, "", figures={"a": numpy.float32(0.5), "b": numpy.int64(3), "c": numpy.float64(math.inf)}
    )
    assert json.loads(verdict.to_json())["figures"] == {"a": 0.5, "b": 3, "c": "inf"}


def test_another_schema_version_is_refused():
    with pytest.raises(ValueError, match="schema 2 is not 1"):
        Verdict.from_dict({**examples.nothing().to_dict(), "schema_version": 2})


@pytest.mark.slow
def test_importing_reports_and_its_model_loads_nothing_heavy():
    heavy = "{'rich', 'jinja2', 'matplotlib', 'numpy', 'pandas', 'torch', 'ray', 'pydantic'}"
    program = f"import sys, reports, reports.model; sys.exit(', '.join({heavy} & set(sys.modules)) or 0)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={"PYTHONPATH": ":".join(path for path in sys.path if path)},
    )
    assert (done.returncode, done.stderr) == (0, "")
