"""What a slow rank used between two looks, beside what the others used: processor, disk and network, by /proc.

These figures are of a moment and name nobody. They say where to look: a rank that waits for a processor shares its core
with somebody, one that reads while the others wait has slow storage or more to read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from statistics import median

from harness.triage.evidence import Process


@dataclass(frozen=True)
class Use:
    """What one process used a second between its first look and its last."""

    cores: float  # processors
    queued: float  # share of the time in which its main thread was runnable without a processor
    disk: float  # bytes read and written
    network: float  # bytes through its TCP connections


_WORDS = {
    "cores": ("{:.0%} of a core", 1.0),
    "queued": ("waited for a processor {:.0%} of the time", 1.0),
    "disk": ("{:,.1f} MB/s read and written", 1e6),
    "network": ("{:,.1f} MB/s over the network", 1e6),
}


def lines(processes: Iterable[Process], slow: Set[str]) -> Iterator[str]:
    """A line for each slow process that was looked at twice: what it used, and the median of the other ranks."""
    used = {each.key: (each, use) for each in processes if each.rank is not None and (use := used_by(each))}
    others = [use for key, (_, use) in used.items() if key not in slow]
    for key in sorted(slow & used.keys(), key=lambda key: used[key][0].rank or 0):
        process, use = used[key]
        parts = [f"{_worded(name, use)} (others {_worded(name, *others)})" if others else _worded(name, use)
                 for name in _WORDS]  # fmt: skip
        yield f"rank {process.rank} between two looks: {'; '.join(parts)}"


def used_by(process: Process) -> Use | None:
    """What a process used between its first look and its last; None if it was not looked at twice."""
    if len(process.samples) < 2:
        return None
    first, last = process.samples[0], process.samples[-1]
    gap_s = last.at_s - first.at_s
    if gap_s <= 0:
        return None
    return Use(
        (last.cpu_s - last.service_cpu_s - first.cpu_s + first.service_cpu_s) / gap_s,
        ((last.main_delay_s or 0.0) - (first.main_delay_s or 0.0)) / gap_s,
        (last.io_bytes - first.io_bytes) / gap_s,
        (last.net_bytes - first.net_bytes) / gap_s,
    )


def _worded(name: str, *uses: Use) -> str:
    form, unit = _WORDS[name]
    return form.format(median(getattr(use, name) for use in uses) / unit)
