"""The rank in the name of a dump's file."""

from __future__ import annotations

import re

from probes.limits import RANKS

_RANKED = re.compile(r"rank[-_]?(\d+)", re.IGNORECASE)
_TRAILING = re.compile(r"(\d+)$")
_SUFFIXES = (".json", ".pkl", ".pickle")


def says_rank(name: str) -> bool:
    """Whether a file name calls its number a rank. Other numbers may be pids or dates."""
    return _RANKED.search(name) is not None


def named_rank(name: str) -> tuple[str, int | None]:
    """Split a file name into what it shares with its neighbours and the rank in it: nccl_trace_rank_3, rank3.json,
    3.pkl."""
    stem = name
    for suffix in _SUFFIXES:
        stem = stem.removesuffix(suffix)
    match = _RANKED.search(stem) or _TRAILING.search(stem)
    if match is None or int(match[1]) > RANKS:
        return stem, None
    return stem[: match.start(1)] + stem[match.end(1) :], int(match[1])
