"""Attaches the probes to a watched process: a journal, its process groups, access to the flight recorder, a
heartbeat.

probes/site/sitecustomize.py calls `begin` when the process has imported torch.distributed or Ray, or runs an event
loop. Nothing here may break the job: a part that fails is switched off and named in the beat (`off`). The heartbeat's
thread does everything that costs time, one period after it began, so that a short script leaves no files behind.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import ctypes
import json
import multiprocessing.util
import os
import re
import signal
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from probes import collectives, event_loops, hard_exits, install, lost_threads, redaction
from probes.errors import of_a_signal
from probes.format import MANIFEST
from probes.handled_errors import Place, raised_at
from probes.heartbeat import PERIOD_S, WATCHDOG, Heartbeat
from probes.identity import IDLE, NOWHERE, SOCKETS, forked, rank_now, role_now
from probes.lines import without_none
from probes.spans import Span, error_text

ELSEWHERE = "not-shared"  # marks the folder of a node whose disk is not the job's
SHARED = "the recording has to lie on a disk that every node shares (--out DIR)"
# `harness watch` writes its own beat in every tick, and a tick may collect evidence for some tens of seconds.
WATCHDOG_SILENT_S, WATCHDOG_EVERY = 60.0, 5
# How long a process waits for its heartbeat's thread at its end. The thread takes about 0.1 ms where the disk
# answers.
LAST_BEAT_S = 5.0
SOCKET_LIMIT = 100  # bytes of a unix socket's path; the kernel takes 107
# Processes of Ray and of torch's compiler that serve the machine, not the job.
_SERVANTS = re.compile(
    r"ray/dashboard/|ray/_private/(log_monitor|runtime_env)|ray/autoscaler/|torch/_inductor/|bin/ray$|/ray/scripts/"
)
# The kernel delivers these signals to the thread that caused them, so a thread must not block them.
_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}

_current: Attachment | None = None
# Adapters of frameworks add to these: prefix of a process's name -> role, and functions that run once a journal is
# open.
roles: dict[str, str] = {}
greetings: list[Callable[[Quiet], None]] = []


def begin(directory: str | os.PathLike[str], *, period_s: float = PERIOD_S) -> Attachment | None:
    """Record this process into `directory`. Later calls in the same process return the same attachment.

    Return None for a process that is not part of the job.
    """
    global _current
    if any(_SERVANTS.search(word) for word in sys.orig_argv[:4]):
        return None
    if _current is None or _current.pid != os.getpid():
        _current = Attachment(directory, period_s)
        _current.start()
    collectives.watch(_current.journal)  # type: ignore[arg-type]
    return _current


def journal() -> Quiet | None:
    """Return the journal of this process; None where it has none."""
    return _current.journal if _current is not None and _current.pid == os.getpid() else None


class Quiet:
    """A recorder that never raises: it makes its file at the first event, and the first failure turns it off
    (`off`).
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory, self.running, self.off = directory, {}, ""
        self.states: dict[str, Callable[[], Mapping[str, Any]]] = {}  # as in a Recorder; the heartbeat reads it
        self.pid, self._recorder = os.getpid(), None
        self._lock = threading.RLock()  # a signal handler may record as well

    running: dict[int, Span]
    _recorder: install.Recorder | None

    @property
    def events(self) -> int:
        return self._recorder.events if self._recorder else 0

    @property
    def path(self) -> str:
        return str(self._recorder.path) if self._recorder else ""

    @property
    def recorder(self) -> install.Recorder | None:
        """Return the recorder, its file made; None once recording is off, and in a forked child."""
        if self.pid != os.getpid():
            return None
        self.open()
        return None if self.off else self._recorder

    def open(self) -> None:
        """Make the file, unless it exists."""
        with self._lock:
            if self._recorder is not None or self.off:
                return
            try:
                role, (rank, world) = role_now(), rank_now()
                role = next((ours for theirs, ours in roles.items() if role.startswith(theirs)), role)
                self._recorder = install.start(
                    self.directory, role=re.sub(r"[^A-Za-z0-9_.]", "_", role), rank=rank or 0,
                    world_size=world or 1, groups=False,
                )  # fmt: skip
            except Exception as error:
                if of_a_signal(error):
                    raise
                self.off = error_text(error)
                _tell(f"this process is not recorded: {self.off}; {SHARED}")
                return
            _look_around(Path(self.directory))
            for greet in greetings:
                greet(self)

    def event(self, kind: str, /, **fields: Any) -> None:
        if self.off or self.pid != os.getpid():
            return
        try:
            self.open()
            if self._recorder:
                self._recorder.event(kind, **fields)
        except Exception as error:
            if of_a_signal(error):
                raise
            self.off = error_text(error)

    def span(self, name: str, **fields: Any) -> Span:
        return Span(self, name, fields)  # type: ignore[arg-type]

    def memory(self) -> dict[str, int]:
        recorder = self._recorder
        return recorder.memory() if recorder and not self.off and self.pid == os.getpid() else {}

    def close(self, error: str) -> None:
        """Close the journal. `error`: what ended the process; empty for an end in good order."""
        if self._recorder and self.pid == os.getpid():
            try:
                self._recorder.close(ok=not error, reason=error)
            except Exception as failed:
                self.off = error_text(failed)


def _look_around(directory: Path) -> None:
    """Report, once per node, a directory without run.json: it lies on a disk of this node alone, not on the job's."""
    with contextlib.suppress(OSError):  # another process has reported it, or the directory cannot be read
        if (directory / MANIFEST).exists():
            return
        os.close(os.open(directory / ELSEWHERE, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        _tell(f"what this node records stays in its own {directory}, which is not the job's; {SHARED}")


def _tell(text: str) -> None:
    """Print a line on stderr, which Ray forwards to the job's own output."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # stderr is closed or missing
        print(redaction.text(f"harness: on {os.uname().nodename}: {text}", 0), file=sys.stderr, flush=True)


class Attachment:
    """The probes of one process. Their thread is a daemon; a forked child gets its own."""

    def __init__(self, directory: str | os.PathLike[str], period_s: float) -> None:
        self.directory, self.period_s, self.pid = Path(directory), period_s, os.getpid()
        self.journal = Quiet(directory)
        self.socket, self.off = "", ""
        self._server: Any = None
        self._heart: Heartbeat | None = None
        self._stop = threading.Event()
        self._done = threading.Event()
        self._role, self._rank = "process", NOWHERE
        self._silent = 0

    def start(self) -> None:
        # The thread is not registered with `threading`: a script that waits for all other threads must not wait for
        # this one.
        _thread.start_new_thread(self._run, ())
        lost_threads.watch()
        hard_exits.watch(_leaving)
        atexit.register(self._end)
        if multiprocessing.parent_process() is not None:
            _end_with_child()

    def _run(self) -> None:
        """Run the thread. Nothing in it may call `threading.current_thread()`, which would register it."""
        heart = None
        try:
            # Without this mask, a signal that the job has blocked would be delivered to this thread. torch's worker
            # server inherits the mask.
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _FAULTS)
            if self._stop.wait(self.period_s):
                return
            heart = self._heart = Heartbeat(
                self.directory, identity=self._identity, recorders=self._recorders, period_s=self.period_s
            )
            tasks = event_loops.Answers(self.directory, self._stop.wait)
            while not self._stop.is_set():
                if not self.journal.path and role_now() != IDLE:  # the role names the file and cannot change later
                    self.journal.open()
                self._look()
                heart.beat(error=self._failure())
                self._answer(tasks)
                if heart.count % WATCHDOG_EVERY == 0:
                    self._watch_the_watchdog()
                self._stop.wait(self.period_s)
        except Exception as error:  # a probe that fails is off; the job goes on
            self.off = error_text(error)
            self.journal.event("note", text=f"the heartbeat is off: {self.off}")
            if heart is not None:  # a beat that only ages would look like a process that does not answer
                with contextlib.suppress(Exception):
                    heart.path.unlink(missing_ok=True)
        finally:
            self._done.set()

    def _answer(self, tasks: event_loops.Answers) -> None:
        try:
            tasks.answer()
        except Exception as error:  # private parts of asyncio: a version without them must not end the heartbeat
            self.off = f"no tasks of event loops: {error_text(error)}"

    def _end(self) -> None:
        """Say how this process ended, when the interpreter ends."""
        error = getattr(sys, "last_value", None)
        self._say_last_word(error=error_text(error), raised_at=raised_at(error))

    def leave(self, status: int, place: Place | None) -> None:
        """Say that `os._exit`, called at `place`, ends this process, unless its last word is said."""
        if not self._stop.is_set():
            error = f"os._exit({status})" if status else ""
            self._say_last_word(error=error, raised_at=place, exit_status=status & 0xFF)  # as the kernel keeps it

    def _say_last_word(self, *, error: str, **more: Any) -> None:
        """Write a last beat that marks the end, remove the socket, and close the journal. `more`: fields of the
        beat."""
        if self.pid != os.getpid():
            return
        self._stop.set()
        # Python ends a daemon thread at its next request for the interpreter lock. Inside a call of torch, such as
        # the one that reads a group's counter, that means std::terminate: a finished job would die of SIGABRT. So
        # wait for the thread.
        ended = self._done.wait(LAST_BEAT_S)
        if self.socket:
            with contextlib.suppress(OSError):
                os.unlink(self.socket)
        if not ended:  # the disk does not answer and would block this thread too
            return
        try:
            if self._heart:
                self._heart.beat(ended=True, error=error, **more)
        except (OSError, ValueError, TypeError, RuntimeError) as failed:
            self.journal.event("note", text=f"the last beat failed: {error_text(failed)}")
        self.journal.close(error)

    def _failure(self) -> str:
        """Return the exception that ended the main thread while another thread keeps the process alive.

        It goes into the beat now, because the process may never reach its end.
        """
        return "" if threading.main_thread().is_alive() else error_text(getattr(sys, "last_value", None))

    def _recorders(self) -> list[Any]:
        mine = self.journal._recorder
        return [self.journal, *(recorder for recorder in install.live() if recorder is not mine)]

    def _look(self) -> None:
        """Update what changes while a process starts: its title, its rank, whether torch.distributed is loaded."""
        # A process is given its title and its rank while it starts. Later they change rarely, and each look costs time.
        if self._heart is None or self._heart.count % 5 == 0 or self._rank == NOWHERE:
            self._role, self._rank = role_now(), rank_now()
        if self._server is None and collectives.MODULE in sys.modules:
            try:
                self._server, self.socket = serve()
            except Exception as error:  # a private class of torch: a version without it must not end the heartbeat
                self._server, self.off = False, f"no worker server: {error_text(error)}"

    def _identity(self) -> dict[str, Any]:
        timeouts = [collectives.timeout_s(group) for group in _groups()]
        known_timeouts = [timeout for timeout in timeouts if timeout is not None]
        return {
            "role": self._role, "rank": self._rank[0], "world_size": self._rank[1], "socket": self.socket,
            "journals": [path for recorder in self._recorders() if (path := str(recorder.path))],
            "loops": len(event_loops.running()),
            **without_none(timeout_s=min(known_timeouts, default=None), off=self.off or self.journal.off or None),
        }  # fmt: skip

    def _watch_the_watchdog(self) -> None:
        """Report that the watchdog has stopped without marking its end. One process prints it; every process records
        it.
        """
        path = self.directory / WATCHDOG
        try:
            beat = json.loads(path.read_bytes())
            quiet_s = (time.monotonic_ns() - beat["t_ns"]) / 1e9
            # Clocks since boot and pids are of one machine: on another node they say nothing of the watchdog.
            if beat.get("ended") or beat["host"] != os.uname().nodename:
                return
            has_ended = not _alive(int(beat["pid"]))
        except (OSError, ValueError, KeyError, TypeError):  # there is no watchdog, or it is writing right now
            return
        self._silent = self._silent + 1 if has_ended or quiet_s > WATCHDOG_SILENT_S else 0
        if self._silent != 2:  # two looks: after a suspend, the job may wake up before its watchdog
            return
        what = "has ended without a word" if has_ended else f"has been silent for {quiet_s:.0f} s"
        text = f"the watchdog (pid {beat['pid']}) {what}: this run is no longer watched"
        self.journal.event("note", text=text)
        try:
            os.close(os.open(path.with_suffix(".lost"), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except OSError:  # another process has reported it
            return
        print(f"harness: {text}", file=sys.stderr, flush=True)


def serve() -> tuple[Any, str]:
    """Start torch's worker server on a unix socket that only this user can reach. Return (server, path).

    A thread of its own answers with the flight recorder's JSON, even while another thread holds the interpreter lock.
    """
    c10d: Any = sys.modules["torch._C._distributed_c10d"]
    folder = os.environ.get(SOCKETS, "")
    if not _private(folder) or len(os.fsencode(folder)) > SOCKET_LIMIT - 16:
        folder = f"/tmp/rlhf-{os.getuid()}"
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, mode=0o700)
        if not _private(folder):  # another user owns that name
            folder = tempfile.mkdtemp(prefix="rlhf-", dir="/tmp")
    path = os.path.join(folder, f"{os.getpid()}.sock")
    if os.path.exists(path):  # left by an earlier process with this pid
        os.unlink(path)
    # torch's log level is one for the whole process, so it is changed only while the server starts.
    level = _log_level()
    before = level.value if level is not None else 0
    try:
        if level is not None:
            level.value = 2  # errors only: the server announces itself on the job's stderr
        server = c10d._WorkerServer(path)
    finally:
        if level is not None:
            level.value = before
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))  # keeps it forever: its destructor prints on stderr
    return server, path


def _private(folder: str) -> bool:
    """Whether a folder is a directory that this user alone may enter."""
    try:
        status = os.lstat(folder)
    except OSError:  # it is not there
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077


def _log_level() -> Any:
    """Return torch's own threshold for messages on stderr; None where this build has none."""
    try:
        return ctypes.c_int.in_dll(ctypes.CDLL("libc10.so"), "FLAGS_caffe2_log_level")
    except (OSError, ValueError):  # the library has another name, or torch was built with glog
        return None


def _groups() -> list[Any]:
    c10d: Any = sys.modules.get(collectives.MODULE)
    return list(getattr(getattr(c10d, "_world", None), "pg_names", {}))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _forked() -> None:
    """Give a forked child its own journal, socket and heartbeat.

    Except in a child of subprocess with a `preexec_fn`, which runs another program next. The kernel refuses some
    requests of that function, such as a new namespace, in a process with a second thread.
    """
    global _current
    forked()
    if _current is not None and not _before_exec():
        directory, period_s, _current = _current.directory, _current.period_s, None
        begin(directory, period_s=period_s)


def _before_exec() -> bool:
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_name == "_execute_child" and frame.f_code.co_filename.endswith("subprocess.py"):
            return True
    return False


def _leaving(status: int, place: Place | None) -> None:
    """Tell the attachment of this process that `os._exit` ends it; of a forked child without one nothing is told."""
    if _current is not None and _current.pid == os.getpid():
        _current.leave(status, place)


def _end_with_child(_: object = None) -> None:
    """Register `_end` in a child of multiprocessing: it leaves without atexit and drops its parent's exit functions."""
    if _current is not None:
        multiprocessing.util.Finalize(None, _current._end, exitpriority=0)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
    multiprocessing.util.register_after_fork(begin, _end_with_child)
