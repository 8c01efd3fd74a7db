"""Healthy: rank 0's DataLoader workers decompress for about seven seconds a batch; rank 1 waits for rank 0 in each
all-reduce. Six steps."""
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
import zlib


def dataset():
    from torch.utils.data import Dataset

    class Packed(Dataset):
        def __init__(self, rank):
            self.rank = rank
            self.blob = zlib.compress(os.urandom(1 << 20) + bytes(1 << 20), 1)

        def __len__(self):
            return 6

        def __getitem__(self, index):
            import torch

            end = time.time() + (7 if self.rank == 0 else 0.1)
            while time.time() < end:
                zlib.decompress(self.blob)
            return torch.ones(16)

    return Packed


def train(rank):
    import torch.distributed as dist
    from torch.utils.data import DataLoader

    note(f"rank{rank}")
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=30))
    for step, batch in enumerate(DataLoader(dataset()(rank), batch_size=1, num_workers=1, prefetch_factor=1)):
        dist.all_reduce(batch)
        say("rank", rank, "step", step)
    dist.destroy_process_group()


if __name__ == "__main__":
    train(int(os.environ["RANK"])) if "RANK" in os.environ else launch(2)
