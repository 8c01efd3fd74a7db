"""Folders that last as long as the test process: inputs that many examples of a property read."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

until_the_end = contextlib.ExitStack()  # `conftest.py` closes it


def kept_folder(prefix: str) -> Path:
    return Path(until_the_end.enter_context(tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True)))
