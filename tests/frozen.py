"""Freezes what the judge says of kept recordings, so that a change of its structure can be held against it.

    harness faults run --suite parity --out runs/planted-differences        # once, the better part of a night
    python tests/frozen.py write runs/planted-differences table.json        # before the change
    python tests/frozen.py compare runs/planted-differences table.json      # after it; exits 1 where a row differs

Judged from the recordings alone: no engine is started, so a cause that only an intervention proves is not in the table.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

WORKERS = 2


def row(folder: Path) -> dict[str, Any]:
    """What is said of one pair; what the judge raises, where it does."""
    from harness.parity.verdict import judge

    paths = json.loads((folder / "verdict.json").read_text())["paths"]
    try:
        found = judge(paths["baseline"], paths["candidate"])
    except Exception as error:  # an error is a row like another: that it stays the same is what is asked
        return {"error": f"{type(error).__name__}: {error}"}
    first = found.parity.first_divergence if found.parity else None
    return {
        "verdict": found.verdict,
        "exit_code": found.exit_code,
        "causes": sorted(
            f"{one.name} ({one.party}, {'proven' if one.proofs else 'not proven'})" for one in found.causes
        ),
        "first": None
        if first is None
        else [first.step, first.phase, first.rank, first.sample, first.position, first.field],
        "checks": {one.name: one.state for one in found.parity.checks} if found.parity else {},
    }


def table(suite: Path) -> dict[str, dict[str, Any]]:
    folders = sorted(one.parent for one in suite.glob("*/verdict.json"))
    with ProcessPoolExecutor(WORKERS) as pool:
        return dict(zip((one.name for one in folders), pool.map(row, folders), strict=True))


def main() -> int:
    how, suite, path = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    now = table(suite)
    if how == "write":
        path.write_text(json.dumps(now, indent=1, sort_keys=True) + "\n")
        print(f"{len(now)} rows in {path}")
        return 0
    then = json.loads(path.read_text())
    differing = 0
    for name in sorted({*then, *now}):
        before, after = then.get(name, {}), now.get(name, {})
        changed = sorted(key for key in {*before, *after} if before.get(key) != after.get(key))
        differing += bool(changed)
        for key in changed:
            print(f"{name}: {key}: {before.get(key)} -> {after.get(key)}")
    print(f"{differing} of {len({*then, *now})} rows differ")
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(main())
