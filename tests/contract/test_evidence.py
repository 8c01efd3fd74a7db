"""Evidence is written by its builder and by the stages that gather, and by nobody else."""

from __future__ import annotations

import ast
import dataclasses
import types
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest

import harness.parity as parity
from harness.parity.facts.evidence import Evidence, Side

FOLDER = Path(parity.__path__[0])
BUILDERS = {"EvidenceBuilder", "SideBuilder"}
# The stages beside the `observed` files of the subjects.
STAGES = {"gather.py", "lifted.py", "facts/evidence_builder.py", "facts/compare.py", "facts/own_faults.py"}
WRITABLE = (list, dict, set)
CHANGES = {
    "add", "append", "clear", "discard", "extend", "fill", "insert", "pop", "popitem", "remove", "setdefault", "sort",
    "update",
}  # fmt: skip
FILES = sorted(path.relative_to(FOLDER) for path in FOLDER.rglob("*.py"))


def is_stage(path: Path) -> bool:
    return path.as_posix() in STAGES or (path.parts[0] == "subjects" and path.name.startswith("observed"))


def records() -> dict[type, str]:
    """Every data class of the judge that evidence consists of, with the field that leads to it."""
    reached: dict[type, str] = {Evidence: "evidence", Side: "Evidence.sides"}
    waiting: list[type] = [*reached]
    while waiting:
        record = waiting.pop()
        for name, annotation in typing.get_type_hints(record).items():
            for part in parts(annotation):
                if dataclasses.is_dataclass(part) and part.__module__.startswith("harness.parity"):
                    if part not in reached:
                        waiting.append(part)
                    reached.setdefault(part, f"{record.__name__}.{name}")
    return reached


def parts(annotation: object) -> Iterator[type]:
    """The classes that an annotation names: `Mapping[str, tuple[Tested, ...]]` names Mapping, str, tuple, Tested."""
    origin = typing.get_origin(annotation)
    if origin is None:
        if isinstance(annotation, typing.TypeVar):
            yield from parts(annotation.__bound__)
        elif isinstance(annotation, type):
            yield annotation
        return
    if isinstance(origin, type) and origin is not types.UnionType:
        yield origin
    for argument in typing.get_args(annotation):
        yield from parts(argument)


RECORDS = records()
NAMES = {record.__name__ for record in RECORDS}
USUAL = {"baseline", "candidate", "e", "evidence", "side"}  # what loops and methods call a record


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_every_record_of_evidence_is_read_only(record: type) -> None:
    assert record.__dataclass_params__.frozen, RECORDS[record]  # type: ignore[attr-defined]
    for name, annotation in typing.get_type_hints(record).items():
        assert not set(parts(annotation)).intersection(WRITABLE), f"{record.__name__}.{name}"


@pytest.fixture(scope="module")
def judges() -> dict[Path, ast.Module]:
    """Every file of the judge that does not gather evidence."""
    return {path: ast.parse((FOLDER / path).read_text()) for path in FILES if not is_stage(path)}


@pytest.mark.slow
def test_only_stages_know_the_builder(judges: dict[Path, ast.Module]) -> None:
    for path, tree in judges.items():
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        assert not names & BUILDERS, path


def writes(tree: ast.Module) -> list[str]:
    """Assignments within a record, and calls that change a part of one: `e.first[key] = ...`, `side.stops.clear()`."""
    changed: list[ast.expr] = []
    roots = set(USUAL)
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.Delete):
            changed += node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            changed.append(node.target)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
            changed.append(node.func.value)
        elif isinstance(node, ast.arg) and isinstance(node.annotation, ast.Name) and node.annotation.id in NAMES:
            roots.add(node.arg)
    return [ast.unparse(target) for target in changed if is_within(target, roots)]


def is_within(target: ast.expr, roots: set[str]) -> bool:
    """Whether a target is a part of one of these objects, or of an attribute of such a name: `s.evidence.first`."""
    part = False
    while isinstance(target, ast.Attribute | ast.Subscript):
        if part and isinstance(target, ast.Attribute) and target.attr in USUAL:
            return True
        part, target = True, target.value
    return part and isinstance(target, ast.Name) and target.id in roots


@pytest.mark.slow
def test_nothing_that_judges_writes_to_evidence(judges: dict[Path, ast.Module]) -> None:
    assert len(judges) > 80
    for path, tree in judges.items():
        assert writes(tree) == [], path


def test_a_write_is_seen() -> None:
    assert writes(ast.parse("e.guided = True")) == ["e.guided"]
    assert writes(ast.parse("e.first[key] = place")) == ["e.first[key]"]
    assert writes(ast.parse("side.counts.samples += 1")) == ["side.counts.samples"]
    assert writes(ast.parse("del s.evidence.first[key]")) == ["s.evidence.first[key]"]
    assert writes(ast.parse("e.learners.cuts.append(cut)")) == ["e.learners.cuts"]
    assert writes(ast.parse("def rule(learned: Learned): learned.aloud[place] = True")) == ["learned.aloud[place]"]
    assert writes(ast.parse("first = e.first\nself.steps = e.steps\nsteps.append(e.steps)\nself.evidence = e")) == []
