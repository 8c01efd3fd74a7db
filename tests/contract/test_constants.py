"""Every number that a rule, a limit or a format rests on says where it comes from, and has one home."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("harness", "scenarios", "reports", "probes")
# Two reasons that have one number by chance, or formats that have versions of their own: changing one changes no other.
UNRELATED = {"ALPHA", "CHANCE", "FEWEST", "LOOK_S", "MAX_NAME", "MOST_STEPS", "NEAR", "PATIENCE_S",
             "SCHEMA_VERSION", "SHOWN"}  # fmt: skip
APART = {"LISTEN"}  # the doctor's facts are gathered by code that Ray ships by value, without the rest of ours


def constants(file: Path, *, alone: bool = False) -> Iterator[tuple[str, int, Any]]:
    """(name, line, value) of each constant of a module that is made of no other one. `alone`: of a line of its own."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        several = not alone and isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
        for name, one in zip(target.elts, value.elts, strict=True) if several else [(target, value)]:
            if not isinstance(name, ast.Name) or one is None or not name.id.strip("_").isupper():
                continue
            try:
                yield name.id, node.lineno, eval(compile(ast.Expression(one), "", "eval"), {})
            except Exception:  # of other constants, or of what is imported
                continue


def numbers(file: Path) -> Iterator[tuple[str, int, float]]:
    """Those that are numbers, of a line of their own."""
    for name, line, value in constants(file, alone=True):
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield name, line, float(value)


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


def test_a_constant_of_one_name_has_one_home() -> None:
    homes = Counter((name.strip("_"), repr(value)) for file in FILES for name, _, value in constants(file) if value)
    assert {name for (name, _), count in homes.items() if count > 1} == UNRELATED | APART
