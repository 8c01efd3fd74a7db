"""The state file of the warm engines: private to the user, and checked against the processes that exist."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from harness.cluster import launch
from harness.envs import home
from harness.errors import BadInput
from probes.files import write_whole
from scenarios.engines.engine_processes import alive, descendants

CLAIM_S = 1.0  # the keeper holds the lock once a second, for microseconds
STATE, LOCK, STARTING, LOG = "state.json", "lock", "starting", "keeper.log"
Stage = Literal["coupled", "native"]


@dataclass(frozen=True)
class Process:
    """A process. Its start time distinguishes it from a later process with the same pid.

    started: clock ticks since the machine booted.
    """

    pid: int
    started: int

    @staticmethod
    def of(pid: int) -> Process:
        return Process(pid, _started(pid))

    @property
    def alive(self) -> bool:
        return alive(self.pid) and _started(self.pid) == self.started


@dataclass(frozen=True)
class KeptEngine:
    """One warm engine.

    backend: the backend as a user types it.
    version: the engine's version.
    environment: the name of its environment.
    stage: coupled, or native without any probes loaded.
    actor: its name on the cluster.
    process: its process.
    model: the directory of its model.
    facts: what a run must agree with to use it (`harness.warm.fit`).
    """

    backend: str
    version: str
    environment: str
    stage: Stage
    actor: str
    process: Process
    model: str
    facts: dict[str, str]


@dataclass(frozen=True)
class Kept:
    """Everything that `harness up` keeps.

    boot: the id of the machine's boot, because pids are meaningless after another boot.
    address: the address of the Ray cluster.
    since: when the engines were started.
    idle_s: the idle time after which they end.
    device: the device of the engines.
    keeper, raylet: processes.
    processes: the keeper and its descendants, when they were last stored.
    engines: the engines.
    spares: names of the actors that become a run's learners.
    fork_sockets: of the keeper's fork servers, by interpreter: a run that finds no spare forks its learners there.
    """

    boot: str
    address: str
    since: str
    idle_s: float
    device: str
    keeper: Process
    raylet: Process
    processes: tuple[Process, ...]
    engines: tuple[KeptEngine, ...]
    spares: tuple[str, ...] = ()
    fork_sockets: dict[str, str] = field(default_factory=dict)

    @property
    def names(self) -> str:
        return ", ".join(engine.backend for engine in self.engines if engine.stage == "coupled")


def folder() -> Path:
    """Return the folder of the state, which only the user can read."""
    path = home.directory("warm")
    path.chmod(0o700)
    return path


def boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def write(kept: Kept) -> None:
    write_whole(folder() / STATE, msgspec.json.format(msgspec.json.encode(kept)))


def remove() -> None:
    (folder() / STATE).unlink(missing_ok=True)


def current(say: Callable[[str], None]) -> Kept | None:
    """Return what is warm now, or None. Processes of a keeper that has ended are ended too, and reported."""
    if not (home.checked() / "warm" / STATE).exists():
        return None
    path = folder() / STATE
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=Kept)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        remove()
        say(f"{path} could not be read ({error}) and was removed: engines that it spoke of are not used")
        return None
    if kept.boot == boot() and kept.keeper.alive:
        return kept
    survivors = [] if kept.boot != boot() else [process.pid for process in kept.processes if process.alive]
    launch.end(survivors)
    remove()
    why = "the machine was started anew" if kept.boot != boot() else f"their keeper (pid {kept.keeper.pid}) is gone"
    also = f"; {len(survivors)} processes of theirs were ended" if survivors else ""
    say(f"the engines of an earlier `harness up` ({kept.names}) are up no more: {why}{also}")
    return None


def below(pid: int) -> tuple[Process, ...]:
    """Return the process and its descendants."""
    processes = []
    for descendant in descendants(pid):
        with contextlib.suppress(OSError, IndexError):  # it has ended in the meantime
            processes.append(Process.of(descendant))
    return tuple(processes)


@contextlib.contextmanager
def claimed(wait_s: float = CLAIM_S, *, used: bool = True) -> Iterator[bool]:
    """Hold the engines for this process, and yield False where another process holds them.

    `used`: restart their idle time at the end.
    """
    descriptor = os.open(folder() / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not _locked(descriptor, wait_s):
            yield False
            return
        try:
            if used:
                os.pwrite(descriptor, f"{os.getpid():<10}".encode(), 0)
            yield True
        finally:
            if used:
                os.utime(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def starting() -> Iterator[None]:
    """Held until the engines are ready. Raises BadInput while another process holds it.

    Of engines that two processes start at once, only one half would be recorded in the state file.
    """
    descriptor = os.open(folder() / STARTING, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not _locked(descriptor, CLAIM_S):
            pid = int(os.pread(descriptor, 10, 0) or 0)
            raise BadInput(f"harness up (pid {pid}) is starting engines", fix=f"kill {pid}   # or wait for it")
        os.pwrite(descriptor, f"{os.getpid():<10}".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def last_use() -> float:
    """Return when a run last released the engines, in seconds since the epoch; 0 for never."""
    try:
        return (folder() / LOCK).stat().st_mtime
    except FileNotFoundError:
        return 0.0


def holder() -> int:
    """Return the pid of the run that uses the engines now; 0 for none."""
    with claimed(used=False) as free:
        return 0 if free else int((folder() / LOCK).read_text() or 0)


def _locked(descriptor: int, wait_s: float) -> bool:
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.05)


def _started(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError):
        return -1
