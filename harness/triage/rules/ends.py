"""How the processes of a run ended: in good order or not, when, in which order, and whether the job outlived it."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.triage.echoes import MORE_MEMORY, missed_barrier, name_of
from harness.triage.evidence import ENDED, Evidence, LogError, Peak, Process
from harness.triage.graph.subjects import ended, exit_text
from harness.triage.graph.worlds import same_world
from harness.triage.rules.kernel_lines import system_errors
from harness.triage.rules.processes import BROUGHT_DOWN, LAST_S, error_age_s, local_error
from harness.triage.rules.ruling import Case
from probes.signal_codes import signal_of

DISK_FULL = "stopped recording because the disk was full"
SILENT = "was ended without a last word"  # as by a signal
SILENCE_S = 2.0  # two periods of the heartbeat: an error that is not older than this before a silence came after it
# What an error says that is about a process of the program that failed before.
_OF_A_CHILD = re.compile(
    r"worker|child|subprocess|CalledProcess|process.{0,60}(died|dead|exit|kill|terminat|fail)", re.I
)


@dataclass(frozen=True)
class Ends:
    """How the processes of a run ended that did not end in good order. All are by the key of the process.

    `faults`: what was wrong with its end, in words. `kills`: that the kernel killed it. `absences`: that others gave up
    waiting for it. `kernel_lines`: what the kernel's log, or a scheduler's, says of it.
    """

    faults: Mapping[str, str]
    kills: Mapping[str, str]
    absences: Mapping[str, str]
    kernel_lines: Mapping[str, LogError]

    @staticmethod
    def of(evidence: Evidence) -> Ends:
        kernel_lines = system_errors(evidence)
        kills = {key: error.what for key, error in kernel_lines.items() if error.fix == MORE_MEMORY}
        kills |= {f"{peak.host}:{peak.pid}": f"was killed by the kernel for memory at {size_text(peak)}"
                  for peak in evidence.peaks if peak.killed}  # fmt: skip
        missed = {rank for process in evidence.processes for rank in missed_barrier(process.error)}
        absences = {
            process.key: "missed a monitored barrier" for process in evidence.processes if process.rank in missed
        }
        said = {key: error.what for key, error in kernel_lines.items()} | kills | absences
        return Ends(bad_ends(evidence.processes, said), kills, absences, kernel_lines)

    def outlived(self, case: Case) -> dict[str, str]:
        """The faults after which the job went on."""
        return {
            key: fault
            for key, fault in self.faults.items()
            if key not in self.kills and key not in self.absences and is_outlived(case, key, self.faults)
        }

    def without(self, keys: Mapping[str, str]) -> Ends:
        faults = {key: fault for key, fault in self.faults.items() if key not in keys}
        return Ends(faults, self.kills, self.absences, self.kernel_lines)


def bad_ends(processes: Sequence[Process], kills: Mapping[str, str]) -> dict[str, str]:
    """Process -> what was wrong with its end. `kills`: what the kernel's log says."""
    by_key = {process.key: process for process in processes}
    well = {process.key for process in processes if in_good_order(process)}
    return {
        process.key: how
        for process in processes
        if (how := kills.get(process.key) or fault_of(process))
        and not (how == SILENT and _parent(process) in well)
        and (process.key in kills or not _answers_to_success(process, by_key))
    }


def is_outlived(case: Case, key: str, faults: Mapping[str, str]) -> bool:
    """Whether the job went on after the failure of a process: a rank that was started again and ended in good order,
    or a helper whose program ended in good order, was seen to go on, or failed much later by an error of its own.

    `faults`: process -> what was wrong with its end.
    """
    by_key = {process.key: process for process in case.evidence.processes}
    process = by_key[key]
    if process.rank is not None:
        return any(_replaces(later, process) for later in by_key.values() if later.key not in faults)
    if _is_left_behind(process, by_key):
        return True
    program = next((each for each in _ancestors(process, by_key) if each.key in faults or in_good_order(each)), None)
    if program is None:
        return case.evidence.command_exit_code == 0
    age_s, program_age_s = dated_end_s(process), dated_end_s(program)
    if program.key not in faults:  # it did not fail; what fails long after its end is not its helper
        return age_s is None or program_age_s is None or age_s > program_age_s - LAST_S
    is_own = local_error(program) and not _OF_A_CHILD.search(program.error) and not case.subject(program.key).launcher
    return bool(is_own) and age_s is not None and program_age_s is not None and age_s > program_age_s + LAST_S


def _is_left_behind(process: Process, by_key: Mapping[str, Process]) -> bool:
    """Whether a process had ended at two looks at which its parent lived, and did not ask for its exit code."""
    parent = by_key.get(f"{process.host}:{process.ppid}")
    if parent is None:
        return False
    looks = zip(process.samples, parent.samples, strict=False)
    return sum(look.state == "Z" and parent_look.state not in ENDED for look, parent_look in looks) > 1


def _replaces(later: Process, process: Process) -> bool:
    """Whether a process ended in good order that has the rank of one that failed before it."""
    is_one_rank = (later.rank, later.engine) == (process.rank, process.engine) and same_world(later, process)
    end_s, failed_s = dated_end_s(later), dated_end_s(process)
    return is_one_rank and in_good_order(later) and end_s is not None and failed_s is not None and failed_s > end_s


def dated_end_s(process: Process) -> float | None:
    """The age of the end of a process; None if nothing dates it."""
    return process.error_age_s if process.error_age_s is not None else since_s(process)


def unknown_ends(case: Case) -> list[str]:
    """The processes of which nothing says how they ended: neither they, nor a process above them, nor the watch."""
    if case.evidence.command_exit_code == 0:
        return []
    by_key = {process.key: process for process in case.evidence.processes}
    return [
        process.key
        for process in by_key.values()
        if not in_good_order(process) and not any(map(in_good_order, _ancestors(process, by_key)))
    ]


def order_of_death(process: Process) -> tuple[int, float]:
    """Sorts the ends of processes: the first death comes first, then what only echoes a peer's end, and last what a
    launcher ended because of it.

    A process that was killed leaves no error, and its last heartbeat is up to a period older than its end. A SIGTERM
    that came before the launcher ended anybody is of somebody else.
    """
    by_sigterm = signal_of(process.exit_code or 0) == signal.SIGTERM
    brought_down = process.exit_code in BROUGHT_DOWN and not (by_sigterm and process.first_by_launcher)
    echoes = int((bool(process.error) and not local_error(process)) or brought_down)
    echoes += by_sigterm and brought_down
    if process.error_age_s is not None:
        return echoes, -process.error_age_s
    silent_s = (since_s(process) or 0.0) - (SILENCE_S if process.exit_code is None else 0.0)
    return echoes, -(error_age_s(process) if local_error(process) else silent_s)


def ended_at_once(process: Process, first: Process) -> bool:
    """Whether two silences begin so close to each other that heartbeats do not tell which came first."""
    return abs((since_s(process) or 0.0) - (since_s(first) or 0.0)) < SILENCE_S


def is_over(process: Process) -> bool:
    """Whether it was seen to be gone; for a process of another host, whether its last word says so."""
    return ended(process) or (process.has_last_word and not process.samples)


def in_good_order(process: Process) -> bool:
    """Whether its exit code or its last word says so."""
    return (process.exit_code == 0 or process.has_last_word) and not fault_of(process)


def fault_of(process: Process) -> str:
    """What was wrong with its end; empty if nothing was."""
    if process.error:
        return f"ended with {name_of(process.error)}"
    if process.exit_code:
        return f"ended with {exit_text(process.exit_code)}"
    if process.journal and process.journal.closing_error:
        return f"ended with {process.journal.closing_error}"
    if process.journal and process.journal.full and not process.has_last_word:
        return DISK_FULL
    return SILENT if process.is_recorded and not process.has_last_word else ""


def _parent(process: Process) -> str:
    """The key of the process that started it. A silent end is in order if its parent ended in good order.

    A forked child leaves with os._exit and says nothing, as the first half of a daemon does.
    """
    return f"{process.host}:{process.ppid}"


def _answers_to_success(process: Process, by_key: Mapping[str, Process]) -> bool:
    """Whether it left only an exit code, is no rank, and a process above it ended with exit code 0.

    A program ends its own helpers, and what they answer to that is no failure of it. A crash, or a kill that the
    program may not have sent, is no such answer.
    """
    if process.rank is not None or process.error or process.beat or process.journal:
        return False
    if (process.exit_code or 0) < 0 and process.exit_code != -signal.SIGTERM:
        return False
    with_end = (each for each in _ancestors(process, by_key) if each.exit_code is not None or each.error)
    nearest = next(with_end, None)
    return nearest is not None and nearest.exit_code == 0 and not nearest.error


def _ancestors(process: Process, by_key: Mapping[str, Process]) -> Iterator[Process]:
    """The processes of the evidence above one, nearest first."""
    visited, parent = {process.key}, by_key.get(_parent(process))
    while parent is not None and parent.key not in visited:
        yield parent
        visited.add(parent.key)
        parent = by_key.get(_parent(parent))


def since_s(process: Process) -> float | None:
    ages = [process.beat.age_s] if process.beat else []
    ages += [process.journal.last_age_s] if process.journal else []
    return min(ages, default=None)


def size_text(peak: Peak) -> str:
    return f"{peak.peak_bytes / 2**30:.1f} GiB" if peak.peak_bytes >= 2**30 else f"{peak.peak_bytes / 2**20:.0f} MiB"


def duration_text(seconds: float) -> str:
    if seconds >= 7200:
        return f"{seconds / 3600:.0f} hours"
    return f"{seconds / 60:.0f} minutes" if seconds >= 120 else f"{seconds:.0f} s"


def ago(case: Case) -> str:
    """When the last process ended, in words; empty if nothing tells."""
    ages = [age for process in case.evidence.processes if (age := since_s(process)) is not None]
    return f", {duration_text(min(ages))} ago" if ages else ""
