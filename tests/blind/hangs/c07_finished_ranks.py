"""Healthy: ranks 1 and 2 leave the group and end; rank 0 merges the results alone for 42 s, on the CPU and the disk."""
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
import hashlib
import tempfile


def train(rank):
    import torch
    import torch.distributed as dist

    note(f"rank{rank}")
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=30))
    for step in range(5):
        dist.all_reduce(torch.ones(10))
        time.sleep(0.2)
    dist.barrier()
    dist.destroy_process_group()
    say("rank", rank, "left the group")
    if rank:
        return
    end, folder, shard = time.time() + 42, tempfile.mkdtemp(), 0
    while time.time() < end:
        data = os.urandom(1 << 20)
        digest = data
        for _ in range(100):
            digest = hashlib.sha256(digest + data).digest()
        with open(os.path.join(folder, "merged.bin"), "wb") as file:
            file.write(data)
        shard += 1
        time.sleep(0.3)
    say("rank 0: merged", shard, "shards")


if __name__ == "__main__":
    train(int(os.environ["RANK"])) if "RANK" in os.environ else launch(3)
