"""Four ranks under torchrun; at step 12 rank 0 writes the checkpoint into an upload pipe (a FIFO) whose reader is gone;
the others are at the barrier behind it."""
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


def main():
    import torch
    import torch.distributed as dist

    rank = int(os.environ["RANK"])
    note(f"rank{rank}")
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=30))
    model = torch.nn.Linear(64, 64)
    for step in range(1000):
        time.sleep(0.15)
        grad = torch.ones(64, 64)
        dist.all_reduce(grad)
        if step == 12:
            if rank == 0:
                pipe = os.path.join(tempfile.mkdtemp(), "upload.pipe")
                os.mkfifo(pipe)
                torch.save(model.state_dict(), pipe)
            dist.barrier()
        if rank == 0:
            say("step", step)


if __name__ == "__main__":
    if "RANK" in os.environ:
        main()
    else:
        os.environ["OMP_NUM_THREADS"] = "1"
        run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4", "--master-port",
               str(free_port()), os.path.abspath(__file__)]
        sys.exit(subprocess.call(run))
