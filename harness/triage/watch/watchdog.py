"""The watchdog: looks, suspects, has evidence collected and judged, and says each thing once.

`tick` is called every second by whoever runs the job: `command.watch`, or a thread of a controller.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import math
import os
import shutil
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import HarnessError
from harness.triage.watch.observe import Observer
from harness.triage.watch.progress import Progress, Snapshot, Suspicion

if TYPE_CHECKING:
    from harness.triage.evidence import Evidence
    from reports.model import Verdict

VERDICT, EVIDENCE, OWN_BEAT = "verdict.json", "evidence", "watchdog.json"
BLOCK = 512
MOST_PATIENT = 16  # looks at one suspicion that is no hang come after 1, 2, 4, 8, 16, 16, ... times the threshold


@dataclass(frozen=True)
class Stall:
    """The job hangs. `seconds`: from the last progress to the verdict."""

    verdict: Verdict
    evidence: Path
    seconds: float


class Watchdog:
    """Watches the processes below `roots` and whoever beats in `directory`; evidence and verdict go there as well.

    Processes below `foreign` are none of the job's. `observe`, `collect` and `judge` are for tests; `say` takes one
    line for the user.
    """

    def __init__(
        self,
        directory: Path,
        roots: tuple[int, ...],
        stall_s: float,
        *,
        foreign: frozenset[int] = frozenset(),
        clock: Callable[[], float] = time.monotonic,
        observe: Callable[[], Snapshot] | None = None,
        collect: Callable[[Path, float], Evidence] | None = None,
        judge: Callable[[Evidence], Verdict] | None = None,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.directory, self.stall_s = Path(directory), stall_s
        self.observer = Observer(self.directory, roots, clock, foreign=foreign)
        self.progress = Progress(stall_s)
        self.verdict: Verdict | None = None  # the last one, whatever it was
        self._clock, self._observe, self._say = clock, observe or self.observer, say
        self._collect, self._judge = collect or self._collect_for_real, judge or _judge_for_real
        self._said: set[str] = set()
        self._patience, self._hung, self._looked_s = 1.0, False, -math.inf
        self._slow: Path | None = None
        self._ticks, self._fd = 0, -1

    def tick(self) -> Stall | None:
        """Look once. A stall is returned when it has been judged to be one, and once only."""
        self._beat()
        now = self._clock()
        suspicion = self.progress.feed(self._observe())
        if self.progress.debugged:
            names = ", ".join(seen.name or str(seen.pid) for seen in self.progress.debugged)
            self._once(f"{names} sits in a debugger: nothing counts as a stall until it goes on")
        if suspicion is None:
            if self._hung:
                self._say("the job goes on again")
            self._patience, self._hung = 1.0, False
            return None
        if self._hung or now - self._looked_s < self._patience * self.stall_s:
            return None
        return self._examine(suspicion)

    def close(self) -> None:
        """The watch ends on purpose: processes that live on need not miss it."""
        self._beat(ended=True)
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _examine(self, suspicion: Suspicion) -> Stall | None:
        limits = [(self.progress.limit_s(one.seen), one.seen.timeout_s) for one in suspicion.suspects]
        limit, timeout = min(limits, key=lambda pair: pair[0])
        if limit < self.stall_s:
            self._once(f"a process group gives up after {timeout:g} s, so a stall is one after {limit:g} s already")
        folder, began = self._folder(), self._clock()
        try:
            evidence = self._collect(folder, suspicion.still_s)
            verdict = self._judge(evidence)
        except HarnessError as error:
            self._once(f"a stall is suspected and could not be looked at: {error.message}")
            self._later()
            return None
        except Exception as error:  # a defect of the analysis must not end the watch, nor the job
            self._once(f"a stall is suspected; a defect of the harness: {type(error).__name__}: {error}")
            self._later()
            return None
        verdict = replace(verdict, paths={**verdict.paths, "evidence": str(folder)})
        self.verdict = verdict
        if verdict.verdict == "HUNG":
            self._hung = True
            self._write(verdict)
            return Stall(verdict, folder, suspicion.still_s + self._clock() - began)
        self._not_hung(verdict, suspicion, folder)
        self._later()
        return None

    def _later(self) -> None:
        """Look again, after ever longer while nothing changes."""
        self._patience = min(2 * self._patience, MOST_PATIENT)
        self._looked_s = self._clock()

    def _not_hung(self, verdict: Verdict, suspicion: Suspicion, folder: Path) -> None:
        who = ", ".join(sorted(one.seen.name or str(one.seen.pid) for one in suspicion.suspects)[:4])
        if verdict.verdict == "HEALTHY":  # somebody paused: nothing to tell anybody
            shutil.rmtree(folder, ignore_errors=True)
        elif verdict.verdict == "SLOW":
            if self._slow is not None:
                shutil.rmtree(self._slow, ignore_errors=True)
            self._slow = folder
            slow = sorted(party.key for party in verdict.triage.culprits) if verdict.triage else []
            waited = f"nothing has progressed in {who} for {suspicion.still_s:.0f} s"
            # said again after ever longer, and not for ever: a loop without an end looks like a long computation
            self._once(f"{verdict.reason} ({waited})", key=f"slow {slow} {self._patience:.0f}")
        else:
            self._write(verdict)
            self._once(f"nothing has progressed in {who}: {verdict.reason} (evidence: {folder})", key=f"unclear {who}")

    def _once(self, line: str, key: str = "") -> None:
        if (key or line) not in self._said:
            self._said.add(key or line)
            self._say(line)

    def _folder(self) -> Path:
        stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%d-%H%M%S")
        for number in range(1, 1000):
            folder = self.directory / EVIDENCE / (stamp if number == 1 else f"{stamp}-{number}")
            with contextlib.suppress(FileExistsError):
                folder.mkdir(parents=True)
                return folder
        raise HarnessError(f"{self.directory / EVIDENCE} is full of evidence of this second")

    def _write(self, verdict: Verdict) -> None:
        path = self.directory / VERDICT
        temporary = path.with_suffix(".part")
        try:
            temporary.write_text(verdict.to_json(), encoding="utf-8")
            os.replace(temporary, path)
        except OSError as error:
            self._once(f"{path} cannot be written: {error.strerror}")

    def _collect_for_real(self, folder: Path, stall_s: float) -> Evidence:
        from harness.triage.collect import Scope, collect

        return collect(Scope(tuple(self.observer.living()), self.directory), out=folder, stall_s=stall_s)

    def _beat(self, **more: Any) -> None:
        """Tell the watched processes that somebody is there; they say so when nobody is."""
        self._ticks += 1
        beat = {
            "host": socket.gethostname(), "pid": os.getpid(), "t_ns": time.monotonic_ns(), "count": self._ticks, **more
        }  # fmt: skip
        try:
            if self._fd < 0:
                self.directory.mkdir(parents=True, exist_ok=True)
                self._fd = os.open(self.directory / OWN_BEAT, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            os.pwrite(self._fd, json.dumps(beat).encode().ljust(BLOCK), 0)
        except OSError as error:
            self._once(f"{self.directory} cannot be written: {error.strerror}")


def _judge_for_real(evidence: Evidence) -> Verdict:
    from harness.triage.judge import triage

    return triage(evidence)
