"""The first death of a run that is over, and what only followed from it."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.triage import gate_text
from harness.triage.echoes import HOST_MEMORY, MORE_MEMORY, OUT_OF_MEMORY, lost_peer
from harness.triage.evidence import LogError, Peak, Process
from harness.triage.graph.worlds import same_world
from harness.triage.pasted.errors import SIGNS
from harness.triage.places import users
from harness.triage.rules.ends import (
    SILENT,
    Ends,
    ago,
    duration_text,
    ended_at_once,
    in_good_order,
    order_of_death,
    since_s,
    size_text,
)
from harness.triage.rules.processes import TOGETHER_S, error_age_s, local_error
from harness.triage.rules.ruling import Case, Ruling, Watching, brief
from harness.triage.stacks import describe
from reports.text import and_more

PEER_GONE_S = 120.0  # chosen: a client tries again for a minute or two before it gives up
MAX_WORDS = 16  # of the end of a process that was not the first
MOST_WORDS = 8  # words of a headline that name several processes
MOST_ALIKE = 6  # words of a headline that name several processes before how they ended
MAX_PEAKS = 6  # roles of which the memory is told
MAX_AFTER = 4  # ends after the first that are told
# What to do about an end that its own words or its signal explain.
_FIXES = {
    f"({signal.SIGTERM.name})": "sacct -j JOB -o JobID,State%30,End   # who sent SIGTERM: a scheduler, a person, the "
    "program, a limit of time",
    f"({signal.SIGBUS.name})": "df -h /dev/shm .; dmesg | tail   # a page of a mapped file could not be read",
    **{
        f"({number.name})": "PYTHONFAULTHANDLER=1 COMMAND   # prints the Python stack; with ulimit -c unlimited: gdb "
        "PROGRAM CORE -ex bt"
        for number in (signal.SIGSEGV, signal.SIGFPE, signal.SIGILL)
    },
    " MemoryError": HOST_MEMORY,
    "_ArrayMemoryError": HOST_MEMORY,  # of NumPy
}


@dataclass(frozen=True)
class _FirstDeath:
    """The process that failed first, by its record, and those of which nothing tells that they failed later.

    `names`: of all these, in words. `is_killed`: the first left no word, or died of SIGKILL. `memory_limits`: lines of
    a log that tell of a kill for memory. `gone_before`: processes without a record that had ended before.
    """

    process: Process
    fault: str
    keys: tuple[str, ...]
    names: str
    is_killed: bool
    memory_limits: tuple[LogError, ...]
    gone_before: tuple[Peak, ...]

    @staticmethod
    def of(case: Case, ends: Ends) -> _FirstDeath:
        by_key = {process.key: process for process in case.evidence.processes}
        first = _first_key(case, ends)
        # Where others gave up waiting, whoever they waited for comes first; a kill by the kernel has a time of its own.
        if first in ends.absences:
            beside = {key for key in ends.absences if key != first}
        elif first in ends.kills:
            beside = set()
        else:
            beside = {
                key
                for key in ends.faults
                if key != first and key not in ends.absences
                and _may_be_first(case, by_key[key], by_key[first], ends.faults)
            }  # fmt: skip
        keys = tuple(key for key in ends.faults if key == first or key in beside)
        names = case.names(keys)
        is_killed = by_key[first].exit_code == -signal.SIGKILL or ends.faults[first] == SILENT
        return _FirstDeath(
            process=by_key[first],
            fault=ends.faults[first],
            keys=keys,
            names=names if len(names.split()) <= MOST_WORDS else f"{len(keys)} processes",
            is_killed=is_killed,
            memory_limits=tuple(_memory_limits(case)) if is_killed and first not in ends.kernel_lines else (),
            gone_before=tuple(_gone_before(case, by_key[first])),
        )

    @property
    def raised_at(self) -> str:
        """Where the error of the one that failed first was raised; empty where several may be the first."""
        return _raised_at(self.process) if len(self.keys) == 1 else ""


def in_bad_order(case: Case, ends: Ends) -> Ruling:
    """INSUFFICIENT, with the first death."""
    death = _FirstDeath.of(case, ends)
    first_key = death.process.key
    alike: dict[str, list[str]] = {}
    for first in death.keys:
        alike.setdefault(ends.faults[first], []).append(first)
    end_texts = [_end_text(case, keys, fault) for fault, keys in alike.items()]
    line = ends.kernel_lines.get(first_key)
    later = {key: fault for key, fault in ends.faults.items() if key not in death.keys}
    return Ruling(
        "INSUFFICIENT",
        f"the run has ended, and not in good order: {_what_happened(death, end_texts)}",
        place=death.raised_at,
        evidence=(
            *_without_a_record(death.gone_before),
            *_end_lines(death, end_texts, is_absent=first_key in ends.absences),
            *([f"{death.names} raised it at {death.raised_at}"] if death.raised_at else []),
            *_phase(death.process, death.fault),
            *(_memory(case.evidence.peaks) if death.is_killed else []),
            *(f"{error.file}:{error.line} {error.text}" for error in (*filter(None, [line]), *death.memory_limits)),
            *_afterwards(case, later),
            untaken(case),
        ),
        missing=tuple(f"{case.names([key])} {fault}" for key, fault in ends.faults.items()),
        next=(
            *(f"read the end of the log of {peak.name}: it ended first" for peak in death.gone_before[:1]),
            _first_step(death, line, for_memory=first_key in ends.kills or bool(death.memory_limits)),
            Watching("harness watch -- COMMAND   # looks before the end"),
        ),
    )


def _what_happened(death: _FirstDeath, end_texts: Sequence[tuple[str, str]]) -> str:
    """The first death for the headline. `end_texts`: of `_end_text`, one for each way to end."""
    if len(death.gone_before) == 1:
        return f"{death.gone_before[0].name} ended before {death.names} lost a peer"
    return f"{death.names} failed together" if len(end_texts) > 1 else end_texts[0][0]


def _end_lines(death: _FirstDeath, end_texts: Sequence[tuple[str, str]], *, is_absent: bool) -> list[str]:
    """How those ended that may be the first, and whether it is known which of them was."""
    lines = [line for _, line in end_texts][:MAX_AFTER]
    order = "" if len(death.keys) == 1 or is_absent else "; which of them first is not known"
    return [*lines[:-1], f"{lines[-1]}{and_more(len(end_texts) - len(lines))}{order}"]


def _gone_before(case: Case, first: Process) -> list[Peak]:
    """The processes without a record that the watch saw gone before the first that left one, where that one lost a
    peer: a server beside the ranks may be the peer. Which of several it was, nothing tells."""
    if not lost_peer(first.error):
        return []
    keys = {process.key for process in case.evidence.processes}
    peaks = {f"{peak.host}:{peak.pid}": peak for peak in case.evidence.peaks}
    after_s = peaks[first.key].gone_s if first.key in peaks else 0.0
    unrecorded = (peak for key, peak in peaks.items() if key not in keys)
    before = [peak for peak in unrecorded if after_s < peak.gone_s <= after_s + PEER_GONE_S]
    return sorted(before, key=lambda peak: -peak.gone_s)


def _without_a_record(peaks: Sequence[Peak]) -> list[str]:
    return [
        f"{peak.name} (pid {peak.pid} on {peak.host}) had ended before, {duration_text(peak.gone_s)} before the last "
        "look of the watch; how is not known"
        for peak in peaks[:MAX_AFTER]
    ]


def _first_key(case: Case, ends: Ends) -> str:
    """The process that failed first by its record, or for which others gave up waiting.

    Where nobody left an error of its own, what the kernel's log explains comes before what only has an exit code.
    """
    by_key = {process.key: process for process in case.evidence.processes}
    explained = {} if any(by_key[key].error for key in ends.faults) else ends.kernel_lines

    def order(key: str) -> tuple[bool, bool, bool, tuple[int, float]]:
        is_launcher = case.subject(key).launcher
        return is_launcher, key not in ends.absences, key not in explained, order_of_death(by_key[key])

    return min(ends.faults, key=order)


def _first_step(death: _FirstDeath, line: LogError | None, *, for_memory: bool) -> str:
    """What to do first about the first death. `line`: what the kernel's log says of it."""
    if line is not None:
        return line.fix
    if for_memory:
        return MORE_MEMORY
    return OUT_OF_MEMORY if death.is_killed else _fix(death.fault)


def _memory_limits(case: Case) -> list[LogError]:
    """Lines that tell of a kill for memory without saying which process it hit, as those of Slurm and of a cgroup."""
    return [error for error in case.evidence.errors if error.fix == MORE_MEMORY and not error.pid][:MAX_AFTER]


def _raised_at(process: Process) -> str:
    """Where the error that ended a process was raised, beside installed packages, as its probe saw it."""
    is_own = process.error and local_error(process)
    frame = process.beat.raised_at if process.beat is not None and is_own else None
    return describe(frame) if frame is not None else ""


def _may_be_first(case: Case, process: Process, first: Process, faults: Mapping[str, str]) -> bool:
    """Whether nothing tells that a process failed after the one that comes first by its record.

    Later is who lost a peer or was brought down. A launcher brings down those that live, without a last word.
    """
    if case.subject(process.key).launcher or order_of_death(process)[0] != order_of_death(first)[0]:
        return False
    silences = [faults[each.key] == SILENT for each in (process, first)]
    if all(silences):
        return ended_at_once(process, first)
    if any(silences) and (any(subject.launcher for subject in case.graph.subjects.values()) or _has_table(case)):
        return False
    return abs(_end_age_s(process) - _end_age_s(first)) < TOGETHER_S


def _has_table(case: Case) -> bool:
    """Whether a launcher told how one of its ranks ended, which is the first that it saw."""
    return any(process.rank is not None and process.exit_code for process in case.evidence.processes)


def _end_age_s(process: Process) -> float:
    return error_age_s(process) if local_error(process) else since_s(process) or 0.0


def _end_text(case: Case, keys: Sequence[str], how: str) -> tuple[str, str]:
    """How processes ended, for the headline and with their pids."""
    how = how if len(keys) == 1 else how.replace("was", "were", 1)
    processes = [case.subject(key).process for key in keys[:MAX_AFTER]]
    pids = ", ".join(f"pid {process.pid} on {process.host}" for process in processes if process.pid)
    names = case.names(keys)
    few = names if len(keys) == 1 or len(names.split()) <= MOST_ALIKE else f"{len(keys)} processes"
    return f"{few} {brief(how, 5) if len(keys) > 1 else brief(how)}", f"{names}{f' ({pids})' if pids else ''} {how}"


def untaken(case: Case) -> str:
    """A sentence on when the run ended; without evidence of a stall, that nothing says whether it stood still."""
    untaken = "" if case.evidence.stall_s else "; no evidence of a stall was taken before"
    return f"it ended{ago(case)}{untaken}"


def after_early_end(case: Case, faults: Mapping[str, str]) -> Ruling | None:
    """INSUFFICIENT, with the rank that ended in good order before its peers, which went on and lost it; None if an end
    in `faults` has a cause of its own."""
    by_key = {process.key: process for process in case.evidence.processes}
    failed = [by_key[key] for key in faults if not case.subject(key).launcher]
    lost = [process for process in failed if lost_peer(process.error)]
    if not lost or not all(order_of_death(process)[0] for process in failed):
        return None
    ends_s = {process.key: since_s(process) or 0.0 for process in by_key.values()
              if process.rank is not None and in_good_order(process)}  # fmt: skip
    echoes_s = max(error_age_s(process) for process in lost)
    early = [key for key, end_s in ends_s.items() if end_s > echoes_s and _same_group(by_key[key], lost)]
    if not early:
        return None
    first = max(early, key=lambda key: ends_s[key])
    name, before = case.names([first]), f"{ends_s[first] - echoes_s:.1f} s before its peers lost it"
    done = _collectives_done(by_key[first], lost)
    return Ruling(
        "INSUFFICIENT",
        f"the run has ended, and not in good order: {name} ended well, {before}",
        evidence=(
            f"{name} (pid {by_key[first].pid} on {by_key[first].host}) ended in good order, {before}{done}",
            *_branches(lost),
            *_afterwards(case, faults),
            untaken(case),
        ),
        missing=tuple(f"{case.names([key])} {how}" for key, how in faults.items()),
        next=(
            f"find where {name} skips a collective that its peers run, or leaves their loop",
            Watching("harness watch -- COMMAND   # looks before the end"),
        ),
    )


def _same_group(process: Process, peers: Sequence[Process]) -> bool:
    return any(same_world(process, peer) for peer in peers)


def _collectives_done(process: Process, peers: Sequence[Process]) -> str:
    """How many collectives fewer than its peers it began, by their counters; empty if these do not tell."""
    for group, count in process.beat.sequences.items() if process.beat else ():
        most = max((peer.beat.sequences.get(group, 0) for peer in peers if peer.beat), default=0)
        if most > count:
            return f", after {count} of the {most} collectives of group {group}"
    return ""


def _branches(lost: Sequence[Process]) -> list[str]:
    """Under which conditions the line is reached at which its peers lost it, by the text: one rank may have met
    others."""
    frames = dict.fromkeys(process.beat.raised_at for process in lost if process.beat and process.beat.raised_at)
    return [
        f"its peers stood at {describe(frame)}; by line {gate.line} it is reached {gate.words}"
        for frame in frames
        if frame is not None and users(frame)
        for gate in gate_text.branches(frame)
    ][:MAX_AFTER]


def _memory(peaks: Sequence[Peak]) -> list[str]:
    """What the processes held at their peaks, the largest first; equal names together."""
    by_name: dict[str, list[Peak]] = {}
    for peak in peaks:
        by_name.setdefault(peak.name.removesuffix(f" {peak.pid}"), []).append(peak)
    names = sorted(by_name.items(), key=lambda item: -sum(peak.peak_bytes for peak in item[1]))
    words = [
        f"{name} {size_text(its[0])}" if len(its) == 1 else f"{len(its)} × {name}, at most {size_text(its[0])}"
        for name, its in names[:MAX_PEAKS]
    ]
    return [f"memory at the peak: {'; '.join(words)}"] if words else []


def _fix(how: str) -> str:
    """What to do first about an error, by its words as in a log, or about a signal."""
    head = how.partition(":")[0]  # the name of an exception; what its message tells of is in SIGNS
    ends = [fix for words, fix in _FIXES.items() if words in head]
    signs = [sign.fix for sign in SIGNS if sign.words in how]
    return [*signs, *ends, "read the end of its log for the first error"][0]


def _phase(process: Process, how: str) -> list[str]:
    """Where memory ran out: the last span of the process's journal."""
    span = process.journal.last_span if process.journal else ""
    return [f"the last span of its journal is {span}"] if span and "out of memory" in how else []


def _afterwards(case: Case, faults: Mapping[str, str]) -> list[str]:
    """Who failed after the first: the processes, without launchers, that ended in the same way."""
    by_end: dict[str, list[str]] = {}
    for key, how in faults.items():
        if not case.subject(key).launcher:
            by_end.setdefault(brief(how, 4), []).append(key)
    lines = [f"after it {case.names(keys)} {brief(faults[keys[0]], MAX_WORDS)}" for keys in by_end.values()]
    return lines[:MAX_AFTER] + ([f"{len(lines) - MAX_AFTER} more ends"] if len(lines) > MAX_AFTER else [])
