"""Run pytest on parts of the test files, each in a process of its own: `python tests/support/in_parts.py 3 FOLDER...`.

Each worker of pytest-xdist imports and collects every file, which was a third of the time of the fast tests. Here one
process alone imports a file. The exit code is the largest of the parts'.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path


def parts_of(files: Iterable[Path], count: int) -> list[list[Path]]:
    """`count` parts of the files, about equal in bytes. The files of a folder are spread over all of them, since tests
    of one folder are alike in what they cost."""
    parts: list[list[Path]] = [[] for _ in range(count)]
    sizes = [0] * count
    for file in sorted(files, key=lambda file: (file.parent, -file.stat().st_size, file.name)):
        smallest = sizes.index(min(sizes))
        parts[smallest].append(file)
        sizes[smallest] += file.stat().st_size
    return parts


def run(count: int, arguments: Sequence[str]) -> int:
    """Run all parts at once and return the exit code. The first part prints as it goes, the others after it."""
    folders = [Path(argument) for argument in arguments if Path(argument).is_dir()]
    options = [argument for argument in arguments if not Path(argument).is_dir()]
    files = [file for folder in folders for file in folder.rglob("test_*.py")]
    with tempfile.TemporaryDirectory() as kept:
        outputs = [Path(kept, str(number)) for number in range(1, count)]
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, *map(str, part)],
                stdout=output.open("wb") if output else None,
                stderr=subprocess.STDOUT if output else None,
            )
            for output, part in zip([None, *outputs], parts_of(files, count), strict=True)
        ]
        codes = [processes[0].wait()]
        for process, output in zip(processes[1:], outputs, strict=True):
            codes.append(process.wait())
            print(output.read_text(errors="replace"), end="", flush=True)
    return max(codes, key=abs)


if __name__ == "__main__":
    sys.exit(run(int(sys.argv[1]), sys.argv[2:]))
