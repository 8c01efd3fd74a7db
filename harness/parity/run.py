"""The commands as functions: run one scenario on two backends and judge it, record one run, judge two recorded runs."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from harness import config, envs
from harness.errors import BadInput, HarnessError
from harness.experiment import Experiment, RunCut, Side
from harness.launch import Cluster
from harness.parity.command_line import command_line, duration
from harness.parity.preflight import check_pair, check_resume, preflight
from harness.triage.watch.guard import Guard
from reports.model import EXIT_CODES, Finding, Verdict
from reports.progress import ProgressEvent
from scenarios.faults.catalog import Fault, named
from scenarios.settings import Mode, Scenario

STALL_S = 60.0  # a step of the built-in scenario takes 2 s; weight sync and start-up of an engine use their CPU


def run_parity(
    baseline: str,
    candidate: str,
    *,
    scenario: str = "ppo-tiny",
    overrides: Iterable[str] = (),
    candidate_overrides: Iterable[str] = (),
    mode: Mode | None = None,
    seed: int | None = None,
    steps: int | None = None,
    rollout_only: bool = False,
    free: bool = False,
    native: bool = True,
    fault: str | None = None,
    cap: float | None = None,
    out: str | os.PathLike[str] | None = None,
    address: str | None = None,
    device: str = "auto",
    stall_s: float = STALL_S,
    progress: Callable[[ProgressEvent], None] = lambda event: None,
) -> Verdict:
    """Run one scenario on two backends with identical seeds, diff the recordings, and return the verdict.

    `overrides` (section.key=value) change both sides, `candidate_overrides` the candidate only. `cap`: the largest
    rounding noise that is believed, in nats, instead of the dtype's own. `out`: the parity directory, made under runs/
    when None. `stall_s`: without progress for so long, a run is looked at and ended if it hangs; 0: nobody watches.
    Raises HarnessError for what could not start; a run that was cut short is INCONCLUSIVE, not an exception.
    """
    started = time.monotonic()
    overrides, candidate_overrides = list(overrides), list(candidate_overrides)
    reproduce = command_line(
        "parity", str(baseline), str(candidate), scenario=scenario, set=overrides, candidate_set=candidate_overrides,
        mode=mode, steps=steps, seed=seed, rollout_only=rollout_only, free=free, no_native=not native,
        fault=fault, cap=cap, **_machine(address, device, stall_s),
    )  # fmt: skip
    base = _scenario(scenario, overrides, mode=mode, seed=seed, steps=steps, rollout_only=rollout_only, free=free)
    planted = _planted(fault)
    other = config.changed(base, [*planted.settings, *candidate_overrides])
    check_pair(base, other)
    preflight(base, baseline)
    preflight(other, candidate)
    with _recording(out, f"parity-{baseline}-{candidate}") as folder:
        left = Side("baseline", str(envs.parse(baseline)), envs.resolve(baseline), base, folder / "baseline")
        right = Side(
            "candidate", str(envs.parse(candidate)), envs.resolve(candidate), other, folder / "candidate",
            wrap=dict(planted.wrap), omit_tensors=dict(planted.omit_tensors),
        )  # fmt: skip
        figures: dict[str, Any] = {"environments_ready_s": round(time.monotonic() - started, 1)}
        cut = _record_pair(
            left, right, address=address, device=device, native=native, guarded=_guarded(folder, stall_s, progress),
            progress=progress, figures=figures, command=reproduce,
        )  # fmt: skip
        verdict = _judge(left, right, cut, native=native, cap=cap)
        _compact(left, right)
    figures["total_s"] = round(time.monotonic() - started, 1)
    verdict = dataclasses.replace(
        verdict,
        figures=verdict.figures | figures,
        reproduce=reproduce,
    )
    return _written(verdict, folder)


def run_scenario(
    scenario: str,
    *,
    backend: str = "hf",
    overrides: Iterable[str] = (),
    mode: Mode | None = None,
    seed: int | None = None,
    steps: int | None = None,
    rollout_only: bool = False,
    resume: str | None = None,
    out: str | os.PathLike[str] | None = None,
    address: str | None = None,
    device: str = "auto",
    stall_s: float = STALL_S,
    progress: Callable[[ProgressEvent], None] = lambda event: None,
) -> Path:
    """One recorded run; returns its directory. Raises RunCut when it ends early (what was recorded stays readable)."""
    overrides = list(overrides)
    command = command_line(
        "run", scenario, backend=backend, set=overrides, mode=mode, steps=steps, seed=seed, rollout_only=rollout_only,
        resume=resume, **_machine(address, device, stall_s),
    )  # fmt: skip
    base = _scenario(scenario, overrides, mode=mode, seed=seed, steps=steps, rollout_only=rollout_only, free=False)
    preflight(base, backend)
    if resume is not None:
        check_resume(resume, base)
    with _recording(out, f"run-{base.name}-{backend}") as folder:
        side = Side("run", str(envs.parse(backend)), envs.resolve(backend), base, folder)
        with _guarded(folder, stall_s, progress) as guard, Cluster(address) as cluster:
            experiment = Experiment(
                cluster, [side], progress=progress, device=device, guard=guard, command=command
            )  # fmt: skip
            experiment.begin()
            experiment.record(side, resume=resume)
        _compact(side)
    return folder


def diff(baseline: str | os.PathLike[str], candidate: str | os.PathLike[str], *, cap: float | None = None) -> Verdict:
    """Judge two recorded runs, ours or another framework's. Raises BadInput for a directory that holds no run."""
    from harness.parity.verdict import judge

    for path in (Path(baseline), Path(candidate)):
        if not (path / "run.json").exists():
            raise BadInput(f"{path} is no run directory: it has no run.json", mend="harness run SCENARIO --out DIR")
    verdict = judge(Path(baseline), Path(candidate), cap=cap)
    return dataclasses.replace(
        verdict,
        reproduce=command_line("diff", str(baseline), str(candidate), cap=cap),
        paths={"baseline": str(baseline), "candidate": str(candidate)},
    )


def _record_pair(
    left: Side,
    right: Side,
    *,
    address: str | None,
    device: str,
    native: bool,
    guarded: contextlib.AbstractContextManager[Guard | None],
    progress: Callable[[ProgressEvent], None],
    figures: dict[str, Any],
    command: str,
) -> RunCut | None:
    """Record both runs and the native stage; returns what cut them short, or None."""
    clock = _Clock(figures)
    try:
        with guarded as guard, Cluster(address) as cluster:
            experiment = Experiment(
                cluster, [left, right], progress=progress, device=device, guard=guard, command=command
            )  # fmt: skip
            experiment.begin()
            clock.lap("start_s")
            native = native and left.scenario.native.samples > 0
            policy = experiment.record(left)
            clock.lap("baseline_s")
            if native:  # the start of an engine takes most of the stage: it goes on beside the candidate's run
                experiment.begin_native(left, policy)
            experiment.record(right, guide=left.run_dir if right.scenario.guided else None)
            clock.lap("candidate_s")
            if native:
                experiment.begin_native(right, policy)
                experiment.native(left, policy)
                experiment.native(right, policy)
                clock.lap("native_s")
        clock.lap("teardown_s")
    except RunCut as cut:
        return cut
    return None


def _guarded(
    folder: Path, stall_s: float, progress: Callable[[ProgressEvent], None]
) -> contextlib.AbstractContextManager[Guard | None]:
    if not stall_s:
        return contextlib.nullcontext()
    return Guard(folder / "watch", stall_s, say=lambda line: progress(ProgressEvent("", "", message=line)))


def _judge(left: Side, right: Side, cut: RunCut | None, *, native: bool, cap: float | None) -> Verdict:
    from harness.parity.verdict import judge

    if cut is None:
        return _could_fail(judge(left.run_dir, right.run_dir, native=native, cap=cap), left)
    try:
        verdict = judge(left.run_dir, right.run_dir, native=False, cap=cap)
    except HarnessError:
        verdict = Verdict("parity", "INCONCLUSIVE", EXIT_CODES["INCONCLUSIVE"], "")
    # Whatever the judge makes of the parts that were recorded, a run that was cut short is never a pass.
    return dataclasses.replace(
        verdict,
        verdict="INCONCLUSIVE",
        exit_code=EXIT_CODES["INCONCLUSIVE"],
        reason=f"cut short: {cut.message}",
        triage=cut.triage.triage if cut.triage is not None else None,
    )


def _compact(*sides: Side) -> None:
    """The same recordings as Parquet, for pandas; an extra, so a full disk does not cost the verdict."""
    from harness.compact import compact
    from probes.format import FormatError

    for side in sides:
        with contextlib.suppress(FormatError, OSError):
            compact(side.run_dir)


def _could_fail(verdict: Verdict, baseline: Side) -> Verdict:
    """Say of the scenario itself whether its faults would have shown: an EQUIVALENT of lengths without spread proves
    little."""
    from probes.format import Run
    from scenarios.ppo import selfcheck

    floor = verdict.parity.floor.get("combined") if verdict.parity else None
    known = floor if isinstance(floor, float) and floor > 0 else selfcheck.FLOOR
    checks = selfcheck.report(Run(baseline.run_dir, strict=False), floor=known)
    weak = [
        Finding(
            "scenario cannot fail",
            f"{check.name}: {check.value:.3g}, at least {check.threshold:.3g} is needed for a fault to show",
            effect="equality says less than it seems to",
            severity="warning",
            where="baseline",
        )
        for check in checks
        if check.applies and not check.ok
    ]
    measured = {check.name: round(check.value, 6) for check in checks if check.applies}
    return dataclasses.replace(
        verdict, findings=[*verdict.findings, *weak], coverage=verdict.coverage | {"scenario": measured}
    )


class _Clock:
    """Seconds of each part of the experiment, into the verdict's figures."""

    def __init__(self, figures: dict[str, Any]) -> None:
        self._figures, self._last = figures, time.monotonic()

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self._figures[name], self._last = round(now - self._last, 1), now


def _scenario(
    scenario: str,
    overrides: Iterable[str],
    *,
    mode: Mode | None,
    seed: int | None,
    steps: int | None,
    rollout_only: bool,
    free: bool,
) -> Scenario:
    extra = [f"rollout.mode={mode}"] if mode else []
    top: dict[str, Any] = {
        "seed": seed,
        "steps": steps,
        "train": False if rollout_only else None,
        "guided": False if free else None,
    }
    return config.load(scenario, [*overrides, *extra], **top)


def _planted(fault: str | None) -> Fault:
    try:
        return named(fault) if fault else Fault()
    except ValueError as error:
        raise BadInput(str(error)) from error


@contextlib.contextmanager
def _recording(out: str | os.PathLike[str] | None, name: str) -> Iterator[Path]:
    """The new directory of a recording. Leaves no empty one behind when nothing was recorded; an interrupt is told
    where the rest is."""
    folder = _folder(out, name)
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"{folder} cannot be made: {error.strerror}") from error
    try:
        yield folder
    except BaseException as error:
        with contextlib.suppress(OSError):  # the first that is not empty ends it
            for path in made:
                path.rmdir()
        if isinstance(error, KeyboardInterrupt) and any(folder.glob("**/run.json")):
            error.add_note(f"what was recorded until then is in {folder}")
        raise


def _folder(out: str | os.PathLike[str] | None, name: str) -> Path:
    if out is None:
        stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
        return (Path("runs") / f"{name.replace('@', '-')}-{stamp}").resolve()
    folder = Path(out).resolve()
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"{folder} is a file; a recording is a directory", mend="choose another --out")
    if folder.exists() and any(folder.iterdir()):
        raise BadInput(f"{folder} is not empty; a recording never overwrites another", mend="choose another --out")
    return folder


def _machine(address: str | None, device: str, stall_s: float) -> dict[str, str | None]:
    """The options of a command line that say where and how it runs, without those that have their default."""
    return {
        "address": address or None,
        "device": device if device != "auto" else None,
        "stall": duration(stall_s) if stall_s != STALL_S else None,
    }


def _written(verdict: Verdict, folder: Path) -> Verdict:
    """The verdict with its paths, written into the folder. A disk without room costs the files, not the verdict."""
    import reports

    files = {"verdict": folder / "verdict.json", "report": folder / "report.html"}
    complete = dataclasses.replace(
        verdict, paths={"run": str(folder)} | {name: str(file) for name, file in files.items()}
    )
    try:
        files["verdict"].write_text(complete.to_json(), encoding="utf-8")
        files["report"].write_text(reports.render(complete, "html"), encoding="utf-8")
    except OSError as error:
        for file in files.values():
            file.unlink(missing_ok=True)  # half a verdict would be read as one
        lost = f"verdict.json and report.html: they could not be written to {folder}: {error.strerror}"
        return dataclasses.replace(verdict, missing=[*verdict.missing, lost], paths={"run": str(folder)})
    return complete
