"""Runs a command under the watchdog: its input, output, signals and exit code are what they would be without."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import re
import select
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal

from harness.errors import BadInput
from harness.triage.watch.observe import BEATS
from harness.triage.watch.watchdog import Stall, Watchdog

if TYPE_CHECKING:
    from reports.model import Verdict

OnStall = Literal["report", "end", "exit"]
STALLED = 86
NOT_FOUND, NOT_RUNNABLE = 127, 126  # as env, nice, timeout and every shell say it
# What a process has to be told where it inherits nothing; probes/site/rlhf_harness_ray.py tells Ray's workers the same.
TOLD = ("RLHF_HARNESS_WATCH", "RLHF_HARNESS_SOCKETS", "RLHF_HARNESS_ADAPTER", "RLHF_HARNESS_DIGESTS")
SITE = Path(__file__).resolve().parents[3] / "probes" / "site"
# The terminal sends these to its whole foreground group, the command included; by hand they go on to the command.
_KEYS = (signal.SIGINT, signal.SIGQUIT)
_PASSED_ON = (*_KEYS, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


@dataclass(frozen=True)
class WatchResult:
    """`exit_code`: the command's own (128 + signal), or 86. `verdict`: the last one, if a stall was ever suspected."""

    exit_code: int
    verdict: Verdict | None
    directory: Path | None  # None where nothing was worth keeping


class CommandNotRun(BadInput):
    """The command could not be started."""

    def __init__(self, message: str, code: int, mend: str | None = None) -> None:
        super().__init__(message, mend=mend)
        self.exit_code = code


def watch(
    command: Sequence[str],
    *,
    stall_s: float | None = 60.0,
    out: Path | None = None,
    on_stall: OnStall = "report",
    say: Callable[[str], None] = lambda line: None,
    show: Callable[[Stall], None] = lambda stall: None,
    watchdog: Callable[..., Watchdog] = Watchdog,
    environ: Mapping[str, str] | None = None,
) -> WatchResult:
    """Run `command` to its end and watch it. `say` takes a line, `show` a stall, both for the user.

    `on_stall`: `report` leaves the command alone and goes on watching, `end` ends it and everything below it, `exit`
    leaves it running and returns; the last two with exit code 86. `out`: where the recordings, evidence and verdict go;
    without it a folder under runs/, removed when nothing was found. Without `stall_s` nobody watches: the processes
    are recorded only. Raises BadInput for a command or a folder that cannot be used.
    """
    environment = dict(os.environ if environ is None else environ)
    program = _program(command, environment)
    directory = _directory(out, command)
    sockets = tempfile.mkdtemp(prefix="rlhf-", dir="/tmp" if os.access("/tmp", os.W_OK) else None)
    environment = watched(environment, directory, sockets)
    dog: Watchdog | None = None
    with _passing_on() as passed:
        try:
            child = subprocess.Popen(
                told(command, environment), executable=program, env=environment, close_fds=False,
                process_group=None if passed.foreground else 0,
            )  # fmt: skip
        except OSError as error:
            _remove(directory if out is None else None, sockets)
            raise CommandNotRun(f"{command[0]} cannot be run: {error.strerror}", NOT_RUNNABLE) from error
        passed.to(child)
        try:
            if stall_s is None:
                code = _code(child.wait())
            else:
                dog = watchdog(directory, (child.pid,), stall_s, say=say)
                code = _follow(child, dog, stall_s, on_stall, say, show)
        finally:
            if dog is not None:
                dog.close()
    verdict = dog.verdict if dog is not None else None
    kept = out is not None or (verdict is not None and verdict.verdict != "HEALTHY") or child.poll() is None
    _remove(None if kept else directory, sockets if child.poll() is not None else None)
    return WatchResult(code, verdict, directory if kept else None)


def watched(environment: Mapping[str, str], directory: Path, sockets: str = "") -> dict[str, str]:
    """The environment that switches the probes on in every Python process below: set it for a Ray actor as well."""
    rest = environment.get("PYTHONPATH", "")
    parts = [str(SITE), *(part for part in rest.split(os.pathsep) if part and part != str(SITE))]
    found = {**environment, "RLHF_HARNESS_WATCH": str(directory.resolve()), "PYTHONPATH": os.pathsep.join(parts)}
    return {**found, "RLHF_HARNESS_SOCKETS": sockets} if sockets else found


def told(command: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The command; `ray job submit` runs elsewhere and inherits nothing, so its runtime environment is told."""
    words = list(command)
    if len(words) < 3 or os.path.basename(words[0]) != "ray" or words[1:3] != ["job", "submit"]:
        return words
    end = words.index("--") if "--" in words else len(words)
    option = "--runtime-env-json"
    at = next((i for i in range(3, end) if words[i] == option or words[i].startswith(option + "=")), None)
    if at is None and any(word.split("=")[0] == "--runtime-env" for word in words[3:end]):
        return words  # a file of the user's: merging it would mean to guess
    given = "{}" if at is None else words[at + 1] if words[at] == option else words[at].partition("=")[2]
    try:
        runtime = json.loads(given)
        variables = dict(runtime.get("env_vars") or {})
    except (ValueError, AttributeError, TypeError):  # Ray will say what is wrong with it
        return words
    for name in TOLD:
        if name in environment:
            variables.setdefault(name, environment[name])
    variables["PYTHONPATH"] = str(SITE) + os.pathsep + variables.get("PYTHONPATH", "${PYTHONPATH}")
    new = [option, json.dumps({**runtime, "env_vars": variables})]
    if at is None:
        return [*words[:3], *new, *words[3:]]
    return [*words[:at], *new, *words[at + (2 if words[at] == option else 1) :]]


def _follow(
    child: subprocess.Popen[bytes],
    dog: Watchdog,
    stall_s: float,
    on_stall: OnStall,
    say: Callable[[str], None],
    show: Callable[[Stall], None],
) -> int:
    """Tick until the command ends; its exit code, or 86."""
    period_s = min(1.0, max(0.1, stall_s / 10))
    while not _ended(child, period_s):
        try:
            stall = dog.tick()
        except Exception as error:  # the command's result matters more than a defect of the watchdog
            say(f"the watchdog is off, the command goes on: {type(error).__name__}: {error}")
            return _code(child.wait())
        if stall is None or (child.poll() is not None and child.returncode == 0):
            continue
        show(stall)
        if on_stall == "end":
            from harness.launch import end

            end(dog.observer.living())
            child.wait()
            return STALLED
        if on_stall == "exit":
            return STALLED
    return _code(child.returncode)


def _ended(child: subprocess.Popen[bytes], timeout_s: float) -> bool:
    """Wait for the command for so long; at once when it ends, without asking again and again where Linux allows."""
    try:
        descriptor = os.pidfd_open(child.pid)
    except (AttributeError, OSError):  # no Linux, or reaped already
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout_s)
        return child.poll() is not None
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        poll.poll(timeout_s * 1000)
    finally:
        os.close(descriptor)
    return child.poll() is not None


def _code(returncode: int) -> int:
    return 128 - returncode if returncode < 0 else returncode


class _Passing:
    """Hands signals on to the command. `foreground`: the terminal's keys reach it without us."""

    def __init__(self) -> None:
        self.foreground = _in_foreground()
        self._child: subprocess.Popen[bytes] | None = None
        self._early: list[int] = []

    def to(self, child: subprocess.Popen[bytes]) -> None:
        self._child = child
        for signum in self._early:
            self._send(signum)

    def arrived(self, signum: int, frame: FrameType | None) -> None:
        if self._child is None:
            self._early.append(signum)
        else:
            self._send(signum)

    def _send(self, signum: int) -> None:
        assert self._child is not None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if signum not in _KEYS:
                self._child.send_signal(signum)
            elif not self.foreground:
                os.killpg(self._child.pid, signum)


@contextlib.contextmanager
def _passing_on() -> Iterator[_Passing]:
    """Signals that would end us go to the command instead; what was ignored (nohup) stays ignored."""
    passing, before = _Passing(), {}
    for signum in _PASSED_ON:
        handler = signal.getsignal(signum)
        if handler is not signal.SIG_IGN:
            before[signum] = handler
            signal.signal(signum, passing.arrived)
    try:
        yield passing
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _in_foreground() -> bool:
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC)
    except OSError:  # no terminal
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def _program(command: Sequence[str], environment: Mapping[str, str]) -> str:
    if not command:
        raise BadInput("there is no command to watch", mend="harness watch -- python train.py")
    found = shutil.which(command[0], path=environment.get("PATH"))
    if found is None:
        there = os.path.exists(command[0]) and not os.path.isdir(command[0])
        what = "is not executable" if there else "is not found"
        mend = f"chmod +x {command[0]}" if there else f"which {os.path.basename(command[0])}"
        if re.match(r"[A-Za-z_]\w*=", command[0]) and not there:  # only a shell takes it for a variable
            mend = f"-- env {command[0]} …"
        raise CommandNotRun(f"the command {command[0]!r} {what}", NOT_RUNNABLE if there else NOT_FOUND, mend)
    return found


def _directory(out: Path | None, command: Sequence[str]) -> Path:
    """The watch directory, made; BadInput when it cannot be, or holds another watch."""
    from harness.triage.collect import redact
    from probes.format import write_manifest

    started = datetime.datetime.now(datetime.UTC)
    directory = out or Path("runs") / f"watch-{started:%Y%m%d-%H%M%S}-{os.getpid()}"
    if any((directory / name).is_dir() and any((directory / name).iterdir()) for name in (BEATS, "events")):
        raise BadInput(f"{directory} holds another recording", mend=f"harness watch --out {directory}-2 -- …")
    try:
        manifest = {"command": redact.command(command), "started": started.isoformat(timespec="seconds")}
        write_manifest(directory, {**manifest, "watch": True})
        (directory / BEATS).mkdir(exist_ok=True)
    except OSError as error:
        cause: Any = error.__cause__ or error
        raise BadInput(
            f"{directory} cannot be written: {cause.strerror or cause}", mend="another folder: --out DIR"
        ) from error
    return directory.resolve()


def _remove(directory: Path | None, sockets: str | None) -> None:
    for folder in (directory, sockets):
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
    if directory is not None:
        with contextlib.suppress(OSError):  # other runs lie there
            directory.parent.rmdir()
