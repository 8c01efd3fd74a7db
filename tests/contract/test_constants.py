"""Every number that a rule, a limit or a format rests on says where it comes from, and has one home."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("harness", "scenarios", "reports", "probes")
# Two reasons that have one number by chance, or formats that have versions of their own: changing one changes no other.
UNRELATED = {"ALPHA", "CHANCE", "FALSE_ALARM", "FEWEST", "FORMAT_VERSION", "LOOK_S", "MAX_NAME", "MOST_STEPS", "NEAR",
             "PATIENCE_S", "RESIDUE", "SCHEMA_VERSION", "SHOWN", "YOUNG_S"}  # fmt: skip


def numbers(file: Path) -> Iterator[tuple[str, int, float]]:
    """(name, line, value) of each constant of a module that is a number."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if not isinstance(target, ast.Name) or value is None or not target.id.strip("_").isupper():
            continue
        try:
            found = eval(compile(ast.Expression(value), "", "eval"), {})
        except Exception:  # of other constants, or of what is imported
            continue
        if isinstance(found, int | float) and not isinstance(found, bool):
            yield target.id, node.lineno, float(found)


FILES = [file for room in ROOMS for file in sorted((ROOT / room).rglob("*.py")) if "planted" not in file.parts]


@pytest.mark.parametrize("room", ROOMS)
def test_every_number_says_where_it_comes_from(room: str) -> None:
    silent = []
    for file in (file for file in FILES if file.is_relative_to(ROOT / room)):
        lines = file.read_text(encoding="utf-8").split("\n")
        for name, line, _ in numbers(file):
            around = "\n".join(lines[line - 1 : line + 2]) if lines[line - 1].endswith("(") else lines[line - 1]
            if "#" not in around and not lines[line - 2].lstrip().startswith("#"):
                silent.append(f"{file.relative_to(ROOT)}:{line} {name}")
    assert not silent


def test_a_number_of_one_name_has_one_home() -> None:
    homes = Counter((name.strip("_"), value) for file in FILES for name, _, value in numbers(file))
    assert not {name for (name, _), count in homes.items() if count > 1} - UNRELATED
