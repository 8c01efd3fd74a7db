"""Asks every source at once, under one deadline, and writes each answer as it comes in.

Each process has its own thread, which looks twice, because two looks tell slow from stuck. A process that the kernel
lets nobody inspect holds up only its own thread.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import dates
from harness.errors import HarnessError
from harness.triage import copied_frames, directory
from harness.triage.collect import (
    beats,
    bounded,
    channels,
    connections,
    endings,
    event_loops,
    gpus,
    journals,
    locks,
    makers,
    proc,
    ras,
    ray,
    recorder,
    redact,
    roles,
    servers,
    shared_locks,
    stacks,
    thread_errors,
)
from harness.triage.collect.connections import PROC
from harness.triage.collect.draft import Draft, absent
from harness.triage.collect.scope import Cast, Scope, cast
from harness.triage.evidence import ENDED, Evidence, Frame, Maker, PipeReader, Process, RayNode, Sample, Thread
from harness.triage.sought import Start, sought
from probes import limits, redaction
from probes.files import make_folder

NODES = "the cluster's other nodes"
CLOSING_S = 0.4  # seconds before the deadline that are kept for putting the answers together
AT_LEAST_S = 0.05  # seconds that every source is given, even after the deadline
# Journals may take this long beyond the deadline, all together: one of a few MiB is read in 0.1 s. A rank that is alone
# in its world has no number without its journal and shows as "actor (host:pid)" (seen once at a load of 12).
JOURNALS_S = 2.0
MAKERS_S = 0.5  # seconds between two looks at the makers of files
TOUCHED_S = 0.5  # seconds in which a loop that polls shared memory reads it; such loops sleep 1 to 100 ms
MOST_READERS = 8  # of one pipe that are looked at
MOST_WRITERS = 64  # of one pipe that are listed
_STREAMS = {1: "stdout", 2: "stderr"}
NATIVE_AT_LEAST_S = 1.0  # a native stack takes 0.3 to 1.1 s, once its libraries' symbols are in the page cache


@dataclasses.dataclass(frozen=True)
class _Terms:
    """Limits that every look of one collection shares."""

    out: Path
    began: float
    samples: int
    gap_s: float
    deadline_s: float
    native: bool
    clock: Callable[[], float]
    spies: threading.Semaphore  # limits parallel py-spy runs: they need the CPU, and more would only slow each other
    sockets: connections.Sockets
    directory: Path | None = None  # of the watch
    asked: int = 0  # the mark of our question about tasks of event loops; 0: nobody was asked

    def remaining_s(self) -> float:
        return self.began + self.deadline_s - CLOSING_S - self.clock()


@dataclasses.dataclass(frozen=True, kw_only=True)
class CollectOptions:
    """How evidence is taken.

    `stall_s`: how long the watchdog saw no progress. `threshold_s`: after how long it looks (0: nobody watched).
    `samples`: number of looks, `gap_s` apart. `native`: also take C and C++ frames of processes whose Python frames do
    not explain the wait. `nodes`: also collect on the other nodes of a Ray cluster, within `nodes_s`. That limit is
    longer because Ray starts a worker there first (13 s in all on two busy cores).
    """

    stall_s: float = 0.0
    threshold_s: float = 0.0
    samples: int = 2
    gap_s: float = 1.5
    deadline_s: float = 8.0
    native: bool = True
    clock: Callable[[], float] = time.monotonic
    nodes: bool = True
    nodes_s: float = 20.0


def collect(
    scope: Scope,
    options: CollectOptions | None = None,
    *,
    out: Path,
    after: tuple[Evidence, float] | None = None,
    **changes: Any,
) -> Evidence:
    """Collect evidence of every process in `scope` into the directory `out` within `deadline_s`, and return it.

    `after`: evidence of an earlier look at the same job, and how many seconds ago its clock began: the first look at
    each process is then the earlier one, and all are timed by that clock. `changes`: fields of CollectOptions that
    replace those of `options`. What cannot be collected is noted, whatever state a process is in. Raises HarnessError
    only if there is no /proc.
    """
    options = dataclasses.replace(options or CollectOptions(), **changes)
    if not PROC.joinpath("self").exists():
        raise HarnessError("collecting evidence reads /proc, which this system does not have", fix="run it on Linux")
    spies = threading.Semaphore(max(4, 2 * (os.cpu_count() or 1)))
    terms = _Terms(
        out=Path(out),
        began=options.clock(),
        samples=options.samples,
        gap_s=options.gap_s,
        deadline_s=options.deadline_s,
        native=options.native,
        clock=options.clock,
        spies=spies,
        sockets=connections.Sockets(options.clock),
        directory=scope.directory,
    )
    stall_s = options.stall_s
    timestamp = dates.utc().isoformat(timespec="milliseconds")
    empty = Evidence(
        path=str(out),
        source="watch" if stall_s else "live",
        taken=timestamp,
        stall_s=stall_s,
        threshold_s=options.threshold_s,
        watched=endings.has_watch(scope.directory),
    )
    local_cast = cast(scope, exclude=(os.getpid(),))
    if any(pulse.loops for pulse in local_cast.pulses.values()):
        terms = dataclasses.replace(terms, asked=event_loops.ask(scope.directory))
    served_by = servers.beside(local_cast.pids, terms.sockets, proc.parents())
    local_cast = dataclasses.replace(local_cast, pids=(*local_cast.pids, *served_by))
    _kept(dataclasses.replace(empty, notes=local_cast.notes), terms.out, complete=False)
    nodes_s = options.nodes_s if options.nodes else 0.0
    with contextlib.ExitStack() as stack:
        beat_file = endings.opened(scope.directory, stack)
        local_cast = dataclasses.replace(local_cast, pulses=beats.kept_open(local_cast.pulses, stack))
        evidence = _gather(empty, scope, local_cast, terms, nodes_s)
        if scope.directory is not None:
            evidence = endings.added(evidence, scope.directory, beat_file)
    return _kept(continued(evidence, *after) if after else evidence, terms.out, complete=True)


def continued(evidence: Evidence, earlier: Evidence, ago_s: float) -> Evidence:
    """The evidence with the first look of an earlier one at the same processes, which began `ago_s` before it.

    All looks are then timed from the beginning of the earlier one. A process that had ended before this look, and left
    no record, is known by the earlier one; what it wrote while it lived does not say how it ended.
    """
    earlier_by_key = {process.key: process for process in earlier.processes}
    firsts = {(process.key, process.command): process.samples[0] for process in earlier.processes if process.samples}
    processes = []
    for process in evidence.processes:
        before = earlier_by_key.get(process.key)
        if before is not None and not (process.command or process.beat or process.journal):
            lived = any(look.state not in ENDED for look in before.samples[-1:])
            process = dataclasses.replace(
                before, samples=process.samples, notes=process.notes, beat=None if lived else before.beat,
                journal=None if lived else before.journal,
            )  # fmt: skip
        first = firsts.get((process.key, process.command))
        later = tuple(dataclasses.replace(look, at_s=look.at_s + ago_s) for look in process.samples)
        processes.append(dataclasses.replace(process, samples=(first, *later) if first and later else later))
    return dataclasses.replace(evidence, processes=tuple(processes))


def _gather(empty: Evidence, scope: Scope, local_cast: Cast, terms: _Terms, nodes_s: float) -> Evidence:
    host, address, notes = local_cast.host, local_cast.ray_address, list(local_cast.notes)
    drafts = {pid: Draft(host, pid, local_cast.pulses.get((host, pid))) for pid in local_cast.pids}
    # Every local source starts before any is waited for, so that the deadline is shared and not added up.
    work = [bounded.start(f"process {pid}", _look, draft, terms) for pid, draft in drafts.items()]
    set_s = local_cast.clock_set_s
    work += [bounded.start(f"recorder {pid}", _record, draft, terms, set_s) for pid, draft in drafts.items()]
    histories = {
        key: bounded.start(f"journal of {key[1]}", journals.read, paths, local_cast.clocks(time.monotonic_ns()))
        for key, paths in local_cast.journals.items()
    }
    cards = bounded.start("GPUs", gpus.look, host)
    file_lock_work = bounded.start(
        "locks of files", locks.look, host, local_cast.pids, terms.gap_s * (terms.samples - 1)
    )
    cluster = ray.Cluster()
    elsewhere: bounded.Work | None = None
    later = dataclasses.replace(terms, deadline_s=max(nodes_s, terms.deadline_s))
    if address:
        cluster = _cluster(local_cast, terms, notes)
        if nodes_s:
            elsewhere = bounded.start("other nodes", _elsewhere, local_cast, scope, cluster.nodes, later)
        # Ray may name drivers that run below none of the roots; only its answer tells their pids.
        for pid in _drivers_beside(cluster, host, drafts):
            drafts[pid] = Draft(host, pid, local_cast.pulses.get((host, pid)))
            work.append(bounded.start(f"process {pid}", _look, drafts[pid], terms))
    for future in work:
        _result(future, terms, None, notes)
    # The ends of pipes need both looks of every process, so they come after the looks.
    _join_pipes(drafts, terms, notes)
    files = _read_sources(drafts, terms, notes)
    maker_work = bounded.start("makers of files", _makers, host, files, tuple(drafts))
    memory_work = bounded.start("polled memory", _touched, drafts)
    recordings = _recordings(histories, terms, notes)
    for pid, draft in drafts.items():
        if (host, pid) in recordings:
            draft.remember(recordings[host, pid])
    gpu_states, gpu_note = _result(cards, terms, ((), ""), notes)
    notes += [gpu_note] if gpu_note else []
    answers = _ras(host, drafts, terms, notes)
    for pid, its in _result(memory_work, terms, {}, notes).items():
        drafts[pid].touched = its
    parts: Sequence[Evidence] = ()
    if elsewhere:
        parts, silent = _result(elsewhere, later, ((), {}), notes)
        notes += [f"no evidence from {f'node {at}' if at else NODES}: {why}" for at, why in silent.items()]
        cluster = dataclasses.replace(cluster, nodes=_with_silence(cluster.nodes, silent))
    local_cast = _with_far_beats(local_cast)
    processes = [draft.freeze(cluster, drafts) for draft in drafts.values()]
    here = dataclasses.replace(
        empty,
        processes=(*processes, *absent(local_cast, recordings)),
        ray_actors=cluster.actors,
        ray_tasks=cluster.tasks,
        ray_nodes=cluster.nodes,
        ray_lost=cluster.lost,
        ray_groups=cluster.groups,
        ray_fixed=cluster.fixed,
        gpus=gpu_states,
        locks=_result(file_lock_work, terms, (), notes),
        makers=_result(maker_work, terms, (), notes),
        starters=local_cast.starters,
        ras=answers,
        notes=tuple(notes),
    )
    return _merged(here, parts, local_cast.clock_set_s)


def _cluster(local_cast: Cast, terms: _Terms, notes: list[str]) -> ray.Cluster:
    """Ask Ray for the state of its cluster."""
    address = local_cast.ray_address
    state = bounded.start(
        "Ray state", lambda: ray.state(address, timeout_s=terms.remaining_s() - 2 * bounded.REAP_S - ray.CONNECT_S)
    )
    cluster: ray.Cluster = _result(state, terms, ray.Cluster(), notes)
    notes += [cluster.note] if cluster.note else []
    if local_cast.clock_set_s:  # Ray's times are wall-clock times, so no task's age is known
        tasks = tuple(dataclasses.replace(task, age_s=0.0) for task in cluster.tasks)
        groups = tuple(dataclasses.replace(group, age_s=None) for group in cluster.groups)
        cluster = dataclasses.replace(cluster, tasks=tasks, groups=groups)
    return cluster


def _drivers_beside(cluster: ray.Cluster, host: str, drafts: dict[int, Draft]) -> Iterator[int]:
    """Yield live drivers on this host that are below no root, and everything that they started.

    These are the processes that would be collected if the driver's pid had been given.
    """
    here = tuple(pid for at, pid in cluster.drivers if at in ("", host) and pid not in drafts and proc.alive(pid))
    table = proc.parents() if here else {}
    above_drivers = {pid: parent for pid, parent in table.items() if pid not in here}
    ours = proc.descendants((os.getpid(),), above_drivers)  # the collector's own programs, if a driver started it
    for pid in proc.descendants(here, table):
        if pid not in drafts and pid not in ours and not roles.infrastructure(proc.arguments(pid)):
            yield pid


def _join_pipes(drafts: dict[int, Draft], terms: _Terms, notes: list[str]) -> None:
    """Store for each process which process is at the other end of the pipe or socket in which it waits."""
    reads = {pid: link for pid, draft in drafts.items() if (link := _read_throughout(draft))}
    several = {pid: links for pid, draft in drafts.items() if (links := _pipes_polled_throughout(draft))}
    feeders = _result(bounded.start("ends of pipes", channels.feeders, reads, terms.sockets), terms, {}, notes)
    feeders |= _result(bounded.start("ends of pipes", channels.common_feeders, several), terms, {}, notes)
    resting = {pid for pid, draft in drafts.items() if _is_resting_shell(draft)}
    for pid, writer in channels.alone({pid: feeding - resting for pid, feeding in feeders.items()}).items():
        drafts[pid].writer = writer
    for pid, feeding in feeders.items():
        its = tuple(sorted(feeding - resting))
        drafts[pid].writers = its if len(its) <= MOST_WRITERS else ()
        drafts[pid].fed = bool(feeding - {pid})
        drafts[pid].own_pipe = feeding == {pid}
    polled = {pid: link for pid, draft in drafts.items() if (link := _polled_pipe(draft))}
    pollings = _result(bounded.start("ends of polled pipes", channels.feeders, polled, terms.sockets), terms, {}, notes)
    for pid, writer in channels.alone({pid: feeding - {pid} for pid, feeding in pollings.items()}).items():
        drafts[pid].feeder = writer
    loops = {pid: links for pid, draft in drafts.items() if (links := _looped_throughout(draft))}
    wakers = _result(bounded.start("ends of event loops", channels.wakers, loops, terms.sockets), terms, {}, notes)
    for pid, waking in wakers.items():
        drafts[pid].wakers = tuple(sorted(waking))
    written = {pid: link for pid, draft in drafts.items() if (link := _written_throughout(draft))}
    readers = _result(bounded.start("readers of pipes", channels.readers, written, terms.sockets), terms, {}, notes)
    for pid, reader in channels.alone(readers).items():
        drafts[pid].reader = reader
    locked = {pid: tid for pid, draft in drafts.items() if (tid := _locked_throughout(draft))}
    locks_work = bounded.start("shared locks", shared_locks.look, locked)
    for pid, lock in _result(locks_work, terms, {}, notes).items():
        drafts[pid].shared_lock = lock
    table = proc.parents() if readers else {}
    for pid, reading in readers.items():
        drafts[pid].readers = tuple(_reader(reader, table) for reader in sorted(reading)[:MOST_READERS])


def _reader(pid: int, parents: Mapping[int, int]) -> PipeReader:
    """What a process does that can read a full pipe."""
    return PipeReader(
        pid,
        redact.command(proc.arguments(pid)),
        proc.wchan(pid, pid),
        channels.waiting(pid).sleeps_s,
        tuple(sorted(child for child, parent in parents.items() if parent == pid)),
    )


def _read_sources(drafts: dict[int, Draft], terms: _Terms, notes: list[str]) -> dict[int, tuple[str, ...]]:
    """Store what the loops of processes look for, which of their threads ended, and which memory they share, by their
    source text, their logs and their maps. Returns pid -> what it looks for."""
    threads = {pid: draft.samples[-1].threads if draft.samples else () for pid, draft in drafts.items()}
    sleeping = {pid: threads[pid] for pid, draft in drafts.items() if any(look.timed for look in draft.samples)}
    unwatched = {pid: threads[pid] for pid, draft in drafts.items() if draft.pulse is None}
    sources = bounded.start("source text", _sought, sleeping)
    logs = bounded.start("logs", thread_errors.lost, unwatched)
    for pid, things in _result(sources, terms, {}, notes).items():
        drafts[pid].sought = things
    for pid, lost in _result(logs, terms, {}, notes).items():
        drafts[pid].logged_threads = lost
    mapped = bounded.start("shared memory", lambda: {pid: proc.shared_memory(pid) for pid in drafts})
    maps = _result(mapped, terms, {}, notes)
    names = Counter(name for its in maps.values() for name in its)
    for pid, its in maps.items():
        drafts[pid].shared = tuple(sorted(name for name in its if names[name] > 1))
    return {pid: draft.sought for pid, draft in drafts.items() if draft.sought}


def _sought(threads: Mapping[int, Sequence[Thread]]) -> dict[int, tuple[str, ...]]:
    """Pid -> what the main thread of a process looks for in a loop, without secrets."""
    things = {}
    for pid, its in threads.items():
        main = next((thread for thread in its if thread.main or thread.name == "MainThread"), None)
        with contextlib.suppress(OSError):  # it ended, or it is another user's
            start = Start(proc.environment(pid), proc.arguments(pid), os.readlink(PROC / str(pid) / "cwd"))
            things[pid] = tuple(map(redaction.text, sought(main.frames, start))) if main is not None else ()
    return things


def _makers(host: str, files: Mapping[int, tuple[str, ...]], members: Sequence[int]) -> tuple[Maker, ...]:
    return makers.look(host, files, MAKERS_S, members=members)


def _touched(drafts: Mapping[int, Draft]) -> dict[int, tuple[str, ...]]:
    """Pid -> the shared memory that a process polls which shares several files of it: they tell for whom it waits."""
    several = {pid: draft.shared for pid, draft in drafts.items()
               if len(draft.shared) > 1 and any(look.timed for look in draft.samples)}  # fmt: skip
    with ThreadPoolExecutor(max(1, len(several))) as pool:
        looks = {pid: pool.submit(proc.touched_memory, pid, names, TOUCHED_S) for pid, names in several.items()}
    return {pid: look.result() for pid, look in looks.items()}


def _recordings(
    histories: dict[tuple[str, int], bounded.Work], terms: _Terms, notes: list[str]
) -> dict[tuple[str, int], journals.Recording]:
    """(host, pid) -> what the journals of a process say. All journals together have `JOURNALS_S` beyond the
    deadline."""
    recordings: dict[tuple[str, int], journals.Recording] = {}
    by = terms.clock() + max(terms.remaining_s(), JOURNALS_S)
    for history in histories.values():
        read, damaged = _result(history, terms, ({}, ()), notes, least_s=by - terms.clock())
        recordings |= read
        notes += damaged
    return recordings


def _with_silence(nodes: Iterable[RayNode], silent: Mapping[str, str]) -> tuple[RayNode, ...]:
    """The nodes, each live one with the reason why it sent no evidence."""
    return tuple(dataclasses.replace(node, silent=silent.get(node.host, "") if node.alive else "") for node in nodes)


def _with_far_beats(local_cast: Cast) -> Cast:
    """Read again the heartbeats of other hosts, which arrive through a shared directory."""
    far = {
        key: beats.again(pulse, time.monotonic_ns())
        for key, pulse in local_cast.pulses.items()
        if key[0] != local_cast.host
    }
    return dataclasses.replace(local_cast, pulses={**local_cast.pulses, **far})


def _ras(host: str, drafts: dict[int, Draft], terms: _Terms, notes: list[str]) -> dict[str, Any]:
    """NCCL's own status, if some process has a GPU open; {} otherwise."""
    environ = next((draft.facts.environ for draft in drafts.values() if draft.uses_cuda), None)
    if environ is None:
        return {}
    answer = _result(bounded.start("NCCL RAS", ras.ask, environ), terms, {}, notes)
    if not answer:
        notes.append("NCCL RAS does not answer on this host (it needs NCCL 2.24 or later, and NCCL_RAS_ENABLE not 0)")
    return {host: answer} if answer else {}


@dataclass
class _Access:
    """Which ways to the stacks of a process have failed. `denied`: py-spy may not read its memory. `silent`: it has
    ended, or has no Python."""

    denied: bool = False
    silent: bool = False


def _look(draft: Draft, terms: _Terms) -> None:
    """Collect everything about one process from outside, most valuable first. The draft is written to disk after
    each look."""
    draft.doing = "its /proc files"
    draft.learn(proc.facts(draft.pid))
    draft.connections = terms.sockets.of(draft.pid)
    port = draft.facts.environ.get("MASTER_PORT", "")
    store, access = (int(port),) if port.isdigit() else (), _Access()
    for number in range(terms.samples):
        wait = terms.began + number * terms.gap_s - terms.clock()
        if wait > 0:
            time.sleep(min(wait, max(0.0, terms.remaining_s())))
        is_late = number > 0 and terms.remaining_s() <= 0
        if not _look_once(draft, terms, number, store, access, is_late=is_late):
            return
    _after_looks(draft, terms, store)
    if terms.native and not access.denied and stacks.unexplained(draft.samples[-1].threads):
        _take_native_stack(draft, terms)
    draft.doing = ""


def _look_once(
    draft: Draft, terms: _Terms, number: int, store: tuple[int, ...], access: _Access, *, is_late: bool
) -> bool:
    """Take one look at a process. Returns whether there is time for more: a late look is one of /proc alone, and only
    of a process without any stack."""
    blind = not any(look.threads for look in draft.samples)
    if is_late and not blind:
        return False
    draft.doing = "its /proc files"
    at, look = terms.clock() - terms.began, _looked(draft, store)
    draft.doing = "its Python stacks"
    if blind:  # Keep what /proc says, in case py-spy is late. Beside a look with stacks it would hide those.
        draft.samples.append(_sample(draft, at, look, ()))
    if is_late:
        return False
    threads = _python_threads(draft, terms, access, has_ended=look.state in ENDED)
    draft.samples[number:] = [_sample(draft, at, look, _own_frames(draft, threads))]
    with contextlib.suppress(OSError):  # a full disk is reported at the end, and collecting goes on
        directory.write_process(draft.freeze(), terms.out)
    return True


def _python_threads(draft: Draft, terms: _Terms, access: _Access, *, has_ended: bool) -> tuple[Thread, ...]:
    """The Python stacks of a process: by py-spy, or, where the kernel denies that, as the process writes them."""
    access.silent = access.silent or has_ended
    answer = stacks.Stacks()
    if not access.denied and not access.silent:
        answer = _spied(draft, terms)
        access.silent = not answer.threads and "not a Python" in answer.note
        access.denied = answer.denied
    draft.notes.append(answer.note)
    if access.denied and not access.silent:
        answer = _inside(draft, terms)
        draft.notes.append(answer.note)
        access.silent = not answer.threads
    return answer.threads


def _after_looks(draft: Draft, terms: _Terms, store: tuple[int, ...]) -> None:
    """Read again what may have changed while its stacks were taken, and ask its event loops for their tasks."""
    if (state := _looked(draft, store).state) in ENDED:
        draft.samples[-1] = dataclasses.replace(draft.samples[-1], state=state)
    if not draft.pulse:
        return
    # A span that was open at the first look may be over at the last. An old beat beside a new stack would be
    # misleading.
    draft.pulse = beats.again(draft.pulse, time.monotonic_ns())
    if draft.pulse.loops and terms.directory and terms.asked and draft.samples[-1].state not in ENDED:
        draft.doing = "what its tasks await"
        draft.loops = event_loops.answer(terms.directory, draft.pid, terms.asked, terms.remaining_s)


def _take_native_stack(draft: Draft, terms: _Terms) -> None:
    """Take the stack of a process with its compiled frames, if there is time."""
    draft.doing = "its native stack"
    if terms.remaining_s() <= NATIVE_AT_LEAST_S:
        return
    with terms.spies:
        deep = stacks.dump_native(draft.pid, timeout_s=max(0.1, terms.remaining_s() - 0.3))
    draft.native = deep.threads
    draft.notes.append(deep.note)


def _own_frames(draft: Draft, threads: tuple[Thread, ...]) -> tuple[Thread, ...]:
    """The threads of a process without frames of its parent, of which the line that forked it is kept."""
    draft.forked_at = copied_frames.forked_at(threads) or draft.forked_at
    return copied_frames.since_fork(threads)


def _looked(draft: Draft, store: tuple[int, ...]) -> proc.Look:
    """One look at a process, which keeps the exit code of one that has ended meanwhile."""
    look = proc.look(draft.pid, store, draft.beat_tid)
    if look.start_ticks != draft.facts.start_ticks and look.start_ticks and draft.facts.start_ticks:
        return proc.Look("gone")  # the pid now belongs to another process
    if look.exit_code is not None:
        draft.facts = dataclasses.replace(draft.facts, exit_code=look.exit_code)
    return look


def _sample(draft: Draft, at_s: float, look: proc.Look, threads: tuple[Thread, ...]) -> Sample:
    """Return one look as a Sample, with the kernel's figures for each Python thread."""
    measured_threads = tuple(
        dataclasses.replace(
            thread, cpu_s=its.cpu_s, io_bytes=its.io_bytes, delay_s=its.delay_s, wchan=proc.wchan(draft.pid, thread.tid)
        )
        if (its := look.threads.get(thread.tid)) is not None else thread
        for thread in threads
    )  # fmt: skip
    main = look.threads.get(draft.pid)
    beats = look.threads.get(draft.pulse.beat.tid) if draft.pulse else None
    return Sample(
        at_s=at_s,
        state=look.state,
        cpu_s=look.cpu_s,
        switches=look.switches,
        io_bytes=look.io_bytes,
        wchan=look.wchan,
        threads=measured_threads,
        net_bytes=look.net_bytes,
        main_cpu_s=main.cpu_s if main else None,
        main_io_bytes=main.io_bytes if main else None,
        main_switches=look.main_switches,
        net_quiet_s=look.quiet_s,
        main_delay_s=main.delay_s if main else None,
        beat_delay_s=beats.delay_s if beats else None,
        beat_state=beats.state if beats else "",
        service_cpu_s=sum(spent.cpu_s for spent in look.threads.values() if spent.service),
        reading=look.reading.link,
        reads_for_ever=look.reading.unlimited,
        writing=look.writing.link,
        writes_to=_STREAMS.get(look.writing.descriptor, ""),
        locked_alone=look.locked_alone,
        locked_together=look.locked_together,
        in_shared_lock=look.in_shared_lock,
        alone=look.alone,
        opens=look.opens,
        loop=look.loop,
        timed=look.timed,
        sleeps_s=look.sleeps_s,
        handles=look.handles,
        polled=look.polled,
        reads_from=look.reads_from,
        heard=look.heard,
        owed=look.owed,
        unread=look.unread.clients[: connections.MAX_SHOWN],
        unaccepted=look.unread.unaccepted,
        awaited_child=look.awaited_child,
    )


def _read_throughout(draft: Draft) -> str:
    """What the main thread waited to read from, if it slept from the first look to the last without a wake-up; else
    empty."""
    links = {look.reading for look in draft.samples}
    return links.pop() if _slept_throughout(draft) and len(links) == 1 else ""


def _pipes_polled_throughout(draft: Draft) -> tuple[str, ...]:
    """The pipes for which alone the main thread waited without a limit, as `Popen.communicate` does for output and
    errors, if it slept from the first look to the last without a wake-up; else empty."""
    polls = {() if look.timed else look.polled for look in draft.samples}
    links = polls.pop() if _slept_throughout(draft) and len(polls) == 1 else ()
    return links if all(link.startswith("pipe:") for link in links) else ()


def _locked_throughout(draft: Draft) -> int:
    """The thread that may wait for a lock of multiprocessing: the main one, by the kernel, or the one that writes to a
    queue of processes, by its stack; 0 without one."""
    if not _slept_throughout(draft):
        return 0
    if all(look.in_shared_lock for look in draft.samples):
        return draft.pid
    feeding = (thread.tid for thread in draft.samples[-1].threads if thread.frames[:1] and _feeds(thread.frames[0]))
    return next(feeding, 0)


def _feeds(frame: Frame) -> bool:
    return frame.function.rpartition(".")[2] == "_feed" and frame.file.endswith("/multiprocessing/queues.py")


def _polled_pipe(draft: Draft) -> str:
    """The pipe for which alone the main thread waited with a time limit at each look; else empty."""
    links = {look.polled if look.timed else () for look in draft.samples}
    polled = links.pop() if len(links) == 1 else ()
    return polled[0] if len(polled) == 1 and polled[0].startswith("pipe:") else ""


def _looped_throughout(draft: Draft) -> tuple[str, ...]:
    """The descriptors of the event loop without a timer in which the main thread slept throughout; else empty."""
    loops = {look.loop for look in draft.samples}
    return loops.pop() if _slept_throughout(draft) and len(loops) == 1 else ()


def _slept_throughout(draft: Draft) -> bool:
    """Whether the main thread slept from the first look to the last without a wake-up."""
    switches = {look.main_switches for look in draft.samples}
    return len(draft.samples) > 1 and len(switches) == 1 and None not in switches


def _is_resting_shell(draft: Draft) -> bool:
    """Whether it is a shell that waited at every look for the end of the program that it started: it writes nothing."""
    return roles.role_of(draft.facts) == "shell" and {look.wchan for look in draft.samples} == {"do_wait"}


def _written_throughout(draft: Draft) -> str:
    """The full pipe or Unix socket to which one of its threads waited to write at every look; else empty."""
    links = {look.writing for look in draft.samples}
    return links.pop() if len(draft.samples) > 1 and len(links) == 1 else ""


def _inside(draft: Draft, terms: _Terms) -> stacks.Stacks:
    """The stacks that the process reports of itself, for when nobody may inspect it from outside."""
    reported_stacks = stacks.Stacks()
    if draft.socket:
        reported_stacks = recorder.traceback(
            draft.socket, timeout_s=min(recorder.TIMEOUT_S, max(0.1, terms.remaining_s()))
        )
    if not reported_stacks.threads and draft.pulse and (threads := stacks.of_beat(draft.pulse.beat.stack)):
        return stacks.Stacks(threads, f"its stack is the heartbeat's, {draft.pulse.beat.age_s:.1f} s old")
    return reported_stacks


def _spied(draft: Draft, terms: _Terms) -> stacks.Stacks:
    late = stacks.Stacks(note=f"no Python stacks within {terms.deadline_s:.0f} s: {stacks.TOO_BUSY}")
    if not terms.spies.acquire(timeout=max(0.0, terms.remaining_s())):
        return late
    try:
        remaining_s = terms.remaining_s()
        return stacks.dump(draft.pid, timeout_s=min(terms.deadline_s / 2, remaining_s)) if remaining_s > 0 else late
    finally:
        terms.spies.release()


def _record(draft: Draft, terms: _Terms, clock_set_s: float) -> None:
    """Fetch the flight recorder of one process from its own worker server, else from the file that NCCL wrote."""
    if draft.socket:
        limit = min(recorder.TIMEOUT_S, max(0.1, terms.remaining_s()))
        draft.dump, note = recorder.from_socket(draft.socket, draft.host, draft.pid, terms.out, timeout_s=limit)
        draft.recorder_note = note
        draft.dump_taken_ns = time.time_ns()
    if not draft.dump:
        environ = proc.facts(draft.pid).environ
        rank = limits.rank(environ.get("RANK"))
        rank = draft.recorded_rank if rank is None else rank
        draft.dump, draft.dump_taken_ns, note = recorder.from_file(
            environ, rank, draft.host, draft.pid, terms.out, clock_set_s=clock_set_s
        )
        draft.recorder_note = note or draft.recorder_note
    if clock_set_s:
        draft.dump_taken_ns = 0


def _elsewhere(
    local_cast: Cast, scope: Scope, nodes: Sequence[RayNode], terms: _Terms
) -> tuple[list[Evidence], dict[str, str]]:
    """What other nodes of the cluster collected, unpacked into `out`; and host -> why it sent nothing."""
    if not [node for node in nodes if node.alive and node.host != local_cast.host]:
        return [], {}
    folder = terms.out / "nodes"
    make_folder(folder)
    options = {
        "samples": terms.samples, "gap_s": terms.gap_s, "native": terms.native, "nodes": False,
        "deadline_s": max(2.0, terms.remaining_s() / 2), "directory": str(scope.directory or ""),
    }  # fmt: skip
    silent = ray.other_nodes(
        local_cast.ray_address, folder, here=local_cast.host, timeout_s=terms.remaining_s() - 0.3, options=options
    )
    parts = []
    for file in sorted(folder.glob("*.zip")):
        parts.append(directory.adopt(file, terms.out))
        file.unlink()
    folder.rmdir()
    return parts, silent


def _merged(here: Evidence, parts: Sequence[Evidence], clock_set_s: float) -> Evidence:
    """Merge the evidence of this host with that of the others."""
    everyone = {process.key: process for process in here.processes}
    notes, cards, answers, file_locks = list(here.notes), here.gpus, dict(here.ras), here.locks
    file_makers = here.makers
    for part in parts:
        everyone |= {process.key: process for process in part.processes if process.samples}  # its own host looked at it
        notes += part.notes
        cards += part.gpus
        file_locks += part.locks
        file_makers += part.makers
        answers |= part.ras
    python = [process for process in everyone.values() if any(sample.threads for sample in process.samples)]
    python = [process for process in python if process.rank is not None] or python  # launchers have no recorder
    blind = [process for process in python if process.beat is None and not process.dump]
    if blind:
        # Say before the next run what would have helped in this one.
        advice = (
            ""
            if here.is_watched
            else ": start the job with `harness watch -- CMD`, or set TORCH_FR_DUMP_TEMP_FILE and "
            "TORCH_NCCL_DUMP_ON_TIMEOUT=1 on NCCL"
        )
        notes.append(f"no flight recorder from {len(blind)} of {len(python)} Python processes{advice}")
    worlds = [process.world_size for process in everyone.values() if process.world_size]
    dumps, unsure = _other_dumps(list(everyone.values()), max(worlds, default=0), Path(here.path), clock_set_s)
    notes += unsure
    return dataclasses.replace(
        here,
        processes=tuple(everyone.values()),
        gpus=cards,
        locks=file_locks,
        makers=file_makers,
        ras=answers,
        dumps=dumps,
        expected_world=max(worlds, default=None),
        notes=tuple(dict.fromkeys(notes)),
    )


def _other_dumps(
    processes: Sequence[Process], world: int, out: Path, clock_set_s: float
) -> tuple[dict[str, str], list[str]]:
    """Find NCCL's dump files of ranks without a dump, named as the ranks of this host name theirs. Returns (paths,
    notes)."""
    ranked = [process for process in processes if process.rank is not None and process.age_s and process.environ]
    missing = sorted(
        set(range(world)) - {process.rank for process in processes if process.dump and process.rank is not None}
    )
    if not ranked or not missing:
        return {}, []
    oldest = max(ranked, key=lambda process: process.age_s)
    began = time.time() - oldest.age_s
    return recorder.of_others(oldest.environ, missing, recorder.Since(began, began - clock_set_s), out)


def _result(
    future: bounded.Work, terms: _Terms, otherwise: Any, notes: list[str], *, least_s: float = AT_LEAST_S
) -> Any:
    """What a source gave by the deadline, or within `least_s` from now; else `otherwise`, and a note is added."""
    try:
        return future.result(max(AT_LEAST_S, terms.remaining_s(), least_s))
    except TimeoutError:
        if not future.name.startswith("process"):  # the draft of a process says itself what was missing
            notes.append(f"{future.name}: no answer in time")
    except bounded.NoThread as error:
        notes.append(str(error))
    except Exception as error:  # no failure of one source may cost the answers of the others; the note names it
        notes.append(f"{future.name}: {type(error).__name__}: {error}"[:500])
    return otherwise


def _kept(evidence: Evidence, out: Path, *, complete: bool) -> Evidence:
    """Write the evidence to its directory. If the disk is full, the evidence stays in memory with a note."""
    try:
        directory.write(evidence, out, complete=complete)
    except OSError as error:
        note = f"the evidence could not be written whole to {out}: {error.strerror}"
        return dataclasses.replace(evidence, notes=(*evidence.notes, note))
    return evidence
