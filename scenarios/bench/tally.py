"""Counts the differences between a reading and the reference, by kind and by sample."""

from __future__ import annotations

from typing import Any

from scenarios.bench.case import CaseSample, Symptoms, Tolerance

SHOWN = 3  # places of each kind that are kept


class Tally:
    """Counts differences by kind and by sample. `ignored`: kinds that are not compared."""

    def __init__(self, samples: list[CaseSample], ignored: tuple[str, ...] = ()) -> None:
        self._ignored = ignored
        self._offends = {sample.number: sample.offends for sample in samples}
        self._counts: dict[str, int] = {}
        self._healthy: dict[str, int] = {}
        self._compared: dict[str, int] = {}
        self._by_sample: dict[int, int] = {}
        self._places: dict[str, list[Any]] = {}
        self._sizes: dict[str, list[tuple[int, float]]] = {}
        self.nats = 0.0

    def look(self, kind: str, number: int, position: int, expected: Any, actual: Any, differs: bool) -> None:
        if kind in self._ignored:
            return
        self._compared[kind] = self._compared.get(kind, 0) + 1
        if not differs:
            return
        self._counts[kind] = self._counts.get(kind, 0) + 1
        self._by_sample[number] = self._by_sample.get(number, 0) + 1
        if not self._offends[number]:
            self._healthy[kind] = self._healthy.get(kind, 0) + 1
        places = self._places.setdefault(kind, [])
        if len(places) < SHOWN:
            places.append([number, position, expected, actual])

    def number(self, kind: str, number: int, position: int, p: float, q: float, tolerance: Tolerance) -> None:
        """Compare two log-probabilities, and count a difference as `look` does."""
        differs = beyond(p, q, tolerance.logprob)
        self.look(kind, number, position, p, q, differs)
        if differs and kind not in self._ignored:
            self._sizes.setdefault(kind, []).append((number, abs(p - q)))

    def symptoms(self, *, noise: int, cached: int, longest: int, cut: int) -> Symptoms:
        return Symptoms(
            counts=self._counts,
            healthy=self._healthy,
            compared=self._compared,
            by_sample=self._by_sample,
            nats=self.nats,
            noise=noise,
            restless=bool(self._ignored),
            cached=cached,
            longest=longest,
            cut=cut,
            sizes=self._sizes,
            places=self._places,
        )


def beyond(p: float, q: float, tolerance: float) -> bool:
    return not abs(p - q) <= tolerance  # NaN is a difference
