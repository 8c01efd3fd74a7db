"""Three ranks under torch.multiprocessing; rank 1 runs a code judge as a subprocess, waits for its end and reads its output
only afterwards: the judge writes more than a pipe holds, so both wait for each other."""
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
JUDGE = """
import sys
size = int(sys.argv[1])
for line in range(size):
    print("case", line, "expected 3, got 4 " * 4)
"""


def judge(cases):
    process = subprocess.Popen([sys.executable, "-c", JUDGE, str(cases)], stdout=subprocess.PIPE)
    process.wait()
    return process.stdout.read()


def train(rank, port):
    import torch
    import torch.distributed as dist

    note(f"rank{rank}")
    os.environ.update(RANK=str(rank), WORLD_SIZE="3", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=30))
    for step in range(1000):
        time.sleep(0.2)
        reward = len(judge(5 if step < 8 else 5000)) if rank == 1 else 0
        gathered = [torch.empty(1) for _ in range(3)]
        dist.all_gather(gathered, torch.tensor([float(reward)]))
        say("rank", rank, "step", step)


if __name__ == "__main__":
    import torch.multiprocessing as mp

    mp.spawn(train, args=(free_port(),), nprocs=3)
