"""Judge an unwatched job by running `harness triage PID` repeatedly while the job runs."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.planted.hangs.hang_outcome import Outcome, judged
from harness.triage import run
from harness.triage.rules.pauses import FRESH_S
from probes.files import open_new
from reports.model import Verdict
from scenarios.planted.hangs.catalog import Hang

WORD = b"under way"  # the program prints it once its steps progress


def judge_looks(hang: Hang, folder: Path, words: Sequence[str], limit_s: float, environ: Mapping[str, str]) -> Outcome:
    """Run triage `hang.looks` times. Return the first outcome that is wrong, or the last one.

    The job keeps running; the caller ends it by its mark. Before the first look at a hang, wait until the hang is old
    enough to be recognized.
    """
    log, began = folder / "program.log", time.monotonic()
    with open_new(log) as output:
        process = subprocess.Popen(
            list(words), stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=folder, env=dict(environ),
            start_new_session=True,
        )  # fmt: skip
    while WORD not in log.read_bytes():
        if process.poll() is not None or time.monotonic() > began + limit_s:
            return judged(hang, None, error="it did not get under way")
        time.sleep(0.2)
    if not hang.control:
        time.sleep(FRESH_S + 2.0)
    outcomes = []
    for number in range(hang.looks):
        verdict: Verdict = run.triage([str(process.pid)], folder / f"look-{number}")
        outcomes.append(
            judged(hang, verdict, wall_s=time.monotonic() - began, evidence=verdict.paths.get("evidence", ""))
        )
    return next((outcome for outcome in outcomes if not outcome.right), outcomes[-1])
