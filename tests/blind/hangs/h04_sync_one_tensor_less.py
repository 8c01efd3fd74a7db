"""A trainer sends weights to two engines over a group of its own, outside any default group, as OpenRLHF and verl make
it. Engine 1 was built with tied embeddings and expects one tensor less: it goes back to serving, while the trainer
and engine 0 stand in the last broadcast and its barrier."""
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

TENSORS = [("model.embed_tokens.weight", 4_000_000), ("model.layers.0.mlp.weight", 1_000_000), ("lm_head.weight", 4_000_000)]


def init_custom_process_group(port, rank, world, name):
    from torch.distributed.distributed_c10d import (
        Backend, PrefixStore, _new_process_group_helper, _world, default_pg_timeout, rendezvous)

    timeout = datetime.timedelta(minutes=30)
    store, rank, world = next(rendezvous(f"tcp://127.0.0.1:{port}", rank, world, timeout=timeout))
    store.set_timeout(timeout)
    store = PrefixStore(name, store)
    group, _ = _new_process_group_helper(world, rank, [], Backend("gloo"), store, group_name=name, timeout=timeout)
    _world.pg_group_ranks[group] = {i: i for i in range(world)}
    return group


def trainer(port):
    import torch
    import torch.distributed as dist

    note("trainer")
    group = init_custom_process_group(port, 0, 3, "vllm_sync")
    for version in range(1000):
        for name, size in TENSORS:
            dist.broadcast(torch.full((size,), float(version)), 0, group=group)
        dist.barrier(group=group)
        say("trainer: version", version, "sent")
        time.sleep(1)


def engine(number, port):
    import torch
    import torch.distributed as dist

    note(f"engine{number}")
    group = init_custom_process_group(port, 1 + number, 3, "vllm_sync")
    requests = queue.Queue()
    version = 0
    while True:
        tied = number == 1 and version == 3
        for name, size in TENSORS[:-1] if tied else TENSORS:
            dist.broadcast(torch.empty(size), 0, group=group)
        if tied:
            say("engine 1: weights loaded, serving")
            while True:
                requests.get()
        dist.barrier(group=group)
        version += 1


if __name__ == "__main__":
    part = os.environ.get("PART")
    if part is None:
        port = free_port()
        ps = [start(PART="trainer", PORT=port)] + [start(PART="engine", NUMBER=n, PORT=port) for n in (0, 1)]
        [p.wait() for p in ps]
    elif part == "trainer":
        trainer(int(os.environ["PORT"]))
    else:
        number = int(os.environ["NUMBER"])
        engine(number, int(os.environ["PORT"]))
