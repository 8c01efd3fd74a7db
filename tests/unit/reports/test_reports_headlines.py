"""First lines: short, and true of a verdict that passes with reservations, in every format."""

from __future__ import annotations

import dataclasses
import json
from xml.etree import ElementTree

import headlines
import pytest
import reports_examples as examples

import reports
from harness import verdict_file
from harness.errors import BadInput
from reports import headline
from reports.model import IN_PART, Check, Finding, Place, Verdict
from reports.sections import parity as arrange

WARNING = Finding("CONFIG(seed)", "seed: asked 0, given 7", "none", "warning", "candidate", about="setting")


def reserved(*findings: Finding, untested: int = 0) -> Verdict:
    """A verdict that passes, with these findings, and with so many checks that were not tested."""
    verdict = examples.equivalent()
    assert verdict.parity is not None
    ruled_out = [dataclasses.replace(check, state="ruled out") for check in verdict.parity.checks]
    silent = [Check(f"check-{number}", "not tested", "no evidence") for number in range(untested)]
    body = dataclasses.replace(verdict.parity, checks=[*ruled_out, *silent])
    return dataclasses.replace(verdict, reason="9 of 9 tokens equal", findings=list(findings), parity=body)


def test_what_passes_without_reservations_is_equivalent_and_no_more() -> None:
    verdict = reserved(Finding("torch", "differs", "none measured"))
    assert (verdict.headline, verdict.reservations) == ("EQUIVALENT", [])
    assert verdict.strict.exit_code == 0


def test_reservations_are_counted_by_kind_the_gravest_first() -> None:
    scenario = Finding("a stale cache", "no token came from it", "", "warning", "baseline", about="scenario")
    again = dataclasses.replace(WARNING, summary="another check finds the same")
    other = dataclasses.replace(WARNING, where="baseline")
    verdict = reserved(scenario, Finding("idle engine", "", "", "warning"), WARNING, again, other, untested=3)
    assert [(item.kind, len(item.items)) for item in verdict.reservations] == [
        ("setting", 2), ("scenario", 1), ("warning", 1), ("untested", 3),
    ]  # fmt: skip
    assert verdict.headline.startswith("EQUIVALENT, but 2 settings") and "5 more" in verdict.headline
    assert headline.fits(verdict.headline, "1,234,567 of 1,234,567 tokens equal")


@pytest.mark.parametrize("kind", ["setting", "scenario", "recording", "warning", "untested"])
def test_one_and_several_of_a_kind_are_worded_apart(kind) -> None:
    findings = [dataclasses.replace(WARNING, name=name, about="" if kind == "warning" else kind) for name in "ab"]
    two = reserved(untested=2) if kind == "untested" else reserved(*findings)
    one = reserved(untested=1) if kind == "untested" else reserved(findings[0])
    assert two.reservations[0].words.split()[0] == "2" and one.reservations[0].words.split()[0] == "1"
    assert two.reservations[0].words.split()[1].rstrip("s") == one.reservations[0].words.split()[1].rstrip("s")
    assert two.reservations[0].words != one.reservations[0].words.replace("1", "2")


def test_strict_keeps_the_verdict_and_changes_the_exit_code() -> None:
    verdict = reserved(WARNING)
    assert (verdict.exit_code, verdict.strict.exit_code, verdict.strict.verdict) == (0, 3, "EQUIVALENT")
    assert examples.stale_tensor().strict.exit_code == 1


def test_a_strict_verdict_that_was_written_is_read_again_and_an_edited_one_is_not(tmp_path) -> None:
    for verdict in (reserved(WARNING), reserved(WARNING).strict, reserved()):
        (tmp_path / "verdict.json").write_text(verdict.to_json())
        assert verdict_file.read(tmp_path).exit_code == verdict.exit_code
    (tmp_path / "verdict.json").write_text(dataclasses.replace(reserved(), exit_code=3).to_json())
    with pytest.raises(BadInput, match="edited"):
        verdict_file.read(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("format", ["text", "md", "html", "junit", "json"])
def test_every_format_says_but_in_its_first_line(format) -> None:
    verdict = reserved(WARNING)
    text = reports.render(verdict, format)
    assert verdict.headline in text
    assert reserved().headline in (plain := reports.render(reserved(), format)) and ", but" not in plain
    if format == "json":
        data = json.loads(text)
        assert data["headline"] == verdict.headline and data["verdict"] == "EQUIVALENT"
        assert data["reservations"] == [{"kind": "setting", "items": ["CONFIG(seed) (candidate)"]}]
        assert Verdict.from_dict(data) == verdict
    if format == "junit":
        suite = ElementTree.fromstring(text).find("testsuite")
        assert suite is not None and suite.get("errors") == "0"
        errors = ElementTree.fromstring(reports.render(verdict.strict, "junit")).find("testsuite")
        assert errors is not None and errors.get("errors") == "1"


def test_warnings_stand_under_what_they_are_about() -> None:
    scenario = dataclasses.replace(WARNING, name="a stale cache", about="scenario")
    other = dataclasses.replace(WARNING, name="idle engine", about="")
    titles = {
        title: [item.name for item in items] for title, items in arrange.warnings(reserved(other, scenario, WARNING))
    }
    assert titles == {
        arrange.NOT_AS_ASKED: ["CONFIG(seed)"],
        arrange.NOT_SHOWN: ["a stale cache"],
        arrange.WARNINGS: ["idle engine"],
    }


@pytest.mark.slow
def test_the_evidence_stands_below_the_first_line() -> None:
    verdict = dataclasses.replace(reserved(), reason="9 of 9 tokens equal", evidence=["within the floor", "8 steps"])
    for format in ("text", "md", "html", "junit"):
        text = reports.render(verdict, format)
        assert text.index("9 of 9 tokens equal") < text.index("within the floor") < text.rindex("8 steps")


def test_text_names_the_eleven_suspicions() -> None:
    import io

    from rich.console import Console

    from reports.model import SUSPICIONS
    from reports.renderers.text import TextRenderer

    file = io.StringIO()
    TextRenderer().show(examples.stale_tensor(), Console(file=file, width=100), verbose=False)
    words = " ".join(file.getvalue().split())
    assert all(f"{number} {name}" in words for number, name in SUSPICIONS.items())


# --- the length ---------------------------------------------------------------------------------------


def test_a_sentence_that_is_too_long_becomes_evidence() -> None:
    short, long = "other tokens in step 3", " ".join(["word"] * headline.MOST)
    assert headline.headline("DIVERGENT", short, "other tokens") == (short, [])
    assert headline.headline("DIVERGENT", long, "other tokens") == ("other tokens", [long])


@pytest.mark.parametrize(
    "example",
    [one for one in examples.ALL if one not in (examples.hostile, examples.triage)],
    ids=lambda one: one.__name__,
)
def test_examples_begin_with_a_headline(example) -> None:
    assert not headlines.too_long([example()])


def test_a_first_line_that_is_too_long_is_found_in_what_the_harness_makes_only() -> None:
    """The check that every test of the harness is held to, in tests/conftest.py."""
    long = " ".join(["word"] * headline.MOST)
    code = "from reports.model import Verdict\nVerdict('parity', 'DIVERGENT', 1, reason)"
    with headlines.answers("maker.") as made:
        exec(code, {"__name__": "maker.judge", "reason": long})
        exec(code, {"__name__": "maker.judge", "reason": "other tokens"})
        Verdict("parity", "DIVERGENT", 1, long)
    assert len(made) == 2
    assert headlines.too_long(made) == [f"DIVERGENT  {long}"]


def test_the_two_values_of_an_engine_against_itself_are_of_no_other_side() -> None:
    place = Place(step=0, phase="floor", rank=0, sample=25, position=8, field="logprob", baseline=-3.5, candidate=-2.4)
    assert arrange.sources(place, alone=False) == ("as drawn", "asked again")
    assert arrange.sources(dataclasses.replace(place, phase="prompt"), alone=False) == ("baseline", "candidate")
    assert arrange.sources(dataclasses.replace(place, phase="prompt"), alone=True) == ("in the run", "expected")


@pytest.mark.parametrize("format", ["text", "md", "html"])
@pytest.mark.slow
def test_checks_that_were_tested_in_part_are_counted_behind_the_reason_or_below_it(format: str) -> None:
    verdict = dataclasses.replace(reserved(), findings=[], coverage={IN_PART: 3}, evidence=["within the floor"])
    for reason, mark in (("9 of 9 tokens equal", "9 of 9 tokens equal; "), (" ".join(["word"] * 15), "")):
        text = " ".join(reports.render(dataclasses.replace(verdict, reason=reason), format).split())
        assert text.index(f"{mark}3 checks were tested in part") < text.index("within the floor")
