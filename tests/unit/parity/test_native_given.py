"""A native sampler that was given another value than asked for: the engine's own record is told, not the fit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness.parity.subjects.native_sampler import explain


@pytest.mark.parametrize(
    ("received", "values"),
    [({"temperature": 1.0}, [1.0]), ({"temperature": 0.9}, []), ({"top_p": 0.5}, []), ({}, [])],
)
def test_the_value_that_the_engine_was_given_is_its_own_record(
    received: dict[str, Any], values: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    request = SimpleNamespace(received=received, requested={"temperature": 0.9, "top_p": 1.0})
    monkeypatch.setattr(explain, "engines_sampling", lambda side, stage: [request])
    assert explain._values_instead(cast(Any, None), "temperature") == values
