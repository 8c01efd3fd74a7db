"""Run pytest in several processes, each on a part of the test files: `python tests/support/in_parts.py 2 FOLDER...`.

Each worker of pytest-xdist imports and collects every file, and reports every test to another process. Over 6,400 fast
tests that was a third of all processor time. Here one process collects a file, and counts its tests itself.
`tests/conftest.py` takes the option `--part 1/2` and leaves out the files of the other parts.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path


def part_of(files: Iterable[Path], part: str) -> frozenset[Path]:
    """The files of one part, as `1/2`. The parts are about equal in bytes, which predict processor time well: 35 and
    34 s. The files of a folder are spread over all parts, since tests of one folder are alike in what they cost."""
    number, _, count = part.partition("/")
    parts: list[list[Path]] = [[] for _ in range(int(count))]
    sizes = [0] * len(parts)
    for file in sorted(files, key=lambda file: (file.parent, -file.stat().st_size, file.name)):
        smallest = sizes.index(min(sizes))
        parts[smallest].append(file)
        sizes[smallest] += file.stat().st_size
    return frozenset(parts[int(number) - 1])


def run(count: int, arguments: Sequence[str]) -> int:
    """Run all parts at once and return the exit code. The first part prints as it goes, the others after it."""
    # Each part would write down as the last failures of all tests what failed in it.
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    with tempfile.TemporaryDirectory() as kept:
        outputs = [Path(kept, str(number)) for number in range(2, count + 1)]
        first = subprocess.Popen([*command, "--part", f"1/{count}"])
        others = [
            subprocess.Popen(
                [*command, "--part", f"{output.name}/{count}"], stdout=output.open("wb"), stderr=subprocess.STDOUT
            )
            for output in outputs
        ]
        codes = [first.wait()]
        for process, output in zip(others, outputs, strict=True):
            codes.append(process.wait())
            print(output.read_text(errors="replace"), end="", flush=True)
    return max(codes, key=abs)


if __name__ == "__main__":
    sys.exit(run(int(sys.argv[1]), sys.argv[2:]))
