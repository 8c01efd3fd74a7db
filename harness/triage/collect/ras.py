"""NCCL's RAS service: counts per communicator, which it gives even while the job hangs (NCCL 2.24 and later).

The protocol is lines of text on a local TCP port, as `echo verbose status | nc localhost 28028` shows.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from typing import Any

PORT = 28028  # NCCL's default, docs of NCCL_RAS_ADDR
TIMEOUT_S = 3.0  # chosen: within the eight seconds of a look (`collect`)
MAX_BYTES = 16 << 20  # chosen: the answer for 1,024 ranks is far smaller


def ask(environ: Mapping[str, str], *, timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
    """Ask RAS on this host. Returns its JSON, {"text": ...} from a version without JSON, or {} if nobody answers.

    `environ`: variables of a process of the job; NCCL_RAS_ADDR in it names another local port. Only loopback is asked.
    """
    port = environ.get("NCCL_RAS_ADDR", "").rpartition(":")[2]
    address = "127.0.0.1", int(port) if port.isdigit() and int(port) < 65536 else PORT
    for opening in (b"set format json\nverbose status\n", b"verbose status\n"):
        try:
            text = _talk(address, opening, timeout_s).decode(errors="replace")
        except OSError:  # nobody listens there, or it is no RAS: no note, since most jobs have none
            return {}
        begin = text.find("{")
        if begin >= 0:
            try:
                status = json.loads(text[begin:])
            except ValueError:
                status = None
            if isinstance(status, dict):
                return status
        status_text = "\n".join(line for line in text.splitlines() if line.strip() not in ("OK", ""))
        if status_text and "ERROR" not in status_text.split("\n", 1)[0].upper():
            return {"text": status_text}
    return {}


def _talk(address: tuple[str, int], opening: bytes, timeout_s: float) -> bytes:
    reply = b""
    with socket.create_connection(address, timeout=timeout_s) as connection:
        connection.sendall(opening)
        connection.shutdown(socket.SHUT_WR)
        while len(reply) < MAX_BYTES:
            try:
                block = connection.recv(1 << 16)
            except TimeoutError:
                break  # keep what came so far: RAS itself waits for ranks that are stuck
            if not block:
                break
            reply += block
    return reply
