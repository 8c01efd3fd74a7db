"""Bisection over settings: find the minimal sets of settings, variables and versions that make a comparison bad."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from harness import config
from harness.bisect import minimal
from harness.bisect.judging import Judged
from harness.bisect.search import Search
from harness.bundle.opening import resolve
from harness.errors import BadInput
from harness.parity.runs.preflight import check_environment, preflight
from probes.format import SIDES, FormatError, Run
from probes.redaction import WITHHELD
from reports.bisect_model import Bisection, Call
from reports.text import agreeing, counted, show
from scenarios.engines import registry
from scenarios.settings import Scenario

ENDS = "--good END --bad END   # each a scenario file, or a run of harness run or parity"
DEFAULT = "ppo-tiny"  # the scenario over which the settings of a recorded run are laid
# Variables that the harness, Ray or a launcher sets for each process. They differ between any two runs.
_PER_PROCESS = re.compile(
    r"RAY_.*|RLHF_HARNESS_.*|TORCHELASTIC_.*|(\w+_)?RANK|(\w+_)?WORLD_SIZE|MASTER_(ADDR|PORT)|CUDA_VISIBLE_DEVICES"
    r"|PYTHONPATH|VIRTUAL_ENV|TORCHINDUCTOR_CACHE_DIR"
)


@dataclass(frozen=True)
class Difference:
    """One value that differs between the ends. None means that it is not set there. A backend has an empty `name`."""

    kind: Literal["setting", "variable", "backend", "words"]
    name: str
    good: Any
    bad: Any

    def __str__(self) -> str:
        return f"{self.name or 'backend'}: {_value_text(self.good)} → {_value_text(self.bad)}"


@dataclass(frozen=True)
class End:
    """One end of the bisection.

    path: the scenario file or the run directory.
    recorded: whether the end is a recorded run. Only then are the following fields filled in.
    backend: the backend of the run.
    variables: the environment variables, by role.
    packages: package versions of the learner.
    """

    path: Path
    scenario: Scenario
    recorded: bool = False
    backend: str = ""
    variables: dict[str, dict[str, str]] = field(default_factory=dict)
    packages: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def read(location: str) -> End:
        """Read a TOML file, a run directory, or a run in a bundle. Raises BadInput."""
        path = resolve(location)
        if path.suffix == ".toml":
            return End(path, config.load(str(path)))
        if not (path / "run.json").is_file():
            sides = " or ".join(str(Path(location) / side) for side in SIDES)
            pair = f"; it is a pair: give {sides}" if (path / "baseline" / "run.json").is_file() else ""
            raise BadInput(f"{location} is neither a scenario (.toml) nor a run directory (run.json){pair}", fix=ENDS)
        try:
            return End._recorded(path)
        except FormatError as error:
            raise BadInput(str(error), fix=ENDS) from error

    @staticmethod
    def _recorded(path: Path) -> End:
        run = Run(path, strict=False)
        variables: dict[str, dict[str, str]] = {}
        for event in run.events(kind="open"):
            variables.setdefault(str(event.get("role")), {}).update(event.get("env") or {})
        scenario = run.manifest.get("scenario")
        if not isinstance(scenario, dict) or not scenario:
            raise BadInput(f"{path / 'run.json'} has no scenario: the harness cannot make this run again", fix=ENDS)
        packages = run.manifest.get("packages") or {}
        return End(
            path,
            config.validate(scenario, where=str(path / "run.json")),
            recorded=True,
            backend=_backend(run.manifest.get("environment") or {}),
            variables=variables,
            packages={str(name): str(version) for name, version in packages.items()},
        )


@dataclass(frozen=True)
class Trials:
    """The comparisons of one bisection: two backends under the same settings.

    Without `against`, one backend is compared with the run of the good end, which is stored in `reference`.
    """

    search: Search
    good: End
    different: Sequence[Difference]
    backend: str
    against: str
    reference: Path

    def attempt(self, chosen: Container[int], place: Path) -> Judged:
        """Compare with the differences `chosen` as at the bad end, and all others as at the good end."""
        scenario, words, backend, environ = self.applied(chosen)
        judge = self.search.judge
        if self.against:
            return judge.pair((self.against, backend), place, ["--scenario", scenario, *words], environ)
        return judge.against_recording(self.reference, scenario, place, ["--backend", backend, *words], environ)

    def record_reference(self) -> None:
        """Record the run of the good end, with which every other run is compared. Raises BadInput where that fails."""
        if (self.reference / "run.json").is_file() and Run(self.reference, strict=False).complete:
            return
        scenario, words, backend, environ = self.applied(())
        self.search.say("recording the good end")
        place = self.reference.parent
        shutil.rmtree(place, ignore_errors=True)  # an interrupted recording
        if failure := self.search.judge.record(scenario, place, ["--backend", backend, *words], environ):
            raise BadInput(f"the good end could not be recorded: {failure.why}", fix=f"see {place / 'log.txt'}")

    def applied(self, chosen: Container[int]) -> tuple[str, list[str], str, dict[str, str]]:
        """Return (scenario, options, backend, variables of the process)."""
        base = DEFAULT if self.good.recorded else str(self.good.path.resolve())
        values, backend, environ = _leaves(self.good.scenario), self.backend, dict(os.environ)
        for index, difference in enumerate(self.different):
            value = difference.bad if index in chosen else difference.good
            if difference.kind == "setting":
                values[difference.name] = value
            elif difference.kind == "backend":
                backend = value
            elif value is None:
                environ.pop(difference.name, None)
            else:
                environ[difference.name] = value
        standing = _leaves(config.load(base))
        words = [word for name, value in values.items() if standing[name] != value
                 for word in ("--set", f"{name}={json.dumps(value, ensure_ascii=False)}")]  # fmt: skip
        return base, words, backend, environ


def bisect(search: Search) -> Bisection:
    """Search the differences between both ends. Raises BadInput where the ends cannot be read or do not differ."""
    request = search.journal.request
    good, bad = End.read(request.good), End.read(request.bad)
    recorded = not request.what and not request.against and good.recorded and bad.recorded
    backend = good.backend if recorded else request.what or good.backend or "hf"
    for end in (good, bad):
        for backend_name in filter(None, (backend, request.against)):
            preflight(end.scenario, backend_name)
            check_environment(backend_name, end.scenario)
    different, search.notes = differences(good, bad, backends=recorded)
    if not different:
        raise BadInput(f"{request.good} and {request.bad} do not differ in anything that can be tried", fix=ENDS)
    reference = good.path.resolve() if good.recorded else search.journal.folder / "reference" / "recording"
    trials = Trials(search, good, different, backend, request.against, reference)
    if not (request.against or good.recorded):
        trials.record_reference()
    return search_for(search, different, trials.attempt)


def search_for(
    search: Search, different: Sequence[Difference], attempt: Callable[[frozenset[int], Path], Judged]
) -> Bisection:
    """Find the minimal sets of these differences that turn good into bad.

    `attempt` compares with the chosen differences as at the bad end, and records into a folder of its own.
    """

    def name(chosen: Iterable[int]) -> str:
        return "; ".join(str(different[index]) for index in sorted(chosen)) or "the good end"

    def ask(chosen: frozenset[int], remaining: int) -> Call:
        return search.ask(name(chosen), remaining, lambda place: attempt(chosen, place))

    search.say(f"{counted(len(different), 'difference')}: {name(range(len(different)))}")
    outcome = minimal.causes(len(different), ask)
    if outcome.wrong_end is not None:
        return search.wrong_end(name(outcome.wrong_end), "bad" if outcome.wrong_end else "good")
    results = [tuple(str(different[index]) for index in cause) for cause in outcome.causes]
    causes = counted(len(results), "cause") + (", each of which is enough" if len(results) > 1 else "")
    remaining_count = len(different) - sum(map(len, results))
    remainder = f"the other {remaining_count} differences together" if remaining_count > 1 else "the other difference"
    if outcome.remainder == "skip":
        return search.report("ONE OF THESE", f"{causes}; {remainder} could not be judged", results)
    nothing = f"; {remainder} {agreeing(remaining_count, 'changes', 'change')} nothing"
    return search.report("FOUND", causes + nothing * bool(remaining_count), results)


def differences(good: End, bad: End, *, backends: bool) -> tuple[list[Difference], tuple[str, ...]]:
    """Return (the differences between both ends that can be tried, notes about those that cannot)."""
    good_leaves, bad_leaves = _leaves(good.scenario), _leaves(bad.scenario)
    triable = [
        Difference("setting", name, good_leaves[name], bad_leaves[name])
        for name in good_leaves
        if good_leaves[name] != bad_leaves[name]
    ]
    if not (good.recorded and bad.recorded):
        return triable, ()
    notes = []
    if backends and good.backend != bad.backend:
        triable.append(Difference("backend", "", good.backend, bad.backend))
    for name, (before, after) in _variables(good, bad).items():
        if WITHHELD in f"{before}{after}":
            notes.append(f"{name} differs and was withheld from the recordings: it cannot be tried")
        else:
            triable.append(Difference("variable", name, before, after))
    for name in sorted({*good.packages, *bad.packages}):
        before, after = good.packages.get(name), bad.packages.get(name)
        if before != after:
            change = f"{name} {_value_text(before)} → {_value_text(after)}"
            notes.append(f"{change} of the learner: not tried, the learner runs with what is installed here")
    return triable, tuple(notes)


def _variables(good: End, bad: End) -> dict[str, tuple[str | None, str | None]]:
    """Return name -> (good value, bad value) for the differing variables of roles that both ends have."""
    differing: dict[str, tuple[str | None, str | None]] = {}
    for role in sorted(set(good.variables) & set(bad.variables)):
        good_variables, bad_variables = good.variables[role], bad.variables[role]
        for name in sorted({*good_variables, *bad_variables}):
            if good_variables.get(name) != bad_variables.get(name) and not _PER_PROCESS.fullmatch(name):
                differing.setdefault(name, (good_variables.get(name), bad_variables.get(name)))
    return differing


def _leaves(scenario: Scenario) -> dict[str, Any]:
    """Return section.key -> value, as in JSON. The name of the scenario is left out because it has no effect."""
    values = json.loads(json.dumps(scenario.to_json()))
    leaves = {f"{key}.{name}": item for key, value in values.items() if isinstance(value, dict)
              for name, item in value.items()}  # fmt: skip
    return leaves | {key: value for key, value in values.items() if key != "name" and not isinstance(value, dict)}


def _backend(environment: dict[str, Any]) -> str:
    """Return the recorded backend, with its version where the engine has an environment of its own."""
    engine, version = str(environment.get("engine", "")), str(environment.get("version", ""))
    spec = registry.find(engine)
    return engine if spec is None or spec.embedded or not version else f"{engine}@{version}"


def _value_text(value: Any) -> str:
    return "not set" if value is None else show(value)
