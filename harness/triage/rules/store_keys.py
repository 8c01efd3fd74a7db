"""Rule about a key of torch's store that nobody is left to set: every rank waits, one of them for that key.

A store does not say who shall set a key. But if every rank of the one world was seen to wait at two looks, for a key,
in a collective or in a receive, and nothing else of the job moves, none of them will set it. Where nothing numbers the
ranks, as in children of multiprocessing, all processes of the job are looked at, and the key is told. The text of the
program may show the key, and which keys it sets.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from harness.triage import source
from harness.triage.graph import Subject
from harness.triage.graph.edges import KEY
from harness.triage.graph.motion import BETWEEN_RANKS
from harness.triage.places import inner_frame, users
from harness.triage.rules import standing
from harness.triage.rules.apart import MAX_DOUBTS, doubts, members
from harness.triage.rules.ruling import Case, Live, Ruling

SIMILAR = 0.5  # of two keys, by difflib: `ready` and `weights_ready` have 0.56


def unset(case: Case) -> Ruling | None:
    """K2 or INSUFFICIENT: all ranks wait, some of them for a key of a store that one of the others would have to
    set."""
    ranks = members(case)
    waiting = [subject for subject in ranks if _for_key(subject)]
    if not waiting or not all(map(_waits, ranks)):
        return None
    places, key = standing.places_of(ranks), _key(waiting[0])
    named = f"the key {key!r}" if key else "a key of the store"
    open_questions = doubts(case, ranks)
    at = waiting[0].frame.partition(" in ")[0]
    subjects = case.names(subject.key for subject in waiting)
    verb = "waits" if len(waiting) == 1 else "wait"
    others = "all other ranks wait, too" if len(ranks) > len(waiting) else "nobody else of the job moves"
    left = others if open_questions else "nobody is left to set it"
    return Ruling(
        "INSUFFICIENT" if open_questions else "HUNG",
        f"{subjects} {verb} for {named} at {at}; {left}",
        "" if open_questions else "K2",
        waiting={} if open_questions else {each.key: place.words for place in places for each in place.subjects},
        evidence=(
            *(standing.line(case, place, None) for place in places[: standing.MAX_LINES]),
            *_set_keys(waiting[0], key),
        ),
        missing=tuple(open_questions[:MAX_DOUBTS]),
        place=waiting[0].frame,
        about=tuple(subject.key for subject in waiting),
        next=(
            f"compare the key at {at} with those that the other ranks set, and set it before they wait for this rank",
            Live(f"{case.again()}   # in a minute: whether all still stand there") if open_questions else "",
            "give it a limit: store.wait([KEY], datetime.timedelta(seconds=60))",
        ),
    )  # fmt: skip


def _for_key(subject: Subject) -> bool:
    """Whether it waits for a key, by its stack of C or by the text of its line."""
    if subject.doing.kind == "store":
        return subject.doing.op == KEY
    mine = inner_frame(subject.process.main_frames)
    return subject.doing.kind in ("user", "unknown") and mine is not None and source.waits_in_store(mine)


def _waits(subject: Subject) -> bool:
    """Whether it stands at one place at both looks, in a collective, or for a key without a byte from any connection.

    A stack of C that shows a wait for a key is taken after the last look.
    """
    looks = subject.process.samples
    if len(looks) < 2 or subject.progress or subject.blocked or subject.ended or subject.pending:
        return False
    same = looks[0].main_frames == looks[-1].main_frames
    return same and (
        (_for_key(subject) and looks[0].net_bytes == looks[-1].net_bytes)
        or (subject.doing.kind in BETWEEN_RANKS and subject.before.kind in BETWEEN_RANKS)
    )


def _key(subject: Subject) -> str:
    """The key for which it waits, where the text has it as a word; empty without one."""
    mine = inner_frame(subject.process.main_frames)
    return source.store_key(mine) if mine is not None else ""


def _set_keys(subject: Subject, key: str) -> Sequence[str]:
    """Whether the text of the program sets the key anywhere, and which similar one it does set."""
    files = dict.fromkeys(frame.file for frame in subject.process.main_frames if users(frame))
    set_keys = {name: (file, line) for file in files for name, line in source.keys_set(file).items()}
    if not key or key in set_keys:
        return ()
    lines = []
    for name in difflib.get_close_matches(key, set_keys, 1, SIMILAR):
        file, line = set_keys[name]
        lines.append(f"{file.rpartition('/')[2]}:{line} sets {name!r}, and no line of that file sets {key!r}")
    return lines
