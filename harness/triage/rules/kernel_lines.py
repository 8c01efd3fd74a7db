"""Tells which line of the kernel's log, or of whoever writes no rank, says what ended a process: by pid, host, time."""

from __future__ import annotations

import re
from collections import Counter
from datetime import date

from harness.triage.evidence import PASTED, Evidence, LogError, Process

# A pid is given away again, so that a line explains only a death of its time. Two logs of one host may be of time zones
# up to 26 hours apart, and February 29, which not every year has, may lie between them.
DAY_S = 86_400.0
NEAR_S = 2 * DAY_S + 3_600
LEAP_YEAR, YEAR_DAYS = 2000, 366
_NO_NAME = re.compile(r"localhost\b|[\d.]+$|.*:")  # of a host: an address, or what each host calls itself


def system_errors(evidence: Evidence) -> dict[str, LogError]:
    """Process -> the line that says by its pid what ended it.

    A process that left an error of its own needs none. Where the line or the process does not name its host, a pid that
    several hosts have is nobody's.
    """
    pids = Counter(process.pid for process in evidence.processes)
    errors = [error for error in evidence.errors if error.pid and error.rank is None and not error.echo]
    hosts: dict[int, set[str]] = {}
    for error in errors:
        hosts.setdefault(error.pid, set()).add(error.host)
    alone = {pid for pid, count in pids.items() if count == 1 and len(hosts.get(pid, ())) < 2}
    return {
        process.key: error
        for process in evidence.processes
        for error in errors
        if error.pid == process.pid and not process.error and _is_near(process, error)
        if (_is_on_host(process, error) if _have_names(process, error) else process.pid in alone)
    }


def _have_names(process: Process, error: LogError) -> bool:
    """Whether a process and a line both name their host, rather than its address or none."""
    return not any(host in ("", PASTED) or _NO_NAME.match(host) for host in (process.host, error.host))


def _is_on_host(process: Process, error: LogError) -> bool:
    """Whether both name one host, of which one of them may have the short name."""
    first, second = (host.casefold().partition(".") for host in (process.host, error.host))
    return first == second or (first[0] == second[0] and not (first[2] and second[2]))


def _is_near(process: Process, error: LogError) -> bool:
    """Whether a line may be of the time at which a process ended. Without both times it may."""
    ended_s, line_s = _seconds(process.ended_at), _seconds(error.at)
    if ended_s is None or line_s is None:
        return True
    apart_s = abs(ended_s - line_s)
    return min(apart_s, YEAR_DAYS * DAY_S - apart_s) < NEAR_S


def _seconds(stamp: tuple[int, int, float] | None) -> float | None:
    """The time within a year that has a February 29; None for what is no date."""
    if stamp is None:
        return None
    month, day, seconds = stamp
    try:
        return date(LEAP_YEAR, month, day).timetuple().tm_yday * DAY_S + seconds
    except ValueError:
        return None
