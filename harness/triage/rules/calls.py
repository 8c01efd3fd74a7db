"""Rules about rings of calls (K6: ray.get, HTTP, engine requests, perhaps with a collective) and rings of reads."""

from __future__ import annotations

from harness.triage.graph import Subject
from harness.triage.graph.calls import reads
from harness.triage.rules.ruling import MOST_NAMED, Case, Native, Ruling
from reports.model import Wait

CONTROL = frozenset({"ray", "http", "engine", "process", "lock", "read"})

RING = "wait for each other"
LOST = "a request or its answer was lost, or lies in a buffer: number both, flush after each, give each read a timeout"


def ring(case: Case) -> Ruling | None:
    """K6: processes wait for each other's answers. No single one of them is the culprit."""
    for members in case.rings():
        inside = set(members)
        waits = [wait for wait in case.graph.waits if wait.waiter in inside and wait.target in inside]
        layers = {wait.layer for wait in waits}
        of_reads = "read" in layers and layers <= {"read", "http"}
        # A ring of collectives alone belongs to `groups.inverted`.
        if not layers & CONTROL or case.moving(members):
            continue
        steps = [
            next((wait for wait in waits if wait.waiter == key and wait.target == after), None)
            for key, after in zip(members, (*members[1:], members[0]), strict=True)
        ]
        description = "; ".join(
            f"{case.names([step.waiter])} waits for {case.names([step.target])} ({step.because})"
            for step in steps
            if step
        )
        if len(members) == 1:
            description = f"{case.names(members)} waits for itself ({waits[0].because})"
        at = " and ".join(
            f"{subject.label} at {subject.frame}"
            for subject in map(case.subject, members[:MOST_NAMED])
            if subject.frame
        )
        owed = _owed_read(case, steps) if layers == {"read", "collective"} else ""
        return Ruling(
            "HUNG",
            f"processes read from each other: {case.names(members)}"
            if of_reads
            else owed
            if owed
            else f"a cycle of calls: {case.names(members)} {'waits for itself' if len(members) == 1 else RING}",
            "K6",
            cycle=tuple(members),
            evidence=(description,),
            place=at or ", ".join(sorted(layers)),
            next=(
                LOST
                if of_reads
                else f"send before the collective, or read after it: {at}"
                if owed
                else "break one call of the cycle: make it asynchronous, or give the callee a thread of its own"
                + (f": {at}" if at else ""),
                "Ray: max_concurrency or a concurrency group on the actor that is asked while it works"
                if "ray" in layers
                else "",
            ),
        )
    return None


def _owed_read(case: Case, steps: list[Wait | None]) -> str:
    """Who reads from whom, where that one waits in a collective for the reader, in words; empty without such a read."""
    for step in steps:
        if step is not None and step.layer == "read":
            reader, writer = case.subject(step.waiter), case.subject(step.target)
            at, operation = reader.frame.partition(" in ")[0], case.waited_in([reader.key])
            return f"{reader.label} reads at {at} from {writer.label}, which waits for it in {operation}"
    return ""


def read_ring(case: Case) -> Ruling | None:
    """INSUFFICIENT: processes read from each other. Nothing that was seen is left to write, but not everything is
    seen."""
    ring = reads(case.graph.subjects, case.graph.waits)
    if not ring or case.moving(ring):
        return None
    return Ruling(
        "INSUFFICIENT",
        f"processes read from each other: {case.names(ring)}",
        evidence=(
            *(f"{case.names([key])} {read.words}{_limit(case.subject(key))}" for key, read in ring.items()),
            "a request or its answer was lost, or lies in a buffer, unless a thread of native code, the handler of a "
            "signal or a process of another container is still to write",
        ),
        place=" and ".join(dict.fromkeys(read.channel for read in ring.values())),
        about=tuple(ring),
        missing=("who else may write: native threads, signal handlers, processes of other containers",),
        next=(LOST, Native.dump("of each: whether a thread of native code works")),
    )


def _limit(subject: Subject) -> str:
    return "; its wait has a time limit" if subject.process.last_look.timed else ""
