"""Flights of jobs in which ranks take their time: simulated, so that no test depends on how fast this machine is.

Each step is work that takes as long as `work` says, and `collectives` all_reduces in a row. Every rank waits in each of
them until the last one has come, as gloo's does.
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from harness.triage.flight.decode import decode
from harness.triage.flight.flight import Flight

Work = Callable[[int, int, random.Random], float]  # rank, step, randomness -> seconds
EPOCH_NS = 1_760_000_000_000_000_000
BETWEEN_S = 0.0003  # from one collective to the next without work: gloo's on one host took 0.1 to 0.5 ms
MOVES_S = 0.001  # of the data, once all have come


def even(rank: int, step: int, dice: random.Random) -> float:
    """A second of work, more or less."""
    return 1.0 + dice.gauss(0, 0.02)


def later(ranks: Sequence[int], extra_s: float, *, steps: Sequence[int] = range(1_000_000)) -> Work:
    """The same, but these ranks take `extra_s` longer in these steps."""
    return lambda rank, step, dice: even(rank, step, dice) + (extra_s if rank in ranks and step in steps else 0.0)


@dataclasses.dataclass(frozen=True)
class SlowJob:
    """A job of `ranks`. `clocks_s`: by how much the clock of each rank's host is ahead. `groups`: name -> members; all
    ranks in one without any. `timed`: whether a device's recorder has durations."""

    ranks: int
    steps: int
    work: Work = even
    collectives: int = 3
    backend: str = "gloo"
    clocks_s: Mapping[int, float] = dataclasses.field(default_factory=dict)
    groups: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    timed: bool = True
    waits: bool = True  # False: a step enqueues its collectives at once and then waits for all of them
    seed: int = 1

    def flights(self, *, without: Sequence[int] = ()) -> dict[str, Flight]:
        """What the recorder of each rank holds. `without`: ranks whose dump is missing."""
        dice = random.Random(self.seed)
        groups = self.groups or {"default_pg": tuple(range(self.ranks))}
        now, entries = [0.0] * self.ranks, [[] for _ in range(self.ranks)]
        counts = dict.fromkeys(groups, 0)
        for step in range(self.steps):
            now = [at + self.work(rank, step, dice) for rank, at in enumerate(now)]
            ends = list(now)
            for name in groups:
                for _ in range(self.collectives):
                    counts[name] += 1
                    self._collective(name, groups[name], counts[name], now, ends, entries, dice)
            now = ends
        config = {str(at): {"name": str(at), "desc": name, "ranks": str(list(members))}
                  for at, (name, members) in enumerate(groups.items())}  # fmt: skip
        return {f"rank{rank}.json": self._flight(rank, mine, config)
                for rank, mine in enumerate(entries) if rank not in without}  # fmt: skip

    def _collective(
        self, name: str, members: tuple[int, ...], seq: int, now: list[float], ends: list[float],
        entries: list[list[dict[str, Any]]], dice: random.Random,
    ) -> None:  # fmt: skip
        came = {rank: now[rank] for rank in members}
        end = max(came.values()) + MOVES_S
        for rank in members:
            entries[rank].append(self._entry(name, seq, came[rank] + self.clocks_s.get(rank, 0.0), end - came[rank]))
            ends[rank] = max(ends[rank], end)
            now[rank] = (end if self.waits else now[rank]) + dice.uniform(0.5, 1.5) * BETWEEN_S

    def _entry(self, name: str, seq: int, at_s: float, took_s: float) -> dict[str, Any]:
        number = list(self.groups or {"default_pg": ()}).index(name)
        device = self.backend != "gloo"
        return {
            "process_group": [str(number), name], "collective_seq_id": seq, "p2p_seq_id": 0,
            "profiling_name": f"{self.backend}:all_reduce", "input_sizes": [[8]], "output_sizes": [[8]],
            "input_dtypes": ["Float"], "output_dtypes": ["Float"], "time_created_ns": EPOCH_NS + int(at_s * 1e9),
            "state": "completed" if device else "scheduled", "retired": True, "timeout_ms": 600_000, "is_p2p": False,
            **({"duration_ms": took_s * 1000} if device and self.timed else {}),
        }  # fmt: skip

    def _flight(self, rank: int, entries: list[dict[str, Any]], config: dict[str, Any]) -> Flight:
        mine = {key: value for key, value in config.items() if str(rank) in value["ranks"].strip("[]").split(", ")}
        dump = {"version": "2.10", "pg_config": mine, "pg_status": {},
                "entries": [{"record_id": at, **entry} for at, entry in enumerate(entries)]}  # fmt: skip
        return dataclasses.replace(decode(json.dumps(dump).encode(), f"rank{rank}.json"), rank=rank, series="rank")
