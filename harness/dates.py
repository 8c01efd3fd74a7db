"""How a date is written: in files as ISO 8601, in the names of folders so that they sort. Always in UTC: the nodes of a
job may be set to other time zones."""

from __future__ import annotations

import datetime


def utc() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def now() -> str:
    return utc().isoformat(timespec="seconds")


def stamp() -> str:
    """YYYYmmdd-HHMMSS of now."""
    return f"{utc():%Y%m%d-%H%M%S}"
