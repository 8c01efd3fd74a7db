"""A process that has imported modules and forks: importing an engine takes ten seconds of a core, a fork
milliseconds.

`python -P -m scenarios.forkserver DESCRIPTOR MODULE...` serves a listening socket while the process that started it
is alive. `scenarios.forked` replaces an interpreter on a command line; its script runs in a fork of the server. The
server must do nothing but import: no thread, no device. It imports only the standard library besides the given
modules.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import importlib
import json
import multiprocessing
import multiprocessing.connection
import multiprocessing.forkserver
import multiprocessing.process
import multiprocessing.spawn
import os
import runpy
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from probes.identity import PR_SET_PDEATHSIG, WATCH

LONGEST = 4 << 20  # most bytes of an order; Linux accepts 2 MiB of arguments and environment (execve(2))
RANKS_WAITING = 64  # processes that may wait to connect: an engine has one per rank
CHILDREN = "RLHF_HARNESS_FORKED_CHILDREN"  # set for a process whose children are forked too
STREAMS = 3  # streams of every process: input, output, errors


def main(descriptor: int, modules: Sequence[str]) -> None:
    """Serve requests. Returns only in a forked process, when its script has ended."""
    _end_with_parent()
    listener = socket.socket(fileno=descriptor)
    for module in modules:
        with contextlib.suppress(ImportError):  # the process that needs the module will report it
            importlib.import_module(module)
    if titles := sys.modules.get("setproctitle"):
        titles.getproctitle()  # it finds the title's memory through the environment, which a fork replaces
    gc.collect()
    gc.freeze()  # otherwise a collection in a fork would copy every page
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the children
    while True:
        client, _ = listener.accept()
        order, streams = _received(client)
        if order and os.fork() == 0:
            listener.close()
            os.setpgid(0, 0)  # Ray kills the process group of an actor that ends (raylet's `KillProcessGroup`)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _become(order, streams, client)
            return
        for number in streams:
            os.close(number)
        client.close()


def _received(client: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Return the order and its standard streams; {} for a client that went away."""
    text, streams = b"", list[int]()
    while not text.endswith(b"\n"):
        part, more, _, _ = socket.recv_fds(client, LONGEST, STREAMS)
        text, streams = text + part, streams + list(more)
        if not part:
            return {}, streams
    return json.loads(text), streams


def _become(order: dict[str, Any], streams: Sequence[int], client: socket.socket) -> None:
    """Run a script as a new interpreter would.

    `client` stays open while this process lives; by that `scenarios.forked` notices its end.
    """
    for target, number in enumerate(streams):
        os.dup2(number, target)
        os.close(number)
    os.environ.clear()
    os.environ.update(order["environ"])
    tempfile.tempdir = None  # the server's, which its modules may have looked up; this process has a TMPDIR of its own
    os.chdir(order["folder"])
    script = order["argv"][0]
    sys.argv[:] = order["argv"]
    sys.orig_argv[:] = [sys.executable, *order["argv"]]
    folders = [os.path.dirname(script), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    sys.path[:] = [*folders, *(folder for folder in sys.path if folder not in folders)]
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()  # otherwise every fork would have the same "fresh" entropy
    if os.environ.get(CHILDREN):
        _fork_children(client)
    _watch()
    runpy.run_path(script, run_name="__main__")


def _watch() -> None:
    """Attach the probes to a watched process, as probes/site does at the start of an interpreter."""
    if directory := os.environ.get(WATCH):
        from probes import attach

        attach.begin(directory)


def _fork_children(client: socket.socket) -> None:
    """Start multiprocessing's own fork server below this process, with everything that is imported here.

    Its forks get this process's environment and output as they are when the fork starts.
    """
    address: str = multiprocessing.connection.arbitrary_address("AF_UNIX")  # type: ignore[attr-defined]
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(RANKS_WAITING)
    alive_r, alive_w = os.pipe()
    multiprocessing.spawn.get_preparation_data = functools.partial(  # type: ignore[assignment]
        _preparation, multiprocessing.spawn.get_preparation_data
    )
    multiprocessing.spawn.prepare = functools.partial(_prepared, multiprocessing.spawn.prepare)  # type: ignore[assignment]
    pid = os.fork()
    if pid == 0:
        client.close()
        os.close(alive_w)
        _end_with_parent()
        try:
            multiprocessing.forkserver.main(listener.detach(), alive_r, [])
        finally:
            os._exit(1)
    listener.close()
    os.close(alive_r)
    server: Any = multiprocessing.forkserver._forkserver
    server._forkserver_address, server._forkserver_alive_fd, server._forkserver_pid = address, alive_w, pid


def _preparation(original: Any, name: str) -> dict[str, Any]:
    data: dict[str, Any] = original(name)
    for main_module in ("init_main_from_name", "init_main_from_path"):  # the actor's would start a second actor
        data.pop(main_module, None)
    return data | {"environ": dict(os.environ), "output": os.getpid()}


def _prepared(original: Any, data: dict[str, Any]) -> None:
    os.environ.clear()
    os.environ.update(data.pop("environ"))
    parent = data.pop("output")
    for number in (1, 2):
        with contextlib.suppress(OSError):  # closed
            stream = os.open(f"/proc/{parent}/fd/{number}", os.O_WRONLY | os.O_APPEND)
            os.dup2(stream, number)
            os.close(stream)
    original(data)
    _watch()


def children_server() -> int:
    """Return the pid of the fork server of this process's children; 0 without one."""
    return int(getattr(multiprocessing.forkserver._forkserver, "_forkserver_pid", 0) or 0)  # type: ignore[attr-defined]


@contextlib.contextmanager
def forked_children() -> Iterator[None]:
    """Fork the processes of an engine that is started inside, although it asks for spawned ones.

    This needs a fork server of this process's children; without one nothing changes.
    """
    original = multiprocessing.set_start_method
    if not children_server():
        yield
        return

    def forking(method: str | None, force: bool = False) -> None:
        original("forkserver" if method == "spawn" else method, force=force)

    multiprocessing.set_start_method = forking  # type: ignore[assignment]
    try:
        yield
    finally:
        multiprocessing.set_start_method = original


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
