"""Rank 0's only DataLoader worker hangs while it opens a file of a dead mount (a FIFO here); rank 0 waits for its batch,
rank 1 for rank 0."""
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
import tempfile


def dataset():
    from torch.utils.data import Dataset

    class Shards(Dataset):
        def __init__(self, rank):
            self.rank = rank
            self.folder = tempfile.mkdtemp()
            self.dead = os.path.join(self.folder, "shard-00017.bin")
            os.mkfifo(self.dead)

        def __len__(self):
            return 10_000

        def __getitem__(self, index):
            import torch

            if self.rank == 0 and index == 17 * 4:
                note("rank0-worker")
                with open(self.dead, "rb") as file:
                    return torch.frombuffer(bytearray(file.read()), dtype=torch.float32)
            time.sleep(0.03)
            return torch.ones(16)

    return Shards


def train(rank, world):
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader

    note(f"rank{rank}")
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=30))
    loader = DataLoader(dataset()(rank), batch_size=4, num_workers=1)
    for step, batch in enumerate(loader):
        time.sleep(0.1)
        dist.all_reduce(batch)
        say("rank", rank, "step", step)


if __name__ == "__main__":
    train(int(os.environ["RANK"]), 2) if "RANK" in os.environ else launch(2)
