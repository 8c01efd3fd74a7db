"""Leaves out what a log says of another job, or of another time, than the flight recorder dumps beside it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace

from harness.triage.evidence import PASTED, Evidence, LogError, Process
from harness.triage.flight.model import Comparison

# A log may have the time of any zone, and a job may stand for some hours before somebody ends it.
APART_S = 26 * 3600.0
DAY_S, YEAR_DAYS = 86_400, 365
MAX_NOTES = 3  # lines on other jobs, of which more are not read


def of_one_job(evidence: Evidence, comparison: Comparison | None) -> Evidence:
    """The evidence without errors of a log that cannot be of the job of the dumps beside it. Each is named in a note.

    The dumps say how many ranks the job has, and when it last did something. If the log's lines about timeouts
    contradict them, no error of the log is used.
    """
    if evidence.source != PASTED or comparison is None or not comparison.groups:
        return evidence
    reasons = {error: why for error in evidence.errors if (why := _stranger(error, comparison))}
    notes = [f"lines about timeouts were not used: {comparison.contradiction}"] if comparison.contradiction else []
    if not reasons:
        return replace(evidence, notes=(*evidence.notes, *notes))
    notes += [f"{error.file}:{error.line}: {error.of} {error.what}; not used: {why}"
              for error, why in list(reasons.items())[:MAX_NOTES]]  # fmt: skip
    notes += [f"{len(reasons) - MAX_NOTES} more errors of the log were not used"] if len(reasons) > MAX_NOTES else []
    errors = tuple(error for error in evidence.errors if error not in reasons)
    processes = tuple(each for each in evidence.processes if not _is_stranger(each, reasons, errors))
    return replace(evidence, errors=errors, processes=processes, notes=(*evidence.notes, *notes))


def _stranger(error: LogError, comparison: Comparison) -> str:
    """Why an error is not taken to be of the job of the dumps; empty if it may be. An engine is a world of its own."""
    if comparison.contradiction:
        return "other lines of the logs contradict the dumps"
    size = comparison.world_size
    if size and error.rank is not None and error.rank >= size and not error.role:
        return f"the job of the dumps has {size:,} ranks"
    if (
        error.at is not None
        and comparison.newest_ns
        and (apart_s := _apart_s(error.at, comparison.newest_ns)) > APART_S
    ):
        return f"it is {apart_s / DAY_S:.0f} days from the newest operation of the dumps"
    return ""


def _apart_s(at: tuple[int, int, float], newest_ns: int) -> float:
    """Seconds between a time without a year and a moment, in the year that brings them nearest."""
    newest = time.gmtime(newest_ns / 1e9)
    days = abs(_day_of_year(at[0], at[1]) - _day_of_year(newest.tm_mon, newest.tm_mday))
    near_days = min(days, YEAR_DAYS - days)
    seconds = at[2] - (newest.tm_hour * 3600 + newest.tm_min * 60 + newest.tm_sec)
    return max(0.0, near_days * DAY_S - abs(seconds))


def _day_of_year(month: int, day: int) -> int:
    before = (0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334)
    return before[(month - 1) % 12] + day


def _is_stranger(process: Process, reasons: Iterable[LogError], errors: Iterable[LogError]) -> bool:
    """Whether a process is known by errors alone that are not used."""
    mine = [error for error in reasons if error.rank == process.rank]
    return not process.samples and bool(mine) and not any(error.rank == process.rank for error in errors)
