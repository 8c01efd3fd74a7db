"""What a slow rank used between two looks, beside what the others used: processor, disk and network, by /proc.

These figures are of a moment and name nobody. They say where to look: a rank that waits for a processor shares its core
with somebody, one that reads while the others wait has slow storage or more to read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from statistics import median

from harness.triage.evidence import Process

MEGA = 1e6  # bytes


@dataclass(frozen=True)
class Use:
    """What one process used a second between its first look and its last."""

    cores: float  # processors
    queued: float  # share of the time in which its main thread was runnable without a processor
    disk: float  # megabytes read and written
    network: float  # megabytes through its TCP connections


# Field -> its name, its value, and the rest of the sentence.
_WORDS = {
    "cores": ("processor", "{:.0%}", " of a core"),
    "queued": ("waits for a processor", "{:.0%}", " of the time"),
    "disk": ("disk", "{:,.1f}", " MB/s"),
    "network": ("network", "{:,.1f}", " MB/s"),
}


def lines(processes: Iterable[Process], slow: Set[str]) -> Iterator[str]:
    """A line for each slow process that was looked at twice: what it used, and the median of the other ranks."""
    used = {each.key: (each, use) for each in processes if each.rank is not None and (use := used_by(each))}
    others = [use for key, (_, use) in used.items() if key not in slow]
    for key in sorted(slow & used.keys(), key=lambda key: used[key][0].rank or 0):
        process, use = used[key]
        yield f"rank {process.rank} between two looks: {'; '.join(_compared(name, use, others) for name in _WORDS)}"


def _compared(name: str, use: Use, others: Sequence[Use]) -> str:
    label, form, unit = _WORDS[name]
    beside = f" (others {form.format(median(getattr(each, name) for each in others))})" if others else ""
    return f"{label} {form.format(getattr(use, name))}{unit}{beside}"


def used_by(process: Process) -> Use | None:
    """What a process used between its first look and its last; None if it was not looked at twice."""
    first, last = process.first_look, process.last_look
    gap_s = process.between_looks_s
    if gap_s <= 0:
        return None
    return Use(
        (last.cpu_s - last.service_cpu_s - first.cpu_s + first.service_cpu_s) / gap_s,
        ((last.main_delay_s or 0.0) - (first.main_delay_s or 0.0)) / gap_s,
        (last.io_bytes - first.io_bytes) / gap_s / MEGA,
        (last.net_bytes - first.net_bytes) / gap_s / MEGA,
    )
