"""Flights of synthesised jobs and of hand-written entries, without files."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from harness.triage.evidence import Evidence, Group
from harness.triage.flight.compare import compare
from harness.triage.flight.decode import decode
from harness.triage.flight.flight import Flight
from harness.triage.flight.loading import Flights
from harness.triage.flight.model import Comparison
from harness.triage.flight.synthesis import Fault, Job, encoded, simulate
from harness.triage.judge import triage
from reports.model import Verdict


class Said(NamedTuple):
    """What `harness triage DIR` says of dumps: the ranks that it names, kind and verdict."""

    ranks: frozenset[int]
    kind: str
    verdict: str
    reason: str


def said(flights: Comparison | Any, groups: Iterable[Group] = ()) -> Said:
    compared = flights if isinstance(flights, Comparison) else compare(flights, groups)
    found: Verdict = triage(Evidence("", "dumps", "", 0.0), compared)
    assert found.triage is not None
    ranks = frozenset(party.rank for party in found.triage.culprits if party.rank is not None)
    return Said(ranks, found.triage.hang, found.verdict, "; ".join([found.reason, *found.evidence]))


def of_job(job: Job, form: Any = "json", *, active: Collection[int] = ()) -> Flights:
    """`active`: ranks whose dump holds only operations that are not done."""
    found = Flights()
    for rank in range(job.ranks):
        if rank not in job.hidden:
            name = f"rank{rank}"
            data = encoded(job, rank, form, active=rank in active)
            found[name] = dataclasses.replace(decode(data, name), rank=rank, series="rank")
    return found


def faulty(kind: Any, rank: int, at: int, *, ranks: int = 16, tensor_parallel: int = 4, entries: int = 64) -> Job:
    fault = Fault(kind, rank, at, ahead=1 if kind == "abba" else 6)
    return simulate(ranks, entries, fault, tensor_parallel=tensor_parallel)


def entry(seq: int, op: str = "all_reduce", sizes: Any = ([[8]], [[8]]), **other: Any) -> dict[str, Any]:
    """One operation as the recorder writes it; done, on group 0 of NCCL, unless said otherwise."""
    done = other.pop("done", True)
    backend = other.pop("backend", "nccl")
    return {
        "record_id": other.pop("record", seq - 1), "process_group": other.pop("group", ["0", "default_pg"]),
        "collective_seq_id": seq, "p2p_seq_id": other.pop("p2p_seq", 0), "profiling_name": f"{backend}:{op}",
        "input_sizes": sizes[0], "output_sizes": sizes[1], "input_dtypes": ["Float"] * len(sizes[0]),
        "output_dtypes": ["Float"] * len(sizes[1]), "time_created_ns": 1_760_000_000_000_000_000 + seq,
        "state": "completed" if done and backend == "nccl" else "scheduled", "retired": done, "timeout_ms": 1000,
        "is_p2p": False, **other,
    }  # fmt: skip


def flight(rank: int, entries: list[dict[str, Any]], world: int = 2, **groups: Any) -> Flight:
    """A flight of these operations. `groups`: other groups, name -> (description, members)."""
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(world)))}}
    config |= {name: {"name": name, "desc": desc, "ranks": str(list(ranks))} for name, (desc, ranks) in groups.items()}
    data = json.dumps({"version": "2.10", "pg_config": config, "pg_status": {}, "entries": entries}).encode()
    return dataclasses.replace(decode(data, f"rank{rank}"), rank=rank)
