"""Which faults to run: the catalogue, or those of a given file (docs/measurements/parity-faults.md)."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from harness import config
from harness.errors import BadInput, closest
from harness.parity.causes.registry import families
from harness.planted.differences.damage import DAMAGES
from harness.planted.foreign import executed, listed
from probes.format import SIDES
from reports.model import EXIT_CODES
from scenarios.planted.differences import shapes as shapes_of
from scenarios.planted.differences.catalog import FAULTS
from scenarios.planted.differences.engine import PLANTS
from scenarios.planted.differences.fault import Fault as Fault
from scenarios.planted.differences.trainer import TrainerPlants
from scenarios.settings import Scenario

EXAMPLE = 'FAULTS = [Fault("mine", "another seed", settings=("seed=1",))]   # of scenarios.planted.differences.fault'
PARTIES = ("baseline", "candidate", "mapping", "trainer", "comparison", "unknown")


def faults(source: str = "") -> tuple[Fault, ...]:
    """The catalogue, or the `FAULTS` of the Python file `source`, which is executed. Raises BadInput."""
    if not source:
        return FAULTS
    path = Path(source)
    found = listed(path, "FAULTS", example=EXAMPLE)
    for number, one in enumerate(found):
        wrong = problem(one, path)
        if wrong:
            raise BadInput(f"{path}: FAULTS[{number}] {wrong}", fix=EXAMPLE)
    names = [one.name for one in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise BadInput(f"{path}: several faults are called {', '.join(twice)}", fix=EXAMPLE)
    return tuple(_placed(one, path.resolve()) for one in found)


def chosen(faults: Iterable[Fault], names: Iterable[str]) -> list[Fault]:
    """Those named, or beginning with a name; without names all. BadInput for an unknown name."""
    every, wanted = list(faults), list(names)
    found = [] if wanted else every
    for name in wanted:
        hits = [one for one in every if one.name == name] or [one for one in every if one.name.startswith(name)]
        if not hits:
            raise BadInput(
                f"there is no planted fault {name!r}{closest(name, (one.name for one in every))}",
                fix="harness faults list --suite parity",
            )
        found += [one for one in hits if one not in found]
    return found


def reproduced_by(fault: Fault, pair: tuple[str, str], dtype: str) -> str:
    """The command that plants the fault again between these engines; "" for one of a user's file."""
    if fault not in [one.at(dtype) for one in FAULTS]:
        return ""
    said = ["--dtype", dtype] if dtype != "float32" else []
    return shlex.join(["harness", "faults", "run", "--suite", "parity", fault.name, "--backends", *pair, *said])


def problem(one: object, path: Path) -> str:
    """What is wrong with one entry of FAULTS, empty when nothing is."""
    if not isinstance(one, Fault):
        return f"is of the type {type(one).__name__}, not a scenarios.planted.differences.catalog.Fault"
    if not isinstance(one.name, str) or not one.name or set(one.name) & set("/\\ \t\n\0") or set(one.name) == {"."}:
        return f"has the name {one.name!r}, which cannot name a folder"
    said = f"({one.name})"
    if one.side not in SIDES:
        return f"{said} has the side {one.side!r}; it is baseline or candidate"
    if one.stage not in ("coupled", "native", "greedy", "lifted"):
        return f"{said} has the stage {one.stage!r}; it is coupled, native, greedy or lifted"
    if one.stage == "lifted" and one.side != "candidate":
        return f"{said} has the stage 'lifted' and the side {one.side!r}; there it is planted in the candidate"
    if one.expected not in EXIT_CODES or one.expected == "ERROR":
        return f"{said} expects {one.expected!r}; a verdict is {', '.join(v for v in EXIT_CODES if v != 'ERROR')}"
    for name in ("scenario", "settings", "native", "causes", "findings", "absent", "confounders"):
        value = getattr(one, name)
        if not isinstance(value, (tuple, list)) or not all(isinstance(item, str) for item in value):
            return f"{said} has {name} {value!r}; they are a tuple of strings"
    strange = [cause for cause in one.causes if cause.partition("(")[0] not in families()]
    if strange:
        near = difflib.get_close_matches(strange[0].partition("(")[0], families(), 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        return f"{said} has the cause {strange[0]!r}, which the judge never names{hint}"
    if not isinstance(one.told, Mapping) or not set(one.told) <= {*one.causes, *one.findings}:
        return f"{said} has told {one.told!r}; it is a dict whose keys are causes or findings of this fault"
    if not isinstance(one.party, (str, tuple, list)) or not all(isinstance(who, str) for who in one.party):
        return f"{said} has the party {one.party!r}; it is a string, or a tuple with one for each cause"
    if one.cap is not None and (isinstance(one.cap, bool) or not isinstance(one.cap, (int, float)) or not one.cap > 0):
        return f"{said} has the cap {one.cap!r}; it is a positive number of nats, or None"
    if one.pair is not None and not (isinstance(one.pair, (tuple, list)) and len(one.pair) == 2):
        return f"{said} has the pair {one.pair!r}; it is the engine of the baseline and that of the candidate, or None"
    if not set(one.parties) <= set(PARTIES) or len(one.parties) != len(one.causes):
        return f"{said} has the party {one.party!r}; each cause has one of {', '.join(PARTIES)}"
    for name in ("engine", "trainer", "mapping", "recording"):
        if not isinstance(getattr(one, name), Mapping):
            return f"{said} has {name} {getattr(one, name)!r}; it is a dict"
    if one.native and one.stage != "native":
        return f"{said} has native settings and the stage {one.stage!r}; they are for the native stage alone"
    return _settings(one, said) or _plants(one, said, path)


def _settings(one: Fault, said: str) -> str:
    try:
        config.changed(Scenario(), [*one.scenario, *one.native, *one.settings])
    except BadInput as error:
        return f"{said}: {error.message}"
    return ""


def _plants(one: Fault, said: str, path: Path) -> str:
    """Names that are no plant, and wrappers that the file does not define."""
    if "wrapper" in one.engine:
        wrapper = getattr(executed(path), str(one.engine["wrapper"]), None)
        if not inspect.isclass(wrapper):
            return f"{said} has the wrapper {one.engine['wrapper']!r}, which is no class of this file"
        unknown = set(one.engine) - {"wrapper", "settings", "only"}
    else:
        if not isinstance(one.engine.get("native", {}), Mapping):
            return f"{said} plants native {one.engine['native']!r}; its setting is a dict of plants"
        unknown = {*one.engine, *one.engine.get("native", {})} - {*PLANTS, "first_sample", "native", "only"}
    known = {field.name for field in dataclasses.fields(TrainerPlants)}
    unknown |= set(one.trainer) - known | set(one.mapping) - {"edits", "file"} | set(one.recording) - set(DAMAGES)
    if unknown:
        return f"{said} plants {', '.join(sorted(map(repr, unknown)))}, which there is not"
    return _misfit(one, said)


def _misfit(one: Fault, said: str) -> str:
    """A plant whose setting is of another kind."""
    engine = {} if "wrapper" in one.engine else one.engine
    native = engine.get("native", {})
    edits = one.mapping.get("edits", {})
    if not isinstance(edits, Mapping) or not set(edits) <= {"engine", "sampling"} or not all(
        isinstance(values, Mapping) for values in edits.values()
    ):  # fmt: skip
        return f"{said} edits the mapping by {edits!r}; that is {{'engine' or 'sampling': {{native name: value}}}}"
    file = one.mapping.get("file")
    if file is not None and not (isinstance(file, (str, Path)) and Path(file).is_file()):
        return f"{said} takes the mapping of {str(file)!r}, which is not a file"
    for values, shapes in (
        (engine, shapes_of.PLANTS), (native, shapes_of.PLANTS), (one.trainer, shapes_of.TRAINER),
        (one.recording, shapes_of.RECORDING),
    ):  # fmt: skip
        for name, value in values.items():
            wanted = shapes_of.misfit(value, shapes[name]) if name != "native" else ""
            if wanted:
                return f"{said} plants {name} {value!r}; its setting is {wanted}"
    return ""


def _placed(one: Fault, path: Path) -> Fault:
    """Its wrapper by the file's absolute path; tuples where a list was given."""
    engine: dict[str, Any] = dict(one.engine)
    if "wrapper" in engine:
        engine["wrapper"] = f"{path}:{engine['wrapper']}"
    fields = ("scenario", "settings", "native", "causes", "findings", "absent", "confounders")
    lists = {name: tuple(getattr(one, name)) for name in fields}
    return dataclasses.replace(one, engine=engine, **lists)  # type: ignore[arg-type]
