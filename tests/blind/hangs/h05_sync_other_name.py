"""The weight-sync group of a trainer and three engines never forms: engine 2 joins under another group name, so it
looks for its peers under another prefix of the same store."""
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


def init_custom_process_group(port, rank, world, name):
    from torch.distributed.distributed_c10d import (
        Backend, PrefixStore, _new_process_group_helper, _world, rendezvous)

    timeout = datetime.timedelta(minutes=30)
    store, rank, world = next(rendezvous(f"tcp://127.0.0.1:{port}", rank, world, timeout=timeout))
    store.set_timeout(timeout)
    store = PrefixStore(name, store)
    group, _ = _new_process_group_helper(world, rank, [], Backend("gloo"), store, group_name=name, timeout=timeout)
    _world.pg_group_ranks[group] = {i: i for i in range(world)}
    return group


if __name__ == "__main__":
    rank = os.environ.get("SYNC_RANK")
    if rank is None:
        port = free_port()
        ps = [start(SYNC_RANK=r, PORT=port) for r in range(4)]
        [p.wait() for p in ps]
    else:
        rank = int(rank)
        import torch
        import torch.distributed as dist

        note("trainer" if rank == 0 else f"engine{rank - 1}")
        group = init_custom_process_group(
            int(os.environ["PORT"]), rank, 4, "weight-update" if rank == 3 else "weight_update")
        for version in range(1000):
            dist.broadcast(torch.ones(1000), 0, group=group)
            say("rank", rank, "version", version)
            time.sleep(0.5)
