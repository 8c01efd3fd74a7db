"""Three ranks; rank 0's main thread waits for a batch whose producer thread has ended, while a tokenizer thread of
rank 0 is busy for ever. The others wait for rank 0's broadcast."""
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
import queue
import re
import threading


def tokenizing(texts):
    """Warms a cache of word pieces: real work, that nobody waits for."""
    cache = {}
    while True:
        for text in texts:
            for word in re.findall(r"\w+|\W", text):
                cache[word] = hash(word) % 32000
        time.sleep(0.001)


def produce(batches, into):
    for number, batch in enumerate(batches):
        if len(into.queue) > 100:
            time.sleep(0.1)
        if number == 20:  # an epoch has 20 batches; nobody puts the end mark
            return
        into.put(batch)


def train(rank, world):
    import torch
    import torch.distributed as dist

    note(f"rank{rank}")
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=30))
    ready = queue.Queue()
    if rank == 0:
        texts = ["the quick brown fox jumps over the lazy dog, " * 50] * 20
        threading.Thread(target=tokenizing, args=(texts,), daemon=True, name="tokenizer-cache").start()
        threading.Thread(target=produce, args=((torch.randn(64) for _ in range(10**6)), ready), daemon=True).start()
    for step in range(1000):
        batch = ready.get() if rank == 0 else torch.empty(64)
        dist.broadcast(batch, 0)
        time.sleep(0.15)
        say("rank", rank, "step", step)


if __name__ == "__main__":
    train(int(os.environ["RANK"]), 3) if "RANK" in os.environ else launch(3)
