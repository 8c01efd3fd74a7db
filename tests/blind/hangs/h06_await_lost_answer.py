"""Rank 0 runs an asyncio agent loop; the answer to one tool call comes back under an id that nobody waits for, so one
future is never resolved. The main thread sits in epoll; ranks 1 and 2 wait for rank 0's rollouts in a broadcast."""
import datetime
import os
import socket
import subprocess
import sys
import time

T0 = time.time()


def note(label):
    """Only for the tabulator: which process plays which part. Nothing of the program depends on it."""
    folder = os.environ.get("BLIND_RUN")
    if folder:
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, label + ".pid"), "w") as file:
            file.write(str(os.getpid()))


def say(*words):
    print(f"[{time.time() - T0:6.1f}s]", *words, flush=True)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start(**variables):
    env = dict(os.environ, OMP_NUM_THREADS="1", MASTER_ADDR="127.0.0.1", **{k: str(v) for k, v in variables.items()})
    return subprocess.Popen([sys.executable, os.path.abspath(__file__)], env=env)


def launch(world):
    """One process a rank, as torchrun sets them up; returns when all are done."""
    port = free_port()
    ranks = [start(RANK=r, LOCAL_RANK=r, WORLD_SIZE=world, MASTER_PORT=port) for r in range(world)]
    codes = [p.wait() for p in ranks]
    sys.exit(max(abs(c) for c in codes))
import asyncio
import uuid


class Tool:
    """A tool behind a socket: requests and answers are matched by id."""

    def __init__(self, reader, writer):
        self.reader, self.writer, self.waiting = reader, writer, {}
        self.task = asyncio.ensure_future(self.read())

    async def read(self):
        while line := await self.reader.readline():
            key, answer = line.decode().split()
            waiting = self.waiting.pop(key, None)
            if waiting is not None:
                waiting.set_result(answer)

    async def call(self, question):
        key = uuid.uuid4().hex
        self.waiting[key] = asyncio.get_running_loop().create_future()
        self.writer.write(f"{key} {question}\n".encode())
        return await self.waiting[key]


async def serve(reader, writer):
    count = 0
    while line := await reader.readline():
        key, question = line.decode().split()
        count += 1
        await asyncio.sleep(0.02)
        writer.write(f"{key.upper() if count == 45 else key} {question}!\n".encode())


async def rollouts(tool, step):
    return await asyncio.gather(*(tool.call(f"question-{step}-{i}") for i in range(8)))


async def agent(dist, torch):
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    tool = Tool(*await asyncio.open_connection(*server.sockets[0].getsockname()))
    for step in range(1000):
        answers = await rollouts(tool, step)
        say("rank 0: step", step, len(answers), "rollouts")
        dist.broadcast(torch.ones(8), 0)
        await asyncio.sleep(0.1)


def train(rank, world):
    import torch
    import torch.distributed as dist

    note(f"rank{rank}")
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=30))
    if rank == 0:
        asyncio.run(agent(dist, torch))
    for step in range(1000):
        dist.broadcast(torch.empty(8), 0)
        say("rank", rank, "step", step)


if __name__ == "__main__":
    train(int(os.environ["RANK"]), 3) if "RANK" in os.environ else launch(3)
