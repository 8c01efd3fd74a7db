"""The table of canonical parameters is complete, and what is made from it is current."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from scenarios.engines import canonical, given, parameter_page
from scenarios.settings import Engine, Sampling


def test_every_setting_has_an_entry() -> None:
    assert [one.name for one in canonical.SAMPLING] == [one.name for one in dataclasses.fields(Sampling)]
    asked = {one.name for one in canonical.ENGINE if one.asked} - {"dtype"}  # of the model
    assert asked == {one.name for one in dataclasses.fields(Engine)} - {"engines"}  # how many, which no engine is told


@pytest.mark.parametrize("engine", given.ENGINE)
def test_every_engine_names_canonical_parameters_only(engine: str) -> None:
    for part, table in (("engine", given.ENGINE), ("sampling", given.SAMPLING)):
        for name, argument in table[engine].items():
            assert canonical.BY_NAME[name].part == part and canonical.BY_NAME[name].native(engine) == argument.name


@pytest.mark.parametrize("engine", ("vllm", "sglang"))
def test_every_parameter_that_an_engine_has_is_explained(engine: str) -> None:
    for part in (given.ENGINE, given.SAMPLING):
        assert all(canonical.BY_NAME[name].note(engine) for name in part[engine])


@pytest.mark.parametrize("one", canonical.SAMPLING, ids=lambda one: one.name)
def test_the_other_value_is_another_one(one: canonical.Parameter) -> None:
    value = getattr(Sampling(), one.name)
    assert one.other(value) != value and one.other(one.other(value)) != one.other(value)


def test_a_filter_restricts_but_for_its_off_value() -> None:
    for one in canonical.FILTERS:
        assert one.off == getattr(Sampling(), one.name)
        assert not one.restricts(one.off) and one.restricts(0.5 if one.name != "top_k" else 5)
    assert not canonical.BY_NAME["top_k"].restricts(0)


def test_the_documented_tables_are_current() -> None:
    page = (Path(__file__).parents[3] / parameter_page.PAGE).read_text(encoding="utf-8")
    assert page.count("<!-- made by") == 2
    assert parameter_page.rewritten(page) == page, f"{parameter_page.PAGE} is stale: run `{parameter_page.COMMAND}`"
