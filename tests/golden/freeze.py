"""Keep an input for the golden table, and give it a row.

    python -m tests.golden.freeze ROW "what it shows" --test tests/unit/parity/test_x.py::test_y[z]
    python -m tests.golden.freeze ROW "what it shows" --folder DIR --command "triage evidence" [--program .]

With `--test` the recordings are those that the test has judged (`--call`: which time), with the judge's options. With
`--folder` the folder is kept as it is, without checkpoints. Triage reads the text of the program that hangs:
`--program CHECKOUT` keeps the files of that checkout that DIR/evidence names.
"""

from __future__ import annotations

import argparse
import io
import re
import shlex
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from tests.golden import table
from tests.golden.judging import PROGRAM, TESTS, judged

INPUTS = Path(__file__).with_name("inputs")
LEFT_OUT = ("checkpoints", "verdict.json", "suite.json", "suite.md", "events.parquet", "tokens.parquet")


def pack(folder: Path, path: Path) -> None:
    """The same archive for the same files, whoever packs them and whenever."""
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, "w:xz", preset=9) as packed:
        for file in sorted(folder.rglob("*")):
            inside = file.relative_to(folder)
            if file.is_file() and not set(inside.parts) & set(LEFT_OUT):
                member = tarfile.TarInfo(str(inside))
                content = file.read_bytes()
                member.size = len(content)
                packed.addfile(member, io.BytesIO(content))


def with_program(folder: Path, checkout: Path, into: Path) -> Path:
    """The folder with evidence of a program of this checkout, and that program's text beside it under PROGRAM."""
    shutil.copytree(folder, into)
    named = re.compile(rb"%s/([\w/.-]+\.py)" % re.escape(str(checkout).encode()))
    for file in into.glob("evidence/**/*.json"):
        content = file.read_bytes()
        for name in set(named.findall(content)):
            source = checkout / name.decode()
            if ".venv" not in source.parts and source.is_file():
                (into / name.decode()).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, into / name.decode())
        file.write_bytes(content.replace(str(checkout).encode(), PROGRAM))
    return into


class Harvest:
    """Copies what a test gives to the judge: as `baseline`, `candidate` and `again`, or as `run`."""

    def __init__(self, into: Path) -> None:
        self.into = into
        self.commands: list[list[str]] = []

    def judge(self, ask: Callable[..., Any]) -> Callable[..., Any]:
        def asked(baseline: Any, candidate: Any, **options: Any) -> Any:
            folder = self._folder()
            command = ["diff", "baseline", "candidate"]
            shutil.copytree(baseline, folder / "baseline")
            shutil.copytree(candidate, folder / "candidate")
            again = options.get("again") or {}
            if set(again) - {"baseline"} or set(options) - {"again", "cap", "native"}:
                raise ValueError(f"`harness diff` cannot be asked this: {options}")
            for second in again.values():
                shutil.copytree(second, folder / "again")
                command += ["--again", "again"]
            if options.get("cap") is not None:
                command += ["--cap", str(options["cap"])]
            self.commands.append(command)
            return ask(baseline, candidate, **options)

        return asked

    def audit(self, ask: Callable[..., Any]) -> Callable[..., Any]:
        def asked(path: Any, **options: Any) -> Any:
            shutil.copytree(path, self._folder() / "run")
            self.commands.append(["audit", "run"])
            return ask(path, **options)

        return asked

    def _folder(self) -> Path:
        folder = self.into / str(len(self.commands))
        folder.mkdir()
        return folder


def harvested(test: str, call: int, into: Path) -> tuple[Path, list[str]]:
    """The folder with what the test has judged the `call`th time, and the command that judges it."""
    import pytest

    from harness.parity import audit, verdict

    harvest = Harvest(into)
    comparing = mock.patch.object(verdict, "judge", harvest.judge(verdict.judge))
    auditing = mock.patch.object(audit, "audit", harvest.audit(audit.audit))
    with comparing, auditing:
        if pytest.main([test, "-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-W", "ignore"]):
            raise SystemExit(f"{test} fails")
    return into / str(call), harvest.commands[call]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("row")
    parser.add_argument("shows")
    parser.add_argument("--test")
    parser.add_argument("--call", type=int, default=0)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--made-by", default="")
    parser.add_argument("--command", type=shlex.split)
    parser.add_argument("--program", type=Path)
    parser.add_argument("--known-wrong", default="")
    options = parser.parse_args()
    path = INPUTS / f"{options.row}.tar.xz"
    with tempfile.TemporaryDirectory() as scratch:
        folder, command = options.folder, options.command
        if options.test:
            folder, command = harvested(options.test, options.call, Path(scratch))
        if options.program:
            folder = with_program(folder, options.program.resolve(), Path(scratch) / "evidence-and-program")
        pack(folder, path)
    written = {
        "shows": options.shows,
        "made_by": options.test or options.made_by,
        "input": str(path.relative_to(TESTS)),
        "command": command,
        "known_wrong": options.known_wrong,
    }
    row = {name: value for name, value in written.items() if value}
    table.write(table.read() | {options.row: row | judged(row)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
