"""Runs a command under the watchdog. Its input, output, signals and exit code are the same as without it."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import select
import shlex
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from harness import dates
from harness.errors import BadInput
from harness.exit_codes import NOT_RUNNABLE, STALLED
from harness.other_paths import another_out
from harness.program import CommandNotRun, find_program, with_path_first
from harness.triage.collect import endings, redact
from harness.triage.collect.proc import STDERR
from harness.triage.echoes import is_echo, lost_peer
from harness.triage.evidence import EndedBy
from harness.triage.remote import token
from harness.triage.watch.claim import Claim
from harness.triage.watch.deaths import failed_ranks, first_death, killed_for_memory
from harness.triage.watch.ending import KILL_S, end, unended
from harness.triage.watch.peaks import kernel_log, killed_by_kernel
from harness.triage.watch.retention import Limits
from harness.triage.watch.signals import Passing, passing_on
from harness.triage.watch.slowness import Slowness
from harness.triage.watch.stderr_tail import StderrTail
from harness.triage.watch.watchdog import Stall, Watchdog
from harness.verdict_file import NAME as VERDICT
from probes import engines
from probes.errors import FULL_SUFFIX
from probes.files import folder_or_nothing, make_folder
from probes.format import SIDES, write_manifest
from probes.heartbeat import BEATS
from probes.identity import ADAPTER, DIGESTS, SOCKETS, WATCH
from probes.index import MANIFEST
from probes.signal_codes import FIRST, exit_code_of
from reports.text import agreeing, counted
from scenarios.engines import registry
from scenarios.engines.last_words import is_error

if TYPE_CHECKING:
    from harness.triage.remote.serve import Server
    from reports.model import Verdict

OnStall = Literal["report", "end", "exit"]
# Variables that have to be passed to processes that inherit no environment; probes/site/rlhf_harness_ray.py passes the
# same to Ray's workers.
TOLD = (WATCH, SOCKETS, ADAPTER, DIGESTS, engines.TOLD)
SITE = Path(__file__).resolve().parents[3] / "probes" / "site"
# gloo's worker threads end a process that leaves with its groups alive, now and then and after all its work is done:
# pytorch/pytorch#190489. 2 of 25 runs of two ranks on torch 2.13 that nobody watched ended so.
ABORTED_AT_EXIT = "terminate called without an active exception"
GROUP_NOT_DESTROYED = (
    "torch does so now and then at the end of a program that does not call torch.distributed.destroy_process_group()"
)


@dataclass(frozen=True)
class WatchResult:
    """How a watched command ended.

    `exit_code`: the command's own (128 + signal), or 86. `verdict`: the last HUNG; without one the last verdict that is
    not HEALTHY; else HEALTHY; None if no stall was ever suspected.
    """

    exit_code: int
    verdict: Verdict | None
    directory: Path | None  # None if nothing was worth keeping
    last_words: str = ""  # why a failed command ended, by what it printed
    first_death: str = ""  # which of its processes ended first


@dataclass(frozen=True)
class Serving:
    """Serves evidence to other hosts. If the watch had something to report, it serves for `after_s` longer than the
    command runs."""

    server: Server
    after_s: float = 300.0

    def stay(self, tell: Callable[[str], None], passed: Passing) -> None:
        with contextlib.suppress(KeyboardInterrupt), passed.looking():
            tell(f"the command has ended; its evidence is served for {self.after_s:.0f} s more; Ctrl-C ends that")
            time.sleep(self.after_s)


@dataclass(frozen=True, kw_only=True)
class WatchOptions:
    """How a command is watched. `say` takes a line and `show` a stall, both for the user. `on_verdict` takes each new
    verdict and returns at once.

    `on_stall`: `report` leaves the command alone and goes on watching. `end` ends the command and everything below it
    once it is HUNG at two looks, a threshold apart. `exit` leaves it running and returns. The last two return exit code
    86. `slow`: look once a threshold who stays slow. `out`: the folder for recordings, evidence and verdict; without it
    a folder under runs/, removed if nothing was found. `limits`: of the evidence. `stdout`: the descriptor for the
    command's output, for a caller that prints something else there. Without `stall_s` nobody watches: the processes are
    only recorded.
    """

    stall_s: float | None = 60.0
    out: Path | None = None
    on_stall: OnStall = "report"
    slow: bool = False
    say: Callable[[str], None] = lambda line: None
    show: Callable[[Stall], None] = lambda stall: None
    on_verdict: Callable[[Verdict], None] = lambda verdict: None
    limits: Limits | None = None
    environ: Mapping[str, str] | None = None
    stdout: int | None = None


def watch(
    command: Sequence[str],
    options: WatchOptions | None = None,
    *,
    watchdog: Callable[..., Watchdog] = Watchdog,
    beside: Callable[[Path], AbstractContextManager[object]] = nullcontext,
    serving: Serving | None = None,
    indexed: bool = False,
    **changes: Any,
) -> WatchResult:
    """Run `command` to its end and watch it.

    `beside`: what goes on with the watch directory while the command runs. `serving`: gives evidence to other hosts.
    `indexed`: the caller promises to index what was recorded when the command has ended.
    `changes`: fields of WatchOptions, instead of or on top of `options`. Raises BadInput for a command or a folder that
    cannot be used.
    """
    options = replace(options or WatchOptions(), **changes)
    stall_s, out, on_stall, stdout, say = options.stall_s, options.out, options.on_stall, options.stdout, options.say
    environment = dict(os.environ if options.environ is None else options.environ)
    environment.pop(token.VARIABLE, None)  # the token belongs to the watch, and no job needs it
    program = find_program(command, environment)
    directory, claim = claimed(out, command, indexed=indexed)
    folder = sockets()
    environment = watched(environment, directory, folder)
    dog: Watchdog | None = None
    kills_before, began_s = killed_for_memory(), time.monotonic()
    # Signals and standard error are taken over before the command starts, so that none of either is lost.
    with passing_on() as passed, StderrTail() as stderr_tail:
        try:
            child = _started(command, program, environment, passed=passed, stderr_tail=stderr_tail, stdout=stdout)
        except CommandNotRun:
            _remove(directory if out is None else None, folder)
            claim.release()
            raise
        passed.to(child)
        stderr_tail.started()
        try:
            with beside(directory):
                if stall_s is None:
                    code = _code(child.wait())
                else:
                    dog = watchdog(directory, (child.pid,), stall_s, say=say, limits=options.limits)
                    dog.on_verdict, dog.ends = options.on_verdict, on_stall == "end"
                    dog.ended_as_meant = lambda: _ended_as_meant(child, passed)
                    dog.slowness = Slowness() if options.slow else None
                    code = _Follower(child, dog, passed, on_stall, options.show).serve(serving)
        finally:
            if serving is not None:
                serving.server.close()
            if dog is not None:
                dog.asked = passed.asked
                dog.close()
            claim.release()
            _tell_full_disk(directory, say)
        failed = code not in (0, STALLED)
        last_words = _last_words(child.returncode, stderr_tail, passed) if failed else ""
        unasked = failed and dog is not None and not passed.ending
        death = _death(directory, dog, began_s, stderr_tail.text()) if unasked and dog is not None else ""
        if failed:
            _tell_kills(killed_for_memory() - kills_before, say)
    # A directory of our own choosing stays only if it holds something that the user was shown, or if the command goes
    # on.
    kept = out is not None or (dog is not None and bool(dog.retention)) or child.poll() is None
    _remove(None if kept else directory, folder if child.poll() is not None else None)
    return WatchResult(code, dog.verdict if dog is not None else None, directory if kept else None, last_words, death)


def _ended_as_meant(child: subprocess.Popen[bytes], passed: Passing) -> bool:
    """Whether the command has ended with 0, or after a signal that asked it to."""
    code = child.poll()
    return code == 0 or (code is not None and passed.ending)


def _last_words(returncode: int | None, stderr_tail: StderrTail, passed: Passing) -> str:
    """Why a failed command ended, by what it printed; after a signal that asked it to end, unless it says otherwise,
    that signal."""
    words = stderr_tail.words(returncode)
    if passed.asked is None or ((returncode or 0) >= 0 and words and not is_echo(words)):
        return words
    return f"{EndedBy(passed.asked[0]).words} asked it to end"


def _tell_kills(kills: int, say: Callable[[str], None]) -> None:
    """Tell how many processes the kernel killed for memory, if it did."""
    if kills > 0:
        processes = agreeing(kills, "process", "processes")
        say(f"the kernel killed {kills} {processes} for memory: a limit of their cgroup was reached")


def _death(directory: Path, dog: Watchdog, began_s: float, stderr_text: str) -> str:
    """Keep what each process held at most and how it ended, and return the first death in words. `began_s`: when the
    command began, by the monotonic clock."""
    killed = killed_by_kernel(kernel_log(began_s))
    endings.write(directory, dog.peaks.of_job(killed, failed_ranks(stderr_text)))
    return _first_death(directory)


def _started(
    command: Sequence[str], program: str, environment: Mapping[str, str], *, passed: Passing, stderr_tail: StderrTail,
    stdout: int | None,
) -> subprocess.Popen[bytes]:  # fmt: skip
    aside = stderr_tail.descriptor if stdout == STDERR and stderr_tail.descriptor is not None else stdout
    try:
        return subprocess.Popen(
            with_environment(command, environment), executable=program, env=environment, close_fds=False,
            process_group=None if passed.foreground else 0, stdout=aside, stderr=stderr_tail.descriptor,
        )  # fmt: skip
    except OSError as error:
        without_shebang = error.errno == errno.ENOEXEC
        fix = shlex.join(["--", "bash", *command]) if without_shebang else None
        raise CommandNotRun(f"{command[0]} cannot be run: {error.strerror}", NOT_RUNNABLE, fix) from error


def _first_death(directory: Path) -> str:
    try:
        return first_death(directory)
    except Exception:  # a full disk, a defect: the command's own words are told, and its exit code is kept
        return ""


def words_of(result: WatchResult) -> str:
    """How a failed command ended: its exit code, and why if anything tells; empty if the watch or a signal ended it."""
    ended = f"the command ended with exit code {result.exit_code}"
    if why := why_of(result):
        return f"{ended}: {why}"
    by_itself = 0 < result.exit_code < FIRST and result.exit_code != STALLED
    return f"{ended}; its standard error does not say why" if by_itself else ""


def why_of(result: WatchResult) -> str:
    """The first death among the command's processes, or what it printed last; both if its last error is another."""
    death, words = result.first_death, result.last_words
    if not death:
        why = words
    elif is_error(words) and words not in death:
        # Who lost a peer failed because of it: another error in the output is that of the peer.
        first = next((clause for clause in death.split("; ") if " ended with " in clause), "")
        is_first = lost_peer(first) and not lost_peer(words)
        why = f"{words}; {death}" if is_first else f"{death}; the last error that it printed: {words}"
    else:
        why = death
    return f"{why} ({GROUP_NOT_DESTROYED})" if ABORTED_AT_EXIT in why else why


def hang_of(result: WatchResult, out: Path | None = None) -> str:
    """For a command that hung and failed: one line that says so and where the verdict is, to be printed last.

    `out`: the directory as the user named it.
    """
    verdict, directory = result.verdict, out or result.directory
    if not result.exit_code or verdict is None or verdict.verdict != "HUNG" or directory is None:
        return ""
    if directory.is_absolute() and out is None and directory.is_relative_to(Path.cwd()):
        directory = directory.relative_to(Path.cwd())
    kind = f" ({verdict.triage.hang})" if verdict.triage and verdict.triage.hang else ""
    return f"it hung{kind}; {shlex.join(['harness', 'triage', str(directory)])}"


def _tell_full_disk(directory: Path, say: Callable[[str], None]) -> None:
    stopped = len(list((directory / "events").glob(f"*{FULL_SUFFIX}")))
    if stopped:
        say(f"the disk was full: {counted(stopped, 'journal')} in {directory / 'events'} stopped before the end")


def watched(environment: Mapping[str, str], directory: Path, sockets: str = "") -> dict[str, str]:
    """The environment that switches the probes on in every Python process below. Set it for a Ray actor as well.

    docs/how-to/watch.md tells users to call it by this name.
    """
    python_path = environment.get("PYTHONPATH", "")
    parts = [str(SITE), *(part for part in python_path.split(os.pathsep) if part and part != str(SITE))]
    variables = {**environment, WATCH: str(directory.resolve()), "PYTHONPATH": os.pathsep.join(parts)}
    more = {SOCKETS: sockets, engines.TOLD: engines.encoded(registry.processes())}
    return {**variables, **{name: value for name, value in more.items() if value}}


def with_environment(command: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The command to start. Where `env` sets PYTHONPATH, the probes are put before its value. For `ray job submit`,
    whose job inherits no environment, its runtime environment is extended."""
    words = with_path_first(command, str(SITE))
    if len(words) < 3 or os.path.basename(words[0]) != "ray" or words[1:3] != ["job", "submit"]:
        return words
    end = words.index("--") if "--" in words else len(words)
    option = "--runtime-env-json"
    at = next((i for i in range(3, end) if words[i] == option or words[i].startswith(option + "=")), None)
    if at is None and any(word.split("=")[0] == "--runtime-env" for word in words[3:end]):
        return words  # a file of the user's: merging into it would be a guess
    runtime_text = "{}" if at is None else words[at + 1] if words[at] == option else words[at].partition("=")[2]
    try:
        runtime = json.loads(runtime_text)
        variables = dict(runtime.get("env_vars") or {})
    except (ValueError, AttributeError, TypeError):  # Ray itself reports what is wrong with it
        return words
    for name in TOLD:
        if name in environment:
            variables.setdefault(name, environment[name])
    variables["PYTHONPATH"] = str(SITE) + os.pathsep + variables.get("PYTHONPATH", "${PYTHONPATH}")
    new = [option, json.dumps({**runtime, "env_vars": variables})]
    if at is None:
        return [*words[:3], *new, *words[3:]]
    return [*words[:at], *new, *words[at + (2 if words[at] == option else 1) :]]


@dataclass
class _Follower:
    """Ticks the watchdog until the command ends, and acts on a stall."""

    child: subprocess.Popen[bytes]
    dog: Watchdog
    passed: Passing
    on_stall: OnStall
    show: Callable[[Stall], None]
    due_s: float = math.inf  # time at which a hang is examined again
    hang_reported: threading.Event = field(
        default_factory=threading.Event
    )  # set when the evidence of all hosts shows a hang
    over: bool = False  # the watch no longer acts on what it is told

    def tell(self) -> bool:
        """Receive the message that the job hangs. Returns False if the command has ended, so that nothing follows."""
        self.hang_reported.set()
        return not self.over and self.child.poll() != 0

    def serve(self, serving: Serving | None) -> int:
        """Follow the command, and serve evidence to other hosts during and after it. Returns its exit code, or 86."""
        if serving is not None:
            serving.server.start(self.dog.look, self.tell if self.on_stall == "end" else None)
        code = self.follow()
        self.over = True
        if self.child.poll() is not None:
            self.dog.over(code)
        if serving is not None and self.dog.retention and self.child.poll() is not None:
            serving.stay(self.dog.tell, self.passed)
        return code

    def follow(self) -> int:
        """Follow the command. Returns its exit code, or 86."""
        period_s = min(1.0, max(0.1, self.dog.stall_s / 10))
        while not _ended(self.child, period_s):
            if self.hang_reported.is_set():
                break
            self.dog.asked = self.passed.asked
            again = time.monotonic() >= self.due_s
            try:
                with self.passed.looking():
                    stall = self.dog.confirm() if again else self.dog.tick()
            except KeyboardInterrupt:  # Ctrl-C after the command ended: do not wait for the look
                break
            if again:
                self.due_s = math.inf
            if stall is None and again:
                self.dog.tell("at a second look it is not hung: the command goes on")
            if stall is None or self.child.poll() == 0:
                continue
            if not again:
                self._print_verdict(stall)
            if self._decided(again):
                if self.on_stall == "end":
                    self._end()
                return STALLED
        if (
            self.hang_reported.is_set() and self.child.poll() != 0
        ):  # the command may have failed meanwhile, after another node's ended
            self.dog.tell("the job hangs, by the evidence of all its nodes: the command is ended")
            self._end()
            return STALLED
        return _code(self.child.returncode)

    def _decided(self, again: bool) -> bool:
        """Whether a HUNG verdict decides the command's fate now. This is the only place that decides it.

        `exit` leaves the command at the first verdict. `end` ends it at the second (`again`), a threshold later.
        """
        if self.on_stall == "end" and not again:
            self.due_s = min(self.due_s, time.monotonic() + self.dog.stall_s)
            return False
        return self.on_stall != "report"

    def _end(self) -> None:
        """End the job. Processes that survive SIGKILL are named, and not waited for."""
        survivors = end(self.dog.observer.members)
        if survivors:
            self.dog.tell(unended(survivors))
        if self.child.poll() is None:  # /proc could not be read
            self.child.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.child.wait(KILL_S)

    def _print_verdict(self, stall: Stall) -> None:
        try:
            self.show(stall)
        except Exception as error:  # a closed terminal, a defect of a renderer: the verdict is in its file as well
            self.dog.tell(f"the verdict cannot be printed ({type(error).__name__}: {error}), it is in {stall.evidence}")


def _ended(child: subprocess.Popen[bytes], timeout_s: float) -> bool:
    """Wait up to `timeout_s` for the command to end, without polling if Linux allows it. Returns whether it has
    ended."""
    try:
        descriptor = os.pidfd_open(child.pid)
    except (AttributeError, OSError):  # not Linux, or already reaped
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
    return exit_code_of(-returncode) if returncode < 0 else returncode


def sockets() -> str:
    """Make a folder for the sockets of the processes. Returns "" if that fails; then each process finds its own
    place."""
    try:
        return tempfile.mkdtemp(prefix="rlhf-", dir="/tmp" if os.access("/tmp", os.W_OK) else None)
    except OSError:
        return ""


def claimed(out: Path | None, command: Sequence[str], *, indexed: bool = False) -> tuple[Path, Claim]:
    """The watch directory, made, and its lock. Raises BadInput when it cannot be made, or another watch has it."""
    directory = out or Path("runs") / f"watch-{dates.stamp()}-{os.getpid()}"
    try:
        with folder_or_nothing(directory):
            claim = Claim(directory)
            try:
                _begin(directory, command, indexed=indexed)
            except BaseException:
                claim.release()
                raise
    except OSError as error:
        raise _not_writable(directory, error) from error
    return directory.resolve(), claim


def _begin(directory: Path, command: Sequence[str], *, indexed: bool) -> None:
    filled = any(
        (directory / name).is_dir() and any((directory / name).iterdir()) for name in (BEATS, "events", *SIDES)
    )
    of_no_watch = (directory / MANIFEST).exists() and not (directory / BEATS).exists()
    if filled or of_no_watch or (directory / VERDICT).exists():
        raise BadInput(
            f"{directory} holds another recording",
            fix=another_out(directory),
        )
    manifest = {"command": redact.command(command), "started": dates.now(), "watch": True, "index": indexed}
    write_manifest(directory, manifest)
    make_folder(directory / BEATS)


def _not_writable(directory: Path, error: OSError) -> BadInput:
    cause: Any = error.__cause__ or error
    return BadInput(f"{directory} cannot be written: {cause.strerror or cause}", fix="--out DIR   # another folder")


def _remove(directory: Path | None, sockets: str | None) -> None:
    for folder in (directory, sockets):
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
    if directory is not None:
        with contextlib.suppress(OSError):  # not empty: it holds other runs
            directory.parent.rmdir()
