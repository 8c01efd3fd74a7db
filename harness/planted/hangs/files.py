"""Which hangs to run: the lab's own, or those of a file that somebody else wrote (docs/measurements/hang-lab.md)."""

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
    """The catalogue, or the `HANGS` of the Python file `source`, which is executed. Raises BadInput in one sentence."""
    return load(Path(source)) if source else (*HANGS, *VARIANTS)


def chosen(
    hangs: Iterable[Hang], names: Iterable[str], *, engines: bool = False, conditions: bool = False
) -> list[Hang]:
    """Those named, or beginning with a name; without names all but those of real engines. `conditions`: each under
    every condition as well; without it such a variant is had by its full name, or by "+" and a condition. BadInput for
    an unknown name."""
    every, wanted = list(hangs), list(names)
    kept = [hang for hang in every if conditions or "+" not in hang.name]
    if not wanted:
        return [hang for hang in kept if engines or not hang.engine]
    found: list[Hang] = []
    for name in wanted:
        exact = [hang for hang in every if hang.name == name]
        hits = exact or [hang for hang in kept if hang.name.startswith(name)]
        hits = hits or [hang for hang in every if name.startswith("+") and hang.name.endswith(name)]
        if not hits:
            raise BadInput(
                f"there is no planted hang {name!r}{closest(name, (one.name for one in every))}",
                fix="harness faults list",
            )
        found += [hang for hang in hits if hang not in found]
    return found


def load(path: Path) -> tuple[Hang, ...]:
    """The `HANGS` of a Python file. Raises BadInput for one that cannot be run, or whose hangs are none."""
    found = listed(path, "HANGS", example=EXAMPLE)
    for number, one in enumerate(found):
        wrong = problem(one, path.resolve().parent)
        if wrong:
            raise BadInput(f"{path}: HANGS[{number}] {wrong}", fix=EXAMPLE)
    names = [one.name for one in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise BadInput(f"{path}: several hangs are called {', '.join(twice)}", fix=EXAMPLE)
    return tuple(_placed(one, path.resolve().parent) for one in found)


def problem(one: object, folder: Path) -> str:
    """What is wrong with one entry of HANGS, empty when nothing is."""
    if not isinstance(one, Hang):
        return f"is a {type(one).__name__}, not a scenarios.planted.hangs.catalog.Hang"
    if not isinstance(one.name, str) or not one.name or set(one.name) & set("/\\ \t\n\0"):
        return f"has the name {one.name!r}, which cannot name a folder"
    if one.kind and one.kind not in KINDS:
        return f"({one.name}) has the kind {one.kind!r}; there are {', '.join(KINDS)}, or an empty one"
    if one.verdict not in VERDICTS:
        return f"({one.name}) expects the verdict {one.verdict!r}; there are {', '.join(VERDICTS)}"
    if not isinstance(one.world, int) or one.world < 0:
        return f"({one.name}) has the world {one.world!r}; it is a number of ranks, or 0"
    for field, value in (("culprits", one.culprits), ("cycle", one.cycle)):
        if isinstance(value, (str, bytes)) or not all(isinstance(party, (int, str)) for party in value):
            return f"({one.name}) has {field} {value!r}; they are a set of ranks and names"
    if isinstance(one.arguments, str) or not all(isinstance(word, str) for word in one.arguments):
        return f"({one.name}) has arguments {one.arguments!r}; they are a tuple of strings"
    if one.condition and one.condition not in CONDITIONS:
        return f"({one.name}) has the condition {one.condition!r}; there are {', '.join(CONDITIONS)}"
    if one.dumps is not None:
        return ""
    if not one.program:
        return f"({one.name}) has no program"
    if one.world and not one.program.endswith(".py"):
        return f"({one.name}) runs as ranks, so its program is the path of a script, not {one.program!r}"
    if one.program.endswith(".py") and not (folder / one.program).is_file():
        return f"({one.name}) has the program {one.program!r}, which is not a file"
    return ""


def _placed(one: Hang, folder: Path) -> Hang:
    """Its program by an absolute path; sets where a list was given."""
    import dataclasses

    program = str(folder / one.program) if one.program.endswith(".py") else one.program
    return dataclasses.replace(
        one, program=program, arguments=tuple(one.arguments), culprits=frozenset(one.culprits),
        cycle=frozenset(one.cycle),
    )  # fmt: skip
