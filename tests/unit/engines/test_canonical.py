"""The table of canonical parameters is complete, and what is made from it is current."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from scenarios.engines import canonical, canonical_request, native_arguments, parameter_page, registry
from scenarios.engines.engine_interface import ParameterRefused
from scenarios.engines.native import Native
from scenarios.engines.spec import EngineSpec
from scenarios.settings import Engine, Sampling


def test_every_setting_has_an_entry() -> None:
    assert [one.name for one in canonical.SAMPLING] == [one.name for one in dataclasses.fields(Sampling)]
    asked = {one.name for one in canonical.ENGINE if one.requested} - {"dtype"}  # of the model
    assert asked == {one.name for one in dataclasses.fields(Engine)} - {
        "engines",  # how many, which no engine is told
        "router",  # what stands before them
        "sleep_level",  # what is called, no argument
    }


@pytest.mark.parametrize("engine", registry.BUILT_IN)
def test_every_engine_names_canonical_parameters_only(engine: str) -> None:
    for part in ("engine", "sampling"):
        for name, argument in native_arguments.table(part, engine).items():
            assert canonical.BY_NAME[name].part == part and canonical.BY_NAME[name].native(engine) == argument.name


def test_an_engine_has_a_sampling_parameter_by_its_own_name_unless_it_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = EngineSpec("x", "X", "", sampling_arguments={"top_k": None, "top_p": Native("nucleus", 0.5)})
    monkeypatch.setattr(registry, "specs", lambda: {"x": spec})
    assert native_arguments.sampling_arguments("x", Sampling(min_p=0.2, top_p=0.9))["min_p"] == 0.2
    assert "top_k" not in native_arguments.table("sampling", "x")
    assert native_arguments.as_sampling(native_arguments.sampling_given("x", {"min_p": 0.2})) == Sampling(
        min_p=0.2, top_p=0.5
    )
    canonical_request.check_sampling("x", Sampling(top_k=5), "coupled")
    with pytest.raises(ParameterRefused, match="X has no top-k"):
        canonical_request.check_sampling("x", Sampling(top_k=5), "native")


@pytest.mark.parametrize("engine", ("vllm", "sglang"))
def test_every_parameter_that_an_engine_has_is_explained(engine: str) -> None:
    spec = registry.get(engine)
    assert all(canonical.BY_NAME[name].note(engine) for name in (*spec.engine_arguments, *spec.sampling_arguments))


@pytest.mark.parametrize("one", canonical.SAMPLING, ids=lambda one: one.name)
def test_the_other_value_is_another_one(one: canonical.Parameter) -> None:
    value = getattr(Sampling(), one.name)
    assert one.variant(value) != value and one.variant(one.variant(value)) != one.variant(value)


def test_a_filter_restricts_but_for_its_off_value() -> None:
    for one in canonical.FILTERS:
        assert one.off == getattr(Sampling(), one.name)
        assert not one.restricts(one.off) and one.restricts(0.5 if one.name != "top_k" else 5)
    assert not canonical.BY_NAME["top_k"].restricts(0)


def test_the_documented_tables_are_current() -> None:
    page = (Path(__file__).parents[3] / parameter_page.PAGE).read_text(encoding="utf-8")
    assert page.count("<!-- made by") == 3
    assert parameter_page.rewritten(page) == page, f"{parameter_page.PAGE} is stale: run `{parameter_page.COMMAND}`"
