"""Answers of a framework's own parser, stored in the harness's home: its import takes many seconds."""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any

from harness.envs import home
from harness.errors import HarnessError
from harness.frameworks.installed import Installation

FOLDER = "parsers"
_SITE = {"site-packages", "dist-packages"}


def query_once(installed: Installation, code: str, *words: str) -> dict[str, Any]:
    """What `Installation.query` answers, or answered before for the same packages."""
    if not is_release(installed):
        return installed.query(code, *words)
    file = home.home() / FOLDER / f"{_fingerprint(installed, code, *words)}.json"
    with contextlib.suppress(OSError, ValueError):
        return dict(json.loads(file.read_text(encoding="utf-8")))
    answer = installed.query(code, *words)
    if "unknown" not in answer:
        with contextlib.suppress(HarnessError, OSError):  # a home that cannot be written
            home.directory(FOLDER)
            home.write_json(file, answer)
    return answer


def is_release(installed: Installation) -> bool:
    """Whether all packages are where an installer puts them. The text of a checkout may change at any time."""
    return bool(installed.places) and all(folder.name in _SITE for folder in _folders(installed))


def _folders(installed: Installation) -> list[Path]:
    return sorted({Path(place).parent for places in installed.places.values() for place in places})


def _fingerprint(installed: Installation, *words: str) -> str:
    """The same for the same packages: each installation changes the folder that it goes to."""
    dates = [(str(folder), folder.stat().st_mtime_ns) for folder in _folders(installed) if folder.exists()]
    path = installed.environ.get("PYTHONPATH", "")
    key = json.dumps([installed.python, installed.version, dates, path, words])
    return hashlib.sha256(key.encode()).hexdigest()[:32]
