"""Select the hangs to run, from the lab's catalogue or from a user's file (docs/measurements/hang-lab.md)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from harness.errors import BadInput, closest
from harness.planted.foreign import listed
from reports.model import HANGS as HANG_KINDS
from scenarios.planted.hangs.catalog import CONDITIONS, HANGS, VARIANTS, Hang

KINDS = tuple(HANG_KINDS)
VERDICTS = ("HUNG", "SLOW", "HEALTHY", "INSUFFICIENT")
EXAMPLE = 'HANGS = [Hang("mine", "K4", "rank 1 dies", "train.py", world=2)]   # of scenarios.planted.hangs.catalog'


def hangs(source: str = "") -> tuple[Hang, ...]:
    """Return the catalogue, or the `HANGS` of the Python file `source`, which is executed. Raises BadInput."""
    return load(Path(source)) if source else (*HANGS, *VARIANTS)


def chosen(
    hangs: Iterable[Hang], names: Iterable[str], *, engines: bool = False, conditions: bool = False
) -> list[Hang]:
    """Return the hangs whose name is in `names` or begins with one of them.

    Without names, return all hangs except those of real engines; `engines` includes them. `conditions` adds each hang
    under every condition. Without it, a hang under a condition is selected by its full name, or by "+" and the
    condition. Raises BadInput for an unknown name.
    """
    all_hangs, wanted = list(hangs), list(names)
    kept = [hang for hang in all_hangs if conditions or "+" not in hang.name]
    if not wanted:
        return [hang for hang in kept if engines or not hang.engine]
    chosen_hangs: list[Hang] = []
    for name in wanted:
        exact = [hang for hang in all_hangs if hang.name == name]
        hits = exact or [hang for hang in kept if hang.name.startswith(name)]
        hits = hits or [hang for hang in all_hangs if name.startswith("+") and hang.name.endswith(name)]
        if not hits:
            raise BadInput(
                f"there is no planted hang {name!r}{closest(name, (hang.name for hang in all_hangs))}",
                fix="harness faults list",
            )
        chosen_hangs += [hang for hang in hits if hang not in chosen_hangs]
    return chosen_hangs


def load(path: Path) -> tuple[Hang, ...]:
    """Return the `HANGS` of a Python file. Raises BadInput for a file that cannot be executed or has invalid hangs."""
    folder = path.resolve().parent
    entries = listed(path, "HANGS", problem=lambda entry: problem(entry, folder), example=EXAMPLE)
    return tuple(_placed(hang, folder) for hang in entries)


def problem(entry: object, folder: Path) -> str:
    """Return what is wrong with one entry of HANGS; empty where nothing is."""
    if not isinstance(entry, Hang):
        return f"is a {type(entry).__name__}, not a scenarios.planted.hangs.catalog.Hang"
    if not isinstance(entry.name, str) or not entry.name or set(entry.name) & set("/\\ \t\n\0"):
        return f"has the name {entry.name!r}, which cannot name a folder"
    wrong = _wrong_word(entry) or _wrong_type(entry)
    if not wrong and entry.dumps is None:  # dumps are judged as they are, without a program
        wrong = _wrong_program(entry, folder)
    return f"({entry.name}) {wrong}" if wrong else ""


def _wrong_word(hang: Hang) -> str:
    """Return what is wrong with a word that has to be one of a list."""
    if hang.kind and hang.kind not in KINDS:
        return f"has the kind {hang.kind!r}; there are {', '.join(KINDS)}, or an empty one"
    if hang.verdict not in VERDICTS:
        return f"expects the verdict {hang.verdict!r}; there are {', '.join(VERDICTS)}"
    if hang.condition and hang.condition not in CONDITIONS:
        return f"has the condition {hang.condition!r}; there are {', '.join(CONDITIONS)}"
    return ""


def _wrong_type(hang: Hang) -> str:
    if not isinstance(hang.world, int) or hang.world < 0:
        return f"has the world {hang.world!r}; it is a number of ranks, or 0"
    for field, value in (("culprits", hang.culprits), ("cycle", hang.cycle)):
        if isinstance(value, (str, bytes)) or not all(isinstance(party, (int, str)) for party in value):
            return f"has {field} {value!r}; they are a set of ranks and names"
    if isinstance(hang.arguments, str) or not all(isinstance(word, str) for word in hang.arguments):
        return f"has arguments {hang.arguments!r}; they are a tuple of strings"
    return ""


def _wrong_program(hang: Hang, folder: Path) -> str:
    if not hang.program:
        return "has no program"
    script = hang.program.endswith(".py")
    if hang.world and not script:
        return f"runs as ranks, so its program is the path of a script, not {hang.program!r}"
    if script and not (folder / hang.program).is_file():
        return f"has the program {hang.program!r}, which is not a file"
    return ""


def _placed(hang: Hang, folder: Path) -> Hang:
    """Return the hang with the absolute path of its program, and with sets for lists."""
    import dataclasses

    program = str(folder / hang.program) if hang.program.endswith(".py") else hang.program
    return dataclasses.replace(
        hang, program=program, arguments=tuple(hang.arguments), culprits=frozenset(hang.culprits),
        cycle=frozenset(hang.cycle),
    )  # fmt: skip
