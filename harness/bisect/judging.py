"""Run one comparison of a bisection in a process of its own, and classify it as good, bad or skipped."""

from __future__ import annotations

import json
import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import verdict_file
from harness.bisect.request import Request
from harness.errors import HarnessError
from harness.nightly import cells
from harness.nightly.observation import observed
from harness.parity.runs.recording import written
from harness.parity.runs.run import diff
from harness.quantities import seconds
from reports.bisect_model import Call
from reports.model import Verdict


@dataclass(frozen=True)
class Judged:
    """The classification of one comparison.

    call: good, bad or skip.
    why: the reason, in words.
    environment: the name of the environment that was made for the comparison; empty where none was made.
    """

    call: Call
    why: str
    environment: str = ""


def _warm(folder: Path) -> bool:
    """Whether a recording in a folder directly below was made with warm engines, those that `harness up` keeps."""
    return any("warm" in json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*/run.json"))


@dataclass(frozen=True)
class Judge:
    """The criterion for good and bad: the verdict, a metric above a bound, or a cause by its name or family."""

    request: Request

    @property
    def question(self) -> str:
        if self.request.metric:
            return f"{self.request.metric} is above {self.request.above:g}"
        if self.request.cause:
            return f"the cause {self.request.cause} is found"
        return "the command fails" if self.request.run else "the verdict is DIVERGENT"

    def call(self, verdict: Verdict, folder: Path) -> Judged:
        """Classify a verdict. `folder` is the directory that contains the recordings."""
        warm = " (engines that were up)" if _warm(folder) else ""
        request, why = self.request, f"{verdict.verdict}{warm}: {verdict.reason}"
        decided = verdict.verdict in ("EQUIVALENT", "DIVERGENT")
        bad = verdict.verdict == "DIVERGENT"
        if request.metric:
            value = observed(verdict, folder).metrics.get(request.metric, math.nan)
            why = f"{request.metric} {value:.4g}; {why}"
            bad, decided = value > (request.above or 0.0), decided and not math.isnan(value)
        elif request.cause:
            bad = any(request.cause in (cause.name, cause.key.family) for cause in verdict.causes)
        if bad:
            return Judged("bad", why)
        return Judged("good" if decided else "skip", why)

    def pair(
        self,
        backends: tuple[str, str],
        place: Path,
        words: Sequence[str],
        environ: Mapping[str, str],
        command: Sequence[str] = (),
        job: Sequence[str] = (),
    ) -> Judged:
        """Run `harness parity` of two backends, the baseline first, and classify the result.

        command: how to start the harness, as in `cells.launch`. job: the command line of a framework.
        """
        recording = place / "recording"
        arguments = ["--out", str(recording), "--format", "json", *words, *self.request.options]
        arguments += ["--", *job] if job else []
        failure = self._launch(["parity", *backends, *arguments], place, environ, (0, 1, 3), command)
        return failure or self.read(recording)

    def against_recording(
        self, reference: Path, scenario: str, place: Path, words: Sequence[str], environ: Mapping[str, str]
    ) -> Judged:
        """Run `harness run` with one backend, and classify the new run against the recorded run `reference`."""
        if failure := self.record(scenario, place, words, environ):
            return failure
        try:
            return self.call(written(diff(reference, place / "recording"), place), place)
        except HarnessError as error:
            return Judged("skip", error.message)

    def record(self, scenario: str, place: Path, words: Sequence[str], environ: Mapping[str, str]) -> Judged | None:
        """Run `harness run` into `place`/recording. Return why it failed, or None."""
        arguments = ["--out", str(place / "recording"), *words, *self.request.options]
        return self._launch(["run", scenario, *arguments], place, environ, (0,))

    def read(self, folder: Path) -> Judged:
        """Classify the verdict that is stored in `folder`."""
        try:
            return self.call(verdict_file.read(folder), folder)
        except HarnessError as error:
            return Judged("skip", error.message)

    def _launch(
        self,
        words: Sequence[str],
        place: Path,
        environ: Mapping[str, str],
        codes: Container[int],
        command: Sequence[str] = (),
    ) -> Judged | None:
        """Run a harness command. Return a skip where it reached the time limit or its exit code is not in `codes`,
        else None.
        """
        code, _ = cells.launch(words, place, seconds(self.request.limit, "--limit"), environ, command)
        if code is None:
            return Judged("skip", f"ended at its limit of {self.request.limit}")
        return None if code in codes else Judged("skip", cells.no_verdict(code, place))
