"""Watches a job that runs already, from outside and without a restart: it is looked at once a threshold.

Without heartbeats nothing says between two looks whether the job goes on. So each look compares with the one before, a
threshold earlier, and the verdict says what a start under `harness watch` would add.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from os import getpid
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import BadInput, HarnessError
from harness.exit_codes import STALLED
from harness.triage.collect import Scope, collect, job, live, proc
from harness.triage.evidence import Evidence
from harness.triage.judge import before_end, triage
from harness.triage.watch.ending import end, unended
from harness.triage.watch.observe import Observer
from harness.triage.watch.retention import Retention
from harness.triage.watch.watchdog import Stall
from harness.triage.watch.watched_command import OnStall, WatchOptions, WatchResult, claimed

if TYPE_CHECKING:
    from reports.model import Verdict

# What `harness watch -- COMMAND` has and a look from outside has not.
LACKS = (
    "attached to a running job: no heartbeats, spans, groups or last words of its processes, and flight recorders only "
    "where the job dumps them; harness watch -- COMMAND starts it with all of these"
)
_NUMBERS = re.compile(r"\d+(?:\.\d+)?")
LIFE_S = 1.0  # seconds between two checks whether the job lives


@dataclass
class Attached:
    """Looks at the processes of `scope` every `stall_s` seconds until they end.

    `verdict`: the last HUNG; without one the last verdict that is not HEALTHY. `collect`, `clock` and `sleep` are
    replaced in tests.
    """

    scope: Scope
    retention: Retention
    observer: Observer
    stall_s: float
    options: WatchOptions
    collect: Callable[..., Evidence] = collect
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    verdict: Verdict | None = None
    _before: tuple[Evidence, float] | None = field(default=None, init=False)  # the last looks, and when they began
    _span_s: float = field(default=0.0, init=False)  # seconds from the first look at a process to the last
    _last: tuple[object, ...] = field(default=(), init=False)  # what the last verdict said

    def follow(self) -> int:
        """Look until the job ends: 0; or until it hangs, if `on_stall` says so: 86."""
        hung = 0
        while self.observer.goes_on():
            try:
                ends = self.options.on_stall == "end" and hung > 0
                verdict, folder = self._look(ends=ends)
            except (OSError, HarnessError) as error:  # a full disk, for example: the next look tries again
                self.options.say(f"the job could not be looked at: {error}")
            else:
                hung = hung + 1 if verdict.verdict == "HUNG" else 0
                self._tell(verdict, folder, ends=ends and hung > 0)
            if hung >= self._looks_that_decide(self.options.on_stall):
                if self.options.on_stall == "end" and (survivors := end(self.observer.members)):
                    self.options.say(unended(survivors))
                return STALLED
            due_s = self.clock() + self.stall_s
            while self.clock() < due_s and self.observer.goes_on():
                self.sleep(min(LIFE_S, self.stall_s))
        self.options.say("the job has ended; how is not known, for it was not started by this watch")
        return 0

    @staticmethod
    def _looks_that_decide(on_stall: OnStall) -> float:
        """How many looks in a row have to say HUNG before the watch acts."""
        return {"report": float("inf"), "exit": 1, "end": 2}[on_stall]

    def _look(self, *, ends: bool) -> tuple[Verdict, Path]:
        """The verdict on the job now, and its evidence. `ends`: the job is ended if it is HUNG."""
        folder, began = self.retention.folder(), self.clock()
        after = (self._before[0], began - self._before[1]) if self._before is not None else None
        evidence = self.collect(self.scope, out=folder, after=after)
        verdict = before_end(evidence, self.retention.directory) if ends else triage(evidence)
        looks = [(each.samples[0].at_s, each.samples[-1].at_s) for each in evidence.processes if each.samples]
        self._span_s = max((float(last - first) for first, last in looks), default=0.0)
        self._before = _last_looks(evidence, after[1] if after else 0.0), began
        paths = {**verdict.paths, "evidence": str(folder)}
        lacks = [] if any(process.beat for process in evidence.processes) else [LACKS]
        return replace(verdict, missing=[*verdict.missing, *lacks], paths=paths), folder

    def _tell(self, verdict: Verdict, folder: Path, *, ends: bool) -> None:
        """Tell a verdict that differs from the one before, and keep its evidence; also of the one that ends the job."""
        culprits = tuple(sorted(party.key for party in verdict.triage.culprits)) if verdict.triage else ()
        # What an undecided look knows is in its sentence. Its seconds pass, and are nothing new.
        sentence = _NUMBERS.sub("", verdict.reason) if verdict.verdict == "INSUFFICIENT" else ""
        hang = verdict.triage.hang if verdict.triage else ""
        before, self._last = self._last, (verdict.verdict, hang, culprits, sentence)
        is_new = self._last != before
        if not (is_new or ends):
            self.retention.discard(folder)
            return
        if verdict.verdict == "HEALTHY":
            self.options.say("the job goes on again" if before[:1] == ("HUNG",) else verdict.reason)
            self.retention.discard(folder)
            return
        if verdict.verdict == "HUNG" or self.verdict is None or self.verdict.verdict != "HUNG":
            self.verdict = verdict
        self.retention.keep(folder, verdict, subject=" ".join(map(str, self._last[:3])), displayed=True)
        self.retention.publish(verdict)
        if not is_new:
            return
        self.options.on_verdict(verdict)
        if verdict.verdict == "HUNG":
            self.options.show(Stall(verdict, folder, self._span_s))
        else:
            self.options.say(f"{verdict.reason} (evidence: {folder})")


def _last_looks(evidence: Evidence, began_s: float) -> Evidence:
    """The evidence with the last look at each process only, timed from `began_s` on: when its own looks began."""
    lasts = (
        replace(process, samples=tuple(replace(look, at_s=look.at_s - began_s) for look in process.samples[-1:]))
        for process in evidence.processes
    )
    return replace(evidence, processes=tuple(lasts))


def attach(pid: int, options: WatchOptions) -> WatchResult:
    """Watch the job of a running process until it ends or hangs. Raises BadInput if there is no such process."""
    if options.stall_s is None:
        raise BadInput("a watch needs a threshold", fix=f"harness watch --pid {pid} --stall 60s")
    if pid < 1:
        raise BadInput(
            f"--pid takes the number of one process, which is above 0, and {pid} is none",
            fix="pgrep -af python   # the job's Python processes",
        )
    _refuse_above(pid, proc.parents())
    scope = live(str(pid))
    directory, claim = claimed(options.out, ["--pid", str(pid)])
    retention = Retention(directory, options.say, options.limits)
    watch = Attached(scope, retention, Observer(directory, scope.roots), options.stall_s, options)
    try:
        code = watch.follow()
    finally:
        retention.close()
        claim.release()
    return WatchResult(code, watch.verdict, directory)


def _refuse_above(pid: int, table: Mapping[int, int]) -> None:
    """Raise BadInput for this watch itself, a process above it, or the first of the host: they hold more than a job.

    `table`: pid -> parent of every visible process.
    """
    ours = {1, getpid(), *job.ancestors(getpid(), table)}
    if pid not in ours:
        return
    children = [child for child, parent in sorted(table.items()) if parent == pid and child not in ours]
    python = [child for child in children if "python" in proc.comm(child)]
    place = "is the first process of this host" if pid == 1 else "is this watch or runs it"
    message = f"process {pid} {place}, so it is no job to watch: give the pid of its child that is the job"
    for child in (python or children)[:1]:
        raise BadInput(f"{message}, such as {child}", fix=_watch(child))
    raise BadInput(message, fix="pgrep -af python   # the job's Python processes")


def _watch(pid: int) -> str:
    return f"harness watch --pid {pid}"
