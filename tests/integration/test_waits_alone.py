"""Programs of one process or a small family that stand still for ever, and those that look like them and go on.

What nobody can end, by the evidence, is HUNG with its place. What somebody who was not seen may still end is never
HEALTHY. `harness triage PID` looks at each.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness.triage.run import triage
from reports.model import Verdict

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
HEAD = """
import multiprocessing, os, queue, signal, subprocess, sys, threading, time
from concurrent.futures import ProcessPoolExecutor
lock, fork = threading.Lock(), multiprocessing.get_context("fork")
def ready(): print("ready", flush=True)
def keep():
    with lock: time.sleep(1)
def load(*queues):
    with lock:
        for its in queues: its.put(1)
def held():
    threading.Thread(target=keep).start()
    while not lock.locked(): time.sleep(0.01)
def forever(): threading.Event().wait()
def taken_twice():
    with lock: again()
def again():
    with lock: pass
def consume(items, limit):
    while True:
        try: item = items.get(timeout=limit)
        except queue.Empty: continue
        if item is None: return
def fifo():
    os.mkfifo("fifo")
    return "fifo"
def run(text): subprocess.run([sys.executable, "-c", text], check=True)
"""
HANGS = {
    "a lock that its only thread takes twice": ("ready()\ntaken_twice()", "K6", "in again"),
    "a lock that is acquired twice": ("ready()\nlock.acquire()\nlock.acquire()", "K4", "in <module>"),
    "joined workers with a copied lock": (
        "held()\nworkers = [fork.Process(target=load) for _ in range(2)]\nfor its in workers: its.start()\nready()\n"
        "for its in workers: its.join()", "K4", "in load"),
    "workers with a copied lock, and a queue": (
        "held()\nitems = fork.Queue()\nfor _ in range(2): fork.Process(target=load, args=(items,)).start()\nready()\n"
        "items.get()", "K4", "in load"),
    "os.fork with a copied lock": (
        "held()\npids = []\nfor _ in range(2):\n    pids.append(os.fork())\n    if not pids[-1]: load(); os._exit(0)\n"
        "ready()\nfor pid in pids: os.waitpid(pid, 0)", "K4", "in load"),
    "os.fork during an import": (
        "def slow(): import slowly\n"
        "with open('slowly.py', 'w') as file: file.write('import time\\ntime.sleep(999)')\n"
        "sys.path.insert(0, os.getcwd())\nthreading.Thread(target=slow, daemon=True).start()\n"
        "while 'slowly' not in sys.modules: time.sleep(0.01)\ntime.sleep(1)\nchild = os.fork()\n"
        "if not child: slow(); os._exit(0)\nready()\nos.waitpid(child, 0)", "K4", "in slow"),
    "os.fork of a pool of OpenMP": (
        "import torch\ntorch.set_num_threads(2)\ndef compute(): return torch.ones(600, 600).exp().sum()\ncompute()\n"
        "child = os.fork()\nif not child: compute(); os._exit(0)\nready()\nos.waitpid(child, 0)", "K4", "in compute"),
    "a pool with a copied lock": ("held()\nwith fork.Pool(2) as pool:\n    ready()\n    pool.map(load, range(9))",
                                  "K4", "in load"),
    "an executor with a copied lock": (
        "held()\nwith ProcessPoolExecutor(2, mp_context=fork) as its:\n    ready()\n    list(its.map(load, range(9)))",
        "K4", "in load"),
    "a queue that a thread filled which has ended": (
        "items = queue.Queue()\nthreading.Thread(target=items.put, args=(1,)).start()\nready()\nconsume(items, None)",
        "K4", "in consume"),
    "the same, asked again and again": (
        "items = queue.Queue()\nthreading.Thread(target=items.put, args=(1,)).start()\nready()\nconsume(items, 2)",
        "K4", "in consume"),
    "workers of a DataLoader with a copied lock": (
        "from torch.utils.data import DataLoader\nclass Items(list):\n    def __getitem__(self, at): load()\nheld()\n"
        "loader = iter(DataLoader(Items(range(9)), num_workers=2, multiprocessing_context='fork'))\ntime.sleep(2)\n"
        "ready()\nnext(loader)", "K4", "in load"),
    "a child whose event nobody sets": (
        "its = fork.Process(target=forever)\nits.start()\nready()\nits.join()", "K4", "in forever"),
    "children whose events nobody sets": (
        "text = 'import threading\\nthreading.Semaphore(0).acquire()'\n"
        "children = [subprocess.Popen([sys.executable, '-c', text]) for _ in range(2)]\ntime.sleep(1)\nready()\n"
        "for child in children: child.wait()", "K4", "<string>:2 in <module>"),
    "a lock of processes whose holder was killed": (
        "shared = fork.Lock()\ndef die():\n    shared.acquire()\n    os.kill(os.getpid(), 9)\ndef take():\n"
        "    with shared: pass\nits = fork.Process(target=die)\nits.start()\nits.join()\n"
        "its = fork.Process(target=take)\nits.start()\nready()\nits.join()", "K4", "in take"),
    "a queue of processes one of whose readers was killed": (
        "items = fork.Queue()\nreaders = [fork.Process(target=consume, args=(items, None)) for _ in range(3)]\n"
        "readers[0].start()\nwhile not items._rlock._semlock._is_zero(): time.sleep(0.1)\n"  # it has the lock
        "for its in readers[1:]: its.start()\ntime.sleep(1)\nreaders[0].kill()\nreaders[0].join()\nready()\n"
        "for its in readers: its.join()", "K4", "in consume"),
    "a loop whose own thread waits for it": (
        "import asyncio\nasync def part(): pass\nasync def main():\n    loop = asyncio.get_running_loop()\n"
        "    ready()\n    return asyncio.run_coroutine_threadsafe(part(), loop).result()\n"
        "threading.Thread(target=time.sleep, args=(999,), daemon=True).start()\nasyncio.run(main())", "K6", "in main"),
    "a loop of a thread, asked by what it runs itself": (
        "import asyncio\nloop = asyncio.new_event_loop()\n"
        "threading.Thread(target=loop.run_forever, daemon=True).start()\n"
        "def call(its): return asyncio.run_coroutine_threadsafe(its, loop).result()\nasync def part(): pass\n"
        "async def whole(): return call(part())\nready()\ncall(whole())", "K6", "in call"),
}  # fmt: skip
"""Program, kind of hang, and the end of the culprits' place."""
OPEN = {
    "cat of a named pipe below a shell": (
        "ready()\nsubprocess.run('cat ' + fifo() + '; echo', shell=True)", False, "fifo"),
    "the same child alone": (
        "its = subprocess.Popen(['cat', fifo()])\ntime.sleep(1)\nready()\nits.wait()", True, "fifo"),
    "a child whose event nobody sets, alone": (
        "its = subprocess.Popen([sys.executable, '-c', 'import threading\\nthreading.Event().wait()'])\ntime.sleep(1)\n"
        "ready()\nits.wait()", True, "<string>:2 in <module>"),
    "an event in the text of a command": (
        "os.execv(sys.executable, [sys.executable, '-c', 'import threading\\nprint(0, flush=True)\\n'"
        "'threading.Event().wait()'])", False, "<string>:3 in <module>"),
    "a queue of processes whose producer has ended": (
        "items = fork.Queue()\nits = fork.Process(target=items.put, args=(1,))\nits.start()\nits.join()\nready()\n"
        "consume(items, 2)", False, "in consume"),
}  # fmt: skip
"""Program, whether its child alone is looked at, and what the verdict names."""
GOES_ON = {
    "a main thread that looks once a minute whether it shall stop": (
        "threading.Thread(target=time.sleep, args=(99,), daemon=True).start()\nstop = threading.Event()\nready()\n"
        "while not stop.wait(60): pass"
    ),
    "workers of a DataLoader that sleep": (
        "from torch.utils.data import DataLoader\nclass Items(list):\n    def __getitem__(self, at): time.sleep(60)\n"
        "loader = iter(DataLoader(Items(range(9)), num_workers=2, multiprocessing_context='fork'))\ntime.sleep(2)\n"
        "ready()\nnext(loader)"),
    "a DataLoader that gives its workers a time limit": (
        "from torch.utils.data import DataLoader\nclass Items(list):\n    def __getitem__(self, at): load()\nheld()\n"
        "loader = iter(DataLoader(Items(range(9)), num_workers=2, multiprocessing_context='fork', timeout=60))\n"
        "time.sleep(2)\nready()\nnext(loader)"),
    "a lock that a timer releases": (
        "lock.acquire()\nthreading.Timer(60, lock.release).start()\nready()\nlock.acquire()"),
    "a queue that a thread fills after a sleep": (
        "items = queue.Queue()\nthreading.Timer(60, items.put, (None,)).start()\nready()\nconsume(items, 2)"),
    "a queue that the handler of a signal fills": (
        "items = queue.Queue()\nsignal.signal(signal.SIGALRM, lambda *_: items.put(None))\nsignal.alarm(60)\nready()\n"
        "consume(items, 2)"),
    "a queue that is filled where it was empty": (
        "items = queue.Queue()\nready()\nwhile True:\n    try: items.get(timeout=2)\n    except queue.Empty:\n"
        "        if os.path.exists('flag'): items.put(None)\n        continue"),
    "a lock of processes whose holder waits for another child": (
        "shared = fork.Lock()\nshared.acquire()\ndef take():\n    with shared: pass\n"
        "fork.Process(target=take).start()\nits = subprocess.Popen(['sleep', '60'])\nready()\nits.wait()\n"
        "shared.release()"),
    "a loop of another thread that sleeps": (
        "import asyncio\nloop = asyncio.new_event_loop()\n"
        "threading.Thread(target=loop.run_forever, daemon=True).start()\n"
        "def call(its): return asyncio.run_coroutine_threadsafe(its, loop).result()\n"
        "async def main(): return call(asyncio.sleep(60))\nready()\nasyncio.run(main())"),
    "a lock of processes whose holder sleeps": (
        "shared = fork.Lock()\nshared.acquire()\ndef take():\n    with shared: pass\n"
        "workers = [fork.Process(target=take) for _ in range(2)]\nfor its in workers: its.start()\nready()\n"
        "time.sleep(60); shared.release()"),
    "a child that keeps its servers alive": (
        "text = 'import subprocess, threading\\ndef main():\\n    subprocess.Popen([\"sleep\", \"60\"])\\n'"
        "'    threading.Event().wait()\\nmain()'\nits = subprocess.Popen([sys.executable, '-c', text])\ntime.sleep(1)\n"
        "ready()\nits.wait()"),
    "children that are kept alive by a parent that is": (
        "text = 'import threading\\nthreading.Event().wait()'\n"
        "for _ in range(2): subprocess.Popen([sys.executable, '-c', text])\ntime.sleep(1)\nready()\nforever()"),
    "a child whose event a signal sets": (
        "text = 'import signal, threading\\ndone = threading.Event()\\n'"
        "'signal.signal(signal.SIGUSR1, lambda *_: done.set())\\ndone.wait()'\n"
        "its = subprocess.Popen([sys.executable, '-c', text])\ntime.sleep(1)\nready()\nits.wait()"),
    "workers beside a parent that computes": (
        "held()\nitems = fork.Queue()\nfork.Process(target=load, args=(items,)).start()\nready()\n"
        "while True: sum(range(1000))"),
    "a named pipe that a child opens after a sleep": (
        "name = fifo()\nif not os.fork():\n    time.sleep(60)\n    open(name, 'w').close()\n    os._exit(0)\nready()\n"
        "subprocess.run(['cat', name])"),
}  # fmt: skip
IDLE = {
    "a supervisor that waits for signals": "subprocess.Popen(['sleep', '60'])\nready()\nsignal.pause()",
    "a supervisor of a child that waits for the writer of a named pipe": (
        "subprocess.Popen(['cat', fifo()])\nready()\nsignal.pause()"
    ),
    "an idle server": (
        "from http.server import BaseHTTPRequestHandler, HTTPServer\nready()\n"
        "HTTPServer(('127.0.0.1', 0), BaseHTTPRequestHandler).serve_forever()"
    ),
    "a sleep": "ready()\ntime.sleep(10**6)",
}


def judged(text: str, folder: Path, child: bool = False) -> Verdict:
    (folder / "job.py").write_text(HEAD + text)
    job = subprocess.Popen([sys.executable, "job.py"], cwd=folder, stdout=-1, start_new_session=True)
    try:
        assert job.stdout is not None and job.stdout.readline()
        children = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
        return triage([children[0] if child else str(job.pid)], str(folder / "evidence"))
    finally:
        os.killpg(job.pid, signal.SIGKILL)
        job.communicate()


@pytest.mark.by_day(6)
@pytest.mark.parametrize("how", HANGS)
def test_a_wait_that_nobody_can_end_is_named_with_its_place(tmp_path: Path, how: str) -> None:
    text, hang, place = HANGS[how]
    verdict = judged(text, tmp_path)
    assert verdict.triage is not None and (verdict.verdict, verdict.triage.hang) == ("HUNG", hang), verdict.reason
    assert verdict.triage.culprits and all(its.frame.endswith(place) for its in verdict.triage.culprits)


@pytest.mark.by_day(2)
@pytest.mark.parametrize("how", OPEN)
def test_a_wait_that_somebody_unseen_may_end_is_not_healthy_and_names_its_place(tmp_path: Path, how: str) -> None:
    text, child, words = OPEN[how]
    verdict = judged(text, tmp_path, child)
    assert verdict.verdict == "INSUFFICIENT", verdict.reason
    assert any(words in line for line in (verdict.reason, *verdict.evidence, *verdict.missing))


@pytest.mark.night
@pytest.mark.parametrize("how", GOES_ON)
def test_a_wait_that_somebody_ends_later_blames_nobody(tmp_path: Path, how: str) -> None:
    verdict = judged(GOES_ON[how], tmp_path)
    assert verdict.verdict != "HUNG", verdict.reason


@pytest.mark.night
@pytest.mark.parametrize("how", IDLE)
def test_an_idle_program_is_healthy(tmp_path: Path, how: str) -> None:
    verdict = judged(IDLE[how], tmp_path)
    assert verdict.verdict == "HEALTHY", verdict.reason
