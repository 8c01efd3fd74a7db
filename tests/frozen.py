"""Judge kept recordings again and compare the table with an earlier one: what a change of the judge may not change.

    harness faults run --suite parity --out runs/planted-differences      # the recordings, once
    python tests/frozen.py runs/planted-differences --write before.json   # before a change
    python tests/frozen.py runs/planted-differences --against before.json # after it; exit code 1 when a row differs

A row holds the verdict, its exit code, the causes with their parties, the outcome of each check, and the first
divergence. Only recordings are judged: causes that need a live engine are the suite's own to prove.
"""

from __future__ import annotations

import argparse
import json
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from harness.parity import judge


def row(folder: Path) -> tuple[str, dict[str, Any]]:
    """(name of the fault, its row of the table). `folder` holds the verdict of the suite, which names both runs."""
    paths = json.loads((folder / "verdict.json").read_text("utf-8"))["paths"]
    verdict = json.loads(judge(paths["baseline"], paths["candidate"]).to_json())
    parity = verdict["parity"] or {}
    first = parity.get("first_divergence")
    return folder.name, {
        "verdict": verdict["verdict"],
        "exit_code": verdict["exit_code"],
        "causes": sorted([cause["name"], cause["party"]] for cause in verdict["causes"]),
        "checks": {check["name"]: check["state"] for check in parity.get("checks", ())},
        "first": first and {name: first[name] for name in ("step", "phase", "rank", "sample", "position", "field")},
    }


def table(folder: Path, jobs: int) -> dict[str, dict[str, Any]]:
    folders = sorted(path.parent for path in folder.glob("*/verdict.json"))
    with ProcessPoolExecutor(jobs) as pool:
        return dict(pool.map(row, folders))


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """One line for each fault and column that differs, and for each fault that only one table has."""
    lines = [f"{name}: only in one table" for name in sorted(before.keys() ^ after.keys())]
    for name in sorted(before.keys() & after.keys()):
        lines += [
            f"{name}: {column} was {before[name][column]!r}, is {after[name][column]!r}"
            for column in before[name]
            if before[name][column] != after[name][column]
        ]
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recordings", type=Path, help="what `harness faults run --suite parity --out` wrote")
    parser.add_argument("--write", type=Path, help="keep the table here")
    parser.add_argument("--against", type=Path, help="an earlier table")
    parser.add_argument("--jobs", type=int, default=1)
    asked = parser.parse_args()
    found = table(asked.recordings, asked.jobs)
    if not found:
        print(f"{asked.recordings} holds no verdict of a suite: harness faults run --suite parity --out DIR makes them")
        return 2
    if asked.write:
        asked.write.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", "utf-8")
    if not asked.against:
        print(f"{len(found)} recordings judged")
        return 0
    lines = differences(json.loads(asked.against.read_text("utf-8")), json.loads(json.dumps(found)))
    print("\n".join(lines) or f"{len(found)} recordings judged as before")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
