"""A matrix in TOML: which pairs, scenarios, models, modes, dtypes, suites of faults and jobs a night runs."""

from __future__ import annotations

import fnmatch
import itertools
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import pydantic

from harness import envs, invalid
from harness.commands.faults import refuse_unknown
from harness.config import overrides
from harness.errors import BadInput, HarnessError
from harness.frameworks import detection
from harness.frameworks.parity import check_pair
from harness.quantities import seconds, size
from probes import limits
from reports.text import counted

FORMAT = "harness nightly --help   # shows a matrix and its known differences"
Pair = tuple[str, str]
Dtype = Literal["", "float32", "bfloat16", "float16"]
Mode = Literal["", "coupled", "native", "greedy"]  # native is refused by the check of a cell, which says why


class Strict(pydantic.BaseModel):
    """A section whose keys are all known."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)


class Needs(Strict):
    """What a machine must have for a cell; on a Ray cluster, what is reserved for it."""

    cpus: int = pydantic.Field(default=0, ge=0)
    gpus: int = pydantic.Field(default=0, ge=0)
    memory: str = ""

    @property
    def bytes(self) -> int:
        return size(self.memory) if self.memory else 0

    def missing(self, cpus: int, gpus: int, memory: int) -> str:
        """What this machine lacks, in words; empty where it has all."""
        resources = (("CPU", self.cpus, cpus), ("GPU", self.gpus, gpus))
        lacks = [counted(wanted, name) for name, wanted, available in resources if available < wanted]
        if memory < self.bytes:
            lacks.append(f"{self.memory} of memory")
        return " and ".join(lacks)


class Limits(Strict):
    """What every cell has: the longest it may take, how often one that gave no verdict is tried again, its needs, and
    whether a comparison that passes with reservations fails (`harness parity --strict`)."""

    limit: str = "30m"
    retries: int = pydantic.Field(default=0, ge=0, le=5)
    needs: Needs = Needs()
    strict: bool = False


class Comparison(Limits):
    """One cell of `harness parity`; empty: as the scenario has it. `scenario`: of the catalog, or the path of a TOML
    file from the matrix's folder. `settings` are for --set, as topologies are."""

    pair: Pair
    scenario: str = "ppo-tiny"
    model: str = ""
    mode: Mode = ""
    dtype: Dtype = ""
    settings: tuple[str, ...] = ()
    candidate_settings: tuple[str, ...] = ()
    rollout_only: bool = False


class Suite(Limits):
    """One suite of planted faults."""

    suite: Literal["parity", "hang"]
    pair: Pair = ("vllm", "sglang")
    dtype: Dtype = ""
    names: tuple[str, ...] = ()
    engines: bool = False
    conditions: bool = False


class Job(Limits):
    """A framework's own job on both engines."""

    name: str
    pair: Pair
    command: tuple[str, ...] = pydantic.Field(min_length=1)
    framework: str = "auto"
    mode: Literal["", "coupled"] = ""


class Axes(Strict):
    """The product of these, without what an entry of `exclude` matches in every key."""

    pairs: tuple[Pair, ...] = ()
    scenarios: tuple[str, ...] = ("ppo-tiny",)
    models: tuple[str, ...] = ("",)
    modes: tuple[Mode, ...] = ("",)
    dtypes: tuple[Dtype, ...] = ("",)
    topologies: tuple[tuple[str, ...], ...] = ((),)
    exclude: tuple[dict[str, Any], ...] = ()


class Keep(Strict):
    """Which recordings stay; verdicts always do. Those that changed something stay `changed` times as many days."""

    days: int = pydantic.Field(default=14, ge=0)
    changed: int = pydantic.Field(default=4, ge=1)
    count: int | None = pydantic.Field(default=None, ge=0)
    size: str = ""


class Matrix(Strict):
    """A file. `known`: the path of known differences, from the matrix's folder."""

    name: str = pydantic.Field(min_length=1)
    known: str = ""
    defaults: Limits = Limits()
    matrix: Axes = Axes()
    include: tuple[Comparison, ...] = ()
    faults: tuple[Suite, ...] = ()
    job: tuple[Job, ...] = ()
    keep: Keep = Keep()


@dataclass(frozen=True)
class Cell:
    """One comparison, suite or job of a night, by its name."""

    name: str
    what: Comparison | Suite | Job
    limit_s: float

    @property
    def pair(self) -> Pair | None:
        """The engines that are compared; None of a suite."""
        return None if isinstance(self.what, Suite) else self.what.pair

    def arguments(self, out: Path, *, pair: Pair | None = None) -> list[str]:
        """Words of the command line after `harness`; `pair`: other engines than the cell's."""
        what = self.what
        words = ["--format", "json", "--out", str(out)]
        dtype = what.dtype if not isinstance(what, Job) else ""
        if isinstance(what, Suite):
            words = ["faults", "run", *what.names, "--suite", what.suite, *words]
            if what.suite == "parity":
                return [*words, "--backends", *(pair or what.pair), *(["--dtype", dtype] if dtype else [])]
            return [*words, *(["--engines"] if what.engines else []), *(["--conditions"] if what.conditions else [])]
        words = ["parity", *(pair or what.pair), *words, *(["--mode", what.mode] if what.mode else [])]
        words += ["--strict"] if what.strict else []
        if isinstance(what, Job):
            return [*words, "--framework", what.framework, "--", *what.command]
        words += ["--cold", "--scenario", what.scenario, *(["--model", what.model] if what.model else [])]
        words += [word for setting in _settings(what) for word in ("--set", setting)]
        candidate_settings = what.candidate_settings if pair is None else ()
        words += [word for setting in candidate_settings for word in ("--candidate-set", setting)]
        return [*words, *(["--rollout-only"] if what.rollout_only else [])]


def load(path: Path) -> tuple[Matrix, list[Cell]]:
    """The matrix and its cells, each of which can be. Raises BadInput, one sentence."""
    matrix = parsed(Matrix, read(path), str(path))
    if matrix.keep.size:
        _quantity(size, matrix.keep.size, "keep.size", path)
    cells = [_checked(cell, path) for cell in _cells(matrix, path)]
    names = [cell.name for cell in cells]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise BadInput(f"{path}: several cells are {twice[0]}", fix="remove one of them, or exclude it")
    if not cells:
        raise BadInput(f"{path} has no cell", fix='pairs = [["vllm", "sglang"]] below [matrix]')
    return matrix, cells


def read(path: Path) -> dict[str, Any]:
    """A TOML file. Raises BadInput."""
    try:
        return tomllib.loads(limits.read_file(path).decode())
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}", fix=FORMAT) from error
    except (ValueError, RecursionError) as error:  # not TOML or UTF-8, a number of thousands of digits, nested too deep
        raise BadInput(f"{path} is not TOML: {error}", fix=FORMAT) from error


T = TypeVar("T", bound=pydantic.BaseModel)
Q = TypeVar("Q", int, float)


def parsed(kind: type[T], data: dict[str, Any], where: str) -> T:
    """Raises BadInput that names the key."""
    try:
        return kind.model_validate(data)
    except pydantic.ValidationError as error:
        sections = kind.model_json_schema().get("$defs", {}).values()
        known_keys = [*kind.model_fields, *(name for section in sections for name in section.get("properties", ()))]
        raise BadInput(invalid.sentence(error, where, known_keys), fix=FORMAT) from error


def selected(cells: Sequence[Cell], only: Sequence[str]) -> list[Cell]:
    """The cells with one of these names; else those that match it as a wildcard or contain it. Raises BadInput where
    there is none."""
    chosen = []
    for pattern in only:
        hits = [cell for cell in cells if cell.name == pattern]
        hits = hits or [cell for cell in cells if fnmatch.fnmatchcase(cell.name, pattern) or pattern in cell.name]
        if not hits:
            raise BadInput(f"--only {pattern!r} matches no cell", fix="harness nightly MATRIX.toml --list")
        chosen += hits
    return [cell for cell in cells if cell in chosen] if only else list(cells)


def machine() -> tuple[int, int, int]:
    """CPUs, GPUs and bytes of memory of this machine. GPUs by the driver's own files: nothing is started."""
    cards = len(list(Path("/proc/driver/nvidia/gpus").glob("*")))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return len(os.sched_getaffinity(0)), cards, memory


def _cells(matrix: Matrix, path: Path) -> Iterator[Cell]:
    axes = matrix.matrix
    unused = set(range(len(axes.exclude)))
    inherited = {name: getattr(matrix.defaults, name) for name in matrix.defaults.model_fields_set}
    product = itertools.product(axes.pairs, axes.scenarios, axes.models, axes.modes, axes.dtypes, axes.topologies)
    for pair, scenario, model, mode, dtype, settings in product:
        point = {"pair": list(pair), "scenario": scenario, "model": model, "mode": mode, "dtype": dtype,
                 "topology": list(settings)}  # fmt: skip
        hits = {index for index, entry in enumerate(axes.exclude)
                if all(point.get(key) == value for key, value in entry.items())}  # fmt: skip
        unused -= hits
        if not hits:
            what = Comparison(pair=pair, scenario=scenario, model=model, mode=mode, dtype=dtype, settings=settings)
            yield _cell(what.model_copy(update=inherited), path)
    if unused and axes.pairs:
        raise BadInput(
            f"{path}: matrix.exclude {axes.exclude[min(unused)]} matches no cell", fix="remove it, or correct its keys"
        )
    owns: tuple[Comparison | Suite | Job, ...] = (*matrix.include, *matrix.faults, *matrix.job)
    for listed in owns:
        yield _cell(
            listed.model_copy(update={k: v for k, v in inherited.items() if k not in listed.model_fields_set}), path
        )


def _cell(what: Comparison | Suite | Job, path: Path) -> Cell:
    if what.needs.memory:
        _quantity(size, what.needs.memory, "needs.memory", path)
    if isinstance(what, Comparison) and what.scenario.endswith(".toml"):
        what = what.model_copy(update={"scenario": os.path.abspath(path.parent / what.scenario)})
    return Cell(_name(what), what, _quantity(seconds, what.limit, "limit", path))


def _quantity(read: Callable[[str, str], Q], text: str, key: str, path: Path) -> Q:
    """The duration or size of a key. Raises BadInput that names the file and the key."""
    try:
        return read(text, key)
    except BadInput as error:
        example = "90s" if read is seconds else "500M"
        raise BadInput(f"{path}: {error.message}", fix=f'{key} = "{example}"') from error


def _name(what: Comparison | Suite | Job) -> str:
    pair = "-".join(what.pair)
    if isinstance(what, Suite):
        parts = ["faults", what.suite, *([pair] if what.suite == "parity" else []), what.dtype, *what.names]
        return "/".join(part for part in [*parts, "engines" * what.engines, "conditions" * what.conditions] if part)
    if isinstance(what, Job):
        return "/".join(part for part in (pair, what.name, what.mode) if part)
    extras = [f"candidate {setting}" for setting in what.candidate_settings] + ["rollout"] * what.rollout_only
    parts = [pair, Path(what.scenario).stem, Path(what.model).name, what.mode, what.dtype, *what.settings, *extras]
    return "/".join(part for part in parts if part)


def _settings(what: Comparison) -> list[str]:
    return [*what.settings, *([f"model.dtype={what.dtype}"] if what.dtype else [])]


def _checked(cell: Cell, path: Path) -> Cell:
    """Raises BadInput for a cell that cannot be: what its command would refuse, and keys that contradict each other."""
    what = cell.what
    try:
        for backend in what.pair:
            envs.parse(backend)
        if isinstance(what, Comparison):
            _check_comparison(what)
        elif isinstance(what, Suite):
            _refuse_ignored(what)
            refuse_unknown(what.suite, what.names, what.pair, what.engines, what.conditions, what.dtype)
        elif not re.fullmatch(r"[\w.-]+", what.name):
            raise BadInput(f"name {what.name!r} may hold letters, digits, '.', '_' and '-' only", fix='name = "grpo"')
        else:
            framework = detection.of(what.command, what.framework)
            for backend in what.pair:
                check_pair(framework, backend)
    except HarnessError as error:
        raise BadInput(f"{path}: cell {cell.name}: {error.message}", fix=error.fix or f"change it in {path}") from error
    return cell


def _check_comparison(what: Comparison) -> None:
    """All that `harness parity` would refuse before it starts anything."""
    from harness.parity.runs.options import ParityOptions
    from harness.parity.runs.run import check_parity

    _refuse_contradiction(what)
    options = ParityOptions(
        scenario=what.scenario, overrides=overrides(_settings(what), what.model, ""),
        candidate_overrides=what.candidate_settings, mode=what.mode or None, rollout_only=what.rollout_only,
    )  # fmt: skip
    check_parity(*what.pair, options)


def _refuse_contradiction(what: Comparison) -> None:
    """One setting with two values: the command line would take the last, and the cell's name would lie."""
    owns = (
        ("dtype", "model.dtype", what.dtype),
        ("model", "model.path", what.model),
        ("mode", "rollout.mode", what.mode),
    )
    stated = {setting: (key, value) for key, setting, value in owns if value}
    for text in what.settings:
        setting, _, value = (part.strip() for part in text.partition("="))
        key, before = stated.setdefault(setting, ("settings", value))
        if before.strip("\"'") != value.strip("\"'"):
            named = f"{key} = {before!r}" if key != "settings" else f"{setting}={before}"
            raise BadInput(f"{named} and the setting {text!r} contradict each other", fix="remove one of the two")


def _refuse_ignored(what: Suite) -> None:
    """Keys that belong to the other suite, which would be passed over."""
    suite_keys = ("engines", "conditions") if what.suite == "hang" else ("pair", "dtype")
    for key in ("engines", "conditions", "pair", "dtype"):
        if key not in suite_keys and key in what.model_fields_set and getattr(what, key):
            raise BadInput(
                f"{key} does not belong to the suite {what.suite!r}, which has {' and '.join(suite_keys)}",
                fix=f"remove {key}",
            )
