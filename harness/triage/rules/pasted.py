"""Rule about pasted stacks: one look without a time. It groups who stands where, and proves nothing from it.

Whoever stands elsewhere than the most is named as standing elsewhere, not as a culprit: the others may have been on
their way at that moment.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import PurePath

from harness.triage.evidence import PASTED, UNREAD, Frame, LogError, Thread
from harness.triage.graph import Subject
from harness.triage.places import match, plain, users
from harness.triage.rules.ruling import Case, Ruling
from harness.triage.stacks import Doing, classify, describe
from reports.sections.triage import ranks

MAX_PLACES = 3  # in the headline, of at most 20 words
MAX_LINES = 16  # places in the evidence of the verdict
# The C library and its sources: a wait ends there, and whoever called it says more.
_SYSTEM = re.compile(r"(^|/)(libc|libpthread|ld-linux[\w-]*)[-.\d]*\.so|/(sysdeps|nptl)/|^native$")
MAX_NAMED = 3  # ranks of a place that the headline names; of more it says the count


@dataclass(frozen=True)
class Place:
    """Where processes stand: in words, and those that stand there. `waits`: they stand in a wait for others."""

    words: str
    subjects: tuple[Subject, ...]
    waits: bool

    @property
    def who(self) -> str:
        """Its processes in few words: "rank 7", "62 ranks", "pid 812", "3 processes"."""
        numbers = sorted(subject.rank for subject in self.subjects if subject.rank is not None)
        size = len(self.subjects)
        if len(numbers) == size and size <= MAX_NAMED:
            return f"rank{'s' if size > 1 else ''} {', '.join(map(str, numbers))}"
        if len(numbers) == size:
            return f"{size} ranks"
        process = self.subjects[0].process
        if size == 1 and process is not None:
            return f"pid {process.pid}" if process.pid else f"a process of {''.join(process.host.split())}"
        return f"{size} processes"


def one_look(case: Case) -> Ruling | None:
    """INSUFFICIENT: says who stands where, and who stands elsewhere than the most."""
    if case.evidence.source != PASTED or case.groups or not case.live():
        return None
    working = [subject for subject in case.live() if subject.doing.kind != "join"]  # the others wait for their children
    places = _places(working or case.live() or list(case.graph.subjects.values()))
    twice = _twice(case)
    size = sum(len(place.subjects) for place in places)
    most = places[0] if twice is None and places and 2 * len(places[0].subjects) > size else None
    return Ruling(
        "INSUFFICIENT",
        _headline(places, twice, all_read=not any(UNREAD in note for note in case.evidence.notes)),
        evidence=(*(_line(case, place, most) for place in places[:MAX_LINES]), *_failures(case)),
        missing=tuple(_missing(case)),
        place=places[0].words if places else "",
        next=(
            "harness triage PID   # of any process of the job, while it stands: two looks, sockets, recorders",
            "py-spy dump -p PID > rank_N.txt   # for each process of which nothing was pasted",
            "for the next run: harness watch -- COMMAND, which takes the evidence when the job stops",
        ),
    )


def first_error(case: Case) -> Ruling | None:
    """INSUFFICIENT: a log says which process failed first; nothing was pasted that says who waits.

    Errors that tell of another process's end come last. In several logs the order of lines says nothing, so the first
    of each is told.
    """
    logged = case.evidence.errors
    if case.evidence.source != PASTED or case.groups or not logged:
        return None
    own = [error for error in logged if not error.echo] or list(logged)
    firsts = list({error.file: error for error in reversed(own)}.values())[::-1]
    first, more = firsts[0], len(logged) - 1
    later = f"; {more} more line{'s' if more > 1 else ''}" if more else ""
    return Ruling(
        "INSUFFICIENT",
        f"first failure in {PurePath(first.file).name}: {_who(first)} {first.what}{later}",
        evidence=tuple(f"{error.file}:{error.line}: {error.text}" for error in firsts[:MAX_LINES]),
        missing=("stacks of the processes that still stand, if any does",),
        place=f"{PurePath(first.file).name}:{first.line}",
        next=(first.fix, "harness triage PID   # of any process of the job that still stands"),
    )


def _failures(case: Case) -> list[str]:
    own = [error for error in case.evidence.errors if not error.echo]
    return [f"{_who(error)} {error.what} ({error.file}:{error.line})" for error in own[:MAX_PLACES]]


def _who(error: LogError) -> str:
    if error.rank is not None:
        return f"rank {error.rank}"
    if error.role:
        return f"{error.role} (pid {error.pid})" if error.pid else error.role
    return f"pid {error.pid}" if error.pid else "a process"


def _places(subjects: Iterable[Subject]) -> list[Place]:
    """The places at which the processes stand, with the most processes first.

    Processes at one line that came there on different ways through the user's code stand at two places.
    """
    grouped: dict[tuple[str, tuple[str, ...]], list[Subject]] = {}
    for subject in subjects:
        threads = subject.process.samples[-1].threads if subject.process and subject.process.samples else ()
        doings = [(thread, classify(thread)) for thread in threads]
        main = next((thread for thread, doing in doings if doing == subject.doing), None)
        words = _words(subject, main, doings)
        grouped.setdefault((words, _callers(main)), []).append(subject)
    twice = Counter(words for words, _ in grouped)
    places = [
        Place(f"{words}{_from(callers) if twice[words] > 1 else ''}", tuple(its), its[0].stuck)
        for (words, callers), its in grouped.items()
    ]
    return sorted(places, key=lambda place: -len(place.subjects))


def _words(subject: Subject, main: Thread | None, doings: Sequence[tuple[Thread, Doing]]) -> str:
    """Where a process stands: "train.py:12 all_reduce"; a side thread in a collective of its own is added."""
    words = _place(subject.doing, main)
    beside = (_place(doing, thread) for thread, doing in doings if thread is not main and doing.kind == "collective")
    return " and ".join([words, *dict.fromkeys(place for place in beside if place != words)][:2])


def _place(doing: Doing, thread: Thread | None) -> str:
    line, _, function = doing.frame.partition(" in ")
    if doing.kind == "unknown":
        return "an unknown place"
    if not doing.frame and thread is not None and thread.frames:
        return _native_place(thread.frames)
    what = plain(function) if doing.kind == "user" else _called(doing, thread) or doing.op or doing.kind
    return "".join(line.split()) + (" " if line else "") + "_".join(what.split())


def _native_place(frames: Sequence[Frame]) -> str:
    """Where a thread without a frame of Python stands: "libiomp5.so __kmp_lock_suspend_mx"."""
    frame = next((frame for frame in frames if not _SYSTEM.search(frame.file)), frames[0])
    return f"{PurePath(frame.file).name} {frame.function}"


def _called(doing: Doing, thread: Thread | None) -> str:
    """The function that the user's code called and that waits: `urlopen`, not what it waits in further in."""
    inner = takewhile(lambda frame: not users(frame), thread.frames if thread else ())
    calls = [frame.function for frame in inner if (entry := match(frame)) and entry.kind == doing.kind]
    return plain(calls[-1]) if calls else ""


def _callers(thread: Thread | None) -> tuple[str, ...]:
    """The user's frames of a thread, innermost first."""
    return tuple(describe(frame) for frame in thread.frames if users(frame)) if thread else ()


def _from(callers: tuple[str, ...]) -> str:
    return f" from {''.join(callers[1].partition(' in ')[0].split())}" if len(callers) > 1 else ""


def _headline(places: list[Place], twice: int | None, *, all_read: bool) -> str:
    if not places:
        return "the stacks are of launchers only: no rank of the job is among them"
    if twice is not None:
        return f"rank {twice} is there twice: stacks of two jobs, or of two roles of one"
    if len(places) == 1:
        alone = len(places[0].subjects) == 1
        others = "nobody stands elsewhere" if all_read else "not every file could be read"
        return f"{places[0].who} at {places[0].words}: {'one stack only' if alone else others}"
    first, rarer = places[0], sorted(places[1:], key=lambda place: len(place.subjects))
    rest = len(rarer) - (MAX_PLACES - 1)
    displayed = [first, *rarer[: MAX_PLACES - 1]]
    return "; ".join(f"{place.who} at {place.words}" for place in displayed) + (f"; {rest} more" if rest > 0 else "")


def _line(case: Case, place: Place, most: Place | None) -> str:
    numbers = sorted(subject.rank for subject in place.subjects if subject.rank is not None)
    unnamed = [subject.key for subject in place.subjects if subject.rank is None]
    who = " and ".join(filter(None, (_ranks(numbers), case.names(unnamed))))
    elsewhere = "stands elsewhere: " if most is not None and place is not most else ""
    verb = "" if elsewhere else "at "
    return f"{who} {elsewhere}{verb}{place.words}" + (", which waits for others" if place.waits else "")


def _ranks(numbers: Sequence[int]) -> str:
    return f"rank{'s' if len(numbers) > 1 else ''} {ranks(numbers)}" if numbers else ""


def _twice(case: Case) -> int | None:
    """A rank that two processes of one program claim; None without one."""
    claims: dict[tuple[int, str], int] = {}
    for subject in case.live():
        if subject.rank is not None and subject.process is not None:
            claim = subject.rank, subject.role
            claims[claim] = claims.get(claim, 0) + 1
    return min((rank for (rank, _), count in claims.items() if count > 1), default=None)


def _missing(case: Case) -> list[str]:
    lines = ["a second look: whether the processes stand still is not known from one"]
    numbers = {subject.rank for subject in case.live() if subject.rank is not None}
    if not case.evidence.expected_world and numbers and (gaps := [n for n in range(max(numbers)) if n not in numbers]):
        lines.append(f"stacks of {_ranks(gaps)}, below the highest rank that is there")
    if not case.evidence.expected_world and numbers:
        lines.append("the number of ranks of the job, which no command line says")
    between = ("collective", "p2p", "store")
    if unnamed := [subject for subject in case.live() if subject.rank is None and subject.doing.within(*between)]:
        lines.append(
            f"the rank of {case.names(subject.key for subject in unnamed)}: call the file rank_N.txt, or keep the "
            "prefix [rankN]: of its lines"
        )
    return lines
