"""An agent loop (asyncio) asks an engine server over HTTP; two trainers wait for its rollouts in a broadcast. The engine's
worker thread has died of an exception, its HTTP threads go on taking requests that nobody serves, and /health is fine."""
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
import asyncio
import json
import queue
import threading


def engine(port):
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    note("engine-server")
    pending = queue.Queue()

    def generate():
        for served in range(10**6):
            prompt, answered = pending.get()
            if served == 100:
                raise RuntimeError("no free KV block")
            time.sleep(0.01)
            answered["text"] = prompt + " ok"
            answered["event"].set()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.0"

        def log_message(self, *args):
            pass

        def do_GET(self):
            self.reply({"status": "ok"})

        def do_POST(self):
            prompt = self.rfile.read(int(self.headers["Content-Length"])).decode()
            answered = {"event": threading.Event()}
            pending.put((prompt, answered))
            answered["event"].wait()
            self.reply({"text": answered["text"]})

        def reply(self, what):
            body = json.dumps(what).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    threading.excepthook = lambda args: None
    threading.Thread(target=generate, daemon=True, name="engine-loop").start()
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


async def ask(port, path, prompt=""):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    method = "POST" if prompt else "GET"
    writer.write(f"{method} {path} HTTP/1.0\r\nContent-Length: {len(prompt)}\r\n\r\n{prompt}".encode())
    answer = await reader.read()
    writer.close()
    return answer


async def health(port):
    while True:
        await asyncio.sleep(1)
        await ask(port, "/health")


async def agent(port, torch, dist):
    for _ in range(100):
        try:
            await ask(port, "/health")
            break
        except OSError:
            await asyncio.sleep(0.1)
    checking = asyncio.ensure_future(health(port))
    for step in range(1000):
        await asyncio.gather(*(ask(port, "/generate", f"prompt {step} {i}") for i in range(16)))
        say("agent loop: step", step)
        dist.broadcast(torch.ones(4), 0)
        await asyncio.sleep(0.2)
    await checking


if __name__ == "__main__":
    part = os.environ.get("PART")
    if part is None:
        port, master = free_port(), free_port()
        ps = [start(PART="engine", PORT=port)]
        ps += [start(PART="train", PORT=port, RANK=r, WORLD_SIZE=3, MASTER_PORT=master) for r in range(3)]
        [p.wait() for p in ps]
    elif part == "engine":
        engine(int(os.environ["PORT"]))
    else:
        import torch
        import torch.distributed as dist

        rank = int(os.environ["RANK"])
        note("agent-loop" if rank == 0 else f"rank{rank}")
        dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=30))
        if rank == 0:
            asyncio.run(agent(int(os.environ["PORT"]), torch, dist))
        for step in range(1000):
            dist.broadcast(torch.empty(4), 0)
            say("rank", rank, "step", step)
