"""Flight recorder dumps of jobs that never ran: N ranks × M entries, healthy or with one planted fault.

A training loop over three kinds of groups (world, tensor parallel, data parallel) is simulated: a rank enqueues ahead
until too many of its operations wait, and an operation is done once every member has enqueued the same one. What each
rank's recorder would hold at the end is written as torch 2.13 writes it for NCCL (format 2.10): pickle with frames, or
JSON without. Such dumps prove speed and format; for truth there are programs that really hang.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from harness.triage.flight.pickling import torch_pickle
from probes.files import write_whole

FORMAT = "2.10"  # of the dumps of torch 2.13
PREFIX = "nccl_trace_rank_"  # torch's own default of TORCH_FR_DUMP_TEMP_FILE, without its folder
START_NS = 1_760_000_000_000_000_000  # some moment in October 2025
TICK_NS = 1_000_000  # between two operations of one rank

Kind = Literal[
    "healthy", "skip", "extra", "wrong-op", "wrong-size", "dead", "straggler", "stalled", "wedge", "abba", "missing"
]


class Op(NamedTuple):
    """One operation of the simulated loop; `frames` are (function, file, line), innermost first."""

    name: str
    inputs: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[int, ...], ...]
    dtype: str = "BFloat16"
    frames: tuple[tuple[str, str, int], ...] = ()


class Step(NamedTuple):
    """One enqueued operation of one rank."""

    group: int
    seq: int
    op: Op


@dataclass(frozen=True)
class Fault:
    """One planted fault. `rank`: who; `at`: which operation of its program, counted from 0; `ahead`: how many
    unfinished operations a host may have (1: it waits for each)."""

    kind: Kind = "healthy"
    rank: int = 0
    at: int = 0
    ahead: int = 6


RING = 2000  # entries that a recorder keeps: torch's default


@dataclass(frozen=True)
class Job:
    """What every rank's recorder holds. `culprits`: what a verdict may name, empty where nobody is to blame."""

    ranks: int
    groups: tuple[tuple[str, str, tuple[int, ...]], ...]  # name, description, members
    entries: tuple[tuple[Step, ...], ...]  # per rank, oldest first
    done: frozenset[tuple[int, int]]  # (group, seq)
    fault: Fault
    hidden: frozenset[int] = field(default_factory=frozenset)  # ranks without a dump

    @property
    def culprits(self) -> frozenset[int]:
        is_blameless = self.fault.kind in ("healthy", "wedge", "abba", "missing")
        return frozenset() if is_blameless else frozenset({self.fault.rank})


def loop(ranks: int, tensor_parallel: int) -> tuple[tuple[tuple[str, str, tuple[int, ...]], ...], list[list[int]]]:
    """Groups (name, description, members), and for each rank its [world, tp, dp] as positions among them."""
    world = tuple(range(ranks))
    groups = [("0", "default_pg", world)]
    for first in range(0, ranks, tensor_parallel):
        groups.append((str(len(groups)), "tp", world[first : first + tensor_parallel]))
    for first in range(tensor_parallel):
        groups.append((str(len(groups)), "dp", world[first::tensor_parallel]))
    nodes = ranks // tensor_parallel
    return tuple(groups), [[0, 1 + rank // tensor_parallel, 1 + nodes + rank % tensor_parallel] for rank in world]


def _frames(function: str, line: int) -> tuple[tuple[str, str, int], ...]:
    torch = "/opt/venv/lib/python3.12/site-packages/torch"
    return (
        (function, f"{torch}/distributed/distributed_c10d.py", 2900 + line),
        ("wrapper", f"{torch}/distributed/c10d_logger.py", 83),
        ("forward", "/opt/job/model/layers.py", line),
        ("_call_impl", f"{torch}/nn/modules/module.py", 1784),
        ("_wrapped_call_impl", f"{torch}/nn/modules/module.py", 1773),
        ("training_step", "/opt/job/trainer.py", 400 + line),
        ("fit", "/opt/job/trainer.py", 212),
        ("main", "/opt/job/train.py", 57),
        ("<module>", "/opt/job/train.py", 61),
    )


def _schedule(tensor_parallel: int, data_parallel: int) -> list[tuple[int, Op]]:
    """One step of the loop: (0 world, 1 tp, 2 dp; operation)."""
    hidden, shard = 4096, 1 << 20
    full_shape = (shard * data_parallel,)
    return [
        (1, Op("all_reduce", ((4, 512, hidden),), ((4, 512, hidden),), frames=_frames("all_reduce", 21))),
        (1, Op("_all_gather_base", ((hidden,),), ((hidden * tensor_parallel,),), frames=_frames("all_gather", 34))),
        (1, Op("all_reduce", ((4, 512, 2 * hidden),), ((4, 512, 2 * hidden),), frames=_frames("all_reduce", 47))),
        (1, Op("broadcast", ((hidden,),), ((hidden,),), "Long", frames=_frames("broadcast", 52))),
        (2, Op("_reduce_scatter_base", (full_shape,), ((shard,),), frames=_frames("reduce_scatter", 88))),
        (2, Op("_all_gather_base", ((shard,),), (full_shape,), frames=_frames("all_gather", 95))),
        (1, Op("all_reduce", ((4, 512, hidden),), ((4, 512, hidden),), "Float", frames=_frames("all_reduce", 61))),
        (0, Op("all_reduce", ((1,),), ((1,),), "Float", frames=_frames("all_reduce", 103))),
    ]


def _program(schedule: list[tuple[int, Op]], length: int, rank: int, fault: Fault) -> list[tuple[int, Op]]:
    program = [schedule[i % len(schedule)] for i in range(length)]
    if rank != fault.rank or fault.kind in ("healthy", "wedge", "stalled"):
        return program
    kind, at = fault.kind, fault.at
    where, op = program[at]
    if kind == "skip":
        del program[at]
    elif kind == "extra":
        extra_op = Op("reduce", ((77,),), ((77,),), "Float", frames=_frames("reduce", 140))
        program.insert(at, (where, extra_op))
    elif kind == "wrong-op":
        program[at] = (where, Op("reduce", ((77,),), ((77,),), "Float", frames=_frames("reduce", 141)))
    elif kind == "wrong-size":
        program[at] = (where, op._replace(inputs=((3,),), outputs=((3,),)))
    elif kind in ("dead", "straggler", "missing"):
        del program[at:]
    elif kind == "abba":  # from there on, the first two neighbours of different groups change places
        place = next(i for i in range(at, length - 1) if program[i][0] != program[i + 1][0])
        program[place : place + 2] = program[place + 1], program[place]
    return program


def simulate(ranks: int, entries: int, fault: Fault | None = None, *, tensor_parallel: int = 8) -> Job:
    """Run the loop for `entries` operations a rank; the fault strikes where it says.

    `skip`, `extra`, `wrong-op`, `wrong-size`: the rank's program differs there. `dead`: it enqueues nothing more from
    there on. `missing`: likewise, and its dump is lost. `straggler`: as dead, but a later look finds it further (make
    another job with a greater `at`). `stalled`: its device never starts that operation, all hosts are fine. `wedge`:
    that operation never ends on any rank. `abba`: it swaps two operations of different groups; use `ahead=1`.
    """
    fault = fault or Fault()
    width = max(w for w in range(1, min(tensor_parallel, ranks) + 1) if ranks % w == 0)
    groups, places = loop(ranks, width)
    schedule = _schedule(width, ranks // width)
    programs = [_program(schedule, entries, rank, fault) for rank in range(ranks)]
    stuck = None
    if fault.kind in ("wedge", "stalled"):
        stuck = _place_of(programs[fault.rank], places[fault.rank], fault.at)
    recorded_steps: list[list[Step]] = [[] for _ in range(ranks)]
    unfinished = [0] * ranks
    counters = [[0] * len(groups) for _ in range(ranks)] if ranks <= 64 else [dict.fromkeys(p, 0) for p in places]
    arrived: dict[tuple[int, int], list[Any]] = {}  # (group, seq) -> [how many, operation or None once they differ]
    done: set[tuple[int, int]] = set()
    runnable, queued = deque(range(ranks)), [True] * ranks
    while runnable:
        rank = runnable.popleft()
        queued[rank] = False
        program, mine, count = programs[rank], recorded_steps[rank], counters[rank]
        while len(mine) < len(program) and unfinished[rank] < fault.ahead:
            which, op = program[len(mine)]
            group = places[rank][which]
            count[group] += 1
            seq = count[group]
            mine.append(Step(group, seq, op))
            unfinished[rank] += 1
            key = (group, seq)
            slot = arrived.setdefault(key, [0, op])
            slot[0] += 1
            if slot[1] is not op and slot[1] != op:
                slot[1] = None
            members = groups[group][2]
            if slot[0] == len(members) and slot[1] is not None and key != stuck:
                done.add(key)
                for member in members:
                    unfinished[member] -= 1
                    if not queued[member]:
                        queued[member] = True
                        runnable.append(member)
    hidden = frozenset({fault.rank}) if fault.kind == "missing" else frozenset()
    return Job(ranks, groups, tuple(map(tuple, recorded_steps)), frozenset(done), fault, hidden)


def _place_of(program: list[tuple[int, Op]], place: list[int], at: int) -> tuple[int, int]:
    """(group, seq) of one operation of a program."""
    return place[program[at][0]], sum(1 for which, _ in program[: at + 1] if which == program[at][0])


def dump(job: Job, rank: int, *, frames: bool = True, active: bool = False) -> dict[str, Any]:
    """What torch would dump for that rank, as the object that it pickles. `active`: only operations that are not done,
    as production jobs have it written (TORCH_INCLUDE_ONLY_ACTIVE)."""
    steps = job.entries[rank]
    first = max(0, len(steps) - RING)
    stalled = job.fault.kind == "stalled" and rank == job.fault.rank
    blocked: set[int] = set()
    entries = []
    mine = sorted({group for group, _, _ in steps})
    handles = {group: at for at, group in enumerate(mine)}  # torch counts the groups of each process
    for number, (group, seq, op) in enumerate(steps):
        finished = (group, seq) in job.done
        started = finished or (group not in blocked and not stalled)
        if not finished:
            blocked.add(group)
        if number < first or (active and finished):
            continue
        created = START_NS + number * TICK_NS + rank * 1_000
        entry: dict[str, Any] = {"frames": op.frames} if frames else {}
        entry |= {
            "record_id": number,
            "pg_id": handles[group],
            "process_group": (job.groups[group][0], job.groups[group][1]),
            "thread_name": "pt_main_thread",
            "thread_id": "139934772620160",
            "collective_seq_id": seq,
            "p2p_seq_id": 0,
            "op_id": seq,
            "profiling_name": f"nccl:{op.name}",
            "time_created_ns": created,
            "input_sizes": op.inputs,
            "input_dtypes": [op.dtype] * len(op.inputs),
            "output_sizes": op.outputs,
            "output_dtypes": [op.dtype] * len(op.outputs),
            "state": "completed" if finished else "started" if started else "scheduled",
            "time_discovered_started_ns": created + 40_000 if started else None,
            "time_discovered_completed_ns": created + 900_000 if finished else None,
            "retired": finished,
            "timeout_ms": 600_000,
            "is_p2p": False,
        }
        entries.append(entry)
    status = {}
    for group in mine:
        seqs = [seq for which, seq, _ in steps if which == group]
        ended = max((seq for seq in seqs if (group, seq) in job.done), default=-1)
        status[str(handles[group])] = {
            "last_enqueued_collective": seqs[-1],
            "last_started_collective": min(ended + 1, seqs[-1]),
            "last_completed_collective": ended,
        }
    return {
        "version": FORMAT,
        "pg_config": {
            name: {"name": name, "desc": described, "ranks": f"[{', '.join(map(str, members))}]"}
            for name, described, members in (job.groups[group] for group in mine)
        },
        "comm_lib_version": "2.28.9",
        "pg_status": status,
        "entries": entries,
    }


def encoded(job: Job, rank: int, form: Literal["pickle", "json"] = "pickle", *, active: bool = False) -> bytes:
    """The bytes of one rank's dump, as torch writes them: JSON has sorted keys, no frames, 0 for "not yet"."""
    if form == "pickle":
        return torch_pickle(dump(job, rank, active=active))
    payload = dump(job, rank, frames=False, active=active)
    payload["pg_status"] = {
        pg: {key: str(seq) for key, seq in counters.items()} for pg, counters in payload["pg_status"].items()
    }
    payload["nccl_comm_state"] = {}
    for entry in payload["entries"]:
        for key in ("time_discovered_started_ns", "time_discovered_completed_ns"):
            entry[key] = entry[key] or 0
    if not payload["entries"]:
        del payload["entries"]
    return json.dumps(payload, sort_keys=True, separators=(",", ":")).encode()


def write(
    job: Job, folder: Path | str, form: Literal["pickle", "json"] = "pickle", *, prefix: str = PREFIX
) -> Iterator[Path]:
    """Write one file a rank into an existing folder, named as torch names them; yields each path once it is there."""
    for rank in range(job.ranks):
        if rank in job.hidden:
            continue
        path = Path(folder) / f"{prefix}{rank}{'.json' if form == 'json' else ''}"
        write_whole(path, encoded(job, rank, form))
        yield path
