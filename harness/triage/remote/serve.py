"""Serves the evidence of one watch to holders of the token: a few connections at a time, beside the watch.

A holder of the token can also make the watch end its command, if the watch does that with jobs that hang. Nothing else
can be changed. A connection is given a nonce and asks again on the same connection with the proof, so no proof is valid
twice. Each look is taken when it is asked for, one at a time.
"""

from __future__ import annotations

import contextlib
import http.server
import shutil
import socket
import socketserver
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import exit_cleanup
from harness.errors import BadInput, HarnessError
from harness.triage import archive
from harness.triage.remote import token as tokens

MOST = 8  # connections at one time
PER_PEER = 4  # connections from one address without a proof of the token
UNPROVEN_S = 5.0  # seconds that a connection without a proof may keep us waiting
IDLE_S = 30.0  # seconds that a connection with a proof may keep us waiting
BACKLOG = 16  # chosen: twice as many as are served may wait to be turned away
ENDS_S = 0.1  # seconds within which it ends; checking ten times a second costs nothing noticeable
LOOPBACK = "127.0.0.1"


def place(text: str) -> tuple[str, int]:
    """Host and port of `[HOST:]PORT`. Raises BadInput for anything else."""
    host, _, port = text.rpartition(":")
    host = host or LOOPBACK
    if not port.isascii() or not port.isdecimal() or int(port) > 65535 or "/" in host:
        raise BadInput(f"--serve {text!r} is neither a port nor HOST:PORT", fix="--serve 7700   # or --serve HOST:7700")
    return host.removeprefix("[").removesuffix("]"), int(port)


class Server:
    """Serves at one address. It is bound at once, so that an address in use is reported before the job starts.

    Raises BadInput for an address that cannot be used. `start` takes two callbacks. `take` collects evidence into the
    folder that it is given, and returns the folder that holds it. `end` makes the watch end the command, and returns
    False if the command has ended already; None if the watch leaves commands alone.
    """

    def __init__(self, address: str, token: bytes) -> None:
        host, port = place(address)
        try:
            family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            self._http = _Http(family, where, token)
        except (OSError, UnicodeError) as error:  # UnicodeError: a text that cannot be a host name, as a..b
            why = getattr(error, "strerror", None) or str(error)
            raise BadInput(
                f"evidence cannot be served at {host}:{port}: {why}", fix=f"--serve 0   # a free port of {LOOPBACK}"
            ) from error
        url_host = f"[{host}]" if ":" in host else host
        self.url = f"http://{url_host}:{self._http.server_address[1]}"
        self.local = host.startswith("127.") or host in ("localhost", "::1")

    def start(self, take: Callable[[Path], Path], end: Callable[[], bool] | None = None) -> None:
        self._http.take, self._http.end, self._http.folder = take, end, Path(tempfile.mkdtemp(prefix="harness-served-"))
        exit_cleanup.then(self.close)
        threading.Thread(target=self._http.serve_forever, args=(ENDS_S,), name="harness serve", daemon=True).start()

    def close(self) -> None:
        if self._http.take is not None:  # `shutdown` would wait for ever if the loop never started
            self._http.take = None
            self._http.shutdown()
            shutil.rmtree(self._http.folder, ignore_errors=True)
        self._http.server_close()


class _Connections:
    """The open connections. If a new one needs a place, the oldest one without a proof of the token is closed, so
    that half-sent requests lock nobody out."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._peers: dict[socket.socket, str] = {}  # oldest first
        self._proven: set[socket.socket] = set()

    def admit(self, request: socket.socket, peer: str) -> bool:
        """Whether a new connection is served. Another one may be closed for it."""
        with self._lock:
            unproven = [each for each in self._peers if each not in self._proven]
            of_peer = [each for each in unproven if self._peers[each] == peer]
            if len(of_peer) >= PER_PEER:
                self._end(of_peer[0])
            elif len(self._peers) >= MOST:
                if not unproven:
                    return False
                self._end(unproven[0])
            self._peers[request] = peer
            return True

    def prove(self, request: socket.socket) -> None:
        with self._lock:
            if request in self._peers:
                self._proven.add(request)

    def leave(self, request: socket.socket) -> None:
        with self._lock:
            self._peers.pop(request, None)
            self._proven.discard(request)

    def _end(self, request: socket.socket) -> None:
        del self._peers[request]
        with contextlib.suppress(OSError):  # the other end has closed it
            request.shutdown(socket.SHUT_RDWR)


class _Http(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads, block_on_close = True, False
    request_queue_size = BACKLOG

    def __init__(self, family: int, address: Any, token: bytes) -> None:
        self.address_family = family
        self.token, self.looking = token, threading.Lock()
        self.take: Callable[[Path], Path] | None = None
        self.end: Callable[[], bool] | None = None
        self._connections = _Connections()
        self.folder = Path()  # folder for answers, as long as `take` is set
        super().__init__(address[:2], _Handler)

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # HTTPServer's own method asks a name server, which may take long

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._connections.admit(request, client_address[0]):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._connections.leave(request)

    def proven(self, request: Any) -> None:
        """Note that the other end holds the token. Its connection is no longer closed to make room."""
        self._connections.prove(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: the closed connection tells the client, and the terminal belongs to the job."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # the connection stays open for the second request
    server_version, sys_version = "harness", ""
    timeout = UNPROVEN_S
    server: _Http
    nonce = ""

    def do_GET(self) -> None:
        if self.path != tokens.PATH:
            return self._say(404)
        mine, theirs = self._asker()
        if not theirs:
            return None
        with tempfile.TemporaryDirectory(dir=self.server.folder) as folder:
            try:
                zipped = self._packed_evidence(Path(folder))
            except (HarnessError, OSError):
                return self._say(503)
            with open(zipped, "rb") as body:
                proof = tokens.answer_proof(self.server.token, mine, theirs, body)
                self.send_response(200)
                self.send_header("Content-Type", "application/zip")
                self.send_header("Content-Length", str(body.tell()))
                self.send_header(tokens.PROOF, proof)
                self.end_headers()
                body.seek(0)
                shutil.copyfileobj(body, self.wfile)

    def do_POST(self) -> None:
        if self.path != tokens.END:
            return self._say(404)
        mine, theirs = self._asker()
        if not theirs:
            return None
        end = self.server.end
        code = 403 if end is None else 200 if end() else 409
        return self._say(code, proof=tokens.hang_proof(self.server.token, mine, theirs, code))

    def _packed_evidence(self, folder: Path) -> Path:
        with self.server.looking:
            take = self.server.take
            if take is None:
                raise HarnessError("the watch has ended")
            return archive.pack(take(folder / "evidence"), folder / "evidence.zip")

    def _asker(self) -> tuple[str, str]:
        """Our nonce and the client's, if the client has proven the token; otherwise send it a new nonce and return
        ("", "")."""
        words = self.headers.get("Authorization", "").split()
        mine, self.nonce = self.nonce, ""
        proves = len(words) == 3 and words[0] == tokens.SCHEME and tokens.is_nonce(words[1]) and mine != ""
        if proves and tokens.equal(tokens.request_proof(self.server.token, mine, words[1], self.path), words[2]):
            self.server.proven(self.connection)
            self.connection.settimeout(IDLE_S)
            return mine, words[1]
        self.nonce = tokens.nonce()
        self._say(401, f"{tokens.SCHEME} {self.nonce}")
        return "", ""

    def _say(self, code: int, challenge: str = "", proof: str = "") -> None:
        self.send_response(code)
        if challenge:
            self.send_header("WWW-Authenticate", challenge)
        if proof:
            self.send_header(tokens.PROOF, proof)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing: the terminal belongs to the job."""

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError, TimeoutError):
            super().handle()
