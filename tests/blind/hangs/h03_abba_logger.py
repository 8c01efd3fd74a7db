"""Three ranks; on rank 2 the training thread and the weight exporter take two locks in opposite orders. On every rank a
logger thread goes on writing metrics."""
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
import json
import tempfile
import threading


def log(rank):
    with open(os.path.join(tempfile.gettempdir(), f"metrics-{os.getpid()}.jsonl"), "w") as file:
        while True:
            file.write(json.dumps({"rank": rank, "t": time.time(), "rss": open("/proc/self/statm").read()}) + "\n")
            file.flush()
            time.sleep(0.2)


class Weights:
    def __init__(self):
        self.weights_lock = threading.Lock()
        self.stats_lock = threading.Lock()

    def export(self):
        with self.stats_lock:
            time.sleep(0.5)
            with self.weights_lock:
                pass

    def update(self):
        with self.weights_lock:
            time.sleep(0.4)
            with self.stats_lock:
                pass


def train(rank, world):
    import torch
    import torch.distributed as dist

    note(f"rank{rank}")
    threading.Thread(target=log, args=(rank,), daemon=True, name="metrics-logger").start()
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=30))
    weights = Weights()
    grad = torch.ones(100)
    for step in range(1000):
        time.sleep(0.2)
        dist.all_reduce(grad)
        if rank == 2 and step == 8:
            threading.Thread(target=weights.export, daemon=True, name="weight-exporter").start()
            time.sleep(0.1)
            weights.update()
        say("rank", rank, "step", step)


if __name__ == "__main__":
    train(int(os.environ["RANK"]), 3) if "RANK" in os.environ else launch(3)
