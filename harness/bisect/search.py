"""A bisection under way: every comparison is made once, written down, and told with an estimate of what is left."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.bisect import ordered
from harness.bisect.journal import Journal
from harness.bisect.judging import Judge, Judged
from reports.bisect_model import Bisection, Call, Step
from reports.sections.nightly import duration
from reports.text import counted

Try = Callable[[Path], Judged]  # makes a comparison whose recordings go into a new folder


@dataclass
class Search:
    """`clock` is passed in by tests."""

    journal: Journal
    judge: Judge
    say: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic

    def ask(self, subject: str, left: int, attempt: Try, *, again: bool = False) -> Call:
        """The call on `subject`, by the journal or by a comparison now."""
        if known := self.journal.known(subject, again):
            return known.call
        number = len(self.journal.steps) + 1
        took = [float(one.seconds) for one in self.journal.steps]
        rest = f", {duration(statistics.median(took) * left)}" if took else ""
        self.say(f"comparison {number}, about {left} left{rest}: {subject}" + " again" * again)
        started, place = self.clock(), self.journal.folder / f"step-{number:03d}"
        found = attempt(place)
        step = Step(
            subject, found.call, found.why, round(self.clock() - started, 1), str(place), again, found.environment
        )
        self.journal.add(step)
        self.say(f"comparison {number}: {found.call} ({found.why})")
        return found.call

    def in_order(
        self, names: Sequence[str], attempt: Callable[[int, Path], Judged], notes: tuple[str, ...] = ()
    ) -> Bisection:
        """The first bad one of `names`, which are in order."""

        def asked(index: int, left: int, again: bool = False) -> Call:
            return self.ask(names[index], left, lambda place: attempt(index, place), again=again)

        found = ordered.first_bad(len(names), asked, lambda index, left: asked(index, left, True))
        if found.wrong_end is not None:
            return self.wrong_end(names[found.wrong_end], "bad" if found.wrong_end else "good", notes)
        suspects = tuple(names[index] for index in found.suspects)
        last_good = names[found.last_good]
        if not found.confirmed:
            status, told = "NOT CONFIRMED", f"{suspects[-1]} was bad, and was not when it was checked once more"
        elif len(suspects) > 1:
            told = (
                f"the first bad one is one of {len(suspects)}; {counted(len(suspects) - 1, 'one')} could not be judged"
            )
            status = "ONE OF THESE"
        else:
            status, told = "FOUND", f"{suspects[0]} is the first bad one; {last_good} is good"
        return self.report(status, told, (suspects,), last_good=last_good, notes=notes)

    def wrong_end(self, subject: str, expected: Call, notes: tuple[str, ...] = ()) -> Bisection:
        """Nothing can be searched: an end is not what it should be."""
        step = self.journal.known(subject, False)
        assert step is not None
        judged = "could not be judged" if step.call == "skip" else f"is {step.call}"
        return self.report("WRONG END", f"the {expected} end {judged}: {step.why}", (), notes=notes)

    def report(
        self,
        status: str,
        reason: str,
        results: tuple[tuple[str, ...], ...],
        *,
        last_good: str = "",
        notes: tuple[str, ...] = (),
    ) -> Bisection:
        request = self.journal.request
        return Bisection(
            request.over,
            f"{request.command}: where {self.judge.question}",
            status,  # type: ignore[arg-type]
            f"{reason} ({counted(len(self.journal.steps), 'comparison')})",
            results,
            last_good,
            tuple(self.journal.steps),
            notes,
            str(self.journal.folder),
            request.command,
        )
