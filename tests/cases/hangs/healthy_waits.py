"""Healthy jobs of two ranks: rank 0 waits some seconds, in the way that the first argument names; rank 1 waits for it.

`python healthy_waits.py WAY SECONDS` ends with exit code 0. What rank 0 waits for comes from a process outside the job,
from a thread, a child or a server of the job, or from time. WAY:epochs waits between two epochs of steps, in the loop
of epochs; WAY:most has three ranks, of which all but the last wait so.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import multiprocessing
import os
import queue
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

WAITS: dict[str, Callable[[], object]] = {}
(WAY, _, SHAPE), SECONDS = sys.argv[1].partition(":"), float(sys.argv[2])
RANKS = 3 if SHAPE == "most" else 2
SCORE, PORT = Path(os.environ.get("SCORE", "")), int(os.environ.get("TOOL_PORT", "0"))


def way(wait: Callable[[], object]) -> Callable[[], object]:
    WAITS[wait.__name__] = wait
    return wait


@way
def poll() -> None:
    while not SCORE.exists():
        time.sleep(2)


@way
def compute() -> None:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        sum(range(10_000))


def ask(page: str) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/{page}", timeout=600) as answer:
        return bytes(answer.read())


@way
def one_sleep() -> None:
    time.sleep(SECONDS)


@way
def joined_thread() -> None:
    thread = threading.Thread(target=poll)
    thread.start()
    thread.join()


@way
def mapped_in_threads() -> None:
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: poll(), range(2)))


@way
def as_they_complete() -> None:
    with ThreadPoolExecutor(2) as pool:
        for future in as_completed([pool.submit(poll) for _ in range(2)]):
            future.result()


@way
def released_lock() -> None:
    lock = threading.Lock()
    lock.acquire()

    def release() -> None:
        poll()
        lock.release()

    threading.Thread(target=release, daemon=True).start()
    lock.acquire()


@way
def submitted_sleep() -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(time.sleep, SECONDS).result()


@way
def submitted_child() -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(subprocess.check_output, ["sleep", str(SECONDS)]).result()


@way
def joined_call() -> None:
    thread = threading.Thread(target=subprocess.call, args=(["sleep", str(SECONDS)],))
    thread.start()
    thread.join()


@way
def event_with_a_limit() -> None:
    threading.Event().wait(SECONDS)


@way
def queue_fed_by_a_timer() -> None:
    items: queue.Queue[int] = queue.Queue()
    threading.Timer(SECONDS, items.put, [1]).start()
    items.get()


@way
def queue_fed_after_an_event() -> None:
    items: queue.Queue[int] = queue.Queue()

    def feed() -> None:
        threading.Event().wait(SECONDS)
        items.put(1)

    threading.Thread(target=feed).start()
    items.get()


@way
def queue_with_a_limit() -> None:
    with contextlib.suppress(queue.Empty):
        queue.Queue[int]().get(timeout=SECONDS)


@way
def select_with_a_limit() -> None:
    select.select([], [], [], SECONDS)


@way
def lock_of_a_child() -> None:
    with tempfile.NamedTemporaryFile() as file:
        child = subprocess.Popen(["flock", file.name, "sleep", str(SECONDS)])
        time.sleep(1)
        fcntl.flock(file, fcntl.LOCK_EX)
        child.wait()


@way
def pool_of_processes() -> None:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.starmap(poll, [(), ()])


@way
def child_without_text() -> None:
    code = f"import os, time\nwhile not os.path.exists({str(SCORE)!r}): time.sleep(3)"
    subprocess.run([sys.executable, "-c", code], check=True)


@way
def output_of_a_child() -> None:
    code = f"import os, time\nwhile not os.path.exists({str(SCORE)!r}): time.sleep(3)"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@way
def named_pipe() -> None:
    Path(f"{SCORE}.fifo").read_text()


@way
def event_of_a_timer() -> None:
    async def wait() -> None:
        event = asyncio.Event()
        asyncio.get_running_loop().call_later(SECONDS, event.set)
        await event.wait()

    asyncio.run(wait())


@way
def gathered_sleeps() -> None:
    async def wait() -> None:
        await asyncio.gather(*(asyncio.sleep(seconds) for seconds in (1, SECONDS)))

    asyncio.run(wait())


def call_later() -> None:
    """Let a process outside the job connect to PORT + 1."""
    call = f"import socket, time; time.sleep({SECONDS}); socket.create_connection(('127.0.0.1', {PORT + 1})).send(b'x')"
    subprocess.Popen(["setsid", "--fork", sys.executable, "-c", call], env={"PATH": os.environ["PATH"]})


@way
def accepted_connection() -> None:
    with socket.create_server(("127.0.0.1", PORT + 1)) as server:
        call_later()
        server.accept()


@way
def one_request() -> None:
    with ThreadingHTTPServer(("127.0.0.1", PORT + 1), Pages) as server:
        call_later()
        server.handle_request()


@way
def waits_for_signals() -> None:
    while not SCORE.exists():
        signal.sigtimedwait([signal.SIGUSR1], 2)


@way
def key_of_a_store() -> None:
    from torch.distributed import TCPStore

    TCPStore("127.0.0.1", PORT, is_master=False).wait(["score"], timedelta(seconds=600))


@way
def server_computes() -> bytes:
    return ask("compute")


@way
def server_polls() -> bytes:
    return ask("poll")


@way
def server_sleeps() -> bytes:
    return ask("sleep")


@way
def judge_sleeps() -> bytes:
    """Ask a server whose main thread answers, and sleeps before."""
    with socket.create_connection(("127.0.0.1", PORT)) as asks:
        asks.sendall(b"score")
        return asks.recv(10)


def throttled(reader: socket.socket) -> None:
    with reader:
        while reader.recv(60_000):
            time.sleep(SECONDS / 8)


@way
def upload_to_a_unix_socket() -> None:
    sender, reader = socket.socketpair()
    child = multiprocessing.get_context("fork").Process(target=throttled, args=(reader,))
    child.start()
    reader.close()
    with sender:
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 20_000)
        sender.sendall(bytes(250_000))
    child.kill()
    child.join()


@way
def asks_again() -> None:
    while b"done" not in ask("long"):
        pass


class Pages(BaseHTTPRequestHandler):
    """A page for each way in which a server is slow."""

    def do_GET(self) -> None:
        {"/compute": compute, "/poll": poll, "/sleep": lambda: time.sleep(SECONDS), "/long": self.hold}[self.path]()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"done" if SCORE.exists() else b"not yet")

    def hold(self) -> None:
        end = time.monotonic() + 4
        while time.monotonic() < end and not SCORE.exists():
            time.sleep(0.5)

    def log_message(self, *words: object) -> None:
        """Say nothing."""


def tool() -> None:
    if WAY == "key_of_a_store":
        from torch.distributed import TCPStore

        store = TCPStore("127.0.0.1", PORT, is_master=True, wait_for_workers=False)
        time.sleep(SECONDS)
        store.set("score", "1")
        time.sleep(600)
    if WAY == "judge_sleeps":
        judge(SECONDS)
    ThreadingHTTPServer(("127.0.0.1", PORT), Pages).serve_forever()


def judge(delay: float) -> None:
    with socket.create_server(("127.0.0.1", PORT)) as server:
        while True:
            asks, _ = server.accept()
            asks.recv(10)
            time.sleep(delay)
            asks.sendall(b"0.7")


def rank() -> None:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    waits = dist.get_rank() == 0 or (SHAPE == "most" and dist.get_rank() < RANKS - 1)
    if SHAPE:
        for epoch in range(2):
            for _ in range(5):
                dist.all_reduce(torch.ones(10))
            if waits and epoch == 0:
                WAITS[WAY]()
    else:
        for _ in range(5):
            dist.all_reduce(torch.ones(10))
        if waits:
            WAITS[WAY]()
        dist.broadcast_object_list([1.0], src=0)
    dist.barrier()
    dist.destroy_process_group()  # without it torch aborts now and then at the end: pytorch/pytorch#190489


def free_port() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def job() -> int:
    with tempfile.TemporaryDirectory() as folder:
        score = f"{folder}/score"
        os.mkfifo(f"{score}.fifo")
        # A process of another job makes what rank 0 looks for.
        outside = f"sleep {SECONDS}; echo 1 > {score}; timeout 5 sh -c 'echo 1 > {score}.fifo'"
        subprocess.Popen(["sh", "-c", outside], start_new_session=True, env={"PATH": os.environ["PATH"]},
                         stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
        shared = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port(), OMP_NUM_THREADS="1",
                      SCORE=score, TOOL_PORT=free_port(), WORLD_SIZE=f"{RANKS}",
                      LOCAL_WORLD_SIZE=f"{RANKS}")  # fmt: skip
        command = [sys.executable, __file__, *sys.argv[1:3]]
        server = subprocess.Popen([*command, "tool"], env=shared)
        ranks = [
            subprocess.Popen([*command, "rank"], env=dict(shared, RANK=str(number), LOCAL_RANK=str(number)))
            for number in range(RANKS)
        ]
        code = max((process.wait() for process in ranks), key=abs)
        server.terminate()
        server.wait()
        return code


if __name__ == "__main__":
    if len(sys.argv) > 3:
        {"tool": tool, "rank": rank}[sys.argv[3]]()
    else:
        sys.exit(job())
