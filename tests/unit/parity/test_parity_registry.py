"""The registry of checks: the modules of the room, and another package's by its entry point."""

from __future__ import annotations

import sys
from collections.abc import Iterator, MutableSequence
from pathlib import Path
from typing import Any

import pytest
from recordings import pair

from harness.parity import explain, judge
from harness.parity.causes import registry as causes
from harness.parity.checks import registry

pytestmark = pytest.mark.slow

CHECKS = """
import sys
from dataclasses import replace
from harness.parity.checks.registry import check, outcome
from harness.parity.facts.divergence import Kind
from reports.model import Check

@check("their-check")
def their_check(e):
    \"\"\"Whether both runs have samples.\"\"\"
    return outcome("their-check", "confirmed", f"{e.counts.samples} samples", decides=False)

@check("their-numbered-check", number=4)
def numbered(e):
    return outcome("tokens", "ruled out", "nothing", number=4)

@check("raises")
def raises(e):
    raise KeyError("lost")

@check("leaves", required=lambda e: True)
def leaves(e):
    sys.exit(0)

@check("none")
def none(e):
    pass

@check("no-state")
def no_state(e):
    return replace(outcome("no-state", "ruled out", ""), check=Check("no-state", "fine", ""))

@check("no-such-kind")
def no_such_kind(e):
    return outcome("no-such-kind", "confirmed", "", kinds=(Kind.FLIP.of(),))

@check("required", required=lambda e: 1 / 0)
def required(e):
    return outcome("required", "ruled out", "nothing")

@check("applies", applies=lambda e: 1 / 0)
def applies(e):
    return outcome("applies", "ruled out", "nothing")

@check("tokens")
def tokens(e):
    return outcome("tokens", "ruled out", "theirs")
"""
CAUSES = """
from harness.parity.causes.family import CauseFamily, Rule

def raises(e, so_far):
    raise KeyError("lost")

def yields_text(e, so_far):
    yield "a cause"

def first(e, so_far):
    return []

RAISES = CauseFamily("RAISES", rules=(Rule(raises, "anywhere"),))
TEXT = CauseFamily("TEXT", rules=(Rule(yields_text, "anywhere"),))
BARE = CauseFamily("BARE", rules=(first,))
TAKEN = CauseFamily("STALE_KV")
"""
ENTRIES = """
[rlhf_harness.checks]
theirs = their_checks
absent = their_absent
silent = their_causes
[rlhf_harness.causes]
raises = their_causes:RAISES
text = their_causes:TEXT
bare = their_causes:BARE
taken = their_causes:TAKEN
none = their_causes:first
"""
MISBEHAVING = {
    "raises": "raised KeyError: 'lost'",
    "leaves": "raised SystemExit: 0",
    "none": "raised TypeError: it returned NoneType, which is no Outcome",
    "no-state": "raised ValueError: Invalid enum value 'fine'",
    "no-such-kind": "raised ValueError: these runs do not diverge in ",
    "required": "raised ZeroDivisionError: division by zero",
    "applies": "raised ZeroDivisionError: division by zero",
}


@pytest.fixture
def theirs(tmp_path: Path, _answers: MutableSequence[Any]) -> Iterator[Path]:
    """The folder of another package, as it is installed. What it brings is known as long as the test runs."""
    for name, text in {
        "their_checks.py": CHECKS,
        "their_causes.py": CAUSES,
        "theirs-1.dist-info/entry_points.txt": ENTRIES,
        "theirs-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: theirs\nVersion: 1\n",
    }.items():
        (tmp_path / "site" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "site" / name).write_text(text)
    registry.checks()
    cached = (registry._loaded, causes._loaded, explain.rules)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(registry, "_REGISTERED", list(registry._REGISTERED))
        monkeypatch.syspath_prepend(str(tmp_path / "site"))
        for registered in cached:
            registered.cache_clear()
        yield tmp_path / "site"
    for registered in cached:
        registered.cache_clear()
    for name in ("their_checks", "their_causes"):
        sys.modules.pop(name, None)
    _answers.clear()


def judged(tmp_path: Path, *, shifted: float = 0.0) -> tuple[str, dict[str, tuple[str, str]], list[str]]:
    """Verdict, name -> (state, evidence) of every check, and what is missing. `shifted`: nats that the candidate's
    log-probabilities are off."""
    baseline, candidate = pair()
    for frame in candidate.frames("rollout"):
        frame.arrays["logprob"].values[:] -= shifted
    found = judge(baseline.write(tmp_path / "baseline"), candidate.write(tmp_path / "candidate"))
    assert found.parity is not None
    names = [check.name for check in found.parity.checks]
    assert len(names) == len({*names})
    return found.verdict, {one.name: (one.state, one.evidence) for one in found.parity.checks}, found.missing


def test_another_packages_check_confirms_and_disturbs_no_other_however_it_misbehaves(
    theirs: Path, tmp_path: Path
) -> None:
    (theirs / "their_checks.py").write_text(CHECKS.replace("required=lambda e: True", ""))
    verdict, states, missing = judged(tmp_path)
    assert verdict == "EQUIVALENT"
    assert states["their-check"][0] == "confirmed" and "samples" in states["their-check"][1]
    assert states["their-numbered-check"] == ("ruled out", "nothing") and states["tokens"][0] == "ruled out"
    for name, what in MISBEHAVING.items():
        state, evidence = states[name]
        assert state == "not tested", name
        assert evidence.startswith(f"the check plug-in 'theirs' of theirs 1 (their_checks) {what}"), evidence
        assert f"{name}: {evidence}" in missing


def test_a_required_check_of_another_package_that_fails_is_no_pass(theirs: Path, tmp_path: Path) -> None:
    verdict, _, _ = judged(tmp_path)
    assert verdict == "INCONCLUSIVE"


def test_plugins_that_bring_nothing_are_told_in_the_verdict(theirs: Path, tmp_path: Path) -> None:
    _, states, missing = judged(tmp_path)
    told = {name: evidence for name, (state, evidence) in states.items() if name.startswith("plug-in theirs 1")}
    assert told == {
        "plug-in theirs 1 (their_absent)": "the check plug-in 'absent' of theirs 1 (their_absent) cannot be loaded: "
        "ModuleNotFoundError: No module named 'their_absent'",
        "plug-in theirs 1 (their_causes)": "the check plug-in 'silent' of theirs 1 (their_causes) registers no check",
        "plug-in theirs 1 (tokens)": "the check plug-in 'theirs' of theirs 1 (their_checks) registers a check in "
        "their_checks that cannot be used: the name 'tokens' is taken by harness.parity.checks.between_runs",
        "plug-in theirs 1 (their_causes:TAKEN)": "the cause plug-in 'taken' of theirs 1 (their_causes:TAKEN) cannot be "
        "used: the name 'STALE_KV' is taken by the harness (harness.parity.causes)",
        "plug-in theirs 1 (their_causes:BARE)": "the cause plug-in 'bare' of theirs 1 (their_causes:BARE) cannot be "
        "used: each of its rules must be a Rule of a function",
        "plug-in theirs 1 (their_causes:first)": "the cause plug-in 'none' of theirs 1 (their_causes:first) cannot be "
        "used: it is no harness.parity.causes.family.CauseFamily",
    }
    assert all(any(one.startswith(f"{name}: ") for one in missing) for name in told)


def test_a_cause_of_another_package_that_fails_is_told_where_causes_are_sought(theirs: Path, tmp_path: Path) -> None:
    verdict, states, _ = judged(tmp_path, shifted=0.05)
    assert verdict == "DIVERGENT"
    for name, what in {
        "RAISES": "raised KeyError: 'lost'",
        "TEXT": "raised TypeError: it yields str, which is no Explanation",
    }.items():
        state, evidence = states[f"plug-in theirs 1 (their_causes:{name})"]
        assert state == "not tested" and evidence.endswith(f"(their_causes:{name}) {what}")


def test_the_numbered_suspicions_come_first() -> None:
    numbers = [one.number for one in registry.checks()]
    named = [one for one in numbers if one]
    assert named == sorted(named) and not any(numbers[len(named) :])
