"""Who stands where: processes grouped by the place in the user's program at which they stand."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import PurePath

from harness.triage import gate_text
from harness.triage.evidence import Frame, Thread
from harness.triage.graph import Subject
from harness.triage.group_argument import looped_group
from harness.triage.places import SYSTEM, match, plain, runs_users, users
from harness.triage.rules.ruling import Case
from harness.triage.stacks import Doing, classify, describe, ours
from reports.sections.triage import ranks
from reports.text import agreeing

# Where ranks wait at one place: what decides whether they are in one operation, and how to have it.
GROUPS_WANTED = (
    "in which group each of them is, and in which of its operations: recorders say both (harness watch -- COMMAND; "
    "with NCCL also TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1 at the start, then the folder of the dumps)"
)
MAX_PLACES = 3  # in a headline, of at most 20 words
# What a thread of C waits in, where no library is printed.
_WAITS = re.compile(
    r"_*(pthread_|futex|sched_yield|clock_nanosleep|nanosleep|usleep|poll|epoll_|select|recv|accept|read)|<"
)
# Functions of a library of collectives. The outermost one is the operation, those within are its phases: one rank of a
# ring may stand in a send, the next one in a receive.
_OF_COLLECTIVE = re.compile(r"(?:[\w:]+ )?(?:p?nccl[A-Z]|gloo::)")  # of a template with its type
_ANONYMOUS = "(anonymous namespace)::"
MAX_LINES = 16  # places in the evidence of the verdict
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
            return ranks_text(numbers)
        if len(numbers) == size:
            return f"{size} ranks"
        process = self.subjects[0].process
        if size == 1 and self.subjects[0].has_process:
            return f"pid {process.pid}" if process.pid else f"a process of {''.join(process.host.split())}"
        return f"{size} processes"


def places_of(subjects: Iterable[Subject]) -> list[Place]:
    """The places at which the processes stand, with the most processes first.

    Processes at one line that came there on different ways through the user's code stand at two places.
    """
    grouped: dict[tuple[str, tuple[str, ...]], list[Subject]] = {}
    for subject in subjects:
        threads = subject.process.threads
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
    operation = next((frame for frame in reversed(frames) if _OF_COLLECTIVE.match(frame.function)), None)
    if operation is not None:
        name = operation.function.replace(_ANONYMOUS, "").partition("(")[0]
        return f"{PurePath(operation.file).name} {name}"
    outside = (frame for frame in frames if not SYSTEM.search(frame.file))
    frame = next(outside, None) or next((frame for frame in frames if not _WAITS.match(frame.function)), frames[0])
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


def side_threads(subject: Subject) -> list[str]:
    """Where side threads stand in the user's code, as far as they may wait for a lock: "thread logger at log.py:9".

    Only of a process whose main thread may wait for one as well. A lock of C has no frame of its own, so a thread that
    is not on a processor in a line of the user's code may wait for one.
    """
    threads = subject.process.threads
    mains = [classify(thread) for thread in threads if thread.main]
    if not mains or not _may_wait_for_a_lock(mains[0]):
        return []
    places = []
    for thread in threads:
        doing = classify(thread)
        if not thread.main and not ours(thread) and runs_users(thread) and _may_wait_for_a_lock(doing):
            places.append(f"thread {thread.name or thread.tid} at {_place(doing, thread)}")
    return places


def _may_wait_for_a_lock(doing: Doing) -> bool:
    return doing.kind in ("lock", "user") and not doing.active and not doing.idle and bool(doing.frame)


def rarest(places: Sequence[Place]) -> list[Place]:
    """The places, with the fewest processes first."""
    return sorted(places, key=lambda place: len(place.subjects))


def headline(places: Sequence[Place], most: int = MAX_PLACES) -> str:
    """Who stands where, in one line of at most `most` places: the most processes first, then the rarest places."""
    first, rarer = places[0], rarest(places[1:])
    rest = len(rarer) - (most - 1)
    displayed = [first, *rarer[: most - 1]]
    places_text = [f"{place.who} at {place.words}" for place in displayed] + ([f"{rest} more"] if rest > 0 else [])
    return ("; " if len(places_text) == 2 else ", ").join(places_text)  # two facts at most


def line(case: Case, place: Place, most: Place | None) -> str:
    numbers = sorted(subject.rank for subject in place.subjects if subject.rank is not None)
    unnamed = [subject.key for subject in place.subjects if subject.rank is None]
    who = " and ".join(filter(None, (ranks_text(numbers), case.names(unnamed))))
    verb = agreeing(len(place.subjects), "stands", "stand")
    elsewhere = f"{verb} elsewhere: " if most is not None and place is not most else ""
    return f"{who} {elsewhere or 'at '}{place.words}" + (", which waits for others" if place.waits else "")


def users_frames(place: Place) -> tuple[Frame, ...]:
    """The user's frames of the first process at a place, innermost first."""
    return tuple(frame for frame in place.subjects[0].process.main_frames if users(frame))


def looped_groups(places: Iterable[Place]) -> list[tuple[Place, str]]:
    """The places at which several processes wait in one line of a loop over groups, with the text of its group: each
    process may be in another one."""
    texts = [
        (place, looped_group(frames, place.words.rpartition(" ")[2]))
        for place in places
        if len(place.subjects) > 1 and (frames := users_frames(place))
    ]
    return [(place, text) for place, text in texts if text]


def gates_text(place: Place, verb: str = "") -> str:
    """What decides whether the innermost line of a place is reached, in words, with its line."""
    frames = users_frames(place)
    gates = gate_text.gates(frames[0]) if frames else None
    words = [f"{gate.words} (line {gate.line})" for gate in sorted(gates or (), key=lambda gate: gate.line)]
    return f"; {verb}reached {' and '.join(words)}" if words and verb else f", {' and '.join(words)}" if words else ""


def ranks_text(numbers: Sequence[int]) -> str:
    return f"{agreeing(len(numbers), 'rank', 'ranks')} {ranks(numbers)}" if numbers else ""
