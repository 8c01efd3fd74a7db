"""One comparison of a bisection: run in a process of its own, and called good, bad or skipped."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.bisect.request import Request
from harness.commands.options import seconds
from harness.errors import HarnessError
from harness.nightly import cells
from harness.nightly.observation import observed
from harness.parity.runs.recording import written
from harness.parity.runs.run import diff
from reports.bisect_model import Call
from reports.model import Verdict


@dataclass(frozen=True)
class Judged:
    """What one comparison was called, and why. `environment`: the one that was made for it."""

    call: Call
    why: str
    environment: str = ""


@dataclass(frozen=True)
class Judge:
    """What is good and what is bad: the verdict, or a metric above a bound, or a cause by its name or family."""

    request: Request

    @property
    def question(self) -> str:
        if self.request.metric:
            return f"{self.request.metric} is above {self.request.above:g}"
        if self.request.cause:
            return f"the cause {self.request.cause} is found"
        return "the command fails" if self.request.over == "commits" else "the verdict is DIVERGENT"

    def call(self, verdict: Verdict, folder: Path) -> Judged:
        """`folder`: of the recordings."""
        told = f"{verdict.verdict}: {verdict.reason}"
        decided = verdict.verdict in ("EQUIVALENT", "DIVERGENT")
        if self.request.metric:
            value = observed(verdict, folder).metrics.get(self.request.metric, math.nan)
            shown = f"{self.request.metric} {value:.4g}; {told}"
            if value > (self.request.above or 0.0):
                return Judged("bad", shown)
            return Judged("good" if decided and not math.isnan(value) else "skip", shown)
        if self.request.cause:
            names = {name for cause in verdict.causes for name in (cause.name, cause.key.family)}
            if self.request.cause in names:
                return Judged("bad", told)
            return Judged("good" if decided else "skip", told)
        return Judged({"EQUIVALENT": "good", "DIVERGENT": "bad"}.get(verdict.verdict, "skip"), told)  # type: ignore[arg-type]

    def pair(
        self, baseline: str, candidate: str, place: Path, words: Sequence[str], environ: Mapping[str, str] | None = None
    ) -> Judged:
        """`harness parity` of two backends."""
        recording = place / "recording"
        own = ["--out", str(recording), "--format", "json", *words, *self.request.options]
        if failure := self._launch(["parity", baseline, candidate, *own], place, environ, recording / "verdict.json"):
            return failure
        return self.read(recording / "verdict.json", recording)

    def against_recording(
        self, reference: Path, scenario: str, place: Path, words: Sequence[str], environ: Mapping[str, str]
    ) -> Judged:
        """`harness run` of one backend, judged against a recorded run."""
        if failure := self.record(scenario, place, words, environ):
            return failure
        try:
            verdict = written(diff(reference, place / "recording"), place)
        except HarnessError as error:
            return Judged("skip", error.message)
        return self.call(verdict, place)

    def record(self, scenario: str, place: Path, words: Sequence[str], environ: Mapping[str, str]) -> Judged | None:
        """`harness run` into `place`/recording; why that failed, or None."""
        recording = place / "recording"
        own = ["--out", str(recording), *words, *self.request.options]
        return self._launch(["run", scenario, *own], place, environ, recording / "run.json", ended_well=True)

    def read(self, file: Path, folder: Path) -> Judged:
        """The verdict in a file."""
        try:
            return self.call(Verdict.from_dict(json.loads(file.read_text(encoding="utf-8"))), folder)
        except (OSError, ValueError, TypeError) as error:
            return Judged("skip", f"{file} cannot be read: {error}")

    def _launch(
        self, words: Sequence[str], place: Path, environ: Mapping[str, str] | None, made: Path, ended_well: bool = False
    ) -> Judged | None:
        shutil.rmtree(place, ignore_errors=True)  # of a step that was cut
        code, _ = cells.launch(words, place, seconds(self.request.limit, "--limit"), environ)
        if code is None:
            return Judged("skip", f"ended at its limit of {self.request.limit}")
        if not made.is_file() or (ended_well and code):
            return Judged("skip", cells.no_verdict(code, place))
        return None
