"""What the programs t* and u* share: their processes, the notes that say which is which, and groups beside the default one.

main([...], work) starts the same file once for each name; work(name) runs in that process.
"""
import os, pathlib, socket, subprocess, sys, threading, time


def note(name):
    folder = pathlib.Path(os.environ["BLIND_RUN"])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.pid").write_text(str(os.getpid()))


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [str(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports


def main(names, work, ports=1):
    if len(sys.argv) > 1:
        note(sys.argv[1])
        work(sys.argv[1])
        return
    note("launcher")
    env = dict(os.environ, MASTER_ADDR="127.0.0.1", PORTS=" ".join(free_ports(ports)), OMP_NUM_THREADS="1", PYTHONUNBUFFERED="1")
    children = [subprocess.Popen([sys.executable, sys.argv[0], name], env=env) for name in names]
    sys.exit(max(child.wait() for child in children))


def port(number):
    return int(os.environ["PORTS"].split()[number])


def world(rank, size, number=0):
    """The default group, of `size` processes that meet at port `number`."""
    import torch.distributed as dist

    os.environ.update(MASTER_PORT=str(port(number)), RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size))
    dist.init_process_group("gloo")


def custom_group(rank, size, name, number):
    """A group across default groups, as RLHF frameworks make one for the weight sync."""
    from torch.distributed import PrefixStore, TCPStore
    from torch.distributed.distributed_c10d import Backend, GroupName, _new_process_group_helper, _world, default_pg_timeout

    store = TCPStore("127.0.0.1", port(number), size, is_master=rank == 0, wait_for_workers=False)
    group, _ = _new_process_group_helper(
        size, rank, [], Backend("gloo"), PrefixStore(name, store), group_name=GroupName(name), timeout=default_pg_timeout)
    _world.pg_group_ranks[group] = {one: one for one in range(size)}
    return group


def listen(number):
    from multiprocessing.connection import Listener

    return Listener(("127.0.0.1", port(number))).accept()


def connect(number):
    from multiprocessing.connection import Client

    for _ in range(600):
        try:
            return Client(("127.0.0.1", port(number)))
        except ConnectionRefusedError:
            time.sleep(0.1)
    raise SystemExit("nobody listens")


def metrics_thread(name):
    """A thread that writes a line each second, whatever the main thread does."""
    def write():
        path = pathlib.Path(os.environ["BLIND_RUN"]) / f"{name}.metrics"
        while True:
            path.write_text(f"{time.time()} up\n")
            time.sleep(1)

    threading.Thread(target=write, daemon=True, name="metrics").start()


def compute(seconds):
    """Matrix products for so long."""
    import torch

    x, until = torch.randn(128, 128), time.time() + seconds
    while time.time() < until:
        x = torch.tanh(x @ x)


def say(*words):
    print(*words, flush=True)
