"""A cache that outlives a sync shows after other weights were sent, whatever it held before that."""

from __future__ import annotations

from typing import Any

import pytest

from harness.parity.attribution import live
from scenarios.bench.case import Symptoms


class Caching:
    """A bench with one engine. `kept`: its cache outlives a sync; `follows`: it follows an order to flush; `keys`: it
    knows keys. All that was cached when it was first asked is of the learner's own weights."""

    def __init__(self, *, kept: bool, follows: bool, keys: bool = True) -> None:
        self._kept, self._follows, self._keys = kept, follows, keys
        self._cached, self._key, self._weights = {"": "learner's"}, "", "learner's"

    def tensors(self, side: str) -> list[list[str]]:
        return [["a"], ["b"]]

    def send_otherwise(self, side: str, names: list[str]) -> None:
        self._receive("other")

    def sync(self, side: str) -> float:
        self._receive("learner's")
        return 0.0

    def _receive(self, weights: str) -> None:
        self._weights = weights
        if not self._kept:
            self._cached.clear()

    def flush(self, side: str) -> None:
        if self._follows:
            self._cached.clear()

    def unused_cache(self, side: str) -> None:
        self._key = "unused" if self._keys else ""

    def read(self, side: str, *, again: bool = False) -> Symptoms:
        stale = self._cached.setdefault(self._key, self._weights) != "learner's"
        return Symptoms(counts={"logprobs": 9} if stale else {})


@pytest.mark.parametrize(
    ("engine", "shown"),
    [
        ({"kept": True, "follows": False}, True),
        ({"kept": True, "follows": True}, True),
        ({"kept": True, "follows": True, "keys": False}, True),
        ({"kept": False, "follows": True}, False),
        ({"kept": False, "follows": False}, False),
    ],
)
def test_a_cache_that_outlives_a_sync_shows_whatever_it_held(engine: dict[str, Any], shown: bool) -> None:
    bench: Any = Caching(**engine)
    assert not bench.read("candidate").total
    assert bool(live.resent(bench, "candidate").total) is shown
