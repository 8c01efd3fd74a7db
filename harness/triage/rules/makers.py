"""Rules about a process that polls, where the evidence shows who makes what it looks for: the process that listens at
the address that it asks, or that writes the file, or a thread of its own.

A poll shows no wait of its own (`graph.polling`), so these are no edges of the graph. A maker that goes on makes the
job slow. One that can never go on explains the poll, and everybody who waits for the poller.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from harness.triage import source
from harness.triage.evidence import LostThread, Maker, Process, Thread
from harness.triage.graph import Subject
from harness.triage.graph.motion import TIMERS, handlers, spent_s, works
from harness.triage.graph.polling import place as polled_at
from harness.triage.places import inner_frame, users
from harness.triage.rules.pauses import slow_because
from harness.triage.rules.polls import open_polls, pollers
from harness.triage.rules.ruling import Case, Live, Ruling, brief
from harness.triage.stacks import ours

PIPE = "its pipe"
MAX_LINKS = 8  # links and makers that a verdict tells
_LOCAL = ("127.0.0.1", "localhost", "0.0.0.0", "[::1]", "[::]")
# What others of the job may do while a server has lost its thread: wait for somebody else. Any other may feed it.
_WAITS = frozenset({"join", "lock", "queue", "collective", "p2p", "store"})


@dataclass(frozen=True)
class Link:
    """Who makes what a process looks for, as far as is known.

    `thing`: an address, a path, or PIPE. `maker`: a process that was seen with the file. `subject`: its node, if it is
    of the job; of an address, the process that listens there; of a pipe, the only one that can write to it.
    """

    poller: Subject
    thing: str
    subject: Subject | None = None
    maker: Maker | None = None

    @property
    def exact(self) -> bool:
        """Whether it is known by the very thing, not by the folder of a file."""
        return self.maker is None or self.maker.exact

    @property
    def label(self) -> str:
        """The maker for people."""
        if self.subject is not None:
            return self.subject.label
        return f"process {self.maker.pid}" if self.maker is not None else "nobody"

    @property
    def words(self) -> str:
        """How the maker is known, in a sentence."""
        looks = f"{self.poller.label} looks for {self.thing}"
        if self.thing == PIPE:
            return f"of all that is seen, {self.label} alone can write to the pipe that {self.poller.label} polls"
        if self.maker is None:
            return f"{self.poller.label} asks {self.thing} again and again, where {self.label} listens"
        beside = f", {brief(self.maker.command)}" if self.subject is None else ""
        return f"{looks}, and {self.label}{beside} {self.maker.by}"


def links(case: Case, poller: Subject) -> list[Link]:
    """Who makes what a process looks for: the exact ones, else those that are known by a folder alone."""
    process = poller.process
    feeder = case.graph.subjects.get(f"{process.host}:{process.feeder}") if process.feeder else None
    its_links = [Link(poller, PIPE, feeder)] if feeder is not None else []
    waiters = case.graph.waiters({poller.key})  # their command lines may name the file as well
    for thing in process.sought:
        for maker in case.evidence.makers if thing.startswith("/") else ():
            key = f"{maker.host}:{maker.pid}"
            if (maker.host, maker.path) == (poller.process.host, thing) and key not in waiters:
                its_links.append(Link(poller, thing, case.graph.subjects.get(key), maker))
        if not thing.startswith("/") and (listener := _listener(case, poller, thing)) is not None:
            its_links.append(Link(poller, thing, listener))
    return [link for link in its_links if link.exact] or its_links


def _listener(case: Case, poller: Subject, address: str) -> Subject | None:
    """The one process that listens at an address; None if several do, as after a fork."""
    listeners = [
        subject
        for subject in case.live()
        if subject.key != poller.key
        and any(_reaches(address, served_address) for served_address in subject.process.listening)
        and (address.rpartition(":")[0] not in _LOCAL or subject.process.host == poller.process.host)
    ]
    return listeners[0] if len(listeners) == 1 else None


def _reaches(address: str, served_address: str) -> bool:
    """Whether a request to one address comes to a listener at another, if both are of one host."""
    (host, _, port), (its_host, _, its_port) = address.rpartition(":"), served_address.rpartition(":")
    return port == its_port and (host == its_host or (host in _LOCAL and its_host in _LOCAL))


def at_work(case: Case) -> Ruling | None:
    """SLOW: whoever makes what a process looks for goes on."""
    polling = pollers(case)
    moving = [(link, words) for poller in polling for link in links(case, poller) if (words := _goes_on(case, link))]
    by_poller = [[link for link, _ in moving if link.poller is poller] for poller in polling]
    if not moving or not all(map(_are_all, by_poller, polling)):
        return None
    link, words = moving[0]
    if link.subject is not None and link.subject.progress:
        ruling = slow_because(case, [link.subject.key])
        return Ruling(ruling.verdict, ruling.reason, ruling.hang, place=ruling.place, next=ruling.next,
                      evidence=(link.words, *ruling.evidence))  # fmt: skip
    return Ruling(
        "SLOW",
        f"not hung: {link.poller.label} waits for {_briefly(link)}, which {link.label} makes; {words}",
        "K7",
        place=link.poller.frame,
        evidence=tuple(link.words for link, _ in moving),
        next=(Live(f"{case.again()}   # in a minute"), "give the loop a limit, and say in its error what has not come"),
    )


def _are_all(its_links: list[Link], poller: Subject) -> bool:
    """Whether links are about everything that a process looks for: any of it may end its loop."""
    things = {link.thing for link in its_links}
    return bool(things) and things >= set(poller.process.sought)


def _briefly(link: Link) -> str:
    return os.path.basename(link.thing.rstrip("/")) if link.maker is not None else "an answer"


def _goes_on(case: Case, link: Link) -> str:
    """What a maker does that goes on, in words; empty if nothing shows that it does, or that it is the maker."""
    if not link.exact:
        return ""
    if link.maker is not None and link.maker.sleeps_s:
        return f"it sleeps {link.maker.sleeps_s:.0f} s more"
    if link.subject is not None:
        # A server moves when it answers, whatever it has. What it computes, or a child of it does, is no answer.
        computes = works(link.subject.process, link.subject.doing)
        answers = _is_server(link.subject) and link.subject.moved and not computes
        return "" if answers else link.subject.progress or _paced(case, link.subject)
    return "it works" if link.maker is not None and link.maker.works else ""


def _paced(case: Case, subject: Subject) -> str:
    """Say in words that a thread makes something between sleeps, and none beside it stands still or has died. As timers
    of an event loop, this counts for a few thresholds only."""
    process = subject.process
    if subject.blocked or subject.ended or process.lost_threads:
        return ""
    if case.evidence.threshold_s and case.evidence.stall_s >= TIMERS * case.evidence.threshold_s:
        return ""
    workers = _workers(process, main=not _is_server(subject))
    if not workers or not all(_makes_in_rounds(process, thread) for thread in workers):
        return ""
    who = "it" if workers[0].main else f"its thread {workers[0].name or workers[0].tid}"
    return f"{who} sleeps between rounds"


def _workers(process: Process, *, main: bool = False) -> list[Thread]:
    """Its threads that run the user's code and answer no request. `main`: the main one as well."""
    threads = process.threads
    serving = handlers(process)
    return [
        thread
        for thread in threads
        if (main or not thread.leads) and thread not in serving and not ours(thread)
        and any(users(frame) or source.in_timer(frame) for frame in thread.frames)
    ]  # fmt: skip


def _makes_in_rounds(process: Process, thread: Thread) -> bool:
    """Whether a thread computes, or sleeps in a loop that makes something in each of its rounds."""
    if thread.active or spent_s(process, thread) > 0:
        return True
    frame = inner_frame(thread.frames)
    return frame is not None and "nanosleep" in thread.wchan and source.makes(frame)


def _is_server(subject: Subject) -> bool:
    """Whether its main thread answers requests."""
    return bool(subject.process.listening)


def stopped(case: Case) -> Ruling | None:
    """K4 or K9: whoever makes what a process looks for can never go on."""
    for poller in pollers(case):
        its_links = links(case, poller)
        certain = _are_all(its_links, poller) and len({link.label for link in its_links}) == 1
        link = its_links[0] if certain else None
        if link is not None and link.subject is not None and (why := _never_goes_on(case, link)):
            return _hung(case, link.subject, poller, why, link.words)
        if (lost := _own_thread(poller)) is not None:
            evidence = f"{polled_at(poller.loop)} looks at what threads of its own process make"
            return _hung(case, poller, poller, _died(lost), evidence)
    return None


def _own_thread(poller: Subject) -> LostThread | None:
    """The thread of a process that has died and that alone filled what its loop looks at; None without one."""
    loop = source.innermost_loop(poller.loop[0])
    if loop is None or not source.looks_inside(poller.loop[0]):
        return None
    return _last_filler(poller.process, source.names_in(loop))


def _last_filler(process: Process, used: set[str] | None = None) -> LostThread | None:
    """The thread of a process that has died, and that alone filled what others of it use, by its source text; None if
    another thread of the user's lives. `used`: names of which it has to have filled one."""
    threads = process.threads
    files = {frame.file for thread in threads for frame in thread.frames if users(frame)}
    for lost in process.lost_threads if not _workers(process) else ():
        filled = {name for file in files for name in source.filled_alone(file, lost.name)}
        if filled if used is None else filled & used:
            return lost
    return None


def _never_goes_on(case: Case, link: Link) -> str:
    """Why a maker can never go on, in words; empty if it may."""
    subject = link.subject
    if subject is None or subject.progress:
        return ""
    if subject.blocked:
        return str(subject.blocked) if link.exact else ""
    if all(look.locked_alone for look in subject.process.samples) and len(subject.process.samples) > 1:
        return f"waits for a lock that nobody else can release, {subject.frame}"
    # A main thread that looks again and again itself may start the thread again.
    rests = not subject.loop and subject.doing.kind not in ("sleep", "user")
    lost = _last_filler(subject.process) if link.exact and rests else None
    return _died(lost) if lost is not None and not _fed(case, link) else ""


def _died(lost: LostThread) -> str:
    return f"lost its thread {lost.name}: {lost.error}"


def _fed(case: Case, link: Link) -> bool:
    """Whether another process of the job may bring what a server has: one that neither waits for the poller nor for
    somebody else."""
    assert link.subject is not None
    waiters = {link.poller.key, link.subject.key, *case.graph.waiters({link.poller.key, link.subject.key})}
    return any(
        each.progress or each.polls or each.doing.kind not in _WAITS for each in case.live() if each.key not in waiters
    )


def undecided(case: Case) -> Ruling | None:
    """INSUFFICIENT: a process looks for something, and nothing says whether its maker goes on; also where nobody waits
    for that process."""
    polling = pollers(case) or ([] if case.graph.stuck() else open_polls(case))
    its_links = [link for poller in polling for link in links(case, poller)]
    if not its_links:
        return None
    link, makers = its_links[0], list(dict.fromkeys(each.label for each in its_links))
    states = (f"{each.label}: {each.subject.state()}" for each in its_links if each.subject is not None)
    return Ruling(
        "INSUFFICIENT",
        f"{link.poller.label} waits in a loop for what {makers[0]} may make, {polled_at(link.poller.loop)}",
        evidence=tuple(dict.fromkeys([*(each.words for each in its_links), *states]))[:MAX_LINKS],
        missing=tuple(f"whether {label} goes on to make it" for label in makers[:MAX_LINKS]),
        place=polled_at(link.poller.loop),
        next=(
            f"read the end of the log of {makers[0]}: whether it still makes what {link.poller.label} looks for",
            "give the loop a limit, and say in its error what has not come",
        ),
    )


def _hung(case: Case, culprit: Subject, poller: Subject, why: str, evidence: str) -> Ruling:
    headline = why.partition(":")[0].partition(",")[0]
    looks = polled_at(poller.loop)
    return Ruling(
        "HUNG",
        f"{culprit.label}{':' if culprit.blocked else ''} {headline}",
        "K9" if culprit.blocked else "K4",
        {culprit.key: why},
        place=looks,
        evidence=(evidence,),
        waiting={key: f"looks for what {culprit.label} makes, {looks}" if key == poller.key else "waits"
                 for key in (poller.key, *case.graph.waiters({poller.key})) if key != culprit.key},
        next=(
            Live("py-spy dump --pid PID   # where it stands"),
            "let a thread that fails end its process, and give the loop a limit",
        ),
    )  # fmt: skip
