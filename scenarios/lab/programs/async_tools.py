"""Asynchronous rollouts: every rank sits in an event loop and awaits a service outside of the job.

Controls, each of which ends by itself. `rated`: a rate-limited tool answers one request every quarter of the threshold.
`crowd`: the same with hundreds of pending tasks. `poll`: each task polls, and an answer takes most of the threshold.
`judge`: rank 0 awaits one slow judge for four thresholds, while rank 1 waits for it in a collective. `lost`:
rank 0 awaits an event that nobody sets, and gives up after four thresholds. `ticks`: one request of rank 0 is lost for
eight thresholds, while a task of the same loop writes a metric twice a second.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import socket
import subprocess
import sys

import torch
import torch.distributed as dist
import toy


async def answer(pause: float, turn: asyncio.Lock, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One client of the service: its requests are answered one after the other, each after a pause."""
    while await reader.readline():
        async with turn:
            await asyncio.sleep(pause)
        writer.write(b"0.5\n")
        await writer.drain()
    writer.close()


async def serve(pause: float, shared: bool, listener: socket.socket) -> None:
    turn, clients = asyncio.Lock(), 0

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal clients
        clients += 1
        with contextlib.suppress(ConnectionError):
            await answer(pause, turn if shared else asyncio.Lock(), reader, writer)
        clients -= 1

    await asyncio.start_server(meet, sock=listener)
    served = 0.0
    while served < 20 or clients:  # until the job that asked is over
        await asyncio.sleep(1)
        served += 1


def service(pause: float, shared: bool) -> int:
    """Start it as somebody else would: it is no process of this job. Its port is there at once, however long it takes
    to start on a busy host: a rank that waited for that would stand outside the others' collective."""
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
        handle = listener.fileno()
        command = [sys.executable, __file__, "--serve", str(pause), "--socket", str(handle)]
        if (child := os.fork()) == 0:
            os.setsid()
            command += ["--shared"] if shared else []
            subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[handle])
            os._exit(0)
        os.waitpid(child, 0)
        return int(listener.getsockname()[1])


async def ask(port: int, times: int) -> float:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    score = 0.0
    for _ in range(times):
        writer.write(b"score\n")
        score += float(await reader.readline())
    writer.close()
    return score


async def rollout(port: int, tasks: int, times: int) -> float:
    return sum(await asyncio.gather(*(ask(port, times) for _ in range(tasks))))


async def collect(port: int, tasks: int, times: int, pending: int) -> float:
    """Episodes, and trajectories that wait for a turn which does not come in this step."""
    turn = asyncio.Event()
    others = [asyncio.create_task(turn.wait()) for _ in range(pending)]
    total = await rollout(port, tasks, times)
    for other in others:
        other.cancel()
    return total


async def metrics() -> None:
    while True:
        await asyncio.sleep(0.5)


async def monitored(port: int) -> float:
    monitor = asyncio.create_task(metrics())
    score = await ask(port, 1)
    monitor.cancel()
    return score


async def forgotten(seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.Event().wait(), seconds)


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--phase", choices=["rated", "crowd", "poll", "judge", "lost", "ticks"], default="rated")
    arguments.add_argument("--stall", type=float, default=5.0)
    arguments.add_argument("--serve", type=float, default=0.0)
    arguments.add_argument("--socket", type=int, default=-1)
    arguments.add_argument("--shared", action="store_true")
    asked = arguments.parse_args()
    if asked.serve:
        asyncio.run(serve(asked.serve, asked.shared, socket.socket(fileno=asked.socket)))
        return
    toy.setup()
    dist.all_reduce(torch.ones(1))
    if asked.phase == "lost" and toy.RANK == 0:
        asyncio.run(forgotten(4 * asked.stall))
    elif asked.phase == "ticks" and toy.RANK == 0:
        asyncio.run(monitored(service(8 * asked.stall, False)))
    elif asked.phase == "judge" and toy.RANK == 0:
        asyncio.run(rollout(service(4 * asked.stall, False), 1, 1))
    elif asked.phase == "poll":
        asyncio.run(rollout(service(0.8 * asked.stall, False), 4, 3))
    elif asked.phase in ("rated", "crowd"):
        pending = 300 if asked.phase == "crowd" else 0
        asyncio.run(collect(service(asked.stall / 4, True), 10, 1, pending))
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
