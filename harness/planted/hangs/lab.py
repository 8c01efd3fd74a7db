"""The hang lab: run each planted hang under the watchdog, and compare its verdict with the truth.

Every process of a trial has a mark in its environment. Marked processes that are still alive at the end are killed by
pid.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from harness import envs
from harness.errors import HarnessError
from harness.other_paths import disk_of
from harness.planted.hangs.across import judge_hosts
from harness.planted.hangs.dumps import judge_dumps
from harness.planted.hangs.hang_outcome import Outcome, Score, judged, score
from harness.planted.hangs.looks import judge_looks
from harness.triage.collect import redact
from probes.files import make_new_folder, open_new, write_whole
from reports.model import Verdict
from scenarios.planted.hangs.catalog import Hang

__all__ = ["Outcome", "Score", "outcomes", "score"]

ROOT = Path(__file__).resolve().parents[3]
LAUNCHER = ROOT / "scenarios" / "planted" / "hangs" / "launch.py"
HERE = ROOT / "scenarios" / "planted" / "hangs" / "conditions"
MARK = "RLHF_HARNESS_LAB"
# The time limit of a program: the start of a world on a busy machine, plus a multiple of the stall's time.
START_S, STALLS = 240.0, 12.0
ENGINE_START_S = 300.0

# Errors of a disk, a quota or a mount that accepts no more data. They are problems of the machine, not of the lab.
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO})

_numbers = itertools.count()


def outcomes(
    hangs: Iterable[Hang],
    *,
    stall_s: float = 5.0,
    jobs: int = 1,
    out: Path | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> Iterator[Outcome]:
    """Run each hang under the watchdog, `jobs` at a time, and yield the outcomes as they end.

    `out` gets a folder for each hang with the recordings, the evidence and the program's output (`program.log`).
    Without `out` they are in a temporary directory for the duration of the iteration. Raises HarnessError where a
    program needs an engine environment that does not exist.
    """
    hangs = list(hangs)
    pythons = {hang.engine: _interpreter(hang.engine) for hang in hangs if hang.engine}
    with contextlib.ExitStack() as stack:
        folder = out or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hang-lab-")))
        pool = ThreadPoolExecutor(max(1, jobs), thread_name_prefix="lab")
        device = build(Path(stack.enter_context(tempfile.TemporaryDirectory()))) if _conditioned(hangs) else None
        trial = _Trial(folder, stall_s, pythons, progress, device)
        running = [pool.submit(trial, hang) for hang in hangs]
        try:
            for future in as_completed(running):
                yield future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            trial.end()


class _Trial:
    """Runs hangs. Several threads may call it at the same time."""

    def __init__(
        self, folder: Path, stall_s: float, pythons: dict[str, str], progress: Callable[[str], None],
        device: Path | None = None,
    ) -> None:  # fmt: skip
        self.folder, self.stall_s, self.pythons, self.progress = folder, stall_s, pythons, progress
        self._device = device
        self._marks: set[str] = set()
        self._ended = False

    def __call__(self, hang: Hang) -> Outcome:
        self.progress(f"{hang.name}: {hang.summary}")
        mark = f"{hang.name}-{os.getpid()}-{next(_numbers)}"
        self._marks.add(mark)
        try:
            folder = _fresh(self.folder, hang.name)
            if hang.dumps is not None:
                return judge_dumps(hang, folder)
            if hang.network is not None:
                return judge_hosts(hang, folder, self.stall_s, START_S + STALLS * self.stall_s, {MARK: mark})
            if hang.looks:
                environ = _environment(hang, mark, self._device)
                limit_s = START_S + STALLS * self.stall_s
                return judge_looks(hang, folder, command(hang, self.stall_s), limit_s, environ)
            return self._run(hang, folder, mark)
        except OSError as error:
            if error.errno not in FULL:  # any other error is a defect of the lab
                raise
            raise HarnessError(
                f"the recordings of {hang.name} cannot be written below {self.folder}: {error.strerror}",
                fix=disk_of(self.folder),
            ) from error
        finally:
            end_marked(mark)
            self._marks.discard(mark)

    def end(self) -> None:
        """End the trials that still run because the iteration was left early, and start no more."""
        self._ended = True
        for mark in tuple(self._marks):
            end_marked(mark)

    def _run(self, hang: Hang, folder: Path, mark: str) -> Outcome:
        spec, result = folder / "spec.json", folder / "result.json"
        words = command(hang, self.stall_s, self.pythons.get(hang.engine, ""))
        request = {"command": words, "stall_s": self.stall_s, "out": str(folder / "watch"), "result": str(result)}
        write_whole(spec, json.dumps(request).encode())
        began = time.monotonic()
        if self._ended:
            return judged(hang, None, error="the lab was left before this began")
        with open_new(folder / "program.log") as log:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "harness.planted.hangs.trial", str(spec)], stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, cwd=folder, start_new_session=True,
                env=_environment(hang, mark, self._device),
            )  # fmt: skip
            limit_s = (ENGINE_START_S if hang.engine else START_S) + STALLS * self.stall_s
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(limit_s)
        wall_s = time.monotonic() - began
        ended = process.poll() is not None
        if not ended:
            end_marked(mark)
            process.wait()
        redact.log(folder / "program.log")
        if not ended:
            return judged(hang, None, wall_s=wall_s, error=f"no verdict and no end within {limit_s:.0f} s")
        try:
            answer = json.loads(result.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return judged(hang, None, wall_s=wall_s, error=f"the watch failed: {_tail(folder / 'program.log')}")
        verdict = Verdict.from_dict(answer["verdict"]) if answer["verdict"] else None
        seconds = None if answer["seconds"] is None else answer["seconds"] - self.stall_s
        is_hung = verdict is not None and verdict.verdict == "HUNG"
        error = ""
        if not is_hung and answer["exit_code"] != 0:
            error = f"ended with {answer['exit_code']}: {_tail(folder / 'program.log')}"
        return judged(hang, verdict, seconds=seconds, wall_s=wall_s, evidence=answer["evidence"], error=error)


def command(hang: Hang, stall_s: float, python: str = "") -> list[str]:
    """Return the command that starts a hang's program. `python`: the engine environment's interpreter, for
    "{engine}".
    """
    arguments = [word.replace("{stall}", f"{stall_s:g}").replace("{engine}", python) for word in hang.arguments]
    if hang.world:
        ranks = ["--world", str(hang.world), *hang.launcher]
        return [sys.executable, str(LAUNCHER), *ranks, hang.program, *arguments]
    program = [hang.program] if hang.program.endswith(".py") else ["-m", hang.program]
    return [sys.executable, *program, *arguments]


def marked(mark: str, proc: Path = Path("/proc")) -> list[int]:
    """Return the pids of all processes but this one that were started with that mark in their environment."""
    wanted, pids = f"{MARK}={mark}".encode(), []
    for entry in proc.iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                environ = (entry / "environ").read_bytes()
            except OSError:  # it has ended, or belongs to another user
                continue
            if wanted in environ.split(b"\0"):
                pids.append(int(entry.name))
    return sorted(pids)


def end_marked(mark: str) -> None:
    """Kill every process with that mark, and those that they start in the meantime."""
    until = time.monotonic() + 10.0
    while living := marked(mark):
        for pid in living:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > until:
            raise HarnessError(
                f"processes {', '.join(map(str, living))} of the lab do not end",
                fix=f"kill -9 {' '.join(map(str, living))}",
            )
        time.sleep(0.05)


def _conditioned(hangs: Iterable[Hang]) -> bool:
    return any(hang.condition for hang in hangs)


def build(folder: Path) -> Path:
    """Compile the stand-in for a device's library into `folder`. Programs under a condition call it."""
    library = folder / "device.so"
    command = ["gcc", "-O1", "-shared", "-fPIC", "-o", str(library), str(HERE / "device.c")]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        error_lines = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        why = f"the lab's stand-in for a device cannot be compiled: {error_lines[0]}"
        raise HarnessError(why, fix="install gcc") from error
    return library


def _environment(hang: Hang, mark: str, device: Path | None = None) -> dict[str, str]:
    first = [str(HERE)] if hang.condition else []
    path = os.pathsep.join(filter(None, [*first, str(ROOT), os.environ.get("PYTHONPATH", "")]))
    variables = {**os.environ, **hang.env, "PYTHONPATH": path, MARK: mark}
    if hang.condition:
        variables |= {"RLHF_HARNESS_LAB_CONDITION": hang.condition, "RLHF_HARNESS_LAB_DEVICE": str(device)}
    return variables


def _fresh(folder: Path, name: str) -> Path:
    for number in itertools.count(1):
        path = folder / (name if number == 1 else f"{name}-{number}")
        with contextlib.suppress(FileExistsError):
            make_new_folder(path)
            return path.resolve()
    raise AssertionError("itertools.count ends")


def _interpreter(engine: str) -> str:
    return str(envs.get(engine).python)


def _tail(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1][:200] if lines else "it said nothing"
