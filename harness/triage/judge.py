"""Evidence in, verdict out: compares the recorders, builds the wait graph, asks the rules, and writes down who and why.

Nothing is blamed on thin evidence. If waiting ends at something that was not seen, the verdict is INSUFFICIENT and
names what is missing.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import shlex
import shutil
import time
from collections.abc import Callable
from pathlib import PurePath

from harness import extras
from harness.triage.collect.proc import OTHER_USER
from harness.triage.collect.stacks import NO_ANSWER, NO_PY_SPY, TOO_BUSY, program
from harness.triage.evidence import ENDED, NOT_PERMITTED, NOT_PYTHON, PASTED, Evidence, Starter
from harness.triage.flight.model import Comparison
from harness.triage.graph import Graph, Subject, build
from harness.triage.graph.edges import title
from harness.triage.graph.subjects import load
from harness.triage.pasted.other_jobs import of_one_job
from harness.triage.ranks import with_ended_ranks, without_inherited
from harness.triage.recorders import comparison_of
from harness.triage.rules import RULES, Case, Ruling, over, pauses, processes, stragglers, threads
from harness.triage.rules.ruling import Live, Native, Watching, brief
from harness.triage.stacks import main_stack
from reports.headline import MOST, fits
from reports.model import TRIAGE_EXIT_CODES, Finding, Node, Party, Triage, Verdict

READ_LOG = "read the end of its log for the first error"
MAX_BESIDE_DUMPS = 3  # errors of pasted logs beside what the recorders' counters say
MAX_MISSING = 32  # lines of missing evidence in a verdict; a last line counts the rest
MAX_STACKS = 64  # processes with a stack in the verdict, the parties first; the evidence has all of them
LONG_LOOK_S = 5.0  # seconds from the first look to the last; two looks are 1.5 s apart, on a busy host up to 4 s
BUSY_S = 0.1  # processor seconds in a look of several seconds; waits that poll take a tenth of that
MAX_MOVED = 8  # processes that moved in a long look, named in the verdict
MAX_STARTERS = 4  # programs that started what was looked at, and were not looked at themselves
MAX_PATHS = 8  # directories of nodes that are shown; the command that reproduces the verdict has all


def triage(
    evidence: Evidence,
    comparison: Comparison | None = None,
    *,
    clock: Callable[[], float] = time.perf_counter,
    afterwards: str = "",
) -> Verdict:
    """Return the verdict on the evidence.

    `comparison`: of the evidence's flight recorder dumps; they are read here if it is not given. `afterwards`: what to
    try once the processes have ended, in place of advice about processes that live.
    """
    began = clock()
    # Inherited ranks would show as a second process of the same rank.
    evidence = with_ended_ranks(without_inherited(evidence))
    if comparison is None:
        comparison = comparison_of(evidence)
    evidence = of_one_job(evidence, comparison)
    compared = clock()
    ruling = _mixed(comparison, evidence.path) if comparison is not None and comparison.jobs > 1 else None
    graph = build(evidence, comparison if ruling is None else None)
    case = Case(evidence, comparison if ruling is None else None, graph)
    ruling = pauses.unless_only_recorded(case, stragglers.with_lateness(case, ruling or _ask(case)))
    ruling = processes.with_failed_ranks(
        case, threads.with_crossed_locks(case, threads.with_lost_threads(case, ruling))
    )
    reason, below = _headline(ruling, evidence)
    missing = _missing(evidence, comparison, graph, ruling)
    verdict = Verdict(
        kind="triage",
        verdict=ruling.verdict,
        exit_code=TRIAGE_EXIT_CODES[ruling.verdict],
        reason=reason,
        evidence=[
            *below,
            *_never_met(evidence),
            *_children_alone(case, ruling),
            *ruling.evidence,
            *threads.lines(case, ruling),
            *_hosts_of_culprits(case, ruling),
            *_between(case),
        ],
        findings=_findings(evidence, comparison),
        missing=missing,
        coverage=_coverage(evidence, comparison, graph),
        figures={
            "stall_seconds": round(evidence.stall_s, 3),
            "recorder_seconds": round(compared - began, 3),
            "judge_seconds": round(clock() - compared, 3),
        },
        triage=_body(case, ruling, afterwards),
        paths=_paths(evidence),
    )
    return since_ended(verdict, evidence) if evidence.command_exit_code is not None and lived(evidence) else verdict


def lived(evidence: Evidence) -> bool:
    """Whether any of its processes lived when it was taken."""
    return any(process.samples and process.last_look.state not in ENDED for process in evidence.processes)


def stood_still(verdict: Verdict) -> bool:
    """Whether it is about a standstill that nothing calls a hang, and not about who is slow in every round."""
    ranked = verdict.triage is not None and any(row.slow for row in verdict.triage.lateness)
    return verdict.verdict in ("INSUFFICIENT", "SLOW") and not ranked


def ended_well(verdict: Verdict) -> Verdict:
    """The verdict on a standstill that nothing calls a hang, when the command has ended well since."""
    stall_s = verdict.figures.get("stall_seconds", 0)
    return dataclasses.replace(
        verdict,
        verdict="SLOW",
        exit_code=TRIAGE_EXIT_CODES["SLOW"],
        reason=f"the job has ended well; before that it stood still for {stall_s:.0f} s, and went on",
        evidence=[*verdict.evidence, standstill(verdict)],
        triage=verdict.triage and dataclasses.replace(verdict.triage, hang="K7", next=[]),
    )


def standstill(verdict: Verdict) -> str:
    """What was found while the job stood still, as a line below the headline of a job that has ended since."""
    return f"when it stood still: {verdict.reason}"


def since_ended(verdict: Verdict, evidence: Evidence) -> Verdict:
    """The verdict on evidence of a command that has ended since. A hang stays the answer, and so does a standstill that
    a user ended; what was slow then is no answer for a job that failed."""
    code, ended_by = evidence.command_exit_code, evidence.ended_by
    if code == 0 and evidence.stall_s and stood_still(verdict):
        return ended_well(verdict)
    how = f"{ended_by.words} has ended the job since" if ended_by else f"the job has ended since, with exit code {code}"
    if code == 0 or not stood_still(verdict) or (ended_by and verdict.verdict == "INSUFFICIENT"):
        return dataclasses.replace(verdict, evidence=[how, *verdict.evidence])
    steps = [] if ended_by else [READ_LOG]
    return dataclasses.replace(
        verdict,
        verdict="INSUFFICIENT",
        exit_code=TRIAGE_EXIT_CODES["INSUFFICIENT"],
        reason=f"{ended_by.words} ended the job" if ended_by else f"the job has ended with exit code {code}",
        evidence=[standstill(verdict), *verdict.evidence],
        triage=verdict.triage and dataclasses.replace(verdict.triage, hang="", next=steps),
    )


def _mixed(comparison: Comparison, path: str) -> Ruling:
    """INSUFFICIENT: the dumps are of several jobs, so nothing can be compared and no rule is asked."""
    folder, apart = shlex.quote(path or "."), shlex.quote(os.path.join(path, "job-1"))
    files = " ".join(map(shlex.quote, comparison.largest))
    alone = f"(cd {folder} && mkdir job-1 && cp -- {files} job-1) && harness triage {apart}"
    return Ruling(
        "INSUFFICIENT",
        f"these dumps are of {comparison.jobs} jobs",
        evidence=comparison.notes[:3],
        missing=(f"which of {comparison.jobs} jobs is meant, since none has most of the dumps; job 1 alone: {alone}",),
        next=(
            alone,
            "for the next run: a TORCH_FR_DUMP_TEMP_FILE in a folder of the run",
        ),
    )


def _ask(case: Case) -> Ruling:
    """Return the ruling of the first rule that answers."""
    for rule in RULES:
        ruling = rule(case)
        if ruling is not None:
            return ruling
    if not case.graph.subjects:
        code = case.evidence.command_exit_code
        if code is not None:
            return over.unrecorded(code, case.evidence.ended_by)
        return Ruling(
            "INSUFFICIENT",
            "no process and no recorder dump was seen",
            next=("harness triage --help   # what it reads: pids, a run, evidence, recorder dumps",),
        )
    return _nothing_known(case)


def _nothing_known(case: Case) -> Ruling:
    """INSUFFICIENT: nothing says what the processes do. Explain why, if a note of theirs tells it."""
    notes = [note for subject in case.live() for note in subject.process.notes]
    for explain in (_of_another_user, _not_permitted, _not_python, _without_py_spy):
        if (ruling := explain(case, notes)) is not None:
            return ruling
    if moving := [each for each in case.graph.subjects.values() if each.progress and not each.ended]:
        return _at_work(case, moving, _BEATS)
    busy = any(note.endswith(TOO_BUSY) or NO_ANSWER in note for note in notes)
    return Ruling(
        "INSUFFICIENT",
        "no stack was had in time: this host was too busy"
        if busy
        else "no stack, heartbeat or recorder says what these processes do",
        next=(
            Live(f"{case.again()}   # again, when the host is less busy"),
            Live("py-spy dump --pid PID   # whether stacks can be had; in a container it takes --cap-add SYS_PTRACE"),
            _BEATS,
        ),
    )


_BEATS = Watching("for the next run: harness watch -- COMMAND, whose heartbeats need no stacks from outside")


def _of_another_user(case: Case, notes: list[str]) -> Ruling | None:
    if not any(note.endswith(OTHER_USER) for note in notes):
        return None
    return Ruling(
        "INSUFFICIENT",
        "these processes belong to another user: only that user and root may see their stacks",
        next=(f"sudo {case.again()}   # or as their user: sudo -u USER {case.again()}", _BEATS),
    )


def _not_permitted(case: Case, notes: list[str]) -> Ruling | None:
    refusal = next((note for note in notes if note.startswith(NOT_PERMITTED)), "")
    if not refusal:
        return None
    container = "docker run --cap-add SYS_PTRACE IMAGE"
    lowered = ("sudo sysctl kernel.yama.ptrace_scope=0",) if "ptrace_scope" in refusal else ()
    return Ruling(
        "INSUFFICIENT",
        f"{NOT_PERMITTED}, so no stack says what these processes do; a container needs --cap-add SYS_PTRACE",
        next=(*lowered, f"{container}   # a new container; outside one: sudo {case.again()}", _BEATS),
    )


def _not_python(case: Case, notes: list[str]) -> Ruling | None:
    live = case.live()
    if not live or not all(any(note.startswith(NOT_PYTHON) for note in each.process.notes) for each in live):
        return None
    several = len(live) > 1
    return Ruling(
        "INSUFFICIENT",
        f"{case.names(subject.key for subject in live)} {'are' if several else 'is'} "
        f"{'no Python processes' if several else NOT_PYTHON}, and nothing else says what "
        f"{'they do' if several else 'it does'}",
        next=("pgrep -af python   # the job's Python processes, for harness triage PID",),
    )


def _without_py_spy(case: Case, notes: list[str]) -> Ruling | None:
    if not any(NO_PY_SPY in note for note in notes):
        return None
    return Ruling(
        "INSUFFICIENT",
        "py-spy is missing, so no stack says what these processes do",
        next=(extras.repair_command("py-spy"), f"{case.again()}   # again, when it is there", _BEATS),
    )


def _at_work(case: Case, moving: list[Subject], watched: str) -> Ruling:
    """SLOW where a launcher works that has no rank yet; INSUFFICIENT where processes work, and nothing says at what."""
    first = moving[0]
    again = Live(f"{case.again()}   # in a minute: what has moved")
    if first.launcher and not case.live():
        return Ruling("SLOW", f"starting: {first.label} {first.state()}; no rank yet", "K7",
                      next=(again, watched))  # fmt: skip
    return Ruling(
        "INSUFFICIENT",
        f"{case.names(each.key for each in moving)} work{'s' if len(moving) == 1 else ''}; no stack, heartbeat or "
        "recorder says at what",
        next=(again, watched),
    )


def _body(case: Case, ruling: Ruling, afterwards: str) -> Triage:
    """Return culprits, victims and nodes as the verdict shows them.

    The ruling names culprits; victims are all processes that wait for one of them, directly or through others.
    """
    graph = case.graph
    blamed = {key: why for key, why in ruling.culprits.items() if key in graph.subjects}
    roots = set(blamed) | set(ruling.cycle)
    # Only waits that lead to a culprit or into the ring make a victim; other waiters are bystanders.
    victims = graph.waiters(roots) if ruling.verdict in ("HUNG", "SLOW") and roots else []
    victims = [key for key in victims if not graph.subjects[key].launcher]
    victims += [key for key in ruling.waiting if key not in (*roots, *victims)]
    titles = {group.group.name: title(group) for group in case.groups}
    parties = {
        **dict.fromkeys(victims, "victim"),
        **dict.fromkeys(ruling.cycle, "suspect"),
        **dict.fromkeys(blamed, "culprit"),
    }
    because = dict(ruling.waiting)
    for wait in graph.waits:
        because.setdefault(wait.waiter, wait.because)
    nodes = []
    stacked = [*parties, *(key for key in graph.subjects if key not in parties)][:MAX_STACKS]
    for key, subject in graph.subjects.items():
        group = titles.get(subject.pending.group, subject.pending.group) if subject.pending else ""
        state = "; ".join(filter(None, (subject.state(group), load(subject.process))))
        nodes.append(Node(key, subject.label, state, parties.get(key, "bystander"),
                          main_stack(subject.process) if key in stacked else []))  # fmt: skip
    return Triage(
        hang=ruling.hang,
        culprits=[_party(graph.subjects[key], why, ruling.frames.get(key, "")) for key, why in blamed.items()],
        victims=[_party(graph.subjects[key], because.get(key, "waits")) for key in victims],
        cycle=list(ruling.cycle),
        nodes=nodes,
        waits=list(graph.waits),
        next=_steps(case, ruling, afterwards),
        place=ruling.place,
        lateness=list(ruling.lateness),
    )


def before_end(evidence: Evidence, directory: PurePath) -> Verdict:
    """The verdict on a job that its watch ends if it is HUNG: the advice is then about what the watch kept in its
    directory."""
    verdict = triage(evidence)
    if verdict.verdict != "HUNG":
        return verdict
    kept = f"{shlex.join(['harness', 'triage', str(directory)])}   # what was kept of the job, which was ended"
    return triage(evidence, afterwards=kept)


def _steps(case: Case, ruling: Ruling, afterwards: str) -> list[str]:
    """What to try; `afterwards` comes first, and in place of what needs a process that lives."""
    useless = Watching if case.evidence.is_watched else ()
    starters = _unseen_starters(case.evidence, ruling)
    parent = [Live(f"harness triage {starter.pid}   # the job whose child this is") for starter in starters[:1]]
    useful = [*parent, *(step for step in ruling.next if step and not isinstance(step, useless))]
    useful.sort(key=lambda step: isinstance(step, Native))
    steps = [step for step in useful if not (afterwards and isinstance(step, Live))]
    first = [afterwards] if len(steps) < len(useful) else []
    filled = (_without_stop(case, _filled(case, ruling, step)) for step in steps)
    return [*first, *filter(None, filled)]


def _filled(case: Case, ruling: Ruling, step: str) -> str:
    """Put the pid of the process that a piece of advice is about into it, and the path of py-spy where the shell of
    this host would not find it."""
    if step.startswith("py-spy ") and case.evidence.source != PASTED and shutil.which("py-spy") is None:
        step = (program() or "py-spy") + step.removeprefix("py-spy")
    if "--pid PID" not in step:
        return step
    pid = next((each.process.pid for each in _advised(case, ruling) if each.process.pid and not each.ended), None)
    return step.replace("--pid PID", f"--pid {pid}") if pid is not None else step


def _advised(case: Case, ruling: Ruling) -> list[Subject]:
    """The processes with which the advice of a ruling deals, the first of them first: those that it names, else those
    that wait. Who waits for the end of its children does so for the sake of what they wait for."""
    named = [*ruling.culprits, *ruling.about, *ruling.stands_on, *ruling.waiting]
    subjects = [case.subject(key) for key in named if key in case.graph.subjects]
    return subjects or sorted(case.graph.stuck(), key=lambda each: each.doing.kind == "join") or case.live()


def _without_stop(case: Case, step: str) -> str:
    """Let py-spy not stop a process that writes to a full pipe: the write would return short. A stack of C needs that
    stop, so that this step is left out."""
    writers = {f"--pid {each.pid} " for each in case.evidence.processes if each.last_look.writing}
    if "py-spy dump " not in step or not any(writer in step for writer in writers):
        return step
    return "" if "--native" in step else step.replace("py-spy dump", "py-spy dump --nonblocking")


def _hosts_of_culprits(case: Case, ruling: Ruling) -> list[str]:
    """On which hosts the named ranks ran, where only lines of a log say so."""
    hosts = dict(case.evidence.rank_hosts)
    ends = [case.subject(key) for key in ruling.culprits if key in case.graph.subjects]
    return [
        f"{end.label} ran on {hosts[end.rank]}, by the prefix of its lines in the log"
        for end in ends
        if end.rank in hosts and end.process.host != hosts[end.rank]
    ]


def _party(subject: Subject, why: str, frame: str = "") -> Party:
    process = subject.process
    return Party(
        key=subject.key,
        why=why,
        rank=subject.rank,
        role=subject.role,
        host=process.host,
        pid=process.pid if subject.has_process else None,
        engine=process.engine,
        frame=frame or subject.frame,
    )


def _headline(ruling: Ruling, evidence: Evidence) -> tuple[str, list[str]]:
    """The reason, and nothing below it; of a longer reason its first fact, cut to a headline, with the whole below.

    HEALTHY is about those that were met, so it names who was not.
    """
    if ruling.verdict == "HEALTHY" and (left_out := _left_out(evidence, ruling)):
        longer = f"{ruling.reason}; {left_out}"
        return (longer if fits(ruling.verdict, longer) else ruling.reason), []
    first_fact = brief(ruling.reason.partition("; ")[0], MOST - 2)
    return (ruling.reason, []) if fits(ruling.verdict, ruling.reason) else (first_fact, [ruling.reason])


def _missing(evidence: Evidence, comparison: Comparison | None, graph: Graph, ruling: Ruling) -> list[str]:
    lines = [*ruling.missing, *((*comparison.strays, *comparison.missing) if comparison else ())]
    seen_ranks = {process.rank for process in evidence.processes if process.rank is not None}
    seen_ranks |= set(comparison.ranks) if comparison else set()
    expected = range(evidence.expected_world or 0)
    unseen = len(expected) - sum(rank in expected for rank in seen_ranks)
    if unseen:
        first = itertools.islice((rank for rank in expected if rank not in seen_ranks), 8)
        more = f" and {unseen - 8} more" if unseen > 8 else ""
        lines.append(f"nothing from rank {', '.join(map(str, first))}{more}")
    for process in evidence.processes:
        subject = graph.subjects[process.key]
        name = f"rank {process.rank}" if process.rank is not None else process.role
        if name in ("", "process") or not subject.alone:
            name = subject.label
        lines += [f"{name}: {note}" for note in process.notes]
    lines += [*evidence.notes, *(_logged_beside(evidence, ruling) if comparison else ())]
    lines = list(dict.fromkeys(lines))
    hidden = len(lines) - MAX_MISSING
    return lines[:MAX_MISSING] + ([f"{hidden} more"] if hidden > 0 else [])


def _left_out(evidence: Evidence, ruling: Ruling) -> str:
    """Which process of the job was not looked at, in few words; empty if none is known."""
    if absent := [process.pid for process in evidence.never_met]:
        more = f" and {len(absent) - 1} more are" if len(absent) > 1 else " is"
        return f"process {absent[0]}{more} not here"
    starters = _unseen_starters(evidence, ruling)
    return f"its parent {starters[0].pid} was not looked at" if starters else ""


def _unseen_starters(evidence: Evidence, ruling: Ruling) -> list[Starter]:
    """Programs whose children alone are in the evidence; none where a process is proven to hang, or to be slow."""
    if ruling.verdict not in ("HEALTHY", "INSUFFICIENT"):
        return []
    keys = {process.key for process in evidence.processes}
    return [starter for starter in evidence.starters if f"{starter.host}:{starter.pid}" not in keys]


def _children_alone(case: Case, ruling: Ruling) -> list[str]:
    """Say of children that alone were looked at whose they are."""
    return [
        f"{case.names([key])} is a child of process {starter.pid} ({brief(starter.command)}), which was not looked at"
        for starter in _unseen_starters(case.evidence, ruling)[:MAX_STARTERS]
        if (key := f"{starter.host}:{starter.child}") in case.graph.subjects
    ]


def _never_met(evidence: Evidence) -> list[str]:
    """Say which of the processes that a user has named are not there: the verdict is about the others."""
    return [note for process in evidence.never_met for note in process.notes]


def _logged_beside(evidence: Evidence, ruling: Ruling) -> list[str]:
    """What pasted logs say beside the counters of recorders, without the error with which the verdict begins or for
    which it names a process."""
    errors = [error for error in evidence.errors if evidence.source == PASTED and not error.echo][:MAX_BESIDE_DUMPS]
    blamed = {(process.rank, process.error) for process in evidence.processes if process.key in ruling.culprits}
    return [
        f"{error.file}:{error.line} also says: {error.of} {error.what}"
        for error in errors
        if ruling.place != f"{PurePath(error.file).name}:{error.line}" and (error.rank, error.text) not in blamed
    ]


def _between(case: Case) -> list[str]:
    """What moved in a long look at a live job, in words; empty for a short one, in which nothing has to move."""
    looked = [subject for subject in case.live() if len(subject.process.samples) > 1]
    span_s = max((subject.process.between_looks_s for subject in looked), default=0.0)
    if case.evidence.source != "live" or case.evidence.stall_s or span_s < LONG_LOOK_S:
        return []
    looked.sort(key=lambda subject: subject.rank is None)
    moved = [subject for subject in looked if subject.progress]
    busy = [subject for subject in looked if not subject.progress and _used_s(subject) >= BUSY_S]
    still = [subject.key for subject in looked if not subject.progress and subject not in busy]
    lines = [f"in {span_s:.0f} s {subject.label} moved: {subject.progress}" for subject in moved[:MAX_MOVED]]
    lines += [
        f"in {span_s:.0f} s {subject.label} used {_used_s(subject):.1f} s of a processor"
        for subject in busy[:MAX_MOVED]
    ]
    if still:
        places = "the same place" if len(still) == 1 else "the same places"
        lines.append(f"at looks {span_s:.0f} s apart, {case.names(still)} stood at {places}")
    return lines


def _used_s(subject: Subject) -> float:
    """Processor seconds of all threads of a process between the looks."""
    return float(subject.process.last_look.cpu_s - subject.process.first_look.cpu_s)


def _findings(evidence: Evidence, comparison: Comparison | None) -> list[Finding]:
    findings = [Finding("recorder", note) for note in (comparison.notes if comparison else ())]
    if comparison and len(comparison.versions) > 1:
        findings.append(Finding("recorder", f"dumps of different versions: {', '.join(comparison.versions)}"))
    if evidence.processes and all(len(process.samples) == 1 for process in evidence.processes if process.samples):
        findings.append(Finding("one look", "every process was seen once only: slow cannot be told from stuck"))
    return findings


def _coverage(evidence: Evidence, comparison: Comparison | None, graph: Graph) -> dict[str, object]:
    processes = evidence.processes
    return {
        "processes": len(processes),
        "ranks": len(
            {subject.rank for subject in graph.subjects.values() if subject.rank is not None and subject.observed}
        ),
        "with_stacks": sum(any(sample.threads for sample in process.samples) for process in processes),
        "with_two_looks": sum(len(process.samples) > 1 for process in processes),
        "with_recorder": len(comparison.ranks) if comparison else 0,
        "with_heartbeat": sum(process.beat is not None for process in processes),
        "with_journal": sum(process.journal is not None for process in processes),
        "groups": len(comparison.groups) if comparison else 0,
        "waits": len(graph.waits),
        "hosts": len({process.host for process in processes}),
        "source": evidence.source,
        "taken": evidence.taken,
    }


def _paths(evidence: Evidence) -> dict[str, str]:
    """The paths of the evidence. With several nodes each directory has its own, because their common folder may hold
    other things."""
    several = evidence.directories[:MAX_PATHS]
    if len(several) < 2:
        return {"evidence": evidence.path} if evidence.path else {}
    return {f"evidence {number}": path for number, path in enumerate(several, 1)}
