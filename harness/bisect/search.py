"""A running bisection: each comparison is made once, stored in the journal, and announced with the time that is
left.
"""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from harness.bisect import ordered
from harness.bisect.journal import Journal
from harness.bisect.judging import Judge, Judged
from reports.bisect_model import Bisection, Call, Status, Step
from reports.sections.nightly import duration
from reports.text import counted

Try = Callable[[Path], Judged]  # makes a comparison and records it in the new folder


@dataclass
class Search:
    """A running bisection.

    journal: the stored request and steps.
    judge: the criterion for good and bad.
    say: prints a line of progress.
    clock: the time in seconds; replaced in tests.
    notes: the limitations of the result.
    """

    journal: Journal
    judge: Judge
    say: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    notes: tuple[str, ...] = ()

    def ask(self, subject: str, remaining: int, attempt: Try, *, again: bool = False) -> Call:
        """Return the call on `subject`: the one in the journal, or the result of a new comparison."""
        if earlier_step := self.journal.recorded(subject, again):
            return earlier_step.call
        number = len(self.journal.steps) + 1
        took = [float(step.seconds) for step in self.journal.steps]
        estimate = f", {duration(statistics.median(took) * remaining)}" if took else ""
        self.say(f"comparison {number}, about {remaining} left{estimate}: {subject}" + " again" * again)
        started, place = self.clock(), self.journal.folder / f"step-{number:03d}"
        shutil.rmtree(place, ignore_errors=True)  # left by an interrupted step
        made = attempt(place)
        seconds = round(self.clock() - started, 1)
        self.journal.add(
            Step(
                subject=subject,
                call=made.call,
                why=made.why,
                seconds=seconds,
                recording=str(place),
                again=again,
                environment=made.environment,
            )
        )
        self.say(f"comparison {number}: {made.call} ({made.why})")
        return made.call

    def in_order(self, names: Sequence[str], attempt: Callable[[int, Path], Judged]) -> Bisection:
        """Find the first bad one of `names`, which are in order."""

        def ask(index: int, remaining: int, again: bool = False) -> Call:
            return self.ask(names[index], remaining, lambda place: attempt(index, place), again=again)

        outcome = ordered.first_bad(len(names), ask, lambda index, remaining: ask(index, remaining, True))
        if outcome.wrong_end is not None:
            return self.wrong_end(names[outcome.wrong_end], "bad" if outcome.wrong_end else "good")
        suspects, last_good = tuple(names[index] for index in outcome.suspects), names[outcome.last_good]
        if not outcome.confirmed:
            status, why = "NOT CONFIRMED", f"{suspects[-1]} was bad, and was not when it was checked once more"
        elif len(suspects) > 1:
            status, why = "ONE OF THESE", f"the first bad one is one of {len(suspects)}: the others could not be judged"
        else:
            status, why = "FOUND", f"{suspects[0]} is the first bad one"
        return self.report(status, why, (suspects,), last_good)

    def wrong_end(self, subject: str, expected: Call) -> Bisection:
        """Return the report of a search that could not start because an end was not classified as expected."""
        step = self.journal.recorded(subject, False)
        assert step is not None
        call = "could not be judged" if step.call == "skip" else f"is {step.call}"
        return self.report("WRONG END", f"the {expected} end {call}", notes=(f"{subject}: {step.why}",))

    def report(
        self,
        status: str,
        why: str,
        results: Iterable[tuple[str, ...]] = (),
        last_good: str = "",
        notes: tuple[str, ...] = (),
    ) -> Bisection:
        journal = self.journal
        notes = (*notes, f"{counted(len(journal.steps), 'comparison')} made", *self.notes)
        return Bisection(
            over=journal.request.over,
            question=self.judge.question,
            status=cast("Status", status),
            reason=why,
            results=tuple(results),
            last_good=last_good,
            steps=tuple(journal.steps),
            notes=notes,
            folder=str(journal.folder),
            reproduce=journal.request.command,
        )
