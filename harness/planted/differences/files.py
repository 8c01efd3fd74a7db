"""Select the faults to run, from the catalogue or from a user's file (docs/measurements/parity-faults.md)."""

from __future__ import annotations

import dataclasses
import inspect
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from harness import config
from harness.errors import BadInput, closest, nearest
from harness.parity.causes.registry import families
from harness.planted.differences.damage import DAMAGES
from harness.planted.foreign import executed, listed
from probes.format import SIDES
from reports.model import EXIT_CODES
from scenarios.planted.differences import shapes as shapes_of
from scenarios.planted.differences.catalog import FAULTS
from scenarios.planted.differences.fault import Fault as Fault
from scenarios.planted.differences.faulty_engine import PLANTS
from scenarios.planted.differences.trainer import TrainerPlants
from scenarios.settings import BUILTIN, Model, Scenario

EXAMPLE = 'FAULTS = [Fault("mine", "another seed", settings=("seed=1",))]   # of scenarios.planted.differences.fault'
LISTS = ("scenario", "settings", "native", "causes", "findings", "absent", "confounders")  # fields of a Fault
PARTIES = ("baseline", "candidate", "mapping", "trainer", "comparison", "unknown")


def faults(source: str = "") -> tuple[Fault, ...]:
    """Return the catalogue, or the `FAULTS` of the Python file `source`, which is executed. Raises BadInput."""
    if not source:
        return FAULTS
    path = Path(source)
    entries = listed(path, "FAULTS", problem=lambda entry: problem(entry, path), example=EXAMPLE)
    return tuple(_placed(fault, path.resolve()) for fault in entries)


def chosen(faults: Iterable[Fault], names: Iterable[str]) -> list[Fault]:
    """Return the faults whose name is in `names` or begins with one of them, or all faults without names.

    Raises BadInput for an unknown name.
    """
    all_faults, wanted = list(faults), list(names)
    if not wanted:
        return all_faults
    chosen_faults: list[Fault] = []
    for name in wanted:
        exact = [fault for fault in all_faults if fault.name == name]
        hits = exact or [fault for fault in all_faults if fault.name.startswith(name)]
        if not hits:
            raise BadInput(
                f"there is no planted fault {name!r}{closest(name, (fault.name for fault in all_faults))}",
                fix="harness faults list --suite parity",
            )
        chosen_faults += [fault for fault in hits if fault not in chosen_faults]
    return chosen_faults


def reproduced_by(fault: Fault, pair: tuple[str, str], model: Model) -> str:
    """Return the command that plants the fault again between these engines; "" for a fault of a user's file."""
    of_the_suite = dataclasses.replace(fault, model="")
    if of_the_suite not in [listed_fault.at(model.dtype) for listed_fault in FAULTS]:
        return ""
    options = ["--dtype", model.dtype] if model.dtype != "float32" else []
    options += ["--model", model.path] if model.path != BUILTIN else []
    return shlex.join(["harness", "faults", "run", "--suite", "parity", fault.name, "--backends", *pair, *options])


def problem(entry: object, path: Path) -> str:
    """Return what is wrong with one entry of FAULTS; empty where nothing is."""
    if not isinstance(entry, Fault):
        return f"is of the type {type(entry).__name__}, not a scenarios.planted.differences.catalog.Fault"
    if not _names_folder(entry.name):
        return f"has the name {entry.name!r}, which cannot name a folder"
    label = f"({entry.name})"
    wrong = _side_and_stage(entry) or _expectation(entry) or _parties(entry) or _bounds(entry) or _dictionaries(entry)
    if wrong:
        return f"{label} {wrong}"
    return _settings(entry, label) or _plants(entry, label, path)


def _names_folder(name: object) -> bool:
    return isinstance(name, str) and bool(name) and not set(name) & set("/\\ \t\n\0") and set(name) != {"."}


def _side_and_stage(fault: Fault) -> str:
    """Return a complaint about an unknown side or stage."""
    if fault.side not in SIDES:
        return f"has the side {fault.side!r}; it is baseline or candidate"
    if fault.stage not in ("coupled", "native", "greedy", "lifted"):
        return f"has the stage {fault.stage!r}; it is coupled, native, greedy or lifted"
    if fault.stage == "lifted" and fault.side != "candidate":
        return f"has the stage 'lifted' and the side {fault.side!r}; there it is planted in the candidate"
    return ""


def _expectation(fault: Fault) -> str:
    """Return a complaint about an expected verdict or cause that the judge never gives."""
    if fault.expected not in EXIT_CODES or fault.expected == "ERROR":
        return f"expects {fault.expected!r}; a verdict is {', '.join(v for v in EXIT_CODES if v != 'ERROR')}"
    for name in LISTS:
        value = getattr(fault, name)
        if not _of_strings(value):
            return f"has {name} {value!r}; they are a tuple of strings"
    strange = [cause for cause in fault.causes if cause.partition("(")[0] not in families()]
    if strange:
        near = nearest(strange[0].partition("(")[0], families())
        hint = f"; did you mean {near}?" if near else ""
        return f"has the cause {strange[0]!r}, which the judge never names{hint}"
    if not isinstance(fault.told, Mapping) or not set(fault.told) <= {*fault.causes, *fault.findings}:
        return f"has told {fault.told!r}; it is a dict whose keys are causes or findings of this fault"
    return ""


def _of_strings(value: object) -> bool:
    return isinstance(value, (tuple, list)) and all(isinstance(item, str) for item in value)


def _parties(fault: Fault) -> str:
    if not isinstance(fault.party, str) and not _of_strings(fault.party):
        return f"has the party {fault.party!r}; it is a string, or a tuple with one for each cause"
    return ""


def _bounds(fault: Fault) -> str:
    if fault.cap is not None and not _is_positive(fault.cap):
        return f"has the cap {fault.cap!r}; it is a positive number of nats, or None"
    if fault.pair is not None and not (isinstance(fault.pair, (tuple, list)) and len(fault.pair) == 2):
        return f"has the pair {fault.pair!r}; it is the engine of the baseline and that of the candidate, or None"
    if not set(fault.parties) <= set(PARTIES) or len(fault.parties) != len(fault.causes):
        return f"has the party {fault.party!r}; each cause has one of {', '.join(PARTIES)}"
    return ""


def _is_positive(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0


def _dictionaries(fault: Fault) -> str:
    for name in ("engine", "trainer", "mapping", "recording"):
        if not isinstance(getattr(fault, name), Mapping):
            return f"has {name} {getattr(fault, name)!r}; it is a dict"
    if fault.native and fault.stage != "native":
        return f"has native settings and the stage {fault.stage!r}; they are for the native stage alone"
    return ""


def _settings(fault: Fault, label: str) -> str:
    try:
        config.changed(Scenario(), [*fault.of_both, *fault.native, *fault.settings])
    except BadInput as error:
        return f"{label}: {error.message}"
    return ""


def _plants(fault: Fault, label: str, path: Path) -> str:
    """Return a complaint about unknown plants, and about a wrapper that the file does not define."""
    if "wrapper" in fault.engine:
        wrapper = getattr(executed(path), str(fault.engine["wrapper"]), None)
        if not inspect.isclass(wrapper):
            return f"{label} has the wrapper {fault.engine['wrapper']!r}, which is no class of this file"
        unknown = set(fault.engine) - {"wrapper", "settings", "only"}
    else:
        if not isinstance(fault.engine.get("native", {}), Mapping):
            return f"{label} plants native {fault.engine['native']!r}; its setting is a dict of plants"
        unknown = {*fault.engine, *fault.engine.get("native", {})} - {*PLANTS, "first_sample", "native", "only"}
    trainer_plants = {field.name for field in dataclasses.fields(TrainerPlants)}
    unknown |= (
        set(fault.trainer) - trainer_plants
        | set(fault.mapping) - {"edits", "file"}
        | set(fault.recording) - set(DAMAGES)
    )
    if unknown:
        return f"{label} plants {', '.join(sorted(map(repr, unknown)))}, which there is not"
    return _misfit(fault, label)


def _misfit(fault: Fault, label: str) -> str:
    """Return a complaint about a plant whose value has the wrong type."""
    engine = {} if "wrapper" in fault.engine else fault.engine
    native = engine.get("native", {})
    edits = fault.mapping.get("edits", {})
    if not isinstance(edits, Mapping) or not set(edits) <= {"engine", "sampling"} or not all(
        isinstance(values, Mapping) for values in edits.values()
    ):  # fmt: skip
        return f"{label} edits the mapping by {edits!r}; that is {{'engine' or 'sampling': {{native name: value}}}}"
    file = fault.mapping.get("file")
    if file is not None and not (isinstance(file, (str, Path)) and Path(file).is_file()):
        return f"{label} takes the mapping of {str(file)!r}, which is not a file"
    for values, shapes in (
        (engine, shapes_of.PLANTS), (native, shapes_of.PLANTS), (fault.trainer, shapes_of.TRAINER),
        (fault.recording, shapes_of.RECORDING),
    ):  # fmt: skip
        for name, value in values.items():
            wanted = shapes_of.misfit(value, shapes[name]) if name != "native" else ""
            if wanted:
                return f"{label} plants {name} {value!r}; its setting is {wanted}"
    return ""


def _placed(fault: Fault, path: Path) -> Fault:
    """Return the fault with its wrapper under the file's absolute path, and with tuples for lists."""
    engine: dict[str, Any] = dict(fault.engine)
    if "wrapper" in engine:
        engine["wrapper"] = f"{path}:{engine['wrapper']}"
    lists = {name: tuple(getattr(fault, name)) for name in LISTS}
    return dataclasses.replace(fault, engine=engine, **lists)  # type: ignore[arg-type]
