"""Rules about a run that is over: nobody waits any more, and what is left says how it ended."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import replace

from harness.triage.evidence import ENDED, EndedBy
from harness.triage.graph.subjects import ended
from harness.triage.rules.ends import (
    DISK_FULL,
    SILENCE_S,
    Ends,
    ago,
    dated_end_s,
    fault_of,
    is_over,
    unknown_ends,
)
from harness.triage.rules.first_death import MAX_AFTER, MAX_WORDS, after_early_end, in_bad_order, untaken
from harness.triage.rules.ruling import Case, Live, Ruling, Watching, brief
from harness.triage.stacks import describe
from probes.signal_codes import signal_of
from reports.text import agreeing

BEFORE_END = ("harness triage PID   # of the next run, before you end it",)


def over(case: Case) -> Ruling | None:
    """HEALTHY or INSUFFICIENT: every process of the run has ended.

    HEALTHY if all are known to have ended in good order. Otherwise INSUFFICIENT with the error, or with who ended
    without a record, because nothing tells whether the run stood still before.
    """
    processes = case.evidence.processes
    dumps = any(not node.has_process for node in case.graph.subjects.values())  # some rank is known only by its dump
    if not processes or dumps or not all(map(is_over, processes)):
        return None
    ends = Ends.of(case.evidence)
    outlived = ends.outlived(case)
    ends = ends.without(outlived)
    answers = {key: fault for key, fault in ends.faults.items() if _answers_signal(case, key)}
    if ends.faults and len(answers) == len(ends.faults):
        return _on_request(case, list(answers))
    ends = ends.without(answers)
    outlived_ends = outlived_lines(case, outlived)
    if ends.faults:
        ruling = after_early_end(case, ends.faults) or in_bad_order(case, ends)
        return replace(ruling, evidence=(*ruling.evidence[:-1], *outlived_ends, *ruling.evidence[-1:]))
    if unknown := [key for key in unknown_ends(case) if key not in outlived]:
        ruling = _in_unknown_order(case, unknown)
        return replace(ruling, evidence=(*ruling.evidence, *outlived_ends))
    count = f"{len(processes)} {agreeing(len(processes), 'process', 'processes')}"
    ruling = _good_order(case, f"the run has ended in good order{ago(case)}", count)
    return replace(ruling, evidence=outlived_ends)


def unrecorded(exit_code: int, ended_by: EndedBy | None = None) -> Ruling:
    """HEALTHY or INSUFFICIENT: a watched command has ended, and none of its processes left a record of its own."""
    if not exit_code:
        return Ruling("HEALTHY", "the watched command has ended with exit code 0, without a stall")
    if ended_by is not None:
        return Ruling("INSUFFICIENT", f"{ended_by.words} ended the watched command", next=BEFORE_END)
    number = signal_of(exit_code)
    by_signal = number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    name = f" ({signal.Signals(number).name})" if by_signal else ""
    return Ruling(
        "INSUFFICIENT",
        f"the watched command has ended with exit code {exit_code}{name}, and none of its processes left a record",
        next=("find who ended it: a person, a scheduler, a limit of time" if by_signal
              else "read the end of its log for the first error",),
    )  # fmt: skip


def outlived_lines(case: Case, outlived: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(f"{case.names([key])} {brief(how, MAX_WORDS)}, and the job went on"
                 for key, how in outlived.items())[:MAX_AFTER]  # fmt: skip


def _answers_signal(case: Case, key: str) -> bool:
    """Whether a process ended after the user or a scheduler had asked the watch to end its command. The last heartbeat
    of one that left no last word is up to two periods older than its end."""
    ended_by, process = case.evidence.ended_by, case.subject(key).process
    if ended_by is None:
        return False
    age_s = dated_end_s(process)
    return age_s is None or ended_by.age_s is None or age_s < ended_by.age_s + SILENCE_S


def _on_request(case: Case, answers: list[str]) -> Ruling:
    """INSUFFICIENT: whoever ended badly answered the signal of a user or a scheduler. Where they stood is told."""
    words = case.evidence.ended_by.words if case.evidence.ended_by else "a signal"
    subjects = [subject for key in answers if not (subject := case.subject(key)).launcher]
    beats = {subject.key: subject.process.beat for subject in subjects}
    stood = [f"{case.names([key])} stood at {describe(beat.raised_at)}"
             for key, beat in beats.items() if beat is not None and beat.raised_at]  # fmt: skip
    return Ruling(
        "INSUFFICIENT",
        f"{words} ended the run",
        evidence=(*stood[:MAX_AFTER], untaken(case)),
        next=BEFORE_END,
    )


def _in_unknown_order(case: Case, unknown: list[str]) -> Ruling:
    """INSUFFICIENT: these processes have ended, and only their parents were told how."""
    firsts = [process.samples[0] for process in case.evidence.processes if process.key in unknown and process.samples]
    during = " while the job was looked at" if any(look.state not in ENDED for look in firsts) else ""
    names = case.names(unknown)
    stood = [f"{subject.label} stood in {subject.frame}" for key in unknown if (subject := case.subject(key)).frame]
    return Ruling(
        "INSUFFICIENT",
        f"{names} ended{during}; with which exit code is not known",
        evidence=tuple(stood[:MAX_AFTER]),
        missing=(f"how {names} ended: an exit code goes to the parent of a process alone",),
        next=(
            Watching(f"{case.watched()}   # the next run: a watch learns the exit code, and looks before the end"),
            "read the end of the log, and what the launcher printed",
        ),
    )


def _good_order(case: Case, well: str, count: str) -> Ruling:
    """HEALTHY; a process whose recording stopped before it did is named."""
    cut = [process.key for process in case.evidence.processes if process.journal and process.journal.full]
    missing = tuple(f"{case.names([key])} {DISK_FULL}" for key in cut)
    rest = f"; the disk of {case.names(cut)} was full" if cut else f": {count}, and nothing waits"
    return Ruling("HEALTHY", well + rest, missing=missing)


def ending(case: Case) -> Ruling | None:
    """SLOW: a process ended in good order between two looks, so that the run moves, whatever the rest waits in.

    This rule comes last, when no other rule knows of a wait.
    """
    finished_processes = [
        process for process in case.evidence.processes
        if ended(process) and len(process.samples) > 1 and process.samples[0].state not in ENDED
        and not fault_of(process) and process.beat is not None and process.beat.ended
    ]  # fmt: skip
    if not finished_processes:
        return None
    text = f"{case.names([finished_processes[0].key])} ended in good order while it was looked at: the run moves"
    return Ruling("SLOW", text, "K7", next=(Live(case.again()),))
