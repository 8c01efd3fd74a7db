"""The recorded run that a replay starts from: the steps that it holds completely, and the checkpoint to begin at."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from harness import config
from harness.errors import BadInput
from harness.parity.runs.preflight import check_resume
from harness.recordings.store import Recording
from probes.format import FormatError
from scenarios.settings import Scenario

A_RUN = "harness replay RUN   # a run of harness run or parity"
# Without these arrays a step can be neither scored nor trained on.
_NEEDED = {"rollout": ("prompt", "output"), "experience": ("tokens",)}


@dataclass(frozen=True)
class Source:
    """A recorded run whose rollouts can drive another one. `steps`: how many it holds completely, counted from 0."""

    path: Path
    scenario: Scenario
    steps: int
    backend: str

    def window(self, from_step: int, steps: int | None) -> range:
        """Return the steps to replay, before a checkpoint is looked for. Raises BadInput."""
        stop = self.steps if steps is None else steps
        if stop > self.steps:
            raise BadInput(
                f"{self.path} holds {self.steps} whole steps, {stop} were asked for", fix=f"--steps {self.steps}"
            )
        if not 0 <= from_step < stop:
            raise BadInput(
                f"--from-step {from_step}: the steps to replay are 0 to {stop - 1}", fix=f"--from-step {stop - 1}"
            )
        return range(from_step, stop)

    def checkpoint(self, step: int) -> Path | None:
        """Return the last checkpoint that the run wrote at or before the beginning of `step`; None: begin at step 0.

        The learner verifies its files. Raises BadInput where it is not a checkpoint.
        """
        folder = self.path / "checkpoints"
        path_of_version = {_version(path): path for path in folder.glob("step-*")} if folder.is_dir() else {}
        before = [version for version in path_of_version if 0 < version <= step]
        if not before or not self.scenario.train:
            return None
        newest = path_of_version[max(before)]
        check_resume(str(newest), self.scenario)
        return newest


def source(path: Path) -> Source:
    """Read the run directory `path`. Raises BadInput where its rollouts cannot drive another run."""
    try:
        recording = Recording(path)
    except FormatError as error:
        raise BadInput(str(error), fix=error.fix or A_RUN) from error
    # Each refusal rests on the ones before it: without a scenario nothing says which frames a step needs.
    if not recording.scenario:
        raise BadInput(
            f"{path / 'run.json'} has no scenario: the harness cannot build this run's learner",
            fix=A_RUN,
        )
    scenario = config.validate(recording.scenario, where=str(path / "run.json"))
    first = recording.manifest.get("replay")
    if isinstance(first, dict) and first.get("first_step"):
        raise BadInput(
            f"{path} is itself a replay that begins at step {first['first_step']}: its first steps are in another run",
            fix=f"harness replay {first.get('of')} …",
        )
    # The steps must be complete from 0 on, since the learner's state builds on all of them.
    kinds = ("rollout", "experience") if scenario.train else ("rollout",)
    recorded = [set(recording.steps(kind)) for kind in kinds]
    whole_steps = _from_zero(set.intersection(*recorded))
    if not whole_steps:
        what = "no step whole from step 0 on" if recorded[0] else "no rollouts"
        raise BadInput(f"{path} holds {what}: there is nothing to replay", fix=A_RUN)
    for kind in kinds:
        table = recording.table(kind, 0)
        absent = [name for name in _NEEDED[kind] if table is None or table.rows(name) is None]
        if absent:
            what = f"the {kind} of step 0 has no {absent[0]!r}"
            raise BadInput(f"{path}: {what}: there is nothing to replay", fix=A_RUN)
    return Source(path, scenario, whole_steps, str(recording.manifest.get("backend") or ""))


def _from_zero(steps: Iterable[int]) -> int:
    """Return how many of 0, 1, 2, ... are there without a gap."""
    step_set, count = set(steps), 0
    while count in step_set:
        count += 1
    return count


def _version(path: Path) -> int:
    number = path.name.removeprefix("step-")
    return int(number) if number.isdigit() else -1
