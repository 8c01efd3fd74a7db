"""Healthy: rank 0's agent loop calls a tool that admits one call in three seconds; 14 calls. Rank 1 waits in a broadcast."""
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


class Limited:
    def __init__(self, seconds):
        self.seconds, self.next = seconds, 0.0

    async def call(self, question):
        now = asyncio.get_running_loop().time()
        at = max(now, self.next)
        self.next = at + self.seconds
        await asyncio.sleep(at - now)
        say("rank 0: tool answered", question)
        return question * 2


async def rollouts():
    tool = Limited(3.0)
    return sum(await asyncio.gather(*(tool.call(i) for i in range(15))))


def train(rank):
    import torch
    import torch.distributed as dist

    note(f"rank{rank}")
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=30))
    result = torch.tensor([float(asyncio.run(rollouts()))]) if rank == 0 else torch.empty(1)
    dist.broadcast(result, 0)
    say("rank", rank, "done", result.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    train(int(os.environ["RANK"])) if "RANK" in os.environ else launch(2)
