"""Evidence of jobs that never ran, and what their flight recorders would have said: for the tests of triage.

A stack is written from the outside in, "main:10 step:42 all_reduce" in a file of the user's; names that a library owns
get that library's file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from harness.triage.evidence import Beat, Evidence, Frame, Group, Journal, OpenSpan, Process, Sample, Thread
from harness.triage.flight.model import Collective, Comparison, GroupState, Mismatch, RankState
from harness.triage.judge import triage
from reports.model import Verdict

TORCH = "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
FILES = {
    **dict.fromkeys(
        ("all_reduce", "all_gather", "broadcast", "barrier", "init_process_group", "new_group", "recv"), TORCH
    ),
    "torch.save": "/venv/lib/python3.11/site-packages/torch/serialization.py",
    "ray.get": "/venv/lib/python3.11/site-packages/ray/_private/worker.py",
    "ray.wait": "/venv/lib/python3.11/site-packages/ray/_private/worker.py",
    "main_loop": "/venv/lib/python3.11/site-packages/ray/_private/worker.py",
    "getresponse": "/usr/lib/python3.11/http/client.py",
    "serve_forever": "/usr/lib/python3.11/socketserver.py",
    "queue.get": "/usr/lib/python3.11/queue.py",
    "pipe.recv": "/usr/lib/python3.11/multiprocessing/connection.py",
    "pipe.poll": "/usr/lib/python3.11/multiprocessing/connection.py",
    "select": "/usr/lib/python3.11/selectors.py",
    "lock.wait": "/usr/lib/python3.11/threading.py",
    "thread.join": "/usr/lib/python3.11/threading.py",
    "_try_wait": "/usr/lib/python3.11/subprocess.py",
    "Process.run": "/usr/lib/python3.11/multiprocessing/process.py",
    "_bootstrap": "/usr/lib/python3.11/multiprocessing/process.py",
    "pipe._recv": "/usr/lib/python3.11/multiprocessing/connection.py",
    "queues.get": "/usr/lib/python3.11/multiprocessing/queues.py",
    "sem.__enter__": "/usr/lib/python3.11/multiprocessing/synchronize.py",
    "rendezvous": "/venv/lib/python3.11/site-packages/torch/distributed/rendezvous.py",
    **dict.fromkeys(
        ("pool.get", "pool.wait", "pool.worker", "pool._handle_tasks", "pool._handle_results"),
        "/usr/lib/python3.11/multiprocessing/pool.py",
    ),
    "event_loop_normal": "/venv/lib/python3.11/site-packages/sglang/srt/managers/scheduler.py",
    "run_busy_loop": "/venv/lib/python3.11/site-packages/vllm/v1/engine/core.py",
    "get_response": "/venv/lib/python3.11/site-packages/vllm/v1/executor/multiproc_executor.py",
    "worker_busy_loop": "/venv/lib/python3.11/site-packages/vllm/v1/executor/multiproc_executor.py",
    "_process_engine_step": "/venv/lib/python3.11/site-packages/vllm/v1/engine/core.py",
    "schedule": "/venv/lib/python3.11/site-packages/vllm/v1/core/sched/scheduler.py",
    "_execute_worker_rpc": "/venv/lib/python3.11/site-packages/vllm/v1/executor/multiproc_executor.py",
    "process_batch_result_decode": "/venv/lib/python3.11/site-packages/sglang/srt/managers/scheduler.py",
    "forward_batch": "/venv/lib/python3.11/site-packages/sglang/srt/managers/tp_worker.py",
    "uvicorn.run": "/venv/lib/python3.11/site-packages/uvicorn/server.py",
    "managers.serve_forever": "/usr/lib/python3.11/multiprocessing/managers.py",
    "_wait_for_next_poll": "/venv/lib/python3.11/site-packages/verl/trainer/ppo/v1/replay_buffer.py",
    "_sleep_for_retry": "/venv/lib/python3.11/site-packages/openai/_base_client.py",
    "grpc._blocking": "/venv/lib/python3.11/site-packages/grpc/_channel.py",
    "run_forever": "/usr/lib/python3.11/asyncio/base_events.py",
    "allocate_kv_cache": "/venv/lib/python3.11/site-packages/vllm/v1/worker/utils.py",
    "zmq.poll": "/venv/lib/python3.11/site-packages/zmq/sugar/poll.py",
    "baton.wait": "/venv/lib/python3.11/site-packages/torch/utils/file_baton.py",
    "cpp.load": "/venv/lib/python3.11/site-packages/torch/utils/cpp_extension.py",
    "communicate": "/usr/lib/python3.11/subprocess.py",
    "pdb.interaction": "/usr/lib/python3.11/pdb.py",
}
HOST = "node0"


def frames(text: str) -> tuple[Frame, ...]:
    """A stack out of its names, innermost first."""
    found = []
    for word in text.split():
        name, _, line = word.partition(":")
        found.append(Frame(name.rsplit(".", 1)[-1], FILES.get(name, "/job/train.py"), int(line or 1)))
    return tuple(reversed(found))


def samples(
    first: str,
    last: str | None = None,
    *,
    state: str = "S",
    cpu_s: float = 0.0,
    io_bytes: int = 0,
    gil: bool = False,
    wchan: str = "",
) -> tuple[Sample, ...]:
    """Two looks, 1.5 s apart; `cpu_s` and `io_bytes` are spent in between."""
    looks = []
    for number, text in enumerate((first, first if last is None else last)):
        thread = Thread("MainThread", 1, frames(text), main=True, gil=gil)
        looks.append(
            Sample(1.5 * number, state, number * cpu_s, 0, number * io_bytes, wchan, (thread,) if text else ())
        )
    return tuple(looks)


def rank(
    number: int,
    stack: str = "",
    last: str | None = None,
    *,
    world: int = 4,
    gone: bool = False,
    stale_s: float = 0.5,
    spans: Sequence[OpenSpan] = (),
    journal: Journal | None = None,
    progress_s: float = 60.0,
    breakpoint: bool = False,
    **more: object,
) -> Process:
    """One rank as it was seen twice."""
    look = {key: more.pop(key) for key in ("state", "cpu_s", "io_bytes", "gil", "wchan") if key in more}
    seen = (Sample(0.0, "gone"),) if gone else samples(stack, last, **look)  # type: ignore[arg-type]
    beat = Beat(9, stale_s, progress_s, 1.0, tuple(spans), {}, breakpoint)
    fields = {"role": "process", "rank": number, "world_size": world, "samples": seen, "beat": beat, "journal": journal}
    return Process(HOST, 100 + number, **{**fields, **more})  # type: ignore[arg-type]


def process(pid: int, role: str, stack: str = "", last: str | None = None, **more: object) -> Process:
    """A process without a rank."""
    return dataclasses.replace(rank(0, stack, last, **more), pid=pid, role=role, rank=more.get("rank"), world_size=None)  # type: ignore[arg-type]


def evidence(*processes: Process, source: str = "watch", stall_s: float = 30.0, **more: object) -> Evidence:
    return Evidence("", source, "", stall_s, tuple(processes), **more)  # type: ignore[arg-type]


def group(
    name: str,
    at: Mapping[int, tuple[int, str] | int | None],
    *,
    members: Sequence[int] = (),
    op: str = "all_reduce",
    missing: Sequence[int] = (),
    unstarted: Sequence[int] = (),
    keyed: bool = True,
) -> GroupState:
    """One group. `at`: rank -> (seq, operation) that it is in, or the seq of the last one that it has done, or None
    where its dump has nothing of the group. `missing`: members without a dump."""
    members = tuple(members) or tuple(sorted({*at, *missing}))
    ranks = {}
    for number, place in at.items():
        key = f"{HOST}:{100 + number}" if keyed else f"rank{number}.json"
        if isinstance(place, tuple):
            pending = Collective(name, place[0], place[1], False, number not in unstarted, age_s=60.0)
            ranks[number] = RankState(number, place[0], place[0] - 1, place[0] - 1, pending, pending, key)
        elif place is not None:
            last = Collective(name, place, op, True)
            ranks[number] = RankState(number, place, place, place, None, last, key)
    silent = tuple(number for number, place in at.items() if place is None)
    return GroupState(
        Group(name, members, "gloo", "", len(members)), ranks, tuple(missing), silent, _mismatches(name, at)
    )


def _mismatches(name: str, at: Mapping[int, tuple[int, str] | int | None]) -> tuple[Mismatch, ...]:
    by_seq: dict[int, dict[str, list[int]]] = {}
    for number, place in at.items():
        if isinstance(place, tuple):
            by_seq.setdefault(place[0], {}).setdefault(place[1], []).append(number)
    return tuple(
        Mismatch(name, seq, "op", {op: tuple(ranks) for op, ranks in sides.items()})
        for seq, sides in sorted(by_seq.items())
        if len(sides) > 1
    )


def compared(*groups: GroupState, world: int | None = None, jobs: int = 1) -> Comparison:
    ranks = tuple(sorted({number for one in groups for number in (*one.ranks, *one.silent)}))
    absent = tuple(sorted({number for one in groups for number in one.absent}))
    return Comparison(
        groups, ranks, world, jobs, missing=tuple(f"no recorder data from rank {one}" for one in absent), absent=absent
    )


def wording(verdict: Verdict) -> str:
    """Everything that a verdict says: its headline, the evidence below it, and why each culprit is one."""
    body = verdict.triage
    return "; ".join([verdict.account, *(culprit.why for culprit in (body.culprits if body else ()))])


def late(one: Process) -> Verdict:
    """Rank 0 has not come to what the others are in."""
    ranks = [rank(n, "main:10 step:42 all_reduce") for n in range(1, 4)]
    at = compared(group("0", {0: 16, **dict.fromkeys((1, 2, 3), (17, "all_reduce"))}))
    return triage(evidence(one, *ranks), at)
