"""Judge every tampering and write the table of docs/measurements/tampering.md.

Takes a few minutes; run it from the checkout.
"""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import tampering
from tampering_catalogue import CASES, CATALOGUE

PAGE = Path(__file__).parents[2] / "docs" / "measurements" / "tampering.md"
Case = tuple[str, str, str]


def _judged(case: Case) -> str:
    verdict = tampering.verdict(*case)
    return tampering.NOTHING if verdict is None else tampering.cell(verdict)


def main() -> int:
    cases = [case for case in CASES if case[2] in tampering.PLACES]
    found: dict[str, dict[tuple[str, str], str]] = {name: {} for name in CATALOGUE}
    with ProcessPoolExecutor(2) as pool:
        for (kind, name, place), told in zip(cases, pool.map(_judged, cases, chunksize=4), strict=True):
            found[name][kind, place] = told
            print(kind, name, place, CATALOGUE[name].expected(kind, place), told, sep=" | ", flush=True)
    lines = [tampering.HEAD, "|---" * (tampering.HEAD.count("|") - 1) + "|"]
    lines += [tampering.row(name, told) for name, told in found.items()]
    text = PAGE.read_text().partition(tampering.HEAD)[0]
    PAGE.write_text(text + "\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
