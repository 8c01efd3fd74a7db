"""What a slow rank used between two looks, beside the others: figures that name nobody."""

from __future__ import annotations

from dataclasses import replace

from slow_jobs import SlowJob, later
from triage_evidence import evidence, rank

from harness.triage.evidence import Process
from harness.triage.flight.compare import compare
from harness.triage.judge import triage
from harness.triage.slow.counters import Use, lines, used_by


def used(number: int, cores: float, queued: float, disk: float, network: float) -> Process:
    """A rank that used so much a second between two looks, 1.5 s apart."""
    process = rank(number, "main:10 step:42", world=3, progress_s=0.5)
    first, last = process.samples
    last = replace(last, cpu_s=1.5 * cores, io_bytes=int(1.5e6 * disk), net_bytes=int(1.5e6 * network),
                   main_delay_s=1.5 * queued)  # fmt: skip
    return replace(process, samples=(replace(first, main_delay_s=0.0), last))


def test_a_slow_rank_is_compared_with_the_others() -> None:
    ranks = [used(0, 0.1, 0.0, 0.2, 3.0), used(1, 0.9, 0.5, 80.0, 3.0), used(2, 0.3, 0.0, 0.4, 3.0)]
    assert used_by(ranks[1]) == Use(0.9, 0.5, 80.0, 3.0)
    [line] = lines(ranks, {ranks[1].key})
    assert "processor 90% of a core (others 20%)" in line and "disk 80.0 MB/s (others 0.3)" in line
    assert "waits for a processor 50% of the time (others 0%)" in line and line.startswith("rank 1 ")


def test_one_look_says_nothing() -> None:
    process = rank(0, "main:10 step:42")
    assert used_by(replace(process, samples=process.samples[:1])) is None
    assert list(lines([replace(process, samples=process.samples[:1])], {process.key})) == []


def test_whoever_uses_most_is_named_by_no_counter() -> None:
    """Rank 0 computes and writes all the time; the recorders say that rank 1 comes last."""
    ranks = [used(0, 1.0, 0.9, 500.0, 500.0), used(1, 0.1, 0.0, 0.0, 0.0), used(2, 0.1, 0.0, 0.0, 0.0)]
    for work, slow in ((later([1], 0.4), {1}), (later([], 0.0), set())):
        flights = dict(zip((each.key for each in ranks), SlowJob(3, 30, work).flights().values(), strict=True))
        verdict = triage(evidence(*ranks, source="live", stall_s=0.0), compare(flights))
        assert {number for row in verdict.triage.lateness if row.slow for number in row.ranks} == slow
        assert (verdict.verdict == "SLOW") == bool(slow) and not verdict.triage.culprits
