"""A gloo job in which one rank is slow in its own way: `straggler.py KIND FOLDER STEPS`.

Each rank does the same work in each step, then all of them meet in three all_reduces. KIND is what keeps rank 1 from
being as fast as the others, by a factor of ten or more:

    processor   other processes compete for its core
    disk        it writes sixty files where the others write one
    network     what it fetches comes through a relay that passes on a few bytes at a time
    sleep       it sleeps, as one that asks a service with a limit of requests does, and is met asleep at most looks
    garbage     it has a large heap that its garbage collector goes through in every step
    once        it has one long sample, in the middle: a control
    balanced    nothing: a control

After STEPS steps, or with 0 once FOLDER/stop exists, each rank writes FOLDER/rankN.json, as torch dumps its recorder.
"""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch._C import _distributed_c10d as c10d

KINDS = ("processor", "disk", "network", "sleep", "garbage", "once", "balanced")
WORLD, STRAGGLER = 3, 1
COUNT = 60_000  # rounds of a loop: the work of one step
COMPETITORS = 9
FILES, FILE_BYTES = 60, 1 << 16
PAYLOAD, PIECE = 1 << 16, 1 << 9  # bytes that a rank fetches in each step, and that the relay passes on at once
HEAP = 400_000  # objects in cycles
LONG_S = 2.0
PAUSE_S = 0.18


def main(rank: int, kind: str, folder: str, steps: int, store: str, ports: tuple[int, int]) -> None:
    slow = rank == STRAGGLER
    if kind == "processor":
        _share_core(slow)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD)
    gc.disable()
    gc.freeze()
    heap = _cycles(HEAP if slow else HEAP // 100) if kind == "garbage" else []
    fetched = contextlib.closing(socket.create_connection(("127.0.0.1", ports[slow])))
    flag = torch.zeros(1)
    with fetched as connection, tempfile.TemporaryDirectory() as scratch:
        step = 0
        while True:
            _work(COUNT)
            if kind == "disk":
                _write(Path(scratch), FILES if slow else 1)
            elif kind == "network":
                _fetch(connection)
            elif kind == "sleep" and slow:
                time.sleep(PAUSE_S)
            elif kind == "garbage":
                gc.collect()
            elif kind == "once" and slow and step == (steps or 60) // 2:
                time.sleep(LONG_S)
            step += 1
            flag[0] = float(step == steps or (not steps and os.path.exists(f"{folder}/stop")))
            for _ in range(3):
                dist.all_reduce(flag)
            if flag[0] > 0:
                break
    half = Path(folder) / f"rank{rank}.half"
    half.write_bytes(c10d._dump_fr_trace_json(True, False))
    half.rename(half.with_suffix(".json"))
    dist.barrier()
    del heap
    os._exit(0)


def _work(count: int) -> None:
    total = 0
    for number in range(count):
        total += number


def _share_core(slow: bool) -> None:
    """The straggler has one core together with its competitors, the others have the rest."""
    cores = sorted(os.sched_getaffinity(0))
    if not slow:
        os.sched_setaffinity(0, cores[1:] or cores)
        return
    os.sched_setaffinity(0, cores[:1])
    for _ in range(COMPETITORS):
        mp.Process(target=_compete, args=(os.getpid(),), daemon=True).start()


def _compete(parent: int) -> None:
    while os.getppid() == parent:
        _work(COUNT)


def _cycles(count: int) -> list[list[object]]:
    cells: list[list[object]] = [[] for _ in range(count)]
    for cell in cells:
        cell.append(cell)
    return cells


def _write(folder: Path, files: int) -> None:
    for number in range(files):
        with open(folder / str(number), "wb") as file:
            file.write(os.urandom(FILE_BYTES))
            file.flush()
            os.fsync(file.fileno())


def _fetch(connection: socket.socket) -> None:
    connection.sendall(b"?")
    missing = PAYLOAD
    while missing:
        missing -= len(connection.recv(missing))


def _serve(listener: socket.socket, piece: int, pause_s: float) -> None:
    """Answer each byte with a payload: the server itself, and the relay in front of it in one."""
    while True:
        connection = listener.accept()[0]
        threading.Thread(target=_answer, args=(connection, piece, pause_s), daemon=True).start()


def _answer(connection: socket.socket, piece: int, pause_s: float) -> None:
    while connection.recv(1):
        for _ in range(0, PAYLOAD, piece):
            connection.sendall(bytes(piece))
            time.sleep(pause_s)


def _server(piece: int, pause_s: float) -> int:
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=_serve, args=(listener, piece, pause_s), daemon=True).start()
    return int(listener.getsockname()[1])


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] not in KINDS:
        sys.exit(f"usage: {sys.argv[0]} {{{','.join(KINDS)}}} FOLDER STEPS")
    Path(sys.argv[2]).mkdir(parents=True, exist_ok=True)
    places = _server(PAYLOAD, 0.0), _server(PIECE, 0.001)
    with tempfile.TemporaryDirectory() as place:
        mp.spawn(main, (sys.argv[1], sys.argv[2], int(sys.argv[3]), f"{place}/store", places), nprocs=WORLD)
