"""A case of the fuzzer: an input, what is changed in it, and which command reads it; and what must not come of it.

`python tests/support/hostile_cases.py 'CASE'` runs a case again, from the text that a failing test prints.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from hostile_changes import Change, apply, files_of
from hostile_inputs import BAD_INPUT, INPUTS, PACKED, made, packed
from hostile_server import Answer, Server

from probes.format import EVENTS, INDEX, MANIFEST, TOKENS
from reports.model import PASSES

WRONG = ("Traceback (most recent call last)", "a defect of the harness", "MemoryError")


@dataclass(frozen=True)
class Case:
    """`sealed`: checksums and digests are made right again after the changes, as a forger would."""

    input: str
    command: int
    sealed: bool
    changes: tuple[Change, ...]

    def __str__(self) -> str:
        return " ".join((self.input, str(self.command), "sealed" if self.sealed else "raw", *map(str, self.changes)))

    @classmethod
    def parse(cls, text: str) -> Case:
        name, command, seal, *changes = text.split(" ")
        return cls(name, int(command), seal == "sealed", tuple(map(Change.parse, changes)))


def fault(case: Case, server: Server) -> str:
    """What is wrong with the answer to a case; empty where nothing is."""
    source = INPUTS[case.input]
    words = source.commands[case.command % len(source.commands)]
    with tempfile.TemporaryDirectory(prefix="hostile-") as place:
        folder = Path(shutil.copytree(made(case.input), Path(place) / "files"))
        for change in case.changes:
            apply(folder, change, sealed=case.sealed)
        altered = source.recording and not case.sealed and _protected(folder) != _protected(made(case.input))
        if (folder / PACKED).is_dir():
            packed(folder, sealed=case.sealed)
        answer = server.run(words, folder, function=source.function)
        wrong = _refused(answer, case) or _fault_of(answer, words, source.codes, altered=altered)
        if wrong and not answer.stopped:
            wrong += "\n" + server.run(words, folder, function=source.function, debug=True).stderr[-4000:]
    return wrong


def _protected(folder: Path) -> dict[str, bytes]:
    """The files of recordings that have checksums."""
    files = {file.relative_to(folder): file for file in files_of(folder)}
    return {
        str(name): file.read_bytes()
        for name, file in files.items()
        if name.name in (MANIFEST, INDEX) or name.parent.name in (EVENTS, TOKENS)
    }


def _fault_of(answer: Answer, words: tuple[str, ...], codes: frozenset[int], *, altered: bool) -> str:
    if answer.stopped:
        return f"ended by signal {-answer.code} after {answer.seconds:.1f} s of processor time"
    printed = answer.stdout.decode(errors="replace") + answer.stderr
    if wrong := next((text for text in WRONG if text in printed), ""):
        return wrong
    if answer.code not in codes | {BAD_INPUT}:
        return f"exit code {answer.code}"
    if answer.code == BAD_INPUT and not answer.stdout and not answer.stderr.strip():
        return "exit code 2 without a sentence"
    if "json" in words and answer.stdout:
        return _fault_of_json(answer, altered=altered)
    return ""


def _refused(answer: Answer, case: Case) -> str:
    """That the files of a case without changes are refused: then its changes reach no further either."""
    whole = not case.changes and answer.code not in INPUTS[case.input].codes
    return f"exit code {answer.code} for files as they are" if whole else ""


def _fault_of_json(answer: Answer, *, altered: bool) -> str:
    try:
        verdict = json.loads(answer.stdout, parse_constant=_refuse)
    except ValueError as error:
        return f"what is printed is no JSON: {error}"
    if altered and isinstance(verdict, dict) and verdict.get("verdict") in PASSES:
        return f"{verdict['verdict']}, though bytes with checksums were changed"
    return ""


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def main(text: str) -> None:
    with Server() as server:
        print(fault(Case.parse(text), server) or "nothing wrong")


if __name__ == "__main__":
    main(sys.argv[1])
