"""All answers that the harness made during a test: the length of their first lines, and whether `harness explain` knows
what they name."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator, MutableSequence
from contextlib import contextmanager
from typing import Any

from reports import headline
from reports.bisect_model import Bisection
from reports.doctor_model import Report
from reports.model import Verdict
from reports.nightly_model import Night
from reports.sections import answer, triage

KEPT = 500  # answers; a test of a week makes thousands, and measures memory
KINDS = (Verdict, Report, Night, Bisection)
_MAKERS = {"dataclasses", "reports.model", __name__}  # of an answer on behalf of their caller


def first_line(subject: Any) -> str:
    """As every format shows it; of triage without the name of the kind of hang, which is a title."""
    if isinstance(subject, Verdict) and subject.kind == "triage":
        return f"{subject.verdict}  {subject.reason}"
    if isinstance(subject, (Verdict, Report)):
        said = answer.of(subject)
        return f"{said.title}  {said.reason}"
    return f"{subject.status}  {subject.reason}" if isinstance(subject, Bisection) else str(subject.reason)


def too_long(subjects: Iterable[Any]) -> list[str]:
    """The first lines of these answers that are no headlines."""
    return sorted({line for line in map(first_line, subjects) if not headline.fits(line)})


def unexplained(subjects: Iterable[Any]) -> list[str]:
    """The causes of these answers with a detail that is not among those that their family lists."""
    keys = {cause.key for item in subjects if isinstance(item, Verdict) for cause in item.causes if cause.key.parts}
    if not keys:
        return []
    from harness import glossary
    from harness.parity.causes import registry

    listing = {name: family for name, family in registry.families().items() if family.details}
    return sorted(
        f"{key}: {part}"
        for key in keys
        if key.family in listing
        for part in key.parts
        if not glossary.detail(listing[key.family], part)
    )


_EXPLAINED: set[str] = set()  # of this process


def unnamed(subjects: Iterable[Any]) -> list[str]:
    """The titles, checks and causes of these answers that `harness explain` refuses, as a report prints them."""
    names = {name for subject in subjects for name in names_of(subject)} - _EXPLAINED
    if not names:
        return []
    from harness import glossary
    from harness.errors import BadInput

    refused = []
    entries = glossary.entries()
    for name in names:
        try:
            glossary.find(name, entries)
        except BadInput:
            refused.append(name)
        else:
            _EXPLAINED.add(name)
    return sorted(refused)


def names_of(subject: Any) -> Iterator[str]:
    """What an answer is called, and the names of its checks and causes, as a report prints them."""
    if isinstance(subject, Bisection):
        yield subject.status
        yield from (step.call for step in subject.steps)
    elif isinstance(subject, Night):
        yield from (f"{count} {status}" for status, count in subject.counts.items())
    elif isinstance(subject, Verdict):
        title = triage.title(subject)
        yield from (title, answer.coded(title, subject.exit_code))
        for check in subject.parity.checks if subject.parity else ():
            yield from (f"{check.number} {check.name}" if check.number else check.name, check.state)
        yield from (cause.name for cause in subject.causes if cause.name)
    else:
        yield subject.verdict
        for items in (subject.hazards, subject.passed, subject.unchecked):
            yield from (item.check for item in items)


@contextmanager
def answers(package: str = "harness.") -> Iterator[MutableSequence[Any]]:
    """The last answers that modules of this package make within the block.

    What a test writes down itself is not listed.
    """
    made: deque[Any] = deque(maxlen=KEPT)
    own = {kind: kind.__init__ for kind in KINDS}

    def listing(kind: type) -> Any:
        def init(self: Any, *args: Any, **more: Any) -> None:
            own[kind](self, *args, **more)
            frame = sys._getframe(1)
            while frame.f_back is not None and frame.f_globals.get("__name__") in _MAKERS:
                frame = frame.f_back
            if str(frame.f_globals.get("__name__")).startswith(package):
                made.append(self)

        return init

    for kind in KINDS:
        kind.__init__ = listing(kind)  # type: ignore[method-assign]
    try:
        yield made
    finally:
        for kind, init in own.items():
            kind.__init__ = init  # type: ignore[method-assign]
