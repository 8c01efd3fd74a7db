"""Within the subjects of the judge, a step imports only from those before it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import harness.parity.subjects as subjects

STEPS = ("observed", "causes", "explain", "checks", "live")
FOLDER = Path(subjects.__path__[0])
# What a step may import of the rooms beside the subjects. Rooms that are not listed here judge, or run, or show.
ROOMS = {"observed": {"facts"}, "causes": {"causes", "interventions"}, "explain": set(), "checks": {"checks"}}
ROOMS["live"] = {"attribution"}
FILES = sorted(path for path in FOLDER.rglob("*.py") if path.name != "__init__.py")


def step_of(module: str) -> str:
    return module.rpartition(".")[2].partition("_")[0]


def imported(path: Path) -> set[str]:
    """Modules of harness.parity that a file imports, also where it imports names from them."""
    modules = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("harness.parity"):
            modules |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names if alias.name.startswith("harness.parity")}
    return modules


def test_every_file_of_a_subject_names_its_step() -> None:
    assert {step_of(path.stem) for path in FILES} == set(STEPS)
    assert {path.parent.parent for path in FILES} == {FOLDER}


@pytest.mark.slow
def test_a_step_imports_only_from_those_before_it() -> None:
    for path in FILES:
        place = STEPS.index(step_of(path.stem))
        rooms = set().union(*(ROOMS[step] for step in STEPS[: place + 1]))
        for module in imported(path):
            parts = module.split(".")[2:]
            if parts[0] == "subjects":
                assert STEPS.index(step_of(parts[2])) <= place, (path, module)
            else:
                assert parts[0] in rooms, (path, module)
