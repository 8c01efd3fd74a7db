"""How dates are written: ISO 8601 in files, and in names of folders so that they sort.

Always in UTC, because the nodes of a job may be set to different time zones.
"""

from __future__ import annotations

import datetime


def utc() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def now() -> str:
    return utc().isoformat(timespec="seconds")


def stamp() -> str:
    """The current time as YYYYmmdd-HHMMSS."""
    return f"{utc():%Y%m%d-%H%M%S}"
