"""Rules about what is no hang: a person in a debugger, something slow, nothing pending."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace

from harness.triage import source
from harness.triage.graph import Subject
from harness.triage.graph.motion import THRESHOLD_S, gets_on
from harness.triage.places import inner_frame
from harness.triage.rules import pipes
from harness.triage.rules.bystanders import explains
from harness.triage.rules.polls import SERVING, open_polls, polling
from harness.triage.rules.processes import to_free
from harness.triage.rules.ruling import NAME_WHO_IS_ASKED, Case, Live, Native, Ruling, Watching
from harness.triage.rules.threads import for_whom, may_bring
from harness.triage.rules.untested import MOMENT_S, bereft, in_a_loop, unnamed, unread, untested
from harness.triage.stacks import describe
from reports.text import agreeing

# A job in motion sends something at least this often, or a second look finds its straggler. A hang younger than this
# need not be named yet.
FRESH_S = 10.0
LONG_S = THRESHOLD_S  # a wait this old is long: as long as `harness watch` waits before it looks
MOST_SEEN = 4  # processes whose work the verdict describes

# Kernel functions in which a thread sleeps that reads a pipe, a terminal or a socket.
_READS_INPUT = re.compile("pipe_read|n_tty_read|wait_woken|unix_stream_read")

_NEXT_RUN = Watching("for the next run: harness watch -- COMMAND, which sees every rank and says when one stops")


def debugger(case: Case) -> Ruling | None:
    """HEALTHY: a process sits at a breakpoint, so whoever waits for it waits for a person. A helper in a debugger
    for which nobody waits explains nothing."""
    for subject in case.live():
        beat = subject.process.beat
        if not (subject.doing.within("debugger") or (beat is not None and beat.breakpoint)):
            continue
        waiters = [waiter for waiter in case.graph.stuck() if waiter.key != subject.key]
        if not waiters or explains(case, subject):
            return Ruling(
                "HEALTHY",
                f"{subject.label} sits in a debugger, and whoever waits for it waits for a person",
                place="a breakpoint",
                next=("continue or detach the debugger",),
            )
    return None


def question(case: Case) -> Ruling | None:
    """INSUFFICIENT: a process waits at its standard input for an answer, so whoever waits for it waits for a person, or
    for ever if nobody can give one. Where a process of the job can write there, it is that one's turn."""
    for subject in case.live():
        process = subject.process
        frame = inner_frame(process.main_frames)
        looks = process.samples
        if frame is None or len(looks) < 2 or not all(_READS_INPUT.search(look.wchan) for look in looks):
            continue
        writers = {f"{process.host}:{pid}" for pid in (process.writer, *process.writers)}
        call = source.asks_a_person(frame) if not writers & case.graph.subjects.keys() - {process.key} else ""
        waiters = [waiter for waiter in case.graph.stuck() if waiter.key != subject.key]
        if call and (not waiters or explains(case, subject)):
            return Ruling(
                "INSUFFICIENT",
                f"{subject.label} waits for an answer at its standard input: {call}() at {describe(frame)}",
                place=describe(frame),
                missing=("whether somebody can answer",),
                next=(
                    f"answer it, or start the job with the answer: yes | COMMAND, or an option in place of {call}()",
                    Live(f"ls -l /proc/{process.pid}/fd/0   # where its standard input comes from"),
                ),
            )
    return None


def flowing(case: Case) -> Ruling | None:
    """HEALTHY: by its own heartbeat, everybody who waits or is waited for made progress a moment ago.

    Dumps of a running job are not taken at one instant. One rank's dump is always a little older than the next one's,
    so that ranks seem to wait for each other.
    """
    waiting = {key for wait in case.graph.waits for key in (wait.waiter, wait.target)}
    stuck = [subject for subject in case.graph.subjects.values() if subject.stuck or subject.key in waiting]
    if not stuck or any(
        subject.ended or subject.blocked for subject in case.graph.subjects.values() if subject.rank is not None
    ):
        return None
    # A process of another host has no samples of ours, and another clock.
    looked = [subject.process for subject in stuck if subject.process.samples]
    beats = [process.beat for process in looked if process.beat is not None]
    if len(beats) < len(stuck) or any(beat.progress_age_s >= MOMENT_S for beat in beats):
        return None
    oldest = max(beat.progress_age_s for beat in beats)
    return Ruling("HEALTHY", f"whoever waits, or is waited for, made progress within the last {oldest:.1f} s")


def slow(case: Case) -> Ruling | None:
    """K7: the process that the others wait for advances between the two looks, and they have waited for long."""
    ends = [*case.sinks(), *(case.subject(key) for ring in case.graph.cycles for key in ring)]
    if moving := [end for end in ends if end.progress]:
        return slow_because(case, [subject.key for subject in moving])
    waiting = case.graph.waiting
    unresolved = [waiter for waiter in case.graph.stuck() if waiter.key not in waiting]
    if not case.evidence.stall_s:  # without a watched stall, a waiter that moves does not wait for long
        unresolved = [waiter for waiter in unresolved if not waiter.progress]
    # Nothing names who makes the samples of a rollout, so that a ray.get of them counts as a wait that ends nowhere.
    nowhere = all(end.doing.kind == "ray_get" and end.pending is None for end in ends) and not case.cut_off()
    moved = [subject for subject in case.live() if subject.progress]
    return slow_because(case, [moved[0].key]) if unresolved and nowhere and moved else None


def slow_because(case: Case, keys: Sequence[str]) -> Ruling:
    """Return the ruling for a job in which the processes of `keys` advance, so that nothing hangs.

    SLOW if the others have waited for long, with the name of the process if they wait for it. HEALTHY otherwise: even
    in a balanced job some process always waits for another.
    """
    waited_s = _waited_s(case, keys)
    awaited = [key for key in keys if key in case.awaited()]
    waiting = len(case.graph.waiters({*keys}))
    first = case.subject((awaited or list(keys))[0])
    progress_lines = tuple(
        f"{case.names([key])} {'ends' if _ends(case.subject(key)) else 'works'}: {case.subject(key).progress}"
        for key in keys[:MOST_SEEN]
    )
    if waited_s < LONG_S and not case.evidence.stall_s:
        return Ruling(
            "HEALTHY",
            "nothing hangs: " + ("whoever is waited for works" if waiting else "the processes move"),
            evidence=((_count(waiting),) if waiting else ()) + progress_lines,
            next=(Watching("to see who is slow, watch the next run: harness watch -- COMMAND"),) if waiting else (),
        )
    state = "ending" if all(_ends(case.subject(key)) for key in awaited) else "slow"
    who = f"{case.names(awaited)} {agreeing(len(awaited), 'is', 'are')} {state}, not hung" if awaited else "not hung"
    return Ruling(
        "SLOW",
        f"{who}: {first.progress}",
        "K7",
        place="" if _takes_requests(first) else first.frame,
        evidence=((f"{_count(waiting)}, {max(waited_s, case.evidence.stall_s):.0f} s by now",) if waiting else ())
        + progress_lines,
        next=(
            f"see where its time goes: py-spy top --pid {first.process.pid}" if first.has_process else "",
            "look again later: the process that is slow stays the same",
        ),
    )


def _ends(subject: Subject) -> bool:
    """Whether the program of a process is over by its last word, and only its interpreter is not."""
    return subject.process.beat is not None and subject.process.beat.ended


def _takes_requests(subject: Subject) -> bool:
    """Whether its main thread only waits for the next request: whatever it does, its other threads do it."""
    return subject.doing.within(*SERVING) or "csk_accept" in subject.process.last_look.wchan


def _count(waiting: int) -> str:
    return f"{waiting} process{' waits' if waiting == 1 else 'es wait'}"


def _waited_s(case: Case, keys: Collection[str]) -> float:
    """How long the oldest wait for one of these has lasted in seconds, as far as is known."""
    waits = [wait for wait in case.graph.waits if wait.target in keys]
    ages = [wait.since_s for wait in waits if wait.since_s is not None]
    processes = [case.subject(wait.waiter).process for wait in waits]
    ages += [process.beat.progress_age_s for process in processes if process.beat is not None]
    return max(ages, default=0.0)


def fresh(case: Case) -> Ruling | None:
    """INSUFFICIENT: nobody watched the job, and ranks that wait in a collective had data a moment ago.

    Two looks at a job of short collectives show the same frames, whether it stands in one of them or went from one to
    the next. The kernel says when data last went through a connection. A heartbeat, a journal or a recorder would say
    more; a Ray worker always exchanges data with Ray.
    """
    waiting = [
        waiter
        for waiter in case.graph.stuck()
        if waiter.doing.kind == "collective" and waiter.pending is None and not waiter.progress
    ]
    processes = [waiter.process for waiter in waiting]
    if case.evidence.stall_s or case.evidence.threshold_s or any(process.is_recorded for process in processes):
        return None
    # Of all looks: in a longer one a slow step may have come and gone before the last.
    looks = [look for process in processes if not process.title.startswith("ray::") for look in process.samples]
    quiet_s = min((look.net_quiet_s for look in looks if look.net_quiet_s is not None), default=FRESH_S)
    if quiet_s >= FRESH_S:
        return None
    return Ruling(
        "INSUFFICIENT",
        f"{case.names(waiter.key for waiter in waiting)} had data {quiet_s:.1f} s ago: a hang so young cannot be told",
        evidence=("nobody watched, so whether they wait in one collective or in many is not known",),
        missing=("heartbeats, a journal or flight recorder dumps of the ranks that wait",),
        next=(
            Live(f"{case.again()}   # in {FRESH_S:.0f} s: a job that stands still has no such data then"),
            Watching("for the next run: harness watch -- COMMAND, whose heartbeats tell one collective from many"),
        ),
    )


def healthy(case: Case) -> Ruling | None:
    """HEALTHY: nothing is pending between processes, or everything that waits advances."""
    stuck = case.graph.stuck()
    looked = [subject for subject in case.live() if subject.process.samples or subject.process.beat]
    recorded = any(group.ranks for group in case.groups)
    if any(not waiter.progress for waiter in stuck) or not (looked or recorded):
        return None
    if stuck:
        advance = "for each other, and all of them advance" if len(stuck) > 1 else "and advances"
        return Ruling("HEALTHY", f"nothing hangs: {_count(len(stuck))} {advance}")
    return _nothing_pending(case, looked, recorded=recorded)


def unless_only_recorded(case: Case, ruling: Ruling) -> Ruling:
    """INSUFFICIENT in place of HEALTHY where recorders are all that there is: a rank that stands outside of the
    collectives, such as in its data loader, writes the same dump as one that runs."""
    only_recorded = any(group.ranks for group in case.groups) and case.evidence.command_exit_code is None
    if ruling.verdict != "HEALTHY" or not only_recorded or any(e.samples or e.beat for e in case.evidence.processes):
        return ruling
    return replace(
        ruling,
        verdict="INSUFFICIENT",
        reason="no rank waits in a recorded collective; whether one stands elsewhere is not recorded",
        missing=(*ruling.missing, "stacks of the ranks"),
        next=(
            "harness triage PID   # of one rank, on its host, if the job still runs",
            "py-spy dump --pid PID > rank-N.txt   # of each rank; harness triage FILE... reads them beside the dumps",
        ),
    )


def _nothing_pending(case: Case, looked: Sequence[Subject], *, recorded: bool) -> Ruling | None:
    """HEALTHY, or INSUFFICIENT where too little was seen for it. `recorded`: whether a flight recorder has ranks."""
    if (
        looked
        and not recorded
        and all(subject.doing.kind == "unknown" and subject.pending is None for subject in looked)
    ):
        return None  # without a single stack or recorder "nothing pending" would be a guess
    dead, resting = bereft(case)
    if dead:
        return _bereft(case, dead, resting)
    if holes := untested(case):
        return _partly_seen(case, holes)
    if not recorded and (blind := unread(case)):
        return _partly_read(case, blind, len(looked))
    if reading := [subject.key for subject in looked if subject.progress and gets_on(subject.process)]:
        waits = agreeing(len(reading), "waits", "wait")
        return Ruling("HEALTHY", f"nothing hangs: {case.names(reading)} {waits} for data, and some came")
    idle = sum(subject.doing.idle and subject.before.idle and not subject.progress for subject in looked)
    return Ruling(
        "HEALTHY",
        "nothing is pending: no process waits for another one" + (f" ({idle} of {len(looked)} idle)" if idle else ""),
    )


def _partly_read(case: Case, blind: Sequence[Subject], looked: int) -> Ruling:
    """HEALTHY of those of which something is known, where these are most; else INSUFFICIENT."""
    read = looked - len(blind)
    missing = (f"what {case.names(subject.key for subject in blind)} {agreeing(len(blind), 'does', 'do')}",)
    if read > len(blind):
        return Ruling("HEALTHY", f"nothing is pending in {read} of {looked} processes, and the others were not read",
                      missing=missing)  # fmt: skip
    return Ruling(
        "INSUFFICIENT",
        f"only {read} of {looked} processes could be read, and nothing is pending there",
        missing=missing,
        next=(case.attach(), _NEXT_RUN),
    )


def _bereft(case: Case, dead: Sequence[Subject], resting: Sequence[Subject]) -> Ruling:
    """INSUFFICIENT: a process ended badly or is stopped and the others stand still, and nothing says whether they wait
    for it."""
    first = dead[0]
    stand = case.names(subject.key for subject in resting)
    made = case.names(subject.key for subject in dead)
    return Ruling(
        "INSUFFICIENT",
        f"{first.label} {'is ' if first.blocked else ''}{first.state()}; {stand} may wait for it",
        evidence=tuple(f"{subject.label} {subject.state()}" for subject in dead[1:MOST_SEEN]),
        missing=(f"for what {stand} may wait, and whether {made} made it", *untested(case)),
        next=(
            f"look first at the end of the log of {first.label}: why it {first.state()}" if first.ended else "",
            *to_free([subject for subject in dead if subject.blocked]),
            case.attach(),
        ),
    )


def _partly_seen(case: Case, holes: Collection[str]) -> Ruling:
    """INSUFFICIENT: nothing that was seen is pending, and not everything was seen. Processes that poll are named with
    what they look for."""
    stand, open_pollers = unnamed(case), open_polls(case)
    if stand and not open_pollers and all(subject.process.readers for subject in stand):
        return pipes.unread(case, stand)
    if open_pollers and not stand:
        ruling = polling(case, open_pollers)
        others = tuple(hole for hole in holes if hole not in map(in_a_loop, open_pollers))
        return replace(
            ruling,
            evidence=(*ruling.evidence, *others),
            missing=(*ruling.missing, *others),
            next=(*ruling.next, case.attach(), _NEXT_RUN),
        )
    return Ruling(
        "INSUFFICIENT",
        for_whom(case, stand) if stand else "nothing that was seen is pending, but not everything was seen",
        evidence=(*holes, *(f"{waiter.label}: {line}" for waiter in stand for line in may_bring(case, waiter))),
        missing=tuple(holes),
        about=tuple(subject.key for subject in stand),
        next=(
            Native.dump("what its thread is blocked on") if stand else "",
            case.attach(),
            NAME_WHO_IS_ASKED if case.evidence.is_watched else _NEXT_RUN,
        ),
    )
