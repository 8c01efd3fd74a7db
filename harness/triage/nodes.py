"""Unites the evidence of several nodes, one directory each, into the evidence of one job.

A host and a pid identify a process. Clocks of hosts are never compared: every age was measured on its own host when
that host was looked at. The sequence numbers of collectives put the hosts in order (`rules/nodes.py`).
"""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import TypeVar

from harness.errors import BadInput
from harness.other_paths import free_path
from harness.triage.evidence import Evidence, Process, Silence
from harness.triage.graph.subjects import ended
from harness.triage.graph.worlds import met_at
from harness.triage.recorders import nanoseconds
from probes import limits
from reports.text import first_of

MOST_JOBS = 3  # that a sentence names
MOST_WORDS = 7  # of the command that names a job
T = TypeVar("T")
World = tuple[tuple[str, ...], str, int]  # (where its ranks meet, empty if unknown; engine; size)


def unite(parts: Mapping[Path, Evidence], unreached: Mapping[str, Silence] | None = None) -> Evidence:
    """Unite the evidence of several directories. Raises BadInput if they cannot be of one moment of one job.

    `unreached`: address -> watch that gave no evidence. A process that its own host looked at is taken from there, not
    from what another directory says about it.
    """
    _refuse_dumps(parts)
    _refuse_several_jobs(parts)
    _refuse_twice(parts)
    common = Path(os.path.commonpath([Path(part.path).resolve() for part in parts.values()]))
    all_parts = list(parts.values())
    # The job as a whole stood still only as long as the host with the shortest stall.
    stalls = [part.stall_s for part in all_parts if any(process.samples for process in part.processes)]
    return Evidence(
        path=str(common),
        source=_source(all_parts, stalls),
        taken="",  # no common time: each host has its own clock
        stall_s=min(stalls, default=0.0),
        processes=_processes(all_parts, common),
        ray_actors=_distinct(part.ray_actors for part in all_parts),
        ray_tasks=_distinct(part.ray_tasks for part in all_parts),
        gpus=_distinct(part.gpus for part in all_parts),
        locks=_distinct(part.locks for part in all_parts),
        makers=_distinct(part.makers for part in all_parts),
        starters=_distinct(part.starters for part in all_parts),
        ras={host: answer for part in all_parts for host, answer in part.ras.items()},
        dumps=_dumps(parts, common),
        expected_world=_largest_world(all_parts),
        threshold_s=max(part.threshold_s for part in all_parts),
        notes=_notes(parts, unreached or {}),
        ray_nodes=_distinct(part.ray_nodes for part in all_parts),
        ray_lost=next((part.ray_lost for part in all_parts if part.ray_lost), ""),
        ray_groups=_distinct(part.ray_groups for part in all_parts),
        ray_fixed=all(part.ray_fixed for part in all_parts if part.ray_nodes),
        unreached=dict(unreached or {}),
        command_exit_code=_common_code(all_parts),
        ended_by=next((part.ended_by for part in all_parts if part.ended_by), None),
        watched=any(part.is_watched for part in all_parts),
        directories=tuple(map(str, parts)),
    )


def _distinct(groups: Iterable[Iterable[T]]) -> tuple[T, ...]:
    """What several directories contain, without repetitions, in their order."""
    return tuple(dict.fromkeys(chain.from_iterable(groups)))


def _source(parts: list[Evidence], stalls: list[float]) -> str:
    """ "live" if some host was looked at without a watch, so that its stall is not known; else that of the first
    directory."""
    return "live" if any(part.source == "live" and 0.0 in stalls for part in parts) else parts[0].source


def _processes(parts: list[Evidence], common: Path) -> tuple[Process, ...]:
    """Each process from the directory of its own host, which looked at it; else from any that mentions it."""
    processes: dict[str, Process] = {}
    for part in parts:
        for process in part.processes:
            if process.key not in processes or process.samples:
                processes[process.key] = _placed(process, part, common)
    return tuple(processes.values())


def _dumps(parts: Mapping[Path, Evidence], common: Path) -> dict[str, str]:
    return {
        f"{path.name}/{name}": os.path.relpath(Path(part.path).resolve() / dump, common)
        for path, part in parts.items()
        for name, dump in part.dumps.items()
    }


def _largest_world(parts: list[Evidence]) -> int | None:
    return max((part.expected_world or 0 for part in parts), default=0) or None


def _common_code(parts: list[Evidence]) -> int | None:
    """The exit code with which the command ended on every node; None if one goes on, or they ended differently."""
    codes = {part.command_exit_code for part in parts}
    return codes.pop() if len(codes) == 1 else None


def _notes(parts: Mapping[Path, Evidence], unreached: Mapping[str, Silence]) -> tuple[str, ...]:
    return (
        *(f"no evidence from {address}: {silence.why}" for address, silence in unreached.items()),
        *dict.fromkeys(f"{path.name}: {note}" for path, part in parts.items() for note in part.notes),
    )


def missing_ranks(evidence: Evidence) -> dict[World, list[int]]:
    """World -> its ranks that no process has, for each world that lacks some.

    At most `limits.RANKS` ranks of all worlds together: world sizes come from files.
    """
    missing_by_world, most = {}, limits.RANKS
    world_ranks = worlds(evidence)
    for world, ranks in world_ranks.items():
        held_ranks = set(ranks)
        for peer, peer_ranks in world_ranks.items():  # one world whose processes did not all record where they meet
            if peer[1:] == world[1:] and not (peer[0] and world[0]):
                held_ranks |= set(peer_ranks)
        if missing := list(islice((rank for rank in range(world[2]) if rank not in held_ranks), most)):
            missing_by_world[world] = missing
            most -= len(missing)
    return missing_by_world


def worlds(evidence: Evidence) -> dict[World, dict[int, Process]]:
    """World -> {rank: process}, for processes that know their rank and how many ranks their world has."""
    processes_by_world: dict[World, dict[int, Process]] = {}
    for process in evidence.processes:
        size = process.world_size or (0 if process.engine else evidence.expected_world)
        if process.rank is not None and size:
            place = processes_by_world.setdefault((met_at(process), process.engine, size), {})
            if process.rank not in place or ended(place[process.rank]):
                place[process.rank] = process
    return processes_by_world


def _placed(process: Process, part: Evidence, common: Path) -> Process:
    """With its dump where it lies, and the time of that dump by the clock of its host."""
    if not process.dump:
        return process
    taken_ns = (nanoseconds(part.taken) or 0) if process.dump_taken_ns is None else process.dump_taken_ns
    dump = os.path.relpath(Path(part.path).resolve() / process.dump, common)
    return dataclasses.replace(process, dump=dump, dump_taken_ns=taken_ns)


def _refuse_dumps(parts: Mapping[Path, Evidence]) -> None:
    only_dumps = [path for path, part in parts.items() if part.source == "dumps"]
    if only_dumps:
        folder = shlex.quote(os.path.join(".", free_path(Path("dumps"))))
        dumps = " ".join(f"{shlex.quote(str(path))}/*" for path in only_dumps)
        raise BadInput(
            f"{only_dumps[0]} holds recorder dumps alone, which do not say of which node they are",
            fix=f"mkdir {folder} && cp -- {dumps} {folder} && harness triage {folder}   # all ranks in one directory",
        )


def _refuse_twice(parts: Mapping[Path, Evidence]) -> None:
    """Raise BadInput if two directories hold the same process, or the same rank of one world on two live processes."""
    holders: dict[str, Path] = {}
    ranks: dict[tuple[World, int], tuple[Path, Process]] = {}
    for path, part in parts.items():
        for process in part.processes:
            if not process.samples:
                continue
            before = holders.setdefault(process.key, path)
            if before != path:
                raise BadInput(
                    f"{before} and {path} are both evidence of {process.host} (process {process.pid} is in both)",
                    fix=_each_look(parts) or _without(parts, before),
                )
        for world, its in worlds(part).items():
            for rank, process in its.items():
                if not process.samples or not world[0]:  # two engines without an address may both have a rank 0
                    continue
                first, rival = ranks.setdefault((world, rank), (path, process))
                if rival.key != process.key and first != path:
                    raise BadInput(
                        f"rank {rank} is process {rival.key} in {first} and {process.key} in {path}: one of them is of "
                        "another job, or of an older attempt of this one",
                        fix=_without(parts, first),
                    )


def _each_look(parts: Mapping[Path, Evidence]) -> str:
    """The commands that judge several looks at one host; empty where the parts are of several hosts."""
    if len({process.host for part in parts.values() for process in part.processes}) > 1:
        return ""
    looks = sorted(parts, key=lambda path: (parts[path].taken, path))
    return f"{_apart([[path] for path in looks[::-1]])}   # looks at one host, the latest first"


def _apart(jobs: Iterable[Iterable[Path]]) -> str:
    """A command for each job."""
    return "; ".join(shlex.join(["harness", "triage", *map(str, job)]) for job in jobs)


def _refuse_several_jobs(parts: Mapping[Path, Evidence]) -> None:
    """Raise BadInput where directories are of several jobs, with a command for each job."""
    jobs: list[list[Path]] = []
    whys: list[str] = []
    for path, part in parts.items():
        for job in jobs:
            if not (why := next(filter(None, (_two_jobs(parts[member], part) for member in job)), "")):
                job.append(path)
                break
            whys.append(why)
        else:
            jobs.append([path])
    if len(jobs) < 2:
        return
    names = [_job(job[0], parts[job[0]]) for job in jobs]
    several = " and ".join(names) if len(names) == 2 else first_of(names, MOST_JOBS)
    count = "two" if len(jobs) == 2 else len(jobs)
    raise BadInput(f"{several} are {count} jobs: {whys[0]}", fix=_apart(jobs))


def _two_jobs(first: Evidence, second: Evidence) -> str:
    """How two directories show that they are of two jobs, in words; empty where they may be of one.

    A job has one world of each kind, unless it has several engines. While a world is still forming, a different address
    is a fault inside one job (K5). Processes of one host that belong together are linked: see `_linked`.
    """
    pairs = list(_pairs(worlds(first), worlds(second)))
    for (world, ranks), (its, peer_ranks) in pairs:
        if not (world[0] and its[0]) or world[0] == its[0]:
            continue
        parts = world[1:] == its[1:] and len(ranks) < world[2] > len(peer_ranks)
        wholes = _launched_here(world, ranks) and _launched_here(its, peer_ranks) and not _linked(first, second)
        if (parts and _worked(ranks) and _worked(peer_ranks)) or wholes:
            return f"their ranks meet at {':'.join(world[0])} and at {':'.join(its[0])}"
    hosts = {process.host for part in (first, second) for process in part.processes}
    forming = any(len(ranks) < world[2] for pair in pairs for world, ranks in pair)
    if len(hosts) > 1 or not (first.processes and second.processes) or forming or _linked(first, second):
        return ""
    return f"both ran on {hosts.pop()}, and nothing that was seen connects them"


def _launched_here(world: World, ranks: Mapping[int, Process]) -> bool:
    """Whether a launcher started a whole world on one host."""
    size = str(world[2])
    return len(ranks) == world[2] and all(rank.environ.get("LOCAL_WORLD_SIZE") == size for rank in ranks.values())


def _linked(first: Evidence, second: Evidence) -> bool:
    """Whether something connects the processes of two directories: a process of both, a place where ranks meet, a Ray
    cluster, memory, a connection, or a file that a process of one makes for the other."""
    if first.ray_nodes and second.ray_nodes:
        return True
    if any(_reach(part, other) for part, other in ((first, second), (second, first))):
        return True
    links = (
        lambda process: [process.key],
        lambda process: filter(None, [met_at(process)]),
        lambda process: process.shared,
    )
    return any(not {*_each(link, first)}.isdisjoint(_each(link, second)) for link in links)


def _each(link: Callable[[Process], Iterable[Hashable]], part: Evidence) -> Iterator[Hashable]:
    return chain.from_iterable(map(link, part.processes))


def _reach(part: Evidence, other: Evidence) -> bool:
    """Whether a process of one directory is connected to another's, asks for its address, has it as a parent or at the
    end of a pipe, or looks for a file that it makes."""
    ports = {address.rpartition(":")[2] for process in other.processes for address in process.listening}
    pids = {(process.host, process.pid) for process in other.processes}
    for process in part.processes:
        if any(address.rpartition(":")[2] in ports for address in (*process.peers, *process.asked, *process.sought)):
            return True
        if pids & {(process.host, pid) for pid in (process.ppid, process.writer, process.reader, process.feeder)}:
            return True
    owners = [(maker.host, maker.pid) for maker in part.makers] + [(lock.host, lock.pid) for lock in part.locks]
    return not pids.isdisjoint(owners)


def _job(path: Path, part: Evidence) -> str:
    """A directory and the command of its job, in words."""
    pids = {process.pid for process in part.processes}
    commands = [process.command for process in part.processes if process.command and process.ppid not in pids]
    words = commands[0].split() if commands else []
    command = " ".join(words[:MOST_WORDS]) + (" …" if len(words) > MOST_WORDS else "")
    return f"{path} ({command})" if command else str(path)


def _pairs(
    first: dict[World, dict[int, Process]], second: dict[World, dict[int, Process]]
) -> Iterator[tuple[tuple[World, dict[int, Process]], tuple[World, dict[int, Process]]]]:
    """Yield each world of the first directory with each world of the second, except worlds that occur in both."""
    for mine in first.items():
        for its in second.items():
            if mine[0] not in second and its[0] not in first:
                yield mine, its


def _worked(ranks: dict[int, Process]) -> bool:
    return any(process.beat is not None and any(process.beat.sequences.values()) for process in ranks.values())


def _without(parts: Mapping[Path, Evidence], excluded: Path) -> str:
    return shlex.join(["harness", "triage", *(str(path) for path in parts if path != excluded)])
