"""The manifest of a bundle, stored as its first member: the contents and the digest of every file."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

BUNDLE_VERSION = 1  # the version of the manifest's format
NAME = "bundle.json"
INDEX = "index.html"
Kind = Literal["run", "pair", "evidence"]


@dataclass(frozen=True)
class Member:
    """One file of the bundle.

    bytes: its size.
    sha256: the digest of its content, in hexadecimal.
    """

    bytes: int
    sha256: str

    @staticmethod
    def of(file: Path) -> Member:
        with open(file, "rb") as stream:
            return Member(file.stat().st_size, hashlib.file_digest(stream, "sha256").hexdigest())


@dataclass(frozen=True)
class Manifest:
    """The manifest.

    bundle_version: the version of the format.
    kind: what the bundle holds.
    harness: the version of the harness that made it.
    files: path within the bundle -> size and digest.
    prompt_key: the name of the key with which the prompts were hashed; empty where they were not. The key itself is
    not stored.
    """

    bundle_version: int
    kind: Kind
    harness: str
    files: dict[str, Member]
    prompt_key: str = ""
    notes: list[str] = field(default_factory=list)  # files that were left out, and why


@dataclass(frozen=True)
class Packed:
    """A bundle that was made. `bytes` is the size of its file."""

    path: str
    bytes: int
    manifest: Manifest
