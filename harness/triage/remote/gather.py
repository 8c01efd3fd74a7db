"""Asks the watches of a job's hosts for their evidence, or tells them that the job hangs. All at once, each with a
limit.

An answer counts only if it is proven to come from a holder of the token. It is unpacked as carefully as a stranger's
zip.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from harness.errors import BadInput
from harness.other_paths import another_out
from harness.triage import archive
from harness.triage.evidence import Silence
from harness.triage.remote import token as tokens
from probes.files import make_folder

CONNECT_S = 5.0  # longer than two lost SYNs: the kernel sends it again after 1 and 3 s (RFC 6298)
LOOKED_S = 60.0  # a look takes 8 s, or 20 s with other nodes of a Ray cluster, and another look may be running
DEADLINE_S = 180.0  # limit for the whole answer
MAX_ZIP = 1 << 30  # bytes of a zip: dumps shrink to a twentieth
# Watches that are asked at the same time, so that the evidence is of one moment. Each takes a waiting thread and two
# descriptors, of which a process commonly has 1,024. Further watches follow.
AT_ONCE = 256
UNPACKING = threading.Semaphore(os.cpu_count() or 1)  # each unpacking computes in a process of its own
_OTHER_TOKEN = Silence("it has another token", up=True)
_UNPROVEN = "its answer is damaged, or of somebody without the token"


@dataclass(frozen=True)
class Gathered:
    """What the watches answered. `folders`: the evidence of each answer. `silent`: URL -> why it gave none."""

    folders: list[Path]
    silent: dict[str, Silence]


class _NoAnswer(Exception):
    def __init__(self, why: str, up: bool = True) -> None:
        super().__init__(why)
        self.silence = Silence(why, up)


def is_url(word: str) -> bool:
    return re.match(r"https?://", word) is not None


def gather(
    urls: Sequence[str], token: bytes, out: Path, *, connect_s: float = CONNECT_S, answer_s: float = LOOKED_S
) -> Gathered:
    """Gather the evidence of all watches, each in its own folder below `out`.

    Raises BadInput for a URL that is no watch's, that is given twice or whose folder exists, and if no watch answered.
    """
    targets = {url: out / _named(url) for url in urls}
    if len(set(targets.values())) < len(urls):
        twice = next(url for number, url in enumerate(urls) if _named(url) in map(_named, urls[:number]))
        raise BadInput("a watch is given twice", fix="", instead=twice)
    for target in targets.values():
        if target.exists():
            raise BadInput(f"{target} exists: another look needs another directory", fix=another_out(out))
    try:
        make_folder(out)
    except OSError as error:
        raise BadInput(f"{out} cannot be made: {error.strerror}", fix="--out DIR   # another folder") from error
    folders, silent = [], {}
    with ThreadPoolExecutor(min(AT_ONCE, len(urls))) as pool:
        answers = {url: pool.submit(_ask, url, token, target, connect_s, answer_s) for url, target in targets.items()}
        for url, answer in answers.items():
            try:
                folders.append(answer.result())
            except _NoAnswer as error:
                silent[url] = error.silence
    if not folders:
        reason_text = "; ".join(f"{url}: {silence.why}" for url, silence in silent.items())
        fix = (
            tokens.OF_THE_WATCH
            if _OTHER_TOKEN in silent.values()
            else "harness watch --serve HOST:PORT -- COMMAND   # there"
        )
        raise BadInput(f"no evidence was given: {reason_text}", fix=fix)
    return Gathered(folders, silent)


def end(urls: Sequence[str], token: bytes, *, limit_s: float = CONNECT_S) -> dict[str, str]:
    """Tell all watches that their job hangs, so that each started with `--on-stall end` ends its command.

    Returns URL -> why that watch was not told.
    """
    untold = {}
    with ThreadPoolExecutor(min(AT_ONCE, len(urls))) as pool:
        answers = {url: pool.submit(_tell, url, token, limit_s) for url in urls}
        for url, answer in answers.items():
            try:
                answer.result()
            except _NoAnswer as error:
                untold[url] = str(error)
    return untold


def check(urls: Sequence[str]) -> None:
    """Raise BadInput for a URL that is no watch's."""
    for url in urls:
        _named(url)


def _named(url: str) -> str:
    """The folder name for a watch. Raises BadInput for a URL that is no watch's."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port or parts.scheme != "http" or parts.path.strip("/") or parts.query or parts.username:
        raise BadInput(
            f"{url} is not an address of a watch", fix="harness triage http://HOST:PORT   # of watch --serve"
        )
    return re.sub(r"[^A-Za-z0-9_.-]", "_", f"{host}-{port}")[:200]


def _ask(url: str, token: bytes, target: Path, connect_s: float, answer_s: float) -> Path:
    """Store the evidence of one watch in the new folder `target`. Raises _NoAnswer."""
    file = target.with_name(f".{target.name}.zip")
    try:
        with _connected(url, connect_s, answer_s) as connection:
            _download(connection, token, file, time.monotonic() + DEADLINE_S)
        with UNPACKING:
            folder = archive.unpack(file)
        if not (folder / archive.INDEX).is_file():
            raise _NoAnswer("what it sent is not evidence")
        shutil.move(folder, target)
    except BadInput as error:
        raise _NoAnswer(f"what it sent is refused: {error.message}") from error
    finally:
        file.unlink(missing_ok=True)
    return target


def _tell(url: str, token: bytes, limit_s: float) -> None:
    with _connected(url, limit_s, limit_s) as connection:
        answer, theirs, mine = _answer(connection, "POST", tokens.END, token)
        if not tokens.equal(
            tokens.hang_proof(token, theirs, mine, answer.status), answer.headers.get(tokens.PROOF, "")
        ):
            raise _NoAnswer(_UNPROVEN)
        if answer.status == 409:
            raise _NoAnswer("its command has ended")
        if answer.status != 200:
            raise _NoAnswer("its watch leaves the command alone: it runs without --on-stall end")


@contextlib.contextmanager
def _connected(url: str, connect_s: float, answer_s: float) -> Iterator[http.client.HTTPConnection]:
    """Yield a connection. Errors while it is used are raised as _NoAnswer."""
    parts, limit_s = urlsplit(url), connect_s
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=connect_s)
    try:
        connection.connect()
        connection.sock.settimeout(limit_s := answer_s)
        yield connection
    except TimeoutError as error:
        raise _NoAnswer(f"no answer within {limit_s:g} s", up=False) from error
    except ConnectionRefusedError as error:
        raise _NoAnswer("connection refused: its watch has ended, or serves elsewhere") from error
    except OSError as error:
        raise _NoAnswer(error.strerror or str(error) or type(error).__name__, up=False) from error
    except (http.client.HTTPException, ValueError) as error:
        raise _NoAnswer(f"what answers is no watch ({type(error).__name__})") from error
    finally:
        connection.close()


def _download(connection: http.client.HTTPConnection, token: bytes, file: Path, by: float) -> None:
    answer, theirs, mine = _answer(connection, "GET", tokens.PATH, token)
    if answer.status != 200:
        raise _NoAnswer("its watch has no evidence to give")
    size = int(answer.headers.get("Content-Length", ""))
    if not 0 < size <= MAX_ZIP:
        raise _NoAnswer(f"its answer is larger than {MAX_ZIP >> 30} GiB")
    with os.fdopen(os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "w+b") as sink:
        while block := answer.read1(archive.BLOCK):
            sink.write(block)
            if time.monotonic() > by:
                raise _NoAnswer(f"its answer takes longer than {DEADLINE_S:g} s")
        sink.seek(0)
        if not tokens.equal(tokens.answer_proof(token, theirs, mine, sink), answer.headers.get(tokens.PROOF, "")):
            raise _NoAnswer(_UNPROVEN)


def _answer(
    connection: http.client.HTTPConnection, method: str, path: str, token: bytes
) -> tuple[http.client.HTTPResponse, str, str]:
    """Prove the token to a watch and return (its answer, its nonce, our nonce)."""
    connection.request(method, path)
    first = connection.getresponse()
    scheme, _, theirs = first.headers.get("WWW-Authenticate", "").partition(" ")
    if first.status != 401 or scheme != tokens.SCHEME or not tokens.is_nonce(theirs) or first.length != 0:
        raise _NoAnswer("what answers is no watch")
    first.read()
    mine = tokens.nonce()
    proof = tokens.request_proof(token, theirs, mine, path)
    connection.request(method, path, headers={"Authorization": f"{tokens.SCHEME} {mine} {proof}"})
    answer = connection.getresponse()
    if answer.status == 401:
        raise _NoAnswer(_OTHER_TOKEN.why)
    return answer, theirs, mine
