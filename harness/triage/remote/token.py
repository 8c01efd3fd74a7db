"""The token that the nodes of a job share, and the proofs that a peer has it."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import shlex
from io import BufferedIOBase
from pathlib import Path

from harness.errors import BadInput
from harness.other_paths import free_path, similar_path
from probes import limits

NAME = "token"  # of a file that a watch is advised to make
VARIABLE = "RLHF_HARNESS_TOKEN"
OF_THE_WATCH = "--token-file FILE   # the file that the watch has its token in, copied to this host"
PATH = "/evidence"  # path of the evidence
END = "/end"  # path at which a watch is told that its job hangs
SCHEME = "Harness"
PROOF = "X-Harness-Proof"
MIN_LENGTH, MAX_LENGTH = 16, 4096  # characters of a token: 16 hexadecimal digits are 64 bits
_NONCE = re.compile(r"[0-9a-f]{64}")


def read(file: str, *, make: bool = False) -> bytes:
    """The token in `file`, or in the environment if no file is given. Raises BadInput if there is none that is
    usable, whose fix makes one if `make`: a watch that is not up yet takes any."""
    where = file or f"the environment's {VARIABLE}"
    if file:
        try:
            with limits.open_file(file) as stream:
                token = stream.read(MAX_LENGTH + 1).strip()
        except OSError as error:
            message = f"the token file {file} cannot be read: {error.strerror}"
            raise BadInput(message, fix=_made(file) if make else _of_the_watch(file)) from error
    else:
        token = os.environ.get(VARIABLE, "").encode().strip()
        if not token:
            raise BadInput(
                "evidence is served and gathered with a token that the job's nodes share, and there is none",
                fix=_made() if make else _of_the_watch(),
            )
    if not MIN_LENGTH <= len(token) <= MAX_LENGTH:
        raise BadInput(
            f"the token in {where} has {len(token)} characters; it needs {MIN_LENGTH} to {MAX_LENGTH}",
            fix=_made() if make else _of_the_watch(),
        )
    return token


def _of_the_watch(file: str = "") -> str:
    """The option with the file that may be meant: of a similar name, or one that says that it holds a token."""
    others = [path for path in sorted(Path(file).parent.glob("*")) if path != Path(file) and _may_hold_one(path)]
    likely = similar_path(Path(file), others) if file else None
    likely = likely or next((path for path in others if NAME in path.name.lower()), None)
    return OF_THE_WATCH if likely is None else f"--token-file {shlex.quote(os.path.join('.', likely))}"


def _may_hold_one(path: Path) -> bool:
    """Whether a file is as long as a token. A line may end behind it."""
    return path.is_file() and MIN_LENGTH <= path.stat().st_size <= MAX_LENGTH + 2


def _made(file: str = NAME) -> str:
    """The change that makes a token, in this file where it is free, and gives it."""
    path = Path(file)
    free = path if path.parent.is_dir() and not os.path.lexists(path) else free_path(Path(NAME))
    word = shlex.quote(os.path.join(".", free))  # with a slash it is not taken for the token itself
    made = f"(umask 077; head -c 32 /dev/urandom | base64 > {word}) && --token-file {word}"
    return f"{made}   # every node of the job needs this file, or its text as {VARIABLE}"


def nonce() -> str:
    """A random number that is used once."""
    return secrets.token_hex(32)


def is_nonce(text: str) -> bool:
    return _NONCE.fullmatch(text) is not None


def request_proof(token: bytes, theirs: str, mine: str, path: str = PATH) -> str:
    """The proof of a client that asks for `path`. `theirs`: the server's nonce."""
    return _proof(token, f"ask {path} {theirs} {mine}".encode())


def answer_proof(token: bytes, theirs: str, mine: str, body: BufferedIOBase) -> str:
    """The proof of a server that answers with `body`, which is read to its end. `theirs`: the server's nonce."""
    digest = hashlib.file_digest(body, "sha256").hexdigest()
    return _proof(token, f"answer {theirs} {mine} {digest}".encode())


def hang_proof(token: bytes, theirs: str, mine: str, code: int) -> str:
    """The proof of a watch that answers with `code` to a client that says that its job hangs."""
    return _proof(token, f"told {theirs} {mine} {code}".encode())


def equal(first: str, second: str) -> bool:
    """Whether both are equal, compared in a time that does not depend on where they differ."""
    return hmac.compare_digest(first.encode(), second.encode())


def _proof(token: bytes, what: bytes) -> str:
    return hmac.new(token, what, hashlib.sha256).hexdigest()
