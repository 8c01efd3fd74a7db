"""Who may import whom: probes live in any process, so they bring nothing along; reports read recordings, and scrub."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "numpy", "pandas", "pyarrow", "ray", "scipy", "transformers", "pydantic")
ROOMS = ("harness", "reports", "scenarios", "probes")
OF_PROBES = ("probes.format.", "probes.redaction.", "probes.plugins.", "probes.distribution.")  # that reports know


def loaded(statement: str) -> set[str]:
    """Top-level names in sys.modules after `statement` in a fresh interpreter; our own modules in full."""
    command = [sys.executable, "-c", f"{statement}\nimport sys\nprint(*sys.modules)"]
    path = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    names = done.stdout.split()
    return {name for name in names if name.split(".")[0] in ROOMS} | {name.split(".")[0] for name in names}


def imports(room: str) -> Iterator[tuple[Path, str]]:
    """(file, absolute module name) of every import in a room, those inside functions included."""
    for file in sorted((ROOT / room).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                yield from ((file, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert not node.level, f"{file}: relative import"
                yield from ((file, f"{node.module}.{alias.name}") for alias in node.names)


@pytest.mark.slow
def test_probes_bring_nothing_along() -> None:
    modules = loaded("import probes.install, probes.format, probes.weights, probes.shapes, probes.collectives")
    assert not modules & {*HEAVY, "harness", "reports", "scenarios"}


@pytest.mark.slow
def test_probes_import_the_standard_library_only() -> None:
    for file, name in imports("probes"):
        assert name.split(".")[0] in {*sys.stdlib_module_names, "probes"}, f"{file} imports {name}"


def test_the_reader_brings_no_recorder_along() -> None:
    modules = loaded("import probes.format")
    assert {name for name in modules if name.startswith("probes.")} == {
        "probes.errors", "probes.format", "probes.frames", "probes.index", "probes.limits", "probes.lines",
        "probes.sealed",
    }  # fmt: skip


@pytest.mark.slow
def test_reports_know_their_own_data_model_the_reader_and_the_scrubber() -> None:
    for file, name in imports("reports"):
        if name.split(".")[0] in ROOMS:
            known = name.startswith("reports.") or f"{name}.".startswith(OF_PROBES)
            assert known, f"{file} imports {name}"


def test_the_data_model_of_reports_is_light() -> None:
    assert not loaded("import reports.model") & {*HEAVY, "harness", "scenarios"}


@pytest.mark.slow
def test_a_process_that_reads_dumps_imports_no_judge() -> None:
    """It is started once in each triage of pickled dumps: 0.15 s of CPU in place of 0.4."""
    rooms = {f"harness.{name}" for name in ("frameworks", "doctor", "triage.flight.compare", "triage.directory")}
    assert not loaded("import harness.triage.flight.worker") & rooms


@pytest.mark.parametrize("package", ["torch", "pandas", "ray"])
def test_harness_imports_without(package: str) -> None:
    assert package not in loaded("import harness")


def test_fast_tests_import_no_transformers(pytestconfig: pytest.Config, imported_by_collection: frozenset[str]) -> None:
    """That import takes 2 s in each process of `make unit`; modules that need it are slow as a whole."""
    if pytestconfig.option.markexpr != "not slow":
        pytest.skip("slow tests are collected, too")
    assert "pytest" in imported_by_collection and "transformers" not in imported_by_collection


@pytest.mark.by_day(3)
@pytest.mark.slow
@pytest.mark.parametrize(
    "module", ["triage.run", "triage.watch", "doctor", "frameworks.record", "commands.report", "commands.adapters"]
)
def test_a_core_command_imports_no_extra(module: str) -> None:
    assert not loaded(f"import harness.{module}, reports.renderers") & {*HEAVY} - {"pydantic"}


@pytest.mark.slow
def test_scenarios_know_probes_only() -> None:
    for file, name in imports("scenarios"):
        assert name.split(".")[0] not in ("harness", "reports"), f"{file} imports {name}"
