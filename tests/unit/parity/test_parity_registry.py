"""The registry of checks: the modules of the room, and another package's by its entry point."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from recordings import pair

from harness.parity import judge
from harness.parity.checks import registry

CHECKS = """
from harness.parity.checks.registry import check, outcome

@check("their-check")
def their_check(e):
    \"\"\"Whether both runs have samples.\"\"\"
    return outcome("their-check", "confirmed", f"{e.counts['samples']} samples", decides=False)

@check("their-broken-check")
def broken(e):
    raise KeyError("lost")
"""


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of another package, as it is installed."""
    for name, text in {
        "theirs_checks.py": CHECKS,
        "theirs-1.dist-info/entry_points.txt": "[rlhf_harness.checks]\ntheirs = theirs_checks\n",
        "theirs-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: theirs\nVersion: 1\n",
    }.items():
        (tmp_path / "site" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "site" / name).write_text(text)
    monkeypatch.setattr(registry, "_REGISTERED", list(registry.checks()))
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    registry.checks.cache_clear()
    yield tmp_path / "site"
    registry.checks.cache_clear()
    sys.modules.pop("theirs_checks", None)


def test_another_packages_check_confirms_and_a_broken_one_is_not_tested(theirs: Path, tmp_path: Path) -> None:
    baseline, candidate = pair()
    found = judge(baseline.write(tmp_path / "baseline"), candidate.write(tmp_path / "candidate"))
    assert found.verdict == "EQUIVALENT" and found.parity is not None
    states = {check.name: (check.state, check.evidence) for check in found.parity.checks}
    assert states["their-check"][0] == "confirmed" and "samples" in states["their-check"][1]
    assert states["their-broken-check"] == ("not tested", "the check of 'theirs' raised KeyError: 'lost'")


def test_checks_that_cannot_be_loaded_leave_our_own(theirs: Path) -> None:
    (theirs / "theirs_checks.py").write_text("raise RuntimeError('broken')\n")
    with pytest.warns(UserWarning, match="the checks of 'theirs' cannot be loaded: broken"):
        names = [one.name for one in registry.checks()]
    assert "tokens" in names and "their-check" not in names


def test_the_numbered_suspicions_come_first() -> None:
    numbers = [one.number for one in registry.checks()]
    named = [one for one in numbers if one]
    assert named == sorted(named) and not any(numbers[len(named) :])
