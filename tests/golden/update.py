"""Judge every row of the golden table again and write what is said today.

python -m tests.golden.update            # all rows; prints what changes
python -m tests.golden.update ROW ...    # some rows
"""

from __future__ import annotations

import argparse
import difflib
import sys
from concurrent.futures import ProcessPoolExecutor

from tests.golden import table
from tests.golden.judging import judged


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", help="default: all")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    before = table.read()
    unknown = sorted(set(options.rows) - set(before))
    if unknown:
        parser.error(f"the table has no row {', '.join(unknown)}")
    names = options.rows or sorted(before)
    with ProcessPoolExecutor(options.jobs) as pool:
        columns = dict(zip(names, pool.map(judged, [before[name] for name in names]), strict=True))
    after = {name: _judged_again(row, columns[name]) if name in columns else row for name, row in before.items()}
    old, new = table.text(before).splitlines(), table.text(after).splitlines()
    changes = list(difflib.unified_diff(old, new, "before", "after", lineterm="", n=2))
    print("\n".join(changes) or f"{len(names)} rows are as they were")
    table.write(after)
    return 0


def _judged_again(row: table.Row, columns: table.Row) -> table.Row:
    return {name: row[name] for name in table.WRITTEN if name in row} | columns


if __name__ == "__main__":
    sys.exit(main())
