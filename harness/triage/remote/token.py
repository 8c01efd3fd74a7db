"""The token that the nodes of a job share, and the proofs that a peer has it."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from io import BufferedIOBase

from harness.errors import BadInput
from probes import limits

VARIABLE = "RLHF_HARNESS_TOKEN"
PATH = "/evidence"  # path of the evidence
END = "/end"  # path at which a watch is told that its job hangs
SCHEME = "Harness"
PROOF = "X-Harness-Proof"
MIN_LENGTH, MAX_LENGTH = 16, 4096  # characters of a token: 16 hexadecimal digits are 64 bits
_NONCE = re.compile(r"[0-9a-f]{64}")
_MADE = "head -c 32 /dev/urandom | base64 > FILE"


def read(file: str) -> bytes:
    """The token in `file`, or in the environment if no file is given. Raises BadInput if there is none that is
    usable."""
    where = file or f"the environment's {VARIABLE}"
    if file:
        try:
            with limits.open_file(file) as stream:
                token = stream.read(MAX_LENGTH + 1).strip()
        except OSError as error:
            raise BadInput(
                f"the token file {file} cannot be read: {error.strerror}", fix=f"{_MADE}   # on one node; copy it"
            ) from error
    else:
        token = os.environ.get(VARIABLE, "").encode().strip()
        if not token:
            raise BadInput(
                "evidence is served and gathered with a token that the job's nodes share, and there is none",
                fix=f"(umask 077; {_MADE})   # the same on every node: --token-file FILE, or {VARIABLE}",
            )
    if not MIN_LENGTH <= len(token) <= MAX_LENGTH:
        raise BadInput(
            f"the token in {where} has {len(token)} characters; it needs {MIN_LENGTH} to {MAX_LENGTH}",
            fix=_MADE,
        )
    return token


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
