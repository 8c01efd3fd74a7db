"""Which processes belong to the job: those below its roots, those that its watch directory names, and Ray's workers."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.cluster.ray_start import FIND_GCS, RAY_PORT
from harness.errors import BadInput
from harness.other_paths import free_path
from harness.triage.collect import beats, connections, job, journals, proc, ray, redact, roles
from harness.triage.evidence import Starter
from probes.format import EVENTS
from probes.identity import WATCH
from scenarios.ports import refused, speaks_http

RAY_CLIENT = "ray://"  # begins an address of Ray's client server
MAX_PORT = 65_535  # a port of TCP has 16 bits
_BEAT = re.compile(rf"/{beats.FOLDER}/\d+[^/]*\.json$")
CLOCK_SET_S = 1.0  # if the wall clock moved more than this against the monotonic clock, it was set and did not drift


@dataclass(frozen=True)
class Scope:
    """What to look at.

    `roots`: pids, with everything below them. `directory`: a watch or run directory. `ray_address`: HOST:PORT of a
    cluster's GCS; None takes it from a raylet below or above a root; empty asks no Ray.
    """

    roots: tuple[int, ...] = ()
    directory: Path | None = None
    ray_address: str | None = None


@dataclass(frozen=True)
class Cast:
    """The processes of a scope on this host, and what the watch directory says about any host."""

    host: str
    pids: tuple[int, ...]
    ended: tuple[int, ...] = ()  # pids that the scope names and that no longer exist
    ray_address: str = ""
    pulses: Mapping[tuple[str, int], beats.Pulse] = field(default_factory=dict)
    journals: Mapping[tuple[str, int], list[Path]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    clock_set_s: float = 0.0  # seconds by which this host's wall clock was set while the job ran
    starters: tuple[Starter, ...] = ()

    def clocks(self, now_ns: int) -> dict[str, int]:
        """Host -> its monotonic clock: `now_ns` for this host, the time of its last beat for another."""
        clock_by_host = {self.host: now_ns}
        for (host, _), pulse in self.pulses.items():
            if host != self.host:
                clock_by_host[host] = max(clock_by_host.get(host, 0), pulse.at_ns)
        return clock_by_host


def clock_set_s(openings: Iterable[journals.Opening], now_ns: int, wall_ns: int) -> float:
    """By how many seconds the wall clock was set since these journals of this host were opened; 0.0 if it was not.

    Both clocks are slewed alike, so they part only if one is set (or the machine sleeps).
    """
    apart = [
        ((wall_ns - opening.wall_ns) - (now_ns - opening.opened_ns)) / 1e9 for opening in openings if opening.wall_ns
    ]
    most = max(apart, key=abs, default=0.0)
    return most if abs(most) > CLOCK_SET_S else 0.0


def cast(scope: Scope, *, exclude: Sequence[int] = ()) -> Cast:
    """Find the processes of a scope that exist now. `exclude`: pids that are no part of the job, such as the
    collector."""
    host, table = socket.gethostname(), proc.parents()
    notes: list[str] = []
    pulses: dict[tuple[str, int], beats.Pulse] = {}
    written: dict[tuple[str, int], list[Path]] = {}
    reused: set[int] = set()
    set_s = 0.0
    if scope.directory is not None:
        pulses, spoilt = beats.read(scope.directory, time.monotonic_ns())
        # A process may write its journal into another folder, such as that of its run; its heartbeat names it.
        pulse_journals = {Path(path) for (at, _), pulse in pulses.items() if at == host for path in pulse.journals}
        files = sorted(
            {file.resolve() for file in {*journals.files(scope.directory), *pulse_journals} if file.is_file()}
        )
        openings, damaged = journals.owners(files, host)
        notes += [*spoilt, *damaged]
        # A pid may have been given to another process since.
        pulses, written, reused = _of_current_processes(pulses, openings, host, table)
        # Only journals of live processes tell if the clock was set: it may have been set after an earlier run.
        living = [opening for (at, pid), paths in written.items() if at == host and pid in table.keys() - reused
                  for opening in openings[at, pid] if opening.path in paths]  # fmt: skip
        set_s = clock_set_s(living, time.monotonic_ns(), time.time_ns())
        if set_s:
            notes.append(f"clock unknown: the wall clock of {host} was set by {set_s:+.0f} s while the job ran; what "
                         "only that clock tells is left out")  # fmt: skip
        notes += [f"process {pid} has ended, and another process has its number" for pid in sorted(reused)]
    named = [pid for at, pid in {**pulses, **written} if at == host]
    pids = proc.descendants((*scope.roots, *(pid for pid in named if pid in table and pid not in reused)), table)
    # Ray's workers are below the raylet and not below the driver, so the cluster has to be found as well.
    address = _address_of(pids, table) if scope.ray_address is None else scope.ray_address
    if address:
        pids = list(dict.fromkeys([*pids, *proc.descendants(tuple(ray.local_raylets(address)), table)]))
    wanted = [pid for pid in pids if pid in table and pid not in exclude]
    members = tuple(pid for pid in wanted if not roles.infrastructure(proc.arguments(pid)))
    ended_pids = tuple(dict.fromkeys(pid for pid in (*scope.roots, *named) if pid not in table or pid in reused))
    return Cast(
        host=host,
        pids=members,
        ended=ended_pids,
        ray_address=address,
        pulses=pulses,
        journals=written,
        notes=tuple(notes),
        clock_set_s=set_s,
        starters=tuple(_starters(host, scope.roots, {*pids, *exclude}, table)),
    )


def _starters(host: str, roots: Sequence[int], looked_at: set[int], table: Mapping[int, int]) -> Iterator[Starter]:
    """Yield the Python programs that started one of these, and that are neither looked at nor run this process."""
    ours = {*job.ancestors(os.getpid(), table), os.getpid()}
    for root in roots:
        parent = table.get(root, 0)
        if parent in looked_at or parent in ours or not _runs_python(parent) or job.is_foreign(parent):
            continue
        yield Starter(host, parent, root, redact.command(proc.arguments(parent)))


def _runs_python(pid: int) -> bool:
    return pid > 1 and os.path.basename(next(iter(proc.arguments(pid)), "")).startswith("python")


def may_live(scope: Scope) -> bool:
    """Whether a process of a scope lives on this host, or is of another host, of which only a look can tell."""
    members = cast(scope)
    return bool(members.pids) or any(host != members.host for host, _ in {**members.pulses, **members.journals})


def _of_current_processes(
    pulses: dict[tuple[str, int], beats.Pulse],
    openings: Mapping[tuple[str, int], list[journals.Opening]],
    host: str,
    table: Mapping[int, int],
) -> tuple[dict[tuple[str, int], beats.Pulse], dict[tuple[str, int], list[Path]], set[int]]:
    """Keep beats and journals of processes that live now or are gone, and drop those of an earlier process of a reused
    pid.

    Returns the beats, the journals, and the reused pids. A process with a reused pid left neither beat nor journal, and
    nothing that the earlier process left counts against it.
    """
    valid_pulses, written = (
        dict(pulses),
        {key: [opening.path for opening in process_openings] for key, process_openings in openings.items()},
    )
    reused = set()
    for key in {**pulses, **openings}:
        at, pid = key
        if at != host or pid not in table:
            continue
        (start_ticks, age_s), now_ns = proc.born(pid), time.monotonic_ns()
        mine = [opening.path for opening in openings.get(key, ()) if opening.by(start_ticks, age_s, now_ns)]
        beats_now = key in pulses and pulses[key].start_ticks in (0, start_ticks)
        if not mine and not beats_now:
            reused.add(pid)
            continue
        written[key] = mine
        if not beats_now:
            valid_pulses.pop(key, None)
    return valid_pulses, {key: paths for key, paths in written.items() if paths}, reused


def live(what: str | Sequence[str]) -> Scope:
    """The scope that a user means: pids (`123`, `123,124`), a run or watch directory, a Ray address, or `auto`.

    Raises BadInput for anything else, and for what no longer exists.
    """
    words = [word for part in ([what] if isinstance(what, str) else what) for word in re.split(r"[\s,]+", part) if word]
    if words and all(word.isdigit() for word in words):
        return _processes([int(word) for word in words])
    text = " ".join(words)
    if text and Path(text).is_dir():
        return _directory(Path(text))
    if text == "auto" or text.startswith(RAY_CLIENT) or re.fullmatch(r"[\w.\-\[\]:]+:\d+", text):
        return _cluster(text)
    if re.fullmatch(r"\d+(?:\.\d+){3}", text):
        raise BadInput(
            f"{text} is an address without a port", fix=f"{text}:{RAY_PORT}   # the port of ray start", instead=text
        )
    if text and os.path.islink(text):
        raise BadInput(f"{text} is a link to {os.readlink(text)}, which is not there", fix=f"ls -l {shlex.quote(text)}")
    unknown = next((word for word in words if not word.isdigit()), "") if any(map(str.isdigit, words)) else text
    raise BadInput(
        f"{unknown!r} is neither a process id, a file, a directory nor a Ray address",
        fix="harness triage --help   # lists what it reads",
    )


def _processes(pids: list[int]) -> Scope:
    live_pids = [pid for pid in pids if proc.look(pid).state != "gone"]
    if not live_pids:
        names = ", ".join(map(str, pids))
        raise BadInput(f"no process {names} on this host: it has ended, or runs elsewhere", fix="ps -ef | grep python")
    if kernel_threads := [pid for pid in live_pids if proc.of_kernel(pid)]:
        raise BadInput(
            f"process {kernel_threads[0]} ({proc.comm(kernel_threads[0])}) is a thread of the kernel, and no job",
            fix="pgrep -af python   # the job's Python processes, for harness triage PID",
        )
    table = proc.parents()
    members = [member for pid in pids for member in _members(pid, table)]
    roots = tuple(dict.fromkeys(root for pid in members for root in job.roots(pid, table)))
    folders = {folder for pid in proc.descendants(roots, table) if (folder := _watch_of(pid)) is not None}
    return Scope(roots, next(iter(folders)) if len(folders) == 1 else None)


def _watch_of(pid: int) -> Path | None:
    """The folder of the watch under which a process runs, by the heartbeat that it has open or its environment; None
    without one on this host."""
    links: list[str] = []
    with contextlib.suppress(OSError):  # it ended, or it is another user's
        for entry in (connections.PROC / str(pid) / "fd").iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile
                links.append(os.readlink(entry))
    open_beats = (Path(link).parents[1] for link in links if _BEAT.search(link))
    named = proc.environment(pid).get(WATCH, "")
    folders = [*open_beats, *([Path(named)] if named else [])]
    return next((folder for folder in folders if (folder / beats.FOLDER).is_dir()), None)


def _members(pid: int, table: Mapping[int, int]) -> list[int]:
    """The process itself; for the one with which a watch passes on what its command prints, the command's."""
    if not roles.passes_output(proc.arguments(pid)):
        return [pid]
    watch = table.get(pid, 0)
    beside = [other for other, parent in table.items() if parent == watch and proc.alive(other)]
    if not job.is_foreign(watch):  # the watch has ended, and left the process behind
        beside = []
    if commands := [other for other in beside if not roles.infrastructure(proc.arguments(other))]:
        return commands
    raise BadInput(
        f"process {pid} only passes on what a command of harness watch printed, and the command has ended",
        fix="pgrep -af python   # the job's Python processes, for harness triage PID",
    )


def _directory(directory: Path) -> Scope:
    if not any((directory / name).is_dir() for name in (EVENTS, beats.FOLDER)):
        raise BadInput(
            f"{directory} is not a run: it has neither {EVENTS}/ nor {beats.FOLDER}/",
            fix=f"{shlex.join(['harness', 'watch', '--out', str(free_path(directory))])} -- COMMAND   # records a run",
        )
    return Scope(directory=directory)


def _cluster(text: str) -> Scope:
    gcs_addresses = sorted(set(ray.local_raylets().values()))
    of_client = text.startswith(RAY_CLIENT)
    named = text.removeprefix(RAY_CLIENT).strip("/")
    host, colon, port = named.rpartition(":")
    if of_client:  # it names the client server's port; the GCS has its own
        host, port = host if colon else named, str(RAY_PORT)
    hosts = {"localhost", "127.0.0.1", socket.gethostname(), *(gcs.rpartition(":")[0] for gcs in gcs_addresses)}
    if text == "auto" or (of_client and host in hosts and len(gcs_addresses) == 1):
        if not gcs_addresses:
            raise BadInput(
                "no Ray cluster has a node on this host",
                fix="harness triage PID   # of torchrun or python (pgrep -af python), or HOST:PORT of a Ray cluster",
            )
        if len(gcs_addresses) > 1:
            raise BadInput(
                f"several Ray clusters have a node on this host: {', '.join(gcs_addresses)}",
                fix=f"harness triage {gcs_addresses[0]}",
            )
        return Scope(ray_address=gcs_addresses[0])
    if not 0 < int(port) <= MAX_PORT:
        raise BadInput(
            f"{host}:{port} is no address: a port is a number from 1 to {MAX_PORT}",
            fix=f"harness triage {host}:{RAY_PORT}   # the port of Ray's GCS, unless `ray start` was given another",
        )
    if why := refused(host, int(port), 3):
        raise BadInput(f"nothing answers at {host}:{port}: {why}", fix=FIND_GCS)
    if speaks_http(host, int(port), 1):
        raise BadInput(
            f"what answers at {host}:{port} is an HTTP server and no Ray cluster's GCS",
            fix=f"harness triage http://{host}:{port}   # if a watch serves its evidence there; else --help"
            if int(port) == RAY_PORT
            else f"harness triage {host}:{RAY_PORT}   # or http://{host}:{port}, if a watch serves its evidence there",
        )
    return Scope(ray_address=f"{host}:{port}")


def _address_of(pids: list[int], table: dict[int, int]) -> str:
    """The GCS address of the cluster to which these processes belong; empty without one.

    It is that of a raylet among them or right above them, since a Ray worker's parent is its raylet. Otherwise it is
    the GCS to which one of them is connected: a driver that joined a cluster.
    """
    for pid in dict.fromkeys([*pids, *(table[pid] for pid in pids if pid in table)]):
        if address := roles.raylet_address(proc.arguments(pid)):
            return address
    if clusters := set(ray.local_raylets().values()):
        sockets = connections.Sockets()
        for pid in pids:
            if joined := clusters.intersection(sockets.of(pid).peers):
                return min(joined)
    return ""
