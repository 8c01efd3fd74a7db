"""What a bundle says of itself, in its first member: what it holds, and the digest of every file."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

BUNDLE_VERSION = 1  # of the manifest's format
NAME = "bundle.json"
INDEX = "index.html"
Kind = Literal["run", "pair", "evidence"]


@dataclass(frozen=True)
class Member:
    """One file of the bundle."""

    bytes: int
    sha256: str

    @staticmethod
    def of(file: Path) -> Member:
        with open(file, "rb") as stream:
            return Member(file.stat().st_size, hashlib.file_digest(stream, "sha256").hexdigest())


@dataclass(frozen=True)
class Manifest:
    """`prompt_key`: empty, or the name of the key that the prompts were hashed with; the key itself is not kept."""

    bundle_version: int
    kind: Kind
    harness: str
    files: dict[str, Member]
    prompt_key: str = ""
    notes: list[str] = field(default_factory=list)  # what was left out, and why


@dataclass(frozen=True)
class Packed:
    """A bundle that was made. `bytes`: of its file."""

    path: str
    bytes: int
    manifest: Manifest
