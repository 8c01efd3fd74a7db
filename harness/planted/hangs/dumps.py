"""Hangs that exist only as flight recorder dumps: a symmetric wedge of the fabric, and worlds of a thousand ranks."""

from __future__ import annotations

import time
from pathlib import Path

from harness.errors import BadInput
from harness.planted.hangs.hang_outcome import Outcome, judged
from harness.triage import directory, judge
from harness.triage.flight import synthesis
from probes.files import make_new_folder
from scenarios.planted.hangs.catalog import Hang


def judge_dumps(hang: Hang, folder: Path) -> Outcome:
    """Write the dumps that the hang describes, and judge them as `harness triage DIR` does. No process is started."""
    assert hang.dumps is not None
    wanted = hang.dumps
    try:
        fault = synthesis.Fault(wanted.fault, wanted.rank, wanted.at, wanted.ahead)  # type: ignore[arg-type]
        job = synthesis.simulate(hang.world, wanted.entries, fault)
    except (ValueError, IndexError, StopIteration) as error:
        raise BadInput(
            f"{hang.name}: no dumps of fault {wanted.fault!r} can be made: {error}", fix="harness faults list"
        ) from error
    place = folder / "dumps"
    make_new_folder(place)
    for _ in synthesis.write(job, place):
        pass
    began = time.monotonic()
    verdict = judge.triage(directory.read(place))
    seconds = time.monotonic() - began
    return judged(hang, verdict, seconds=seconds, wall_s=seconds)
