"""Judge every tampering and write the table of docs/measurements/tampering.md.

Takes a few minutes; run it from the checkout.
"""

from __future__ import annotations

import copy
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path

import tampering

from harness.parity import judge

PAGE = Path(__file__).parents[2] / "docs" / "measurements" / "tampering.md"
Case = tuple[str, str, str]


@cache
def _sound(kind: str, native: bool) -> tampering.Runs:
    return tampering.sound(kind, native=native)


def _judged(case: Case) -> str:
    kind, name, place = case
    one = tampering.CATALOGUE[name]
    runs = copy.deepcopy(_sound(kind, one.native))
    if not tampering.tamper(runs, one, place):
        return tampering.NOTHING
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        again = {} if runs.again is None else {"baseline": runs.again.write(where / "again")}
        verdict = judge(runs.baseline.write(where / "b"), runs.candidate.write(where / "c"), again=again)
    return tampering.cell(verdict)


def main() -> int:
    cases = [case for case in tampering.CASES if case[2] in tampering.PLACES]
    found: dict[str, dict[tuple[str, str], str]] = {name: {} for name in tampering.CATALOGUE}
    with ProcessPoolExecutor(2) as pool:
        for (kind, name, place), told in zip(cases, pool.map(_judged, cases, chunksize=4), strict=True):
            found[name][kind, place] = told
            print(kind, name, place, tampering.CATALOGUE[name].expected(kind, place), told, sep=" | ", flush=True)
    lines = [tampering.HEAD, "|---" * (tampering.HEAD.count("|") - 1) + "|"]
    lines += [tampering.row(name, told) for name, told in found.items()]
    text = PAGE.read_text().partition(tampering.HEAD)[0]
    PAGE.write_text(text + "\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
