"""Record planted faults with what the live engines answered, for the golden table.

    python -m tests.golden.record_faults OUT [harness faults run's options and names]

OUT/FAULT holds the verdict with live proofs, the candidate's recording, and the answers of the bench.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from harness import cli
from harness.parity.attribution import attribute
from harness.planted.differences import fault_runs
from reports.model import Verdict
from tests.golden.bench_answers import NAME, RecordingBench


def _attribute(judged: Any, bench: Any) -> Verdict:
    return attribute(judged, RecordingBench(bench, Path(judged.verdict.paths["candidate"]).parent / NAME))


def main(out: str, *words: str) -> int:
    fault_runs.attribute = _attribute
    return int(cli.main(["faults", "run", "--suite", "parity", "--out", out, *words]))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
