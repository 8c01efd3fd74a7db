"""The stacks of many processes in one view: equal stacks are folded, with the ranks that have them, rarest first.

Tools spell one stack in their own ways: py-spy's text has paths below `sys.path` and qualified names, its JSON and
faulthandler have whole paths, and --native adds the frames below Python. Such stacks are one, unless a short path may
be of two files, or one Python stack has several ways below it: then all stay apart.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from harness.triage.evidence import Evidence, Frame, Process, Thread
from harness.triage.places import printed_file, users
from harness.triage.stacks import classify
from reports.text import first_of


@dataclass(frozen=True)
class FoldedFrame:
    """One frame. `user`: it is of the user's code, not of an installed package, the standard library or compiled.
    `threads`: how many of the stack's threads show it; fewer have a compiled frame where not every tool shows these."""

    function: str
    file: str
    line: int
    user: bool
    threads: int


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
MOST_SPELLINGS = 50  # of one stack that are compared in pairs
Pairs = list[tuple[Process, Thread]]
NATIVE = "native"  # what a thread does that has no frame of Python, where nothing is known of its calls


def fold(evidence: Evidence) -> Folded:
    """Fold the stacks of the last look at each process."""
    grouped: dict[tuple[object, ...], Pairs] = {}
    stacked_processes = 0
    for process in evidence.processes:
        threads = next((sample.threads for sample in reversed(process.samples) if sample.threads), ())
        stacked = [thread for thread in threads if thread.frames]
        stacked_processes += bool(stacked)
        for thread in stacked:
            grouped.setdefault((_name(thread), thread.frames), []).append((process, thread))
    spellings: dict[tuple[object, ...], list[Pairs]] = {}
    for (name, _), pairs in grouped.items():
        spellings.setdefault((name, *map(_spelling, _python(pairs[0][1]) or pairs[0][1].frames)), []).append(pairs)
    stacks = [_folded(pairs) for groups in spellings.values() for pairs in _merged(groups)]
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


def _spelling(frame: Frame) -> tuple[str, str, int]:
    """What all tools print of a frame: the last part of its function and of its file, and its line."""
    return frame.function.rpartition(".")[2], printed_file(frame.file).rpartition("/")[2], frame.line


def _merged(groups: list[Pairs]) -> list[Pairs]:
    """The threads of stacks whose Python frames have one spelling; those that may be one stack together."""
    if len(groups) > MOST_SPELLINGS:
        return groups
    groups = _joined(groups, lambda first, second: _native(first) == _native(second))
    return _joined(groups, lambda first, second: not (_native(first) and _native(second)))


def _joined(groups: list[Pairs], fit_below: Callable[[Thread, Thread], bool]) -> list[Pairs]:
    """The groups, joined where all that fit each other do so in every pair. `fit_below`: whether the compiled frames of
    two threads do."""

    def fit(first: Pairs, second: Pairs) -> bool:
        return all(
            fit_below(first_thread, second_thread) and _is_one_stack(first_thread, second_thread)
            for _, first_thread in _variants(first)
            for _, second_thread in _variants(second)
        )

    partners = {at: {to for to in range(len(groups)) if to == at or fit(groups[at], groups[to])}
                for at in range(len(groups))}  # fmt: skip
    joined: list[Pairs] = []
    for at, fitting in partners.items():
        if any(partners[to] != fitting for to in fitting):
            joined.append(groups[at])
        elif at == min(fitting):
            joined.append([pair for to in sorted(fitting) for pair in groups[to]])
    return joined


def _variants(pairs: Pairs) -> Pairs:
    """One process and thread for each spelling."""
    return list({thread.frames: (process, thread) for process, thread in pairs}.values())


def _is_one_stack(first: Thread, second: Thread) -> bool:
    """Whether two threads, whose Python frames have one spelling, may stand in the same files."""
    pairs = zip(_python(first), _python(second), strict=True)
    return bool(_python(first)) and all(_is_one_file(printed_file(a.file), printed_file(b.file)) and
                                        _is_one_name(a.function, b.function) for a, b in pairs)  # fmt: skip


def _is_one_file(first: str, second: str) -> bool:
    """Whether one of two paths is the other, as seen from a folder above."""
    short, long = sorted((first, second), key=len)
    return short == long or (not short.startswith("/") and long.endswith(f"/{short}"))


def _is_one_name(first: str, second: str) -> bool:
    """Whether one of two functions is the other, without its class."""
    short, long = sorted((first, second), key=len)
    return short == long or long.endswith(f".{short}")


def _python(thread: Thread) -> list[Frame]:
    return [frame for frame in thread.frames if frame.file.endswith((".py", ">"))]  # "<string>", "<frozen runpy>"


def _native(thread: Thread) -> list[Frame]:
    return [frame for frame in thread.frames if not frame.file.endswith((".py", ">"))]


def _frames(pairs: Pairs) -> list[FoldedFrame]:
    """The frames of the spelling that has the most, each Python frame with its longest path and name."""
    variants = [thread for _, thread in _variants(pairs)]
    fullest = max(variants, key=lambda thread: len(thread.frames))
    spellings = iter(zip(*map(_python, variants), strict=True))
    with_native = sum(bool(_native(thread)) for _, thread in pairs)
    frames = []
    for frame in fullest.frames:
        if not frame.file.endswith((".py", ">")):
            frames.append(_frame(frame, frame.function, with_native))
            continue
        spelled = next(spellings)
        longest = max(spelled, key=lambda each: len(printed_file(each.file)))
        frames.append(_frame(longest, max((each.function for each in spelled), key=len), len(pairs)))
    return frames


def _frame(frame: Frame, function: str, threads: int) -> FoldedFrame:
    return FoldedFrame(function, printed_file(frame.file), frame.line, users(frame), threads)


def _folded(pairs: Pairs) -> FoldedStack:
    thread = max((thread for _, thread in pairs), key=lambda thread: len(thread.frames))
    doing = classify(thread)
    return FoldedStack(
        threads=len(pairs),
        ranks=sorted({process.rank for process, _ in pairs if process.rank is not None}),
        processes=sorted({process.key for process, _ in pairs if process.rank is None}),
        thread=_name(thread),
        doing="idle" if doing.idle else NATIVE if doing.kind == "user" and not _python(thread) else doing.kind,
        op=doing.op,
        frames=_frames(pairs),
    )


def _name(thread: Thread) -> str:
    return _MAIN if thread.main else re.sub(r"\d+", "N", thread.name) or UNNAMED
