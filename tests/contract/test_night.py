"""What is left to the night runs in the night."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_nightly_runs_all_that_is_marked_for_the_night() -> None:
    """`.ci/nightly` sets the profile and makes the targets whose tests have such marks."""
    script = (ROOT / ".ci" / "nightly").read_text()
    assert re.search(r"^export TEST_PROFILE=nightly\b", script, re.MULTILINE)
    made = set(re.search(r"^for target in (.+); do$", script, re.MULTILINE)[1].split())  # type: ignore[index]
    recipes = dict(re.findall(r"^([a-z-]+):[^\n]*\n((?:\t[^\n]*\n)+)", (ROOT / "Makefile").read_text(), re.M))
    commands = "".join(recipes[name] for name in made | {"unit"})  # `make test` makes `unit`
    marked = {
        file.relative_to(ROOT).parts[1]
        for file in (ROOT / "tests").rglob("test_*.py")
        if re.search(r"pytest\.mark\.(night|by_day)\b", file.read_text())
    }
    assert "unit" in recipes["test"] and "integration" in marked
    assert not {folder for folder in marked if f"tests/{folder}" not in commands}
