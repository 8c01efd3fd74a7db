"""An engine that gives other numbers in two equal draws: a prefix cache that is renewed in part, or noise."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness.parity.interventions.situation import Situation
from harness.parity.subjects.prefix_cache.causes import repeats_past_cache
from scenarios.bench.case import Symptoms

NOISY = Symptoms(counts={"tokens": 29}, compared={"tokens": 900}, noise=3, restless=True, cached=64)


class Bench:
    """An engine with these symptoms past its cache and with it."""

    def __init__(self, past: Symptoms, with_cache: Symptoms) -> None:
        self._past, self._with_cache, self._is_past = past, with_cache, False

    def past_cache(self, side: str, on: bool) -> None:
        self._is_past = on

    def read(self, side: str, *, again: bool = False) -> Symptoms:
        return self._past if self._is_past else self._with_cache


def situation(past: Symptoms, with_cache: Symptoms, cached: int = 64) -> Situation:
    noisy = SimpleNamespace(**{**vars(NOISY), "cached": cached}, total=NOISY.total)
    return cast(Situation, SimpleNamespace(bench=Bench(past, with_cache), side="baseline", symptoms=noisy,
                                           alteration=None, settled=lambda symptoms, _: symptoms))  # fmt: skip


STALE = Symptoms(counts={"tokens": 27, "logprobs": 200}, cached=64)
QUIET: dict[str, Any] = {"cached": 0}


@pytest.mark.parametrize(
    ("past", "with_cache", "cached", "of_cache"),
    [
        (Symptoms(**QUIET), STALE, 64, True),
        (Symptoms(**QUIET), STALE, 0, False),  # nothing came from a cache
        (Symptoms(**QUIET, noise=2), STALE, 64, False),  # it does not repeat itself past the cache either
        (Symptoms(**QUIET, counts={"tokens": 20}), STALE, 64, False),  # it differs past the cache, too
        (Symptoms(**QUIET), Symptoms(cached=64), 64, False),  # the noise was absent by chance, with the cache too
    ],
)
def test_a_cache_that_makes_an_engine_restless(
    past: Symptoms, with_cache: Symptoms, cached: int, of_cache: bool
) -> None:
    s = situation(past, with_cache, cached)
    before = s.symptoms
    assert repeats_past_cache(s) is of_cache
    assert s.symptoms is (with_cache if of_cache else before)
