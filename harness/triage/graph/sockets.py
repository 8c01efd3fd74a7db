"""Whether a process waits at a socket, for an answer that no recorder and no engine knows of."""

from __future__ import annotations

import re

from harness.triage.evidence import Process, Sample
from harness.triage.evidence import main_frames as main_frames
from harness.triage.graph.motion import hands_on
from harness.triage.stacks import classify

# Kernel functions of net/ and fs/select.c, the standard library's files, system calls.
_WCHAN = re.compile(r"sk_wait|tcp_|inet_|wait_woken|^(do_)?(sys_)?poll|poll_schedule")
SOCKET_FILE = re.compile(r"/(socket|ssl)\.py$")
_MESSAGES = re.compile(r"/zmq/")
_CALL = re.compile(r"(__)?(libc_)?(recv|recvfrom|recvmsg|send|sendto|sendmsg|connect|poll|ppoll)")


def at_socket(process: Process) -> bool:
    """Whether the main thread, or a thread that works for it, waits at a socket at every look.

    The kernel function, the native frame or a frame of the standard library shows it.
    """
    if not process.samples:
        return False
    return all(_main(process, look) for look in process.samples) or all(map(_pool, process.samples))


def ends(process: Process) -> tuple[str, ...]:
    """Peers that may be at the other end of the socket at which a process waits: those that it polls or reads from,
    else all connections."""
    look = process.last_look
    polled = look.polled or (look.reads_from,)
    return tuple(peer for peer in process.peers if not any(polled) or peer in polled)


def _main(process: Process, look: Sample) -> bool:
    frames = look.main_frames
    if look.polled and not any(peer in look.polled for peer in process.peers):
        return False  # what it polls is no connection: an event, a pipe, a terminal
    if not look.polled and frames and _MESSAGES.search(frames[0].file):
        return False  # ZeroMQ: its own threads serve its connections
    native = main_frames(process.native) if look is process.last_look else ()
    return (
        bool(_WCHAN.search(look.wchan))
        or bool(frames and SOCKET_FILE.search(frames[0].file))
        or bool(native and _CALL.fullmatch(native[0].function))
    )


def _pool(look: Sample) -> bool:
    """Whether the main thread waits for another thread of its process that waits at a socket."""
    main = next((thread for thread in look.threads if thread.main), None)
    if main is None or classify(main).kind not in ("lock", "queue"):
        return False
    helpers = [thread for thread in look.threads if thread is not main and thread.frames and hands_on(thread)]
    return any(SOCKET_FILE.search(helper.frames[0].file) or _WCHAN.search(helper.wchan) for helper in helpers)
