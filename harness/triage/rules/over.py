"""Rules about a run that is over: nobody waits any more, and what is left says how it ended."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from harness.triage import gate_text
from harness.triage.echoes import HOST_MEMORY, MORE_MEMORY, OUT_OF_MEMORY, lost_peer, missed_barrier, name_of
from harness.triage.evidence import ENDED, EndedBy, LogError, Peak, Process
from harness.triage.graph.subjects import ended, exit_text
from harness.triage.graph.worlds import same_world
from harness.triage.pasted.errors import SIGNS
from harness.triage.places import users
from harness.triage.rules.kernel_lines import system_errors
from harness.triage.rules.processes import BROUGHT_DOWN, LAST_S, TOGETHER_S, error_age_s, local_error
from harness.triage.rules.ruling import Case, Live, Ruling, Watching, brief
from harness.triage.stacks import describe
from probes.signal_codes import signal_of
from reports.text import agreeing, and_more

DISK_FULL = "stopped recording because the disk was full"
SILENCE_S = 2.0  # two periods of the heartbeat: an error that is not older than this before a silence came after it
PEER_GONE_S = 120.0  # chosen: a client tries again for a minute or two before it gives up
MAX_WORDS = 16  # of the end of a process that was not the first
MOST_WORDS = 8  # words of a headline that name several processes
MOST_ALIKE = 6  # words of a headline that name several processes before how they ended
MAX_PEAKS = 6  # roles of which the memory is told
MAX_AFTER = 4  # ends after the first that are told
# What an error says that is about a process of the program that failed before.
_OF_A_CHILD = re.compile(
    r"worker|child|subprocess|CalledProcess|process.{0,60}(died|dead|exit|kill|terminat|fail)", re.I
)
SILENT = "was ended without a last word"  # as by a signal
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
BEFORE_END = ("harness triage PID   # of the next run, before you end it",)


def over(case: Case) -> Ruling | None:
    """HEALTHY or INSUFFICIENT: every process of the run has ended.

    HEALTHY if all are known to have ended in good order. Otherwise INSUFFICIENT with the error, or with who ended
    without a record, because nothing tells whether the run stood still before.
    """
    processes = case.evidence.processes
    dumps = any(not node.has_process for node in case.graph.subjects.values())  # some rank is known only by its dump
    if not processes or dumps or not all(map(_over, processes)):
        return None
    told = system_errors(case.evidence)
    kills = {key: error.what for key, error in told.items() if error.fix == MORE_MEMORY}
    kills |= {f"{peak.host}:{peak.pid}": f"was killed by the kernel for memory at {_size(peak)}"
              for peak in case.evidence.peaks if peak.killed}  # fmt: skip
    missed = {rank for process in processes for rank in missed_barrier(process.error)}
    absent = {process.key: "missed a monitored barrier" for process in processes if process.rank in missed}
    bad = _bad_ends(processes, {key: error.what for key, error in told.items()} | kills | absent)
    outlived = {key: how for key, how in bad.items() if key not in kills | absent and _is_outlived(case, key, bad)}
    bad = {key: how for key, how in bad.items() if key not in outlived}
    answers = {key: how for key, how in bad.items() if _answers_signal(case, key)}
    if bad and len(answers) == len(bad):
        return _on_request(case, list(answers))
    bad = {key: how for key, how in bad.items() if key not in answers}
    if bad:
        ruling = _after_early_end(case, bad) or _in_bad_order(case, bad, kills, absent, told)
        return replace(ruling, evidence=(*ruling.evidence[:-1], *_outlived(case, outlived), *ruling.evidence[-1:]))
    if unknown := [key for key in _unknown_ends(case) if key not in outlived]:
        ruling = _in_unknown_order(case, unknown)
        return replace(ruling, evidence=(*ruling.evidence, *_outlived(case, outlived)))
    count = f"{len(processes)} {agreeing(len(processes), 'process', 'processes')}"
    ruling = _good_order(case, f"the run has ended in good order{_ago(case)}", count)
    return replace(ruling, evidence=_outlived(case, outlived))


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


def _bad_ends(processes: Sequence[Process], kills: Mapping[str, str]) -> dict[str, str]:
    """Process -> what was wrong with its end. `kills`: what the kernel's log says."""
    by_key = {process.key: process for process in processes}
    well = {process.key for process in processes if _in_good_order(process)}
    return {
        process.key: how
        for process in processes
        if (how := kills.get(process.key) or _how(process))
        and not (how == SILENT and _parent(process) in well)
        and (process.key in kills or not _answers_to_success(process, by_key))
    }


def _is_outlived(case: Case, key: str, bad: Mapping[str, str]) -> bool:
    """Whether the job went on after the failure of a process: a rank that was started again and ended in good order,
    or a helper whose program ended in good order, was seen to go on, or failed much later by an error of its own."""
    by_key = {process.key: process for process in case.evidence.processes}
    process = by_key[key]
    if process.rank is not None:
        return any(_replaces(other, process) for other in by_key.values() if other.key not in bad)
    if _is_left_behind(process, by_key):
        return True
    age_s = _dated_end_s(process)
    above = next((each for each in _above(process, by_key) if each.key in bad or _in_good_order(each)), None)
    if above is None:
        return case.evidence.command_exit_code == 0
    above_s = _dated_end_s(above)
    if above.key not in bad:  # it did not fail; what fails long after its end is not its helper
        return age_s is None or above_s is None or age_s > above_s - LAST_S
    own = local_error(above) and not _OF_A_CHILD.search(above.error) and not case.subject(above.key).launcher
    return bool(own) and age_s is not None and above_s is not None and age_s > above_s + LAST_S


def _is_left_behind(process: Process, by_key: Mapping[str, Process]) -> bool:
    """Whether a process had ended at two looks at which its parent lived, and did not ask for its exit code."""
    parent = by_key.get(f"{process.host}:{process.ppid}")
    if parent is None:
        return False
    looks = zip(process.samples, parent.samples, strict=False)
    return sum(own.state == "Z" and parents.state not in ENDED for own, parents in looks) > 1


def _replaces(other: Process, process: Process) -> bool:
    """Whether a process ended in good order that has the rank of one that failed before it."""
    same = (other.rank, other.engine) == (process.rank, process.engine) and same_world(other, process)
    end_s, failed_s = _dated_end_s(other), _dated_end_s(process)
    return same and _in_good_order(other) and end_s is not None and failed_s is not None and failed_s > end_s


def _outlived(case: Case, outlived: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(f"{case.names([key])} {brief(how, MAX_WORDS)}, and the job went on"
                 for key, how in outlived.items())[:MAX_AFTER]  # fmt: skip


def _dated_end_s(process: Process) -> float | None:
    """The age of the end of a process; None if nothing dates it."""
    return process.error_age_s if process.error_age_s is not None else _since_s(process)


def _unknown_ends(case: Case) -> list[str]:
    """The processes of which nothing says how they ended: neither they, nor a process above them, nor the watch."""
    if case.evidence.command_exit_code == 0:
        return []
    by_key = {process.key: process for process in case.evidence.processes}
    return [
        process.key
        for process in by_key.values()
        if not _in_good_order(process) and not any(map(_in_good_order, _above(process, by_key)))
    ]


def _answers_signal(case: Case, key: str) -> bool:
    """Whether a process ended after the user or a scheduler had asked the watch to end its command. The last heartbeat
    of one that left no last word is up to two periods older than its end."""
    ended_by, process = case.evidence.ended_by, case.subject(key).process
    if ended_by is None:
        return False
    age_s = _dated_end_s(process)
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
        evidence=(*stood[:MAX_AFTER], _untaken(case)),
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


def _in_bad_order(
    case: Case, bad: dict[str, str], kills: Mapping[str, str], absent: Mapping[str, str], told: Mapping[str, LogError]
) -> Ruling:
    """INSUFFICIENT, with the first death. `bad`: process -> what was wrong with its end; `kills`: those that the kernel
    killed; `absent`: processes for which others gave up waiting; `told`: what the kernel's log says of a process."""
    by_key = {process.key: process for process in case.evidence.processes}
    first = _first_death(case, bad, absent, told)
    firsts = [first, *(key for key in bad if key != first and key not in absent and first not in absent | kills.keys()
                       and _may_be_first(case, by_key[key], by_key[first], bad))]  # fmt: skip
    firsts += [key for key in absent if first in absent and key != first]
    firsts.sort(key=list(bad).index)
    killed = by_key[first].exit_code == -signal.SIGKILL or bad[first] == SILENT
    limits = _memory_limits(case) if killed and first not in told else []
    which = "" if len(firsts) == 1 or first in absent else "; which of them first is not known"
    alike: dict[str, list[str]] = {}
    for key in firsts:
        alike.setdefault(bad[key], []).append(key)
    ends = [_end_text(case, keys, how) for how, keys in alike.items()]
    lines = [line for _, line in ends][:MAX_AFTER]
    names = case.names(firsts)
    names = names if len(names.split()) <= MOST_WORDS else f"{len(firsts)} processes"
    what = f"{names} failed together" if len(alike) > 1 else ends[0][0]
    gone_before = _gone_before(case, by_key[first])
    if len(gone_before) == 1:
        what = f"{gone_before[0].name} ended before {names} lost a peer"
    raised_at = _raised_at(by_key[first]) if len(firsts) == 1 else ""
    return Ruling(
        "INSUFFICIENT",
        f"the run has ended, and not in good order: {what}",
        place=raised_at,
        evidence=(
            *_without_a_record(gone_before),
            *lines[:-1],
            f"{lines[-1]}{and_more(len(ends) - len(lines))}{which}",
            *([f"{names} raised it at {raised_at}"] if raised_at else []),
            *_phase(by_key[first], bad[first]),
            *(_memory(case.evidence.peaks) if killed else []),
            *(f"{error.file}:{error.line} {error.text}" for error in (*filter(None, [told.get(first)]), *limits)),
            *_afterwards(case, {key: how for key, how in bad.items() if key not in firsts}),
            _untaken(case),
        ),
        missing=tuple(f"{case.names([key])} {how}" for key, how in bad.items()),
        next=(
            *(f"read the end of the log of {peak.name}: it ended first" for peak in gone_before[:1]),
            _first_step(bad[first], told.get(first), is_killed=killed, for_memory=first in kills or bool(limits)),
            Watching("harness watch -- COMMAND   # looks before the end"),
        ),
    )


def _gone_before(case: Case, first: Process) -> list[Peak]:
    """The processes without a record that the watch saw gone before the first that left one, where that one lost a
    peer: a server beside the ranks may be the peer. Which of several it was, nothing tells."""
    if not lost_peer(first.error):
        return []
    keys = {process.key for process in case.evidence.processes}
    peaks = {f"{peak.host}:{peak.pid}": peak for peak in case.evidence.peaks}
    after_s = peaks[first.key].gone_s if first.key in peaks else 0.0
    gone = [peak for key, peak in peaks.items() if key not in keys and after_s < peak.gone_s <= after_s + PEER_GONE_S]
    return sorted(gone, key=lambda peak: -peak.gone_s)


def _without_a_record(gone: Sequence[Peak]) -> list[str]:
    return [
        f"{peak.name} (pid {peak.pid} on {peak.host}) had ended before, {_duration_text(peak.gone_s)} before the last "
        "look of the watch; how is not known"
        for peak in gone[:MAX_AFTER]
    ]


def _first_death(case: Case, bad: Mapping[str, str], absent: Mapping[str, str], told: Mapping[str, LogError]) -> str:
    """The process that failed first by its record, or for which others gave up waiting.

    Where nobody left an error of its own, what the kernel's log explains comes before what only has an exit code.
    """
    by_key = {process.key: process for process in case.evidence.processes}
    explained = {} if any(by_key[key].error for key in bad) else told

    def order(key: str) -> tuple[bool, bool, bool, tuple[int, float]]:
        return case.subject(key).launcher, key not in absent, key not in explained, _order(by_key[key])

    return min(bad, key=order)


def _first_step(how: str, told: LogError | None, *, is_killed: bool, for_memory: bool) -> str:
    """What to do first about the first death. `told`: what the kernel's log says of it."""
    if told is not None:
        return told.fix
    if for_memory:
        return MORE_MEMORY
    return OUT_OF_MEMORY if is_killed else _fix(how)


def _memory_limits(case: Case) -> list[LogError]:
    """Lines that tell of a kill for memory without saying which process it hit, as those of Slurm and of a cgroup."""
    return [error for error in case.evidence.errors if error.fix == MORE_MEMORY and not error.pid][:MAX_AFTER]


def _raised_at(process: Process) -> str:
    """Where the error that ended a process was raised, beside installed packages, as its probe saw it."""
    is_own = process.error and local_error(process)
    frame = process.beat.raised_at if process.beat is not None and is_own else None
    return describe(frame) if frame is not None else ""


def _may_be_first(case: Case, process: Process, first: Process, bad: Mapping[str, str]) -> bool:
    """Whether nothing tells that a process failed after the one that comes first by its record.

    Later is who lost a peer or was brought down. A launcher brings down those that live, without a last word.
    """
    if case.subject(process.key).launcher or _order(process)[0] != _order(first)[0]:
        return False
    silences = [bad[each.key] == SILENT for each in (process, first)]
    if all(silences):
        return _at_once(process, first)
    if any(silences) and (any(subject.launcher for subject in case.graph.subjects.values()) or _has_table(case)):
        return False
    return abs(_end_age_s(process) - _end_age_s(first)) < TOGETHER_S


def _has_table(case: Case) -> bool:
    """Whether a launcher told how one of its ranks ended, which is the first that it saw."""
    return any(process.rank is not None and process.exit_code for process in case.evidence.processes)


def _end_age_s(process: Process) -> float:
    return error_age_s(process) if local_error(process) else _since_s(process) or 0.0


def _end_text(case: Case, keys: Sequence[str], how: str) -> tuple[str, str]:
    """How processes ended, for the headline and with their pids."""
    how = how if len(keys) == 1 else how.replace("was", "were", 1)
    processes = [case.subject(key).process for key in keys[:MAX_AFTER]]
    pids = ", ".join(f"pid {process.pid} on {process.host}" for process in processes if process.pid)
    names = case.names(keys)
    few = names if len(keys) == 1 or len(names.split()) <= MOST_ALIKE else f"{len(keys)} processes"
    return f"{few} {brief(how, 5) if len(keys) > 1 else brief(how)}", f"{names}{f' ({pids})' if pids else ''} {how}"


def _untaken(case: Case) -> str:
    """A sentence on when the run ended; without evidence of a stall, that nothing says whether it stood still."""
    untaken = "" if case.evidence.stall_s else "; no evidence of a stall was taken before"
    return f"it ended{_ago(case)}{untaken}"


def _after_early_end(case: Case, bad: dict[str, str]) -> Ruling | None:
    """INSUFFICIENT, with the rank that ended in good order before its peers, which went on and lost it; None if an end
    in `bad` has a cause of its own."""
    by_key = {process.key: process for process in case.evidence.processes}
    failed = [by_key[key] for key in bad if not case.subject(key).launcher]
    lost = [process for process in failed if lost_peer(process.error)]
    if not lost or not all(_order(process)[0] for process in failed):
        return None
    ends_s = {process.key: _since_s(process) or 0.0 for process in by_key.values()
              if process.rank is not None and _in_good_order(process)}  # fmt: skip
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
            *_afterwards(case, bad),
            _untaken(case),
        ),
        missing=tuple(f"{case.names([key])} {how}" for key, how in bad.items()),
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


def _ago(case: Case) -> str:
    """When the last process ended, in words; empty if nothing tells."""
    ages = [age for process in case.evidence.processes if (age := _since_s(process)) is not None]
    return f", {_duration_text(min(ages))} ago" if ages else ""


def _memory(peaks: Sequence[Peak]) -> list[str]:
    """What the processes held at their peaks, the largest first; equal names together."""
    by_name: dict[str, list[Peak]] = {}
    for peak in peaks:
        by_name.setdefault(peak.name.removesuffix(f" {peak.pid}"), []).append(peak)
    names = sorted(by_name.items(), key=lambda item: -sum(peak.peak_bytes for peak in item[1]))
    words = [
        f"{name} {_size(of_name[0])}" if len(of_name) == 1 else f"{len(of_name)} × {name}, at most {_size(of_name[0])}"
        for name, of_name in names[:MAX_PEAKS]
    ]
    return [f"memory at the peak: {'; '.join(words)}"] if words else []


def _size(peak: Peak) -> str:
    return f"{peak.peak_bytes / 2**30:.1f} GiB" if peak.peak_bytes >= 2**30 else f"{peak.peak_bytes / 2**20:.0f} MiB"


def _good_order(case: Case, well: str, count: str) -> Ruling:
    """HEALTHY; a process whose recording stopped before it did is named."""
    cut = [process.key for process in case.evidence.processes if process.journal and process.journal.full]
    missing = tuple(f"{case.names([key])} {DISK_FULL}" for key in cut)
    rest = f"; the disk of {case.names(cut)} was full" if cut else f": {count}, and nothing waits"
    return Ruling("HEALTHY", well + rest, missing=missing)


def _order(process: Process) -> tuple[int, float]:
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
    silent_s = (_since_s(process) or 0.0) - (SILENCE_S if process.exit_code is None else 0.0)
    return echoes, -(error_age_s(process) if local_error(process) else silent_s)


def _fix(how: str) -> str:
    """What to do first about an error, by its words as in a log, or about a signal."""
    head = how.partition(":")[0]  # the name of an exception; what its message tells of is in SIGNS
    ends = [fix for words, fix in _FIXES.items() if words in head]
    signs = [sign.fix for sign in SIGNS if sign.words in how]
    return [*signs, *ends, "read the end of its log for the first error"][0]


def _at_once(process: Process, first: Process) -> bool:
    """Whether two silences begin so close to each other that heartbeats do not tell which came first."""
    return abs((_since_s(process) or 0.0) - (_since_s(first) or 0.0)) < SILENCE_S


def _phase(process: Process, how: str) -> list[str]:
    """Where memory ran out: the last span of the process's journal."""
    span = process.journal.last_span if process.journal else ""
    return [f"the last span of its journal is {span}"] if span and "out of memory" in how else []


def _afterwards(case: Case, bad: dict[str, str]) -> list[str]:
    """Who failed after the first: the processes, without launchers, that ended in the same way."""
    by_end: dict[str, list[str]] = {}
    for key, how in bad.items():
        if not case.subject(key).launcher:
            by_end.setdefault(brief(how, 4), []).append(key)
    lines = [f"after it {case.names(keys)} {brief(bad[keys[0]], MAX_WORDS)}" for keys in by_end.values()]
    return lines[:MAX_AFTER] + ([f"{len(lines) - MAX_AFTER} more ends"] if len(lines) > MAX_AFTER else [])


def ending(case: Case) -> Ruling | None:
    """SLOW: a process ended in good order between two looks, so that the run moves, whatever the rest waits in.

    This rule comes last, when no other rule knows of a wait.
    """
    finished_processes = [
        process for process in case.evidence.processes
        if ended(process) and len(process.samples) > 1 and process.samples[0].state not in ENDED and not _how(process)
        and process.beat is not None and process.beat.ended
    ]  # fmt: skip
    if not finished_processes:
        return None
    text = f"{case.names([finished_processes[0].key])} ended in good order while it was looked at: the run moves"
    return Ruling("SLOW", text, "K7", next=(Live(case.again()),))


def _over(process: Process) -> bool:
    """Whether it was seen to be gone; for a process of another host, whether its last word says so."""
    return ended(process) or (process.has_last_word and not process.samples)


def _in_good_order(process: Process) -> bool:
    """Whether its exit code or its last word says so."""
    return (process.exit_code == 0 or process.has_last_word) and not _how(process)


def _how(process: Process) -> str:
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
    with_end = (above for above in _above(process, by_key) if above.exit_code is not None or above.error)
    nearest = next(with_end, None)
    return nearest is not None and nearest.exit_code == 0 and not nearest.error


def _above(process: Process, by_key: Mapping[str, Process]) -> Iterator[Process]:
    """The processes of the evidence above one, nearest first."""
    visited, above = {process.key}, by_key.get(_parent(process))
    while above is not None and above.key not in visited:
        yield above
        visited.add(above.key)
        above = by_key.get(_parent(above))


def _since_s(process: Process) -> float | None:
    ages = [process.beat.age_s] if process.beat else []
    ages += [process.journal.last_age_s] if process.journal else []
    return min(ages, default=None)


def _duration_text(seconds: float) -> str:
    if seconds >= 7200:
        return f"{seconds / 3600:.0f} hours"
    return f"{seconds / 60:.0f} minutes" if seconds >= 120 else f"{seconds:.0f} s"
