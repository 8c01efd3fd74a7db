"""`harness watch --slow`: who stays slow, by looks in a row at a job that runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from slow_jobs import SlowJob, Work, even, later
from triage_evidence import evidence, rank

from harness.triage.evidence import Evidence
from harness.triage.flight.compare import compare
from harness.triage.flight.model import Comparison
from harness.triage.watch import ProcessSnapshot, Snapshot, Watchdog
from harness.triage.watch.slowness import Slowness
from harness.triage.watch.watchdog import Means
from reports.model import Verdict

STEPS = 25  # between two looks


def look(work: Work, number: int, **job: object) -> tuple[Evidence, Comparison]:
    """What is seen at look `number`, from 1: the recorders hold all steps so far."""
    seen = [rank(each, world=3, progress_s=0.5) for each in range(3)]
    flights = SlowJob(3, number * STEPS, work, **job).flights().values()  # type: ignore[arg-type]
    dumped = {process.key: flight for process, flight in zip(seen, flights, strict=True)}
    return evidence(*seen, source="live", stall_s=0.0), compare(dumped)


def looks(work: Work, count: int = 4, **job: object) -> list[Verdict | None]:
    slowness = Slowness()
    return [slowness.feed(*look(work, number, **job)) for number in range(1, count + 1)]


def named(verdict: Verdict | None) -> set[int]:
    rows = verdict.triage.lateness if verdict is not None and verdict.triage is not None else []
    return {number for row in rows if row.slow for number in row.ranks}


def test_a_rank_that_stays_slow_is_named_at_the_second_look() -> None:
    verdicts = looks(later([1], 0.4), 3)
    assert [named(verdict) for verdict in verdicts] == [set(), {1}, {1}]
    assert verdicts[1] is not None and (verdicts[1].verdict, verdicts[1].exit_code) == ("SLOW", 0)
    assert verdicts[1].triage is not None and verdicts[1].triage.lateness[0].of == STEPS, "of this look alone"


@pytest.mark.slow
@pytest.mark.parametrize(
    "work",
    [
        even,
        later([1], 0.4, steps=range(STEPS)),  # slow in one look only
        later([1], 0.4, steps=range(STEPS // 2, STEPS + STEPS // 2)),  # for as long, across two
        later([1], 60.0, steps=[STEPS + 3]),  # one long sample
        lambda number, step, dice: even(number, step, dice) + (0.4 if number == step // STEPS % 3 else 0.0),  # in turn
    ],
)
def test_who_does_not_stay_slow_is_never_named(work: Work) -> None:
    assert looks(work) == [None] * 4


@pytest.mark.slow
def test_a_rank_that_becomes_slow_is_named_two_looks_later() -> None:
    assert [named(verdict) for verdict in looks(later([2], 0.4, steps=range(STEPS, 200)))] == [set(), set(), {2}, {2}]


def test_looks_that_see_few_collectives_wait_for_more() -> None:
    """Twenty-five collectives a look: the third look is the first that has enough."""
    verdicts = looks(later([1], 0.4), 6, collectives=1)
    assert [named(verdict) for verdict in verdicts] == [set(), set(), set(), set(), set(), {1}]


def test_why_nothing_is_known_is_kept() -> None:
    slowness = Slowness()
    slowness.feed(*look(later([1], 0.4), 1, backend="nccl", timed=False))
    assert [why for why in slowness.untested if "TORCH_NCCL_ENABLE_TIMING" in why]
    assert slowness.feed(evidence(rank(0, world=1))) is None and slowness.untested
    slowness.feed(*look(later([1], 0.4), 3))
    assert slowness.untested == ()


def test_a_group_that_is_made_anew_counts_from_its_beginning() -> None:
    slowness = Slowness()
    assert slowness.feed(*look(even, 3)) is None
    again = [slowness.feed(*look(later([1], 0.4), number)) for number in (1, 2)]
    assert [named(verdict) for verdict in again] == [set(), {1}]


@pytest.mark.slow
def test_the_watchdog_tells_it_once_and_keeps_the_evidence(tmp_path: Path) -> None:
    now, taken, lines, told = [0.0], [0], [], []

    def observe() -> Snapshot:
        return Snapshot(
            now[0], (ProcessSnapshot("host:0", 100, beats=int(now[0]), progress=int(now[0]), name="rank 0"),)
        )

    def collect(folder: Path, stall_s: float) -> Evidence:
        taken[0] += 1
        (folder / "evidence.json").write_text("{}")
        return replace(evidence(), path=str(folder))

    class Fed(Slowness):
        def feed(self, evidence: Evidence, comparison: Comparison | None = None) -> Verdict | None:
            return super().feed(*look(later([1], 0.4), taken[0]))

    means = Means(None, lambda: now[0], observe, collect)
    dog = Watchdog(tmp_path, (1,), 10.0, means=means, say=lines.append)
    dog.slowness, dog.on_verdict = Fed(), told.append
    while now[0] < 45:
        now[0] += 1.0
        assert dog.tick() is None, lines
    assert taken[0] == 4 and [named(verdict) for verdict in told] == [{1}]
    assert [line for line in lines if "rank 1 is slow" in line and "two looks in a row" in line] == lines
    assert dog.verdict is not None and dog.verdict.verdict == "SLOW"
    assert len(list((tmp_path / "evidence").iterdir())) == 2, "the first that was told, and the last"
    dog.close()
