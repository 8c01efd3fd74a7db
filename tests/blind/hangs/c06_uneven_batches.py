"""Healthy: the ranks have 2, 3 and 40 micro batches of a second between two all-reduces; rank 2 is the straggler."""
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


def train(rank):
    import torch
    import torch.distributed as dist

    note(f"rank{rank}")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=30))
    model = torch.nn.Linear(256, 256)
    for step, batches in enumerate(([2, 2], [3, 3], [3, 42])[rank]):
        for micro in range(batches):
            end = time.time() + 1
            while time.time() < end:
                model(torch.randn(64, 256)).square().mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        say("rank", rank, "step", step)
    dist.destroy_process_group()


if __name__ == "__main__":
    train(int(os.environ["RANK"])) if "RANK" in os.environ else launch(3)
