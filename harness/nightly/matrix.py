"""The matrix of a night in TOML: the pairs, scenarios, models, modes, dtypes, fault suites and jobs to run."""

from __future__ import annotations

import fnmatch
import itertools
import json
import os
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import pydantic

from harness import envs, pydantic_errors
from harness.command_options import command_options, option_words
from harness.commands.faults import refuse_unknown
from harness.config import catalog, catalog_folder
from harness.envs.interpreter import inspected_once
from harness.errors import BadInput, HarnessError, collected, near_names, refuse
from harness.frameworks import detection
from harness.frameworks.job_parity import check_pair
from harness.parity.runs.run_options import ParityOptions
from harness.quantities import seconds, size
from probes import limits
from reports.text import counted

FORMAT = "harness nightly --help   # shows a matrix and its known differences"
Pair = tuple[str, str]
Dtype = Literal["", "float32", "bfloat16", "float16"]
Mode = Literal["", "coupled", "native", "greedy"]  # a cell's check refuses native, and explains why


class Strict(pydantic.BaseModel):
    """A section that refuses unknown keys."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)


class Needs(Strict):
    """The resources that a machine must have for a cell. On a Ray cluster they are reserved for the cell.

    cpus, gpus: numbers.
    memory: a size with its unit; empty for any.
    """

    cpus: int = pydantic.Field(default=0, ge=0)
    gpus: int = pydantic.Field(default=0, ge=0)
    memory: str = ""

    @property
    def bytes(self) -> int:
        return size(self.memory) if self.memory else 0

    def missing(self, cpus: int, gpus: int, memory: int) -> str:
        """Return what a machine with these resources lacks, in words; empty where it lacks nothing."""
        resources = (("CPU", self.cpus, cpus), ("GPU", self.gpus, gpus))
        lacks = [counted(wanted, name) for name, wanted, available in resources if available < wanted]
        if memory < self.bytes:
            lacks.append(f"{self.memory} of memory")
        return " and ".join(lacks)


class Limits(Strict):
    """The keys that every cell has.

    limit: the longest duration.
    retries: how often a cell that gave no verdict is repeated.
    needs: the resources that it needs.
    strict: whether a comparison that passes with reservations fails (`harness parity --strict`).
    """

    limit: str = "30m"
    retries: int = pydantic.Field(default=0, ge=0, le=5)
    needs: Needs = Needs()
    strict: bool = False


class Comparison(Limits):
    """One cell of `harness parity`. An empty value stands for that of the scenario.

    pair: the engines of the baseline and the candidate.
    scenario: a name in the catalogue, or the path of a TOML file relative to the matrix's folder.
    model, mode, dtype: override those of the scenario.
    settings: values for --set, in which topologies are given too.
    candidate_settings: values for --candidate-set.
    rollout_only: whether only rollouts are compared.
    """

    pair: Pair
    scenario: str = "ppo-tiny"
    model: str = ""
    mode: Mode = ""
    dtype: Dtype = ""
    settings: tuple[str, ...] = ()
    candidate_settings: tuple[str, ...] = ()
    rollout_only: bool = False


class Suite(Limits):
    """One suite of planted faults. The fields are the options of `harness faults run`."""

    suite: Literal["parity", "hang"]
    pair: Pair = ("vllm", "sglang")
    dtype: Dtype = ""
    model: str = ""
    names: tuple[str, ...] = ()
    engines: bool = False
    conditions: bool = False


class Job(Limits):
    """A framework's own job on both engines.

    name: the job's name within the matrix.
    pair: the engines.
    command: the job's command line.
    framework: the framework's name, or auto.
    mode: as for `harness parity`.
    """

    name: str
    pair: Pair
    command: tuple[str, ...] = pydantic.Field(min_length=1)
    framework: str = "auto"
    mode: Literal["", "coupled"] = ""


class Axes(Strict):
    """The axes whose product gives cells. A cell is left out where all keys of an entry of `exclude` match it."""

    pairs: tuple[Pair, ...] = ()
    scenarios: tuple[str, ...] = ("ppo-tiny",)
    models: tuple[str, ...] = ("",)
    modes: tuple[Mode, ...] = ("",)
    dtypes: tuple[Dtype, ...] = ("",)
    topologies: tuple[tuple[str, ...], ...] = ((),)
    exclude: tuple[dict[str, Any], ...] = ()


class Keep(Strict):
    """Which recordings are kept; verdicts are always kept. See `harness.nightly.history.Retention`."""

    days: int = pydantic.Field(default=14, ge=0)
    changed: int = pydantic.Field(default=4, ge=1)
    count: int | None = pydantic.Field(default=None, ge=0)
    size: str = ""


class Matrix(Strict):
    """The content of a matrix file. `known` is the path of the known differences, relative to the matrix's folder."""

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
    """One comparison, suite or job of a night.

    name: its unique name.
    what: what runs.
    limit_s: the longest duration, in seconds.
    """

    name: str
    what: Comparison | Suite | Job
    limit_s: float

    @property
    def pair(self) -> Pair | None:
        """The engines that are compared; None for a suite."""
        return None if isinstance(self.what, Suite) else self.what.pair

    def arguments(self, out: Path, *, pair: Pair | None = None) -> list[str]:
        """Return the words of the command line after `harness`. `pair`: engines that replace those of the cell."""
        what, written = self.what, dict[str, Any](format="json", out=str(out))
        if isinstance(what, Suite) and what.suite == "parity":
            chosen = {"suite": what.suite, "dtype": what.dtype or None, "model": what.model or None}
            words = option_words({**written, **chosen})
            return ["faults", "run", *what.names, *words, "--backends", *(pair or what.pair)]
        if isinstance(what, Suite):
            options = {**written, "suite": what.suite, "engines": what.engines, "conditions": what.conditions}
            return ["faults", "run", *what.names, *option_words(options)]
        words = ["parity", *(pair or what.pair)]
        if isinstance(what, Job):
            options = {**written, "mode": what.mode or None, "strict": what.strict, "framework": what.framework}
            return [*words, *option_words(options), "--", *what.command]
        compared = _parity_options(what, candidate_settings=what.candidate_settings if pair is None else ())
        return [*words, *option_words({**written, "scenario": what.scenario, **command_options(compared)})]


def load(path: Path) -> tuple[Matrix, list[Cell]]:
    """Return the matrix and its cells, each of which is valid. Raises BadInput."""
    matrix = parsed(Matrix, read(path, absent_fix=_begun(path)), str(path))
    if matrix.keep.size:
        _quantity(size, matrix.keep.size, "keep.size", path)
    cells: list[Cell] = []
    mistakes: list[HarnessError] = []
    with inspected_once():  # cells share their environments
        for cell in _cells(matrix, path):
            with collected(mistakes):
                cells.append(_checked(cell, path))
    refuse(mistakes)
    names = [cell.name for cell in cells]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise BadInput(f"{path}: several cells are {twice[0]}", fix="remove one of them, or exclude it")
    if not cells:
        raise BadInput(f"{path} has no cell", fix='pairs = [["vllm", "sglang"]] below [matrix]')
    return matrix, cells


def read(path: Path, *, absent_fix: str = FORMAT) -> dict[str, Any]:
    """Read a TOML file. `absent_fix`: what helps where there is none. Raises BadInput."""
    try:
        return tomllib.loads(limits.read_file(path).decode())
    except FileNotFoundError as error:
        raise BadInput(f"{path} does not exist", fix=absent_fix) from error
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}", fix=FORMAT) from error
    except (ValueError, RecursionError) as error:  # not TOML or UTF-8, a number of thousands of digits, nested too deep
        raise BadInput(f"{path} is not TOML: {error}", fix=FORMAT) from error


def _begun(path: Path) -> str:
    """The command that writes a first matrix: the two engines with their usual scenario."""
    if not path.parent.is_dir():
        return FORMAT
    lines = (f"name = {json.dumps(path.stem)}", "[matrix]", 'pairs = [["vllm", "sglang"]]')
    written = " ".join(shlex.quote(line) for line in lines)
    return f"printf '%s\\n' {written} > {shlex.quote(str(path))}   # a first matrix; then the same command again"


T = TypeVar("T", bound=pydantic.BaseModel)
Q = TypeVar("Q", int, float)


def parsed(kind: type[T], data: dict[str, Any], where: str) -> T:
    """Validate `data` as a `kind`. Raises BadInput that names the key."""
    try:
        return kind.model_validate(data)
    except pydantic.ValidationError as error:
        sentences = pydantic_errors.sentences(error, where, kind.model_json_schema())
        refuse([BadInput(sentence, fix=FORMAT) for sentence in sentences])
        raise


def selected(cells: Sequence[Cell], only: Sequence[str]) -> list[Cell]:
    """Return the cells with one of the names in `only`, or else the cells that match or contain it.

    `only` may hold wildcards. Raises BadInput where no cell matches.
    """
    chosen = []
    for pattern in only:
        hits = [cell for cell in cells if cell.name == pattern]
        hits = hits or [cell for cell in cells if fnmatch.fnmatchcase(cell.name, pattern) or pattern in cell.name]
        if not hits:
            names = [cell.name for cell in cells]
            name = next(iter([*near_names(pattern, names), *names]), "")
            raise BadInput(
                f"--only {pattern!r} matches no cell of {len(names):,}",
                fix=f"{shlex.quote(name)}   # --list prints the names",
                instead=pattern,
            )
        chosen += hits
    return [cell for cell in cells if cell in chosen] if only else list(cells)


def machine() -> tuple[int, int, int]:
    """Return the CPUs, the GPUs and the bytes of memory of this machine. GPUs are counted from the driver's files."""
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
    """Parse the duration or size of a key. Raises BadInput that names the file and the key."""
    try:
        return read(text, key)
    except BadInput as error:
        example = "90s" if read is seconds else "500M"
        raise BadInput(f"{path}: {error.message}", fix=f'{key} = "{example}"') from error


def _name(what: Comparison | Suite | Job) -> str:
    pair = "-".join(what.pair)
    if isinstance(what, Suite):
        parts = ["faults", what.suite, *([pair] if what.suite == "parity" else []), what.dtype, what.model, *what.names]
        return "/".join(part for part in [*parts, "engines" * what.engines, "conditions" * what.conditions] if part)
    if isinstance(what, Job):
        return "/".join(part for part in (pair, what.name, what.mode) if part)
    extras = [f"candidate {setting}" for setting in what.candidate_settings] + ["rollout"] * what.rollout_only
    parts = [pair, Path(what.scenario).stem, Path(what.model).name, what.mode, what.dtype, *what.settings, *extras]
    return "/".join(part for part in parts if part)


def _parity_options(what: Comparison, *, candidate_settings: Sequence[str]) -> ParityOptions:
    return ParityOptions(
        scenario=what.scenario, overrides=[*what.settings, *([f"model.dtype={what.dtype}"] if what.dtype else [])],
        model=what.model, candidate_overrides=candidate_settings, mode=what.mode or None,
        rollout_only=what.rollout_only, cold=True, strict=what.strict,
    )  # fmt: skip


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
            refuse_unknown(
                what.suite,
                what.names,
                what.pair,
                engines=what.engines,
                conditions=what.conditions,
                dtype=what.dtype,
                model=what.model,
            )
        elif not re.fullmatch(r"[\w.-]+", what.name):
            raise BadInput(f"name {what.name!r} may hold letters, digits, '.', '_' and '-' only", fix='name = "grpo"')
        else:
            framework = detection.of(what.command, what.framework)
            for backend in what.pair:
                check_pair(framework, backend)
    except HarnessError as error:
        raise BadInput(f"{path}: cell {cell.name}: {error.message}", fix=_in_matrix(error, path)) from error
    return cell


_KEYS = {"--set": "settings", "--candidate-set": "candidate_settings"}  # option of `harness parity` -> key of a cell


def _in_matrix(error: HarnessError, path: Path) -> str:
    """Return a fix of `harness parity` as a line of the matrix."""
    if error.instead.endswith(".toml") and not os.path.lexists(error.instead):
        copy = shlex.join(["cp", str(catalog_folder() / f"{catalog()[0]}.toml"), error.instead])
        return f"{copy}   # and edit it; or name one of the catalog in {path}: {', '.join(catalog())}"
    words = shlex.split(error.fix or "", comments=True)
    if len(words) == 2 and words[0] in _KEYS:
        return f"{_KEYS[words[0]]} = [{json.dumps(words[1])}]   # in that cell of {path}"
    if words[:1] and words[0].startswith("-"):
        return f"change what {words[0]} sets, in that cell of {path}"
    if error.instead and len(words) == 1:  # a name, and others behind it
        others = "".join((error.fix or "").partition("   # ")[1:])
        return f"write {words[0]} in place of {error.instead}, in that cell of {path}{others}"
    return error.advice or f"change it in {path}"


def _check_comparison(what: Comparison) -> None:
    """Raise BadInput for everything that `harness parity` would refuse before it starts a process."""
    from harness.parity.runs.run import check_parity

    _refuse_contradiction(what)
    check_parity(*what.pair, _parity_options(what, candidate_settings=what.candidate_settings))


def _refuse_contradiction(what: Comparison) -> None:
    """Raise BadInput for one setting with two values.

    The command line would take the last value, and the cell's name would show the other one.
    """
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
    """Raise BadInput for keys of the other suite, which would be ignored."""
    suite_keys = ("engines", "conditions") if what.suite == "hang" else ("pair", "dtype", "model")
    for key in ("engines", "conditions", "pair", "dtype", "model"):
        if key not in suite_keys and key in what.model_fields_set and getattr(what, key):
            raise BadInput(
                f"{key} does not belong to the suite {what.suite!r}, which has {' and '.join(suite_keys)}",
                fix=f"remove {key}",
            )
