"""Reads the status that NCCL's RAS prints as text: `ncclras -v`, or `echo verbose status | nc localhost 28028`.

Its form is that of NCCL 2.24 to 2.31 (src/ras/client_support.cc and the user guide); it was not run here. The text has
the communicators whose ranks do not agree, and of their ranks the members of the smaller shares.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.triage.communicators import MAX_PID, Communicator, Lack, Member, Share, Status, of_json
from harness.triage.pasted.text import HEAD
from probes.limits import RANKS, WHOLE

SIGN = "Communicators..."
JSON_SIGNS = ('"nccl_version"', '"communicators"')
MAX_LINES = 20_000  # of one answer that are kept
MAX_NOTE = 200  # characters of an error
CUT = "the answer of NCCL RAS is cut short: counts, and who does not answer, may be in what is missing"
_NUMBER = r"(\d{1,19})"
_ROW = re.compile(
    rf" *{_NUMBER} +{_NUMBER} +\d{{1,19}} +[\d-]{{1,40}} +{_NUMBER} +\d{{1,19}} +[A-Z]{{2,20}} +([A-Z,]{{2,60}}) *"
)
_SECTION = re.compile(rf"#{_NUMBER}-{_NUMBER} \(([0-9a-f]{{1,16}})\) (INCOMPLETE|ERROR|MISMATCH)")
_COUNTS = re.compile(r" *Communicator ranks have different (\w{1,40}) operation counts")
_SHARE = re.compile(rf" *(?:{_NUMBER} ranks?|Rank {_NUMBER}) (?:ha(?:ve|s) )?"
                    rf"(?:launched up to operation {_NUMBER}|(not launched any) operations|status (\w{{1,20}})"
                    r"|reported ([\w ]{1,60}?))(?: -- (.{1,300}))?")  # fmt: skip
_MEMBER = re.compile(rf" *Rank {_NUMBER} -- (.{{1,300}})")
_MISSING = re.compile(r" *The missing ranks?: ([\d, ]{1,4000})")
_PROCESS = re.compile(rf" *Process {_NUMBER} on node ([\w.:-]{{1,100}}) managing GPUs? .{{1,300}}")
_MANAGED = re.compile(rf"managed by process {_NUMBER} on node ([\w.:-]{{1,100}})")
_HEADINGS = re.compile(r"(DEAD|INCOMPLETE|Warnings|Errors)|Job summary|No communicator data collected!")


def is_json(head: bytes) -> bool:
    """Whether what begins with `{`, and so, is an answer of RAS in JSON, and no flight recorder dump."""
    return b'"communicators"' in head[:HEAD]


def answer(text: str) -> dict[str, Any]:
    """The answer in a text, as `collect.ras` returns it: its JSON, or {"text": the lines that are read of it}.

    Of several answers the last counts. Empty if there is none.
    """
    if all(sign in text for sign in JSON_SIGNS) and (begin := text.find("{")) >= 0:
        try:
            decoded, _ = json.JSONDecoder().raw_decode(text[begin:])
        except (ValueError, RecursionError):
            decoded = None
        if isinstance(decoded, dict) and "communicators" in decoded:
            return decoded
        return {"text": ""} if SIGN not in text else _kept(text)
    return _kept(text) if SIGN in text else {}


def _kept(text: str) -> dict[str, Any]:
    lines = text[text.rindex(SIGN) :].splitlines()
    return {"text": "\n".join([SIGN, *(line for line in lines if _read(line))][:MAX_LINES])}


def _read(line: str) -> bool:
    patterns = (_ROW, _SECTION, _COUNTS, _SHARE, _MEMBER, _MISSING, _PROCESS, _HEADINGS)
    return len(line) < 1_000 and any(pattern.fullmatch(line) for pattern in patterns)


def status(ras_answer: Mapping[str, Any]) -> Status:
    """The status in an answer of RAS, whichever form it has. A damaged one says why in `cut`."""
    text = ras_answer.get("text")
    try:
        return of_text(text) if isinstance(text, str) else of_json(ras_answer)
    except ValueError as error:
        return Status(0, cut=f"the answer of NCCL RAS is damaged: {str(error)[:MAX_NOTE]}")


@dataclass
class _OpenShare:
    """A share whose members are read."""

    value: int | str
    size: int
    members: list[Member]


@dataclass
class _Open:
    """A communicator whose lines are read, in order."""

    name: str
    size: int
    counts: dict[str, list[_OpenShare]] = field(default_factory=dict)
    states: list[_OpenShare] = field(default_factory=list)
    errors: list[_OpenShare] = field(default_factory=list)
    silent: list[Member] = field(default_factory=list)
    shares: list[_OpenShare] | None = None  # that the next lines belong to
    kinds: set[str] = field(default_factory=set)  # of its sections: MISMATCH, INCOMPLETE, ERROR

    def lacks(self) -> Iterator[Lack]:
        """Which details its sections announce without having them. Values that differ are two at least."""
        for operation, shares in self.counts.items():
            unlisted = self.size - len(self.silent) - sum(share.size for share in shares)
            if len(shares) < 2 or unlisted > 0:
                yield Lack(self.name, "MISMATCH", operation, max(unlisted, 0) if len(shares) > 1 else 0)
        read = {"MISMATCH": self.counts or self.states, "INCOMPLETE": self.silent or self.states, "ERROR": self.errors}
        for kind in sorted(self.kinds):
            if not read[kind]:
                yield Lack(self.name, kind)

    def closed(self) -> Communicator:
        """The communicator, when its last line was read."""
        counts = {operation: _closed(shares) for operation, shares in self.counts.items()}
        return Communicator(
            self.name, self.size, counts, _closed(self.states), _closed(self.errors), tuple(self.silent)
        )


def _closed(shares: list[_OpenShare]) -> tuple[Share, ...]:
    return tuple(Share(share.value, share.size, tuple(share.members)) for share in shares)


def of_text(text: str) -> Status:
    """The status in RAS's text. Raises ValueError for a number out of bounds."""
    reader = _Reader()
    for line in text.splitlines():
        reader.feed(line)
    return reader.status()


@dataclass
class _Reader:
    groups: dict[int, tuple[int, int]] = field(default_factory=dict)  # number -> (communicators, ranks in each)
    troubles: dict[int, str] = field(default_factory=dict)  # number -> what its row says is wrong
    explained: set[int] = field(default_factory=set)  # numbers of groups that have a section
    open: dict[str, _Open] = field(default_factory=dict)
    communicator: _Open | None = None
    heading: str = ""
    headings: set[str] = field(default_factory=set)
    processes: dict[str, set[tuple[str, int]]] = field(default_factory=dict)  # heading -> (host, pid)

    def feed(self, line: str) -> None:
        """Take the next line."""
        if row := _ROW.fullmatch(line):
            self.groups[_bounded(row[1], WHOLE)] = _bounded(row[2], WHOLE), _bounded(row[3], RANKS)
            if row[4] != "OK":
                self.troubles[int(row[1])] = row[4]
        elif section := _SECTION.fullmatch(line):
            size = self.groups.get(int(section[1]), (0, 0))[1]
            self.communicator = self.open.setdefault(section[3], _Open(section[3], size))
            self.communicator.shares = None
            self.communicator.kinds.add(section[4])
            self.explained.add(int(section[1]))
        elif heading := _HEADINGS.fullmatch(line):
            self.heading = heading[0]
            self.headings.add(self.heading)
            self.communicator = None if heading[0] in ("DEAD", "INCOMPLETE") else self.communicator
        elif process := _PROCESS.fullmatch(line):
            self.processes.setdefault(self.heading, set()).add((process[2], _bounded(process[1], MAX_PID)))
        elif self.communicator is not None:
            _feed(self.communicator, line)

    def status(self) -> Status:
        dead = frozenset(self.processes.get("DEAD", ()))
        return Status(
            sum(communicators for communicators, _ in self.groups.values()),
            tuple(communicator.closed() for communicator in self.open.values()),
            dead,
            frozenset(self.processes.get("INCOMPLETE", ())) - dead,
            cut="" if self.headings & {"Warnings", "No communicator data collected!"} else CUT,
            lacks=tuple(self._lacks()),
        )

    def _lacks(self) -> Iterator[Lack]:
        """What the rows and the sections say is there, and is not."""
        for communicator in self.open.values():
            yield from communicator.lacks()
        for number, kind in self.troubles.items():
            if number not in self.explained:
                yield Lack(f"group {number}", kind)


def _feed(communicator: _Open, line: str) -> None:
    if counts := _COUNTS.fullmatch(line):
        communicator.shares = communicator.counts.setdefault(counts[1], [])
    elif share := _SHARE.fullmatch(line):
        _add(communicator, share)
    elif member := _MEMBER.fullmatch(line):
        named = _member(member[1], member[2])
        members = communicator.shares[-1].members if communicator.shares else communicator.silent
        members.append(named)
    elif missing := _MISSING.fullmatch(line):  # before NCCL 2.26
        communicator.silent += [Member(rank) for rank in _numbers(missing[1])]


def _add(communicator: _Open, share: re.Match[str]) -> None:
    many, rank, launched, nothing, state, error, process = share.groups()
    shares = communicator.states if state else communicator.errors if error else communicator.shares
    if shares is None:
        return
    communicator.shares = shares
    value: int | str = state or error or (0 if nothing else _bounded(launched, WHOLE))
    members = [] if rank is None else [_member(rank, process or "")]
    shares.append(_OpenShare(value, _bounded(many, RANKS) if many else 1, members))


def _member(rank: str, words: str) -> Member:
    managed = _MANAGED.search(words)
    number = _bounded(rank, RANKS)
    return Member(number, _bounded(managed[1], MAX_PID), managed[2]) if managed else Member(number)


def _numbers(words: str) -> Iterable[int]:
    return (_bounded(number, RANKS) for number in re.findall(r"\d{1,19}", words))


def _bounded(number: str, limit: int) -> int:
    if int(number) > limit:
        raise ValueError(f"{number} is larger than {limit:,}")
    return int(number)
