"""Replay: a recorded run's rollouts drive the training half again, and another engine only scores them.

It tells a cause in the rollouts from a cause in the training. The tokens are the recorded ones, so the learner can
differ only if it was trained differently, and the scores only if the recorded engine did not report what it should
have. From a checkpoint of the recorded run it begins in the middle.
"""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path
from typing import Any

from harness import envs
from harness.bundle.opening import prompt_key, resolve_runs
from harness.cluster.experiment import Experiment
from harness.cluster.side import Side
from harness.cluster.waiting import RunCut
from harness.command_options import command_line, command_options
from harness.errors import BadInput, HarnessError, collected, refuse
from harness.nearest_run import MAKES
from harness.parity.runs.directory import is_run, no_rollouts, no_run
from harness.parity.runs.preflight import check_device, check_machine, environment_for, preflight
from harness.parity.runs.recording import compacted, guarded, recording_in, verdict_with_cut, written
from harness.parity.runs.run_engines import cluster_for
from harness.parity.runs.run_options import ReplayOptions
from reports import displayed_paths
from reports.model import Finding, Verdict
from reports.text import counted

MAKES_REPLAYABLE = "harness run ppo-tiny   # records a run that can be replayed"


def run_replay(run: str | os.PathLike[str], options: ReplayOptions | None = None, **changes: Any) -> Verdict:
    """Replay the recorded run in `run`, which may be a bundle, on a backend, and judge the replay against it.

    `changes`: fields of ReplayOptions, instead of or on top of `options`. Raises BadInput for a run that cannot be
    replayed. A replay that was cut short is INCONCLUSIVE and raises nothing.
    """
    started = time.monotonic()
    options = dataclasses.replace(options or ReplayOptions(), **changes)
    backend, from_step = options.backend, options.from_step
    mistakes: list[HarnessError] = []
    with collected(mistakes):
        envs.parse(backend)
    with collected(mistakes):
        path = _run_directory(run)
    refuse(mistakes)
    if refusal := no_rollouts(path, run):
        raise refusal
    if prompt_key(run):
        raise BadInput(
            f"the prompts of {run} were hashed: no engine can score them",
            fix="harness bundle RUN   # where the run is, without --hash-prompts",
        )
    # NumPy, which an extra brings, is behind these: without it the sentences above are still right.
    from harness.parity.runs.source import source
    from harness.parity.subjects.recording.observed_replay import answer, halves

    recorded_run, name = source(path), displayed_paths.displayed(str(path))
    window = recorded_run.window(from_step, options.steps)
    checkpoint = recorded_run.checkpoint(from_step)
    first = int(checkpoint.name.removeprefix("step-")) if checkpoint is not None else 0
    # A router decides which engine draws, and a replay draws nothing.
    engine = dataclasses.replace(recorded_run.scenario.engine, router="")
    scenario = dataclasses.replace(recorded_run.scenario, steps=window.stop, guided=False, engine=engine)
    preflight(scenario, backend)
    check_device(options.device, options.address)
    check_machine((scenario,), options.address, options.say)
    environment = environment_for(backend, scenario, options.address, say=options.say)
    reproduce = command_line("replay", Path(run), **{"backend": backend} | command_options(options))
    with recording_in(options.out, f"replay-{Path(name).name}-{backend}") as folder:
        side = Side(
            "candidate", str(envs.parse(backend)), environment, scenario, folder,
            replay={"of": name, "first_step": first, "stop": window.stop},
            command=reproduce,
        )  # fmt: skip
        start = _start(first, from_step)
        if start is not None:
            options.say(start.summary)
        # A run that was cut short is judged as far as it came: the exception becomes a part of the verdict.
        cut, warm = None, None
        try:
            with guarded(folder, options) as guard, cluster_for([side], options) as (cluster, warm):
                experiment = Experiment(
                    cluster, [side], progress=options.progress, device=options.device, guard=guard, warm=warm,
                )  # fmt: skip
                experiment.begin()
                experiment.record(
                    side, replay=recorded_run.path, resume=None if checkpoint is None else str(checkpoint)
                )
        except RunCut as error:
            cut = error
        verdict = verdict_with_cut(recorded_run.path, folder, cut, native=False, cap=options.cap)
        compacted(folder)
    half_findings = halves(verdict, range(first, window.stop))
    conclusion = answer(verdict, half_findings) if cut is None else ""
    findings = half_findings if start is None else [*half_findings, start]
    verdict = _answered(verdict, conclusion) if conclusion else verdict
    verdict = dataclasses.replace(
        verdict,
        findings=[*findings, *verdict.findings],
        coverage=verdict.coverage | {"replayed": {"first_step": first, "stop": window.stop}},
        figures=verdict.figures | {"warm": warm is not None, "total_s": round(time.monotonic() - started, 1)},
        reproduce=reproduce,
    )
    return written(displayed_paths.displayed(verdict.strict if options.strict else verdict), folder)


def _answered(verdict: Verdict, conclusion: str) -> Verdict:
    """Return the verdict with the replay's own answer as its reason; the reason so far becomes evidence."""
    return dataclasses.replace(verdict, reason=conclusion, evidence=[verdict.reason, *verdict.evidence])


def _start(first: int, from_step: int) -> Finding | None:
    """Return a finding that says where the replay began, if not where it was asked to."""
    if first == from_step:
        return None
    where = f"from the checkpoint after {counted(first, 'step')}" if first else "from step 0"
    text = f"step {from_step} was asked for; the run saved no later checkpoint before it, so the replay begins {where}"
    return Finding("replay: start", text, "none", where="learner")


def _run_directory(run: str | os.PathLike[str]) -> Path:
    """Return the directory of a run. Raises BadInput for anything else: a job of a framework cannot be replayed, so the
    fix makes a run of a scenario.
    """
    try:
        path = resolve_runs(run)[0].resolve()
        if not is_run(path):
            raise no_run(path, run)
    except BadInput as error:
        fix = MAKES_REPLAYABLE if error.fix == MAKES else error.fix
        raise BadInput(error.message, fix=fix, instead=error.instead) from error
    return path
