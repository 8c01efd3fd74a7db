"""Healthy: an asynchronous rollout driver with 400 pending tasks behind a semaphore of eight, an HTTP tool server of its
own that takes 0.9 s a call, and a learner process that waits for batches in a gloo recv. About 45 s."""
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


async def tool(reader, writer):
    line = await reader.readline()
    await asyncio.sleep(0.9)
    writer.write(line)
    writer.close()


async def one(gate, port, number, done):
    async with gate:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"{number}\n".encode())
        answer = int(await reader.readline())
        writer.close()
        done.append(answer)
        if len(done) % 80 == 0:
            say("driver:", len(done), "of 400 samples")


async def drive():
    server = await asyncio.start_server(tool, "127.0.0.1", 0)
    port, gate, done = server.sockets[0].getsockname()[1], asyncio.Semaphore(8), []
    await asyncio.gather(*(one(gate, port, i, done) for i in range(400)))
    return done


def train(rank):
    import torch
    import torch.distributed as dist

    note(f"rank{rank}")
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=30))
    if rank == 0:
        done = asyncio.run(drive())
        dist.send(torch.tensor([float(len(done))]), 1)
    else:
        got = torch.empty(1)
        dist.recv(got, 0)
        say("learner: got", got.item(), "samples")
    dist.destroy_process_group()


if __name__ == "__main__":
    train(int(os.environ["RANK"])) if "RANK" in os.environ else launch(2)
