"""Three ranks that train in a worker thread beside a main thread that waits for its event. On rank 1 the thread dies of an
exception that a bare except logs; nobody sets the event."""
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
import logging
import threading


def work(rank, done):
    import torch
    import torch.distributed as dist

    try:
        for step in range(1000):
            time.sleep(0.2)
            batch = [1.0] * 8 if not (rank == 1 and step == 9) else []
            loss = sum(batch) / len(batch)
            dist.all_reduce(torch.tensor([loss]))
            say("rank", rank, "step", step)
        done.set()
    except Exception as error:
        logging.debug("step failed: %s", error)


def train(rank):
    import torch.distributed as dist

    note(f"rank{rank}")
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=30))
    done = threading.Event()
    threading.Thread(target=work, args=(rank, done), daemon=True, name="train-loop").start()
    done.wait()


if __name__ == "__main__":
    train(int(os.environ["RANK"])) if "RANK" in os.environ else launch(3)
