"""The stacks of many processes in one view: equal stacks are folded, with the ranks that have them, rarest first."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from harness.triage.evidence import Evidence, Process, Thread
from harness.triage.places import printed_file, users
from harness.triage.stacks import classify
from reports.text import first_of


@dataclass(frozen=True)
class FoldedFrame:
    """One frame. `user`: it is of the user's code, not of an installed package, the standard library or compiled."""

    function: str
    file: str
    line: int
    user: bool


@dataclass(frozen=True)
class FoldedStack:
    """One stack and every process that has it. `doing`: what it means, as in a verdict: collective, user, idle."""

    threads: int
    ranks: list[int]
    processes: list[str]  # host:pid of those whose rank is not known
    thread: str  # the thread's name, with N for its numbers; MainThread
    doing: str
    op: str
    frames: list[FoldedFrame]  # innermost first

    @property
    def main(self) -> bool:
        return self.thread == _MAIN


@dataclass(frozen=True)
class Folded:
    """Main threads first, then the others, each with the rarest stack first. `processes`: how many have a stack."""

    processes: int
    stacks: list[FoldedStack]
    notes: list[str]


_MAIN = "MainThread"
UNNAMED = "without a name"
MOST_NAMED = 4  # processes without a stack in one note
NATIVE = "native"  # what a thread does that has no frame of Python, where nothing is known of its calls


def fold(evidence: Evidence) -> Folded:
    """Fold the stacks of the last look at each process."""
    grouped: dict[tuple[object, ...], list[tuple[Process, Thread]]] = {}
    stacked_processes = 0
    for process in evidence.processes:
        threads = next((sample.threads for sample in reversed(process.samples) if sample.threads), ())
        stacked = [thread for thread in threads if thread.frames]
        stacked_processes += bool(stacked)
        for thread in stacked:
            grouped.setdefault((_name(thread), thread.frames), []).append((process, thread))
    stacks = [_folded(pairs) for pairs in grouped.values()]
    stacks.sort(key=lambda stack: (not stack.main, stack.threads, stack.ranks[:1], stack.thread))
    return Folded(stacked_processes, stacks, [*_without_stacks(evidence), *evidence.notes])


def _without_stacks(evidence: Evidence) -> list[str]:
    """Of which processes there is no stack, and why: those for the same reason in one line."""
    keys_by_reason: dict[str, list[str]] = {}
    for process in evidence.processes:
        if not any(thread.frames for look in process.samples for thread in look.threads):
            reason = next(iter(process.notes), "nothing says why")
            keys_by_reason.setdefault(reason, []).append(process.key)
    lines = []
    for reason, keys in keys_by_reason.items():
        lines.append(f"no stack of {first_of(keys, MOST_NAMED)}: {reason}")
    return lines


def _folded(pairs: Iterable[tuple[Process, Thread]]) -> FoldedStack:
    pairs = list(pairs)
    _, thread = pairs[0]
    doing = classify(thread)
    return FoldedStack(
        threads=len(pairs),
        ranks=sorted({process.rank for process, _ in pairs if process.rank is not None}),
        processes=sorted({process.key for process, _ in pairs if process.rank is None}),
        thread=_name(thread),
        doing="idle" if doing.idle else NATIVE if doing.kind == "user" and not _in_python(thread) else doing.kind,
        op=doing.op,
        frames=[
            FoldedFrame(frame.function, printed_file(frame.file), frame.line, users(frame)) for frame in thread.frames
        ],
    )


def _in_python(thread: Thread) -> bool:
    return any(frame.file.endswith((".py", ">")) for frame in thread.frames)  # "<string>", "<frozen runpy>"


def _name(thread: Thread) -> str:
    return _MAIN if thread.main else re.sub(r"\d+", "N", thread.name) or UNNAMED
