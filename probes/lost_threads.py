"""Threads that ended with an uncaught error. Python prints it once and the process goes on without them."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from typing import Any

from probes.spans import error_text

MOST = 4  # the first that ended: what came later may be their echo
ERROR = 200  # characters of an error
_lost: deque[dict[str, Any]] = deque()
os.register_at_fork(after_in_child=_lost.clear)  # a child has one thread, and lost none of these


def watch() -> None:
    """Remember each thread that ends with an error from now on. What the hook of before does with it, it still does.

    In a watched command `probes/site/sitecustomize.py` has a hook already, which is there before any probe is.
    """
    before = threading.excepthook
    if getattr(before, "of_harness", False):
        return

    def hook(args: threading.ExceptHookArgs) -> None:
        with contextlib.suppress(Exception):  # a probe changes nothing
            remember(args)
        before(args)

    hook.of_harness = True  # type: ignore[attr-defined]
    threading.excepthook = hook


def remember(args: threading.ExceptHookArgs) -> None:
    """Remember a thread that has just ended, by what `threading.excepthook` is given of it."""
    if len(_lost) < MOST and args.exc_type is not SystemExit:
        name = args.thread.name if args.thread is not None else ""
        error = error_text(args.exc_value)[:ERROR]
        _lost.append({"name": name, "error": error, "t_ns": time.monotonic_ns()})


def lost() -> list[dict[str, Any]]:
    """The threads that ended with an error, the first of them first: `name`, `error`, `t_ns` (monotonic clock)."""
    return list(_lost)
