"""The cases of tests/cases/parity fit the code that they patch: a rename there is one here."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.slow
CASES = Path(__file__).parents[2] / "cases" / "parity"
OF_ENGINES = ("moe_raw", "no_softcap")  # they patch packages that only an engine's own environment has
PATCHES = sorted({path.stem for path in (CASES / "patches").glob("*.py")} - {"plant", *OF_ENGINES})


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.delenv("CASE_PATCH", raising=False)
    monkeypatch.syspath_prepend(str(CASES / "patches"))
    return importlib.import_module("plant")


@pytest.fixture
def patched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[object, str, object]]]:
    """What patches have replaced in a test; it is put back afterwards."""
    replaced: list[tuple[object, str, object]] = []
    yield replaced
    for owner, name, original in reversed(replaced):
        setattr(owner, name, original)


@pytest.mark.parametrize("name", PATCHES)
def test_a_patch_fits_the_module_that_it_patches(
    name: str, plant: ModuleType, patched: list[tuple[object, str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    around = plant.around

    def remembered(owner: object, attribute: str, replacement: object) -> None:
        patched.append((owner, attribute, getattr(owner, attribute)))
        around(owner, attribute, replacement)

    monkeypatch.setattr(plant, "around", remembered)
    for module, patch in plant.patches_of(CASES / "patches" / f"{name}.py").items():
        patch(importlib.import_module(module))
    assert patched and all(getattr(owner, attribute) is not original for owner, attribute, original in patched)


def test_the_side_of_a_session_is_learned(
    plant: ModuleType, patched: list[tuple[object, str, object]], tmp_path: Path
) -> None:
    from scenarios import session

    patched.append((session.EngineSession, "record_to", session.EngineSession.record_to))
    plant.learn_the_side(session)
    plant.SIDE["now"] = ""
    with pytest.raises(AttributeError):  # of a session that was not started
        object.__new__(session.EngineSession).record_to(tmp_path / "candidate")
    assert plant.SIDE["now"] == "candidate"


def test_answers_of_the_bench_are_kept(plant: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from harness.parity.interventions import bench

    monkeypatch.setattr(bench, "OnStage", bench.OnStage)
    monkeypatch.setattr(plant, "ANSWERS", str(tmp_path / "answers"))
    plant.keep_answers(bench)
    assert bench.OnStage(lambda method, *arguments: 3.0).slope("candidate") == 3.0
    assert '"answer": 3.0' in (tmp_path / "answers").read_text()


def test_what_makes_models_and_material_is_there() -> None:
    from harness.envs import home
    from scenarios.models import build, builtin, load_tokenizer

    assert all(map(callable, (home.directory, build, load_tokenizer, builtin._padded, builtin._conversation)))
    sys.path.insert(0, str(CASES.parents[1] / "frameworks"))
    try:
        assert callable(importlib.import_module("jobs.material").prepare)
    finally:
        sys.path.pop(0)
