"""The watchdog: looks, suspects, has evidence collected and judged, and says each thing once.

The caller that runs the job calls `tick` every second: `watched_command.watch`, or a thread of a controller.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import HarnessError
from harness.triage.collect import Scope
from harness.triage.collect import collect as collect_evidence
from harness.triage.collect.stacks import missing
from harness.triage.judge import before_end, ended_well, lived, stood_still, triage
from harness.triage.watch.observe import Observer
from harness.triage.watch.peaks import Peaks
from harness.triage.watch.progress import Progress, Snapshot, Suspicion, over
from harness.triage.watch.retention import Limits, Retention
from harness.triage.watch.slowness import Slowness
from probes.files import FILE_MODE, make_folder
from probes.heartbeat import WATCHDOG

if TYPE_CHECKING:
    from harness.triage.evidence import Evidence
    from reports.model import Verdict

BLOCK = 512  # bytes written at once, so that a reader sees a whole beat
MAX_SAID = 1_000  # lines remembered so that each is said once; a week has no more that matter
CALM = 3  # ticks without a suspicion before a hang is over: a job that is being ended also moves
MOST_PATIENT = 16  # repeated looks at a suspicion that is no hang come after 1, 2, 4, 8, 16, 16, ... thresholds


@dataclass(frozen=True)
class Stall:
    """The job hangs. `seconds`: from the last progress to the verdict."""

    verdict: Verdict
    evidence: Path
    seconds: float


@dataclass(frozen=True)
class Means:
    """What a watchdog works with; None for its own default.

    `observer`: of the job's processes. `clock`, `observe`, `collect` and `judge` are replaced in tests.
    """

    observer: Observer | None = None
    clock: Callable[[], float] = time.monotonic
    observe: Callable[[], Snapshot] | None = None
    collect: Callable[[Path, float], Evidence] | None = None
    judge: Callable[[Evidence], Verdict] | None = None


ITS_MEANS = Means()


class Watchdog:
    """Watches the processes below `roots` and those with a heartbeat in `directory`, where evidence and verdict go as
    well.

    `limits`: of the evidence that is kept. `say` takes one line for the user.
    """

    def __init__(
        self,
        directory: Path,
        roots: tuple[int, ...],
        stall_s: float,
        *,
        limits: Limits | None = None,
        means: Means = ITS_MEANS,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.directory, self.stall_s = Path(directory), stall_s
        self.observer = means.observer or Observer(self.directory, roots, means.clock)
        self.progress = Progress(stall_s)
        self.peaks = Peaks(socket.gethostname())
        self.verdict: Verdict | None = None  # the last HUNG; without one the last verdict, but HEALTHY replaces nothing
        self.retention = Retention(self.directory, self._once, limits)
        self._clock, self._observe, self._say = means.clock, means.observe or self.observer, say
        self._collect, self._judge = means.collect or self._collect_for_real, means.judge or self._judge_for_real
        self._said: dict[str, None] = {}
        self._patience, self._hung, self._looked_s = 1.0, False, -math.inf
        self._ticks, self._fd = 0, -1
        self._stuck: frozenset[str] = frozenset()  # processes that stood still at the last hang
        self._calm = 0  # ticks without a suspicion since then
        self.on_verdict: Callable[[Verdict], None] = lambda verdict: None  # takes each verdict that the user is told
        self.slowness: Slowness | None = None  # set by a caller who also wants to know who stays slow
        self._slow_due_s = means.clock() + stall_s
        self._exit_code: int | None = None  # of the command, when it has ended
        self.ended_as_meant: Callable[[], bool] = lambda: False  # whether the command has ended with 0, or on request
        self.asked: tuple[int, int] | None = None  # the signal by which the command was asked to end, and when (ns)
        self.ends = False  # the caller ends a job whose hang is confirmed, so that advice about its processes is late
        self._confirms = False  # the look that confirms a hang is under way
        self._still_s, self._collecting = 0.0, threading.Lock()
        self._unresolved = False  # the user was told of a standstill, and of nothing that followed
        if absent := missing():
            self._once(absent)

    def tick(self) -> Stall | None:
        """Look once. A stall is returned when it has been judged a hang, and only once.

        Never raises. A look that fails (too many open files, a defect) is reported once, and the next tick looks again.
        """
        return self._carefully(self._tick)

    def confirm(self) -> Stall | None:
        """Look at a hang once more before a job is ended for it. Returns the stall if it is HUNG again. Never
        raises."""
        return self._carefully(self._confirm)

    def _carefully(self, look: Callable[[], Stall | None]) -> Stall | None:
        try:
            return look()
        except OSError as error:
            self._once(f"the job cannot be looked at, which is tried again every second: {error.strerror or error}")
        except Exception as error:
            self._once(f"a look at the job failed, a defect of the harness: {type(error).__name__}: {error}")
        return None

    def _tick(self) -> Stall | None:
        self._beat()
        now = self._clock()
        snapshot = self._observe()
        self.peaks.look(snapshot.processes, snapshot.at_s)
        suspicion = self.progress.feed(snapshot)
        self._still_s = suspicion.still_s if suspicion is not None else 0.0
        if self.progress.debugged:
            names = ", ".join(process.name or f"pid {process.pid}" for process in self.progress.debugged)
            self._once(f"{names} sits in a debugger: nothing counts as a stall until it goes on")
        if suspicion is None:
            self._patience = 1.0
            self._hung = self._hung and not self._goes_on(snapshot)
            self._look_for_slow(now)
            return None
        self._calm = 0
        # A known hang is not examined again, and a suspicion that was no hang only after growing pauses.
        if self._hung or now - self._looked_s < self._patience * self.stall_s:
            return None
        return self._examine(suspicion)

    def _goes_on(self, snapshot: Snapshot) -> bool:
        """Whether a hang is over. The user is told so if the job continues, but not if it ends, by itself or on
        request."""
        if self.asked is not None or not self._stuck <= {
            process.key for process in snapshot.processes if not over(process)
        }:
            return True
        self._calm += 1
        if self._calm < CALM:
            return False
        self.tell("the job goes on again")
        self._unresolved = False
        return True

    def over(self, exit_code: int) -> None:
        """Take note that the command has ended. A standstill that nothing calls a hang, and that was followed by a good
        end, was none: what was published of it says so, and what is said of it last."""
        self._exit_code = exit_code
        if self._unresolved and not exit_code:
            self.tell("the command went on since, and ended well")
        if exit_code or self.verdict is None or not stood_still(self.verdict):
            return
        self.verdict = ended_well(self.verdict)
        if self.retention.published:
            self.retention.publish(self.verdict, final=True)
            self.on_verdict(self.verdict)

    def _confirm(self) -> Stall | None:
        self._beat()
        suspicion = self.progress.feed(self._observe())
        self._hung, self._confirms = False, True
        try:
            return self._examine(suspicion) if suspicion is not None else None
        finally:
            self._confirms = False

    def look(self, folder: Path) -> Path:
        """Collect evidence of this moment into the new directory `folder`; return the last evidence if no process
        lives.

        May be called from any thread. Raises HarnessError if there is none.
        """
        from harness.triage.run import newest  # which attaches watches itself

        if lived(self._collected(folder, self.observer.roots, self._still_s)):
            return folder
        if (last := newest(self.directory)) is None:
            raise HarnessError(f"{self.directory} holds no evidence, and nobody lives")
        return last

    def close(self) -> None:
        """End the watch on purpose: processes that live on are told not to miss it."""
        code = {} if self._exit_code is None else {"exit_code": self._exit_code}
        asked = {} if self.asked is None else dict(zip(("signal", "signal_t_ns"), self.asked, strict=True))
        self._beat(ended=True, **code, **asked)
        self._close()
        self.retention.close()

    def _examine(self, suspicion: Suspicion) -> Stall | None:
        limits = [(self.progress.limit_s(suspect.process), suspect.process.timeout_s) for suspect in suspicion.suspects]
        limit, timeout = min(limits, key=lambda pair: pair[0])
        if limit < self.stall_s:
            self._once(f"a process group gives up after {timeout:g} s, so a stall is one after {limit:g} s already")
        folder, began = self.retention.folder(), self._clock()
        try:
            evidence = self._collect(folder, suspicion.still_s)
            verdict = self._judge(evidence)
        except Exception as error:  # a defect of the analysis must end neither the watch nor the job
            self._failed(error, folder)
            return None
        verdict = replace(verdict, paths={**verdict.paths, "evidence": str(folder)})
        previous_kind = self.verdict.verdict if self.verdict is not None else ""
        if not previous_kind or verdict.verdict == "HUNG" or (previous_kind != "HUNG" and verdict.verdict != "HEALTHY"):
            self.verdict = verdict  # a program that ends looks healthy; that does not replace what was shown before
        if verdict.verdict == "HUNG":
            self._hung, self._stuck, self._calm, self._unresolved = True, suspicion.keys, 0, True
            self.retention.keep(folder, verdict, subject="hung", displayed=True)
            self.retention.publish(verdict)
            self.on_verdict(verdict)
            return Stall(verdict, folder, suspicion.still_s + self._clock() - began)
        if self.ended_as_meant():  # while it was looked at: there is nothing left to tell
            self.retention.discard(folder)
            return None
        self._not_hung(verdict, suspicion, folder)
        self._later()
        return None

    def _look_for_slow(self, now: float) -> None:
        """Once a threshold, while nothing hangs: look who stays slow, and say so."""
        if self.slowness is None or self._hung or self.asked is not None or now < self._slow_due_s:
            return
        self._slow_due_s = now + self.stall_s
        folder = self.retention.folder()
        try:
            verdict = self.slowness.feed(self._collect(folder, 0.0))
        except Exception as error:  # as in `_examine`: neither the watch nor the job ends
            self._once(f"who is slow could not be looked at: {type(error).__name__}: {error}")
            verdict = None
        for why in self.slowness.untested:
            self._once(f"who is slow is not known: {why}")
        if verdict is None or verdict.triage is None:
            self.retention.discard(folder)
            return
        slow = sorted(key for row in verdict.triage.lateness if row.slow for key in row.keys)
        verdict = replace(verdict, paths={**verdict.paths, "evidence": str(folder)})
        if self.verdict is None or self.verdict.verdict != "HUNG":
            self.verdict = verdict
        subject = f"stays slow {slow}"
        is_shown = self._once(f"{verdict.reason}, at two looks in a row (evidence: {folder})", key=subject)
        self.retention.keep(folder, verdict, subject=subject, displayed=is_shown)
        if is_shown:
            self.retention.publish(verdict)
            self.on_verdict(verdict)

    def _failed(self, error: Exception, folder: Path) -> None:
        """Say why a suspicion could not be examined. It is examined again later."""
        if isinstance(error, HarnessError):
            why = f"could not be looked at: {error.message}"
        elif isinstance(error, OSError):
            why = f"could not be looked at: {error.strerror or error}"
        else:
            why = f"could not be judged, a defect of the harness: {type(error).__name__}: {error}"
        is_shown = self._once(f"a stall is suspected and {why}")
        self.retention.keep(folder, None, subject=f"failed {type(error).__name__}", displayed=is_shown)
        self._later()

    def _later(self) -> None:
        """Schedule the next look. While nothing changes, the pauses grow."""
        self._patience = min(2 * self._patience, MOST_PATIENT)
        self._looked_s = self._clock()

    def _not_hung(self, verdict: Verdict, suspicion: Suspicion, folder: Path) -> None:
        names = sorted(suspect.process.name or f"pid {suspect.process.pid}" for suspect in suspicion.suspects)
        who = " and ".join(names if len(names) < 3 else (names[0], f"{len(names) - 1} more"))
        if verdict.verdict == "HEALTHY":  # a pause: nothing to report
            self.retention.discard(folder)
        elif verdict.verdict == "SLOW":
            slow = sorted(party.key for party in verdict.triage.culprits) if verdict.triage else []
            waited = f"nothing has progressed for {suspicion.still_s:.0f} s"
            # Repeated at growing intervals, but not for ever: an endless loop looks like a long computation.
            is_shown = self._once(f"{verdict.reason} ({waited})", key=f"slow {slow} {self._patience:.0f}")
            self._unresolved = self._unresolved or is_shown
            self.retention.keep(folder, verdict, subject=f"slow {slow}", displayed=is_shown)
            if is_shown:
                self.on_verdict(verdict)
        else:
            line = f"nothing has progressed in {who}: {verdict.reason} (evidence: {folder})"
            is_shown = self._once(line, key=f"unclear {names[:4]}")
            self._unresolved = self._unresolved or is_shown
            self.retention.keep(folder, verdict, subject=f"unclear {names[:4]}", displayed=is_shown)
            if is_shown:
                self.retention.publish(verdict)
                self.on_verdict(verdict)

    def _once(self, line: str, key: str = "") -> bool:
        """Say a line unless it was said before. Returns whether it was said now."""
        key = key or line
        new = key not in self._said
        self._said.pop(key, None)
        self._said[key] = None  # the most recent line is forgotten last
        if len(self._said) > MAX_SAID:
            del self._said[next(iter(self._said))]
        if new:
            self.tell(line)
        return new

    def tell(self, line: str) -> None:
        """Say a line to the user."""
        with contextlib.suppress(OSError, ValueError):  # a closed terminal does not end the watch
            self._say(line)

    def _collect_for_real(self, folder: Path, stall_s: float) -> Evidence:
        return self._collected(folder, tuple(self.observer.living()), stall_s)

    def _judge_for_real(self, evidence: Evidence) -> Verdict:
        return before_end(evidence, self.directory) if self.ends and self._confirms else triage(evidence)

    def _collected(self, folder: Path, roots: tuple[int, ...], stall_s: float) -> Evidence:
        with self._collecting:  # two collectors at once would keep each other from the stacks
            return collect_evidence(Scope(roots, self.directory), out=folder, stall_s=stall_s, threshold_s=self.stall_s)

    def _beat(self, **more: Any) -> None:
        """Tell the watched processes that they are watched. They report if nobody watches them."""
        self._ticks += 1
        beat = {
            "host": socket.gethostname(), "pid": os.getpid(), "t_ns": time.monotonic_ns(), "count": self._ticks, **more
        }  # fmt: skip
        try:
            if self._fd < 0:
                make_folder(self.directory)
                self._fd = os.open(self.directory / WATCHDOG, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
            os.pwrite(self._fd, json.dumps(beat).encode().ljust(BLOCK), 0)
            if not os.fstat(self._fd).st_nlink:
                self._close()  # the next beat creates it again
                self._once(f"{self.directory} was removed while the job runs: what was recorded until then is lost")
        except OSError as error:
            self._close()
            self._once(f"{self.directory} cannot be written: {error.strerror}")

    def _close(self) -> None:
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = -1
