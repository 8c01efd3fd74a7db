"""K9: a rank that the kernel or the interpreter lock holds, while its peers wait in a collective.

`gil`: a C function in the main thread keeps the interpreter lock forever. `gil-thread`: the same in a thread of the
tokenizer. `stopped`: SIGSTOP. `disk`: uninterruptible sleep (state D), which needs no broken disk: a process that
spawned a child with vfork waits in state D until the child calls exec, and this child first opens a FIFO that has no
writer. `spawn`: the same through Python's own posix_spawn, which keeps the interpreter lock meanwhile.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import tempfile
import threading
import time
from pathlib import Path

import toy


def tokenize_natively() -> None:
    """Call C through PyDLL, which unlike CDLL does not release the interpreter lock during the call."""
    ctypes.PyDLL(None).sleep(1_000_000)


def stop_here() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def read_from_dead_disk() -> None:
    """Call posix_spawn through ctypes, which releases the interpreter lock, like a read from a dead NFS server."""
    with tempfile.TemporaryDirectory() as folder:
        fifo = Path(folder) / "input"
        os.mkfifo(fifo)
        libc = ctypes.CDLL(None)
        actions = ctypes.create_string_buffer(256)  # posix_spawn_file_actions_t is 80 bytes with glibc
        libc.posix_spawn_file_actions_init(actions)
        libc.posix_spawn_file_actions_addopen(actions, 0, str(fifo).encode(), os.O_RDONLY, 0)
        argv = (ctypes.c_char_p * 2)(b"true", None)
        environment = (ctypes.c_char_p * 1)(None)
        libc.posix_spawn(ctypes.byref(ctypes.c_int()), b"/bin/true", actions, None, argv, environment)


def spawn_helper() -> None:
    with tempfile.TemporaryDirectory() as folder:
        fifo = Path(folder) / "input"
        os.mkfifo(fifo)
        os.posix_spawn("/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, str(fifo), os.O_RDONLY, 0)])


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--phase", choices=["gil", "gil-thread", "stopped", "disk", "spawn"], default="gil")
    arguments.add_argument("--rank", type=int, default=1)
    options = arguments.parse_args()
    toy.setup()
    module = toy.model()
    for step in range(10):
        toy.train_step(module, toy.batch(step))
        if step == 3 and options.rank == toy.RANK:
            if options.phase.startswith("gil"):
                time.sleep(2)  # the first beat comes within a second; a process that hangs earlier was never seen
            if options.phase == "gil":
                tokenize_natively()
            elif options.phase == "gil-thread":
                threading.Thread(target=tokenize_natively, name="tokenizer").start()
                time.sleep(0.01)
            elif options.phase == "stopped":
                stop_here()
            elif options.phase == "disk":
                read_from_dead_disk()
            else:
                spawn_helper()


if __name__ == "__main__":
    main()
