"""Sends Ray's own output to standard error: standard output is for what the harness was asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

PRINTER = "print_to_stdstream"  # what `listen_error_messages` of Ray's driver calls, by this name, for each warning


def warnings_aside() -> None:
    """Send warnings of the raylet to standard error. Call it after ray.init.

    Ray's driver prints them to standard output whatever `log_to_driver` is, even into the middle of a verdict in JSON.
    """
    _replace(lambda original, data, *args, **kwargs: original({**data, "is_err": True}, *args, **kwargs))


def warnings_dropped() -> None:
    """Drop warnings of the raylet from now on. Call it before the actors of this process are killed.

    A killed worker sometimes closes its socket before it says why, and Ray then warns of a worker that "died or was
    killed ... by an unexpected system error".
    """
    _replace(lambda original, *args, **kwargs: None)


def _replace(by: Callable[..., None]) -> None:
    """Call `by` in place of Ray's printer, with that printer as its first argument."""
    from ray._private import worker

    now = getattr(worker, PRINTER, None)  # private: a version of Ray may not have it
    if now is None:
        return
    original = getattr(now, "replaces", now)

    def printer(*args: Any, **kwargs: Any) -> None:
        by(original, *args, **kwargs)

    printer.replaces = original  # type: ignore[attr-defined]
    setattr(worker, PRINTER, printer)
