"""Dumps of HCCL's recorder and of TorchComms': the same job gives the same verdict as with NCCL's.

Their dumps are made from those of the synthesised NCCL jobs, by the published sources: HCCL writes another prefix,
TorchComms counts the operations of all communicators together and describes each by its backend.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest

from harness.triage.flight.decode import decode
from harness.triage.flight.flight import FlightError
from harness.triage.flight.loading import Flights
from harness.triage.flight.synthesis import Job, encoded, simulate
from tests.support.flight_support import Said, faulty, of_job, said

Rewrite = Callable[[dict[str, Any]], dict[str, Any]]


def hccl(dump: dict[str, Any]) -> dict[str, Any]:
    for entry in dump.get("entries", ()):  # absent where the dump has none
        entry["profiling_name"] = entry["profiling_name"].replace("nccl:", "hccl:")
    return {**dump, "version": "2.4"}


def torchcomms(dump: dict[str, Any]) -> dict[str, Any]:
    for entry in dump["entries"]:
        entry["process_group"][1] = "ncclx"
        entry["profiling_name"] = entry["profiling_name"].replace("nccl:", "ncclx:")
        entry["collective_seq_id"] = entry["op_id"] = entry["record_id"]
    for config in dump["pg_config"].values():
        config["desc"] = "ncclx"
    return dump


def rewritten(job: Job, rewrite: Rewrite, active: bool = False) -> Flights:
    flights = Flights()
    for rank in range(job.ranks):
        if rank not in job.hidden:
            data = json.dumps(rewrite(json.loads(encoded(job, rank, "json", active=active)))).encode()
            flights[f"rank{rank}"] = dataclasses.replace(decode(data, f"rank{rank}"), rank=rank, series="rank")
    return flights


def decided(words: Said) -> tuple[frozenset[int], str, str]:
    return words.ranks, words.kind, words.verdict


JOBS = {kind: faulty(kind, 5, 40) for kind in ("skip", "wrong-op", "dead", "straggler", "stalled", "wedge")}


@pytest.mark.by_day(7)
@pytest.mark.slow
@pytest.mark.parametrize("kind", [*JOBS, "healthy"])
@pytest.mark.parametrize("rewrite", [hccl, torchcomms])
def test_a_job_has_the_verdict_that_it_has_with_nccl(kind: str, rewrite: Rewrite) -> None:
    job = JOBS.get(kind) or simulate(16, 64, None, tensor_parallel=4)
    assert decided(said(rewritten(job, rewrite))) == decided(said(of_job(job)))


@pytest.mark.parametrize("kind", ["skip", "dead", "stalled"])
def test_hccls_status_counts_where_the_dump_has_only_active_operations(kind: str) -> None:
    job = JOBS[kind]
    assert decided(said(rewritten(job, hccl, active=True))) == decided(said(of_job(job, active=range(job.ranks))))


def test_sends_of_few_ranks_do_not_shift_the_numbers_of_torchcomms() -> None:
    job = JOBS["dead"]

    def with_sends(dump: dict[str, Any]) -> dict[str, Any]:
        entries = torchcomms(dump)["entries"]
        sends = [{**entries[0], "profiling_name": "ncclx:send"} for _ in range(len(entries) % 3 + 1)]
        for number, entry in enumerate(together := [*sends, *entries]):
            entry["record_id"] = entry["collective_seq_id"] = number
        return {**dump, "entries": together}

    assert decided(said(rewritten(job, with_sends))) == decided(said(of_job(job)))


def test_a_ring_that_lost_its_first_operations_is_refused_and_says_what_to_set() -> None:
    job = simulate(8, 64, None, tensor_parallel=4)
    dump = torchcomms(json.loads(encoded(job, 0, "json")))
    for entry in dump["entries"]:
        entry["record_id"] += 7
    with pytest.raises(FlightError, match="overwritten") as raised:
        decode(json.dumps(dump).encode(), "rank0")
    assert "TORCHCOMM_FR_BUFFER_SIZE" in raised.value.fix


def test_only_sends_leave_no_operation() -> None:
    dump = torchcomms(json.loads(encoded(simulate(2, 4, None), 0, "json")))
    for entry in dump["entries"]:
        entry["profiling_name"] = "ncclx:send"
    assert len(decode(json.dumps(dump).encode(), "rank0")) == 0
