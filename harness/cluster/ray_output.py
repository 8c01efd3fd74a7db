"""Sends Ray's own output to standard error: standard output is for what the harness was asked for."""

from __future__ import annotations

import functools
from typing import Any


def warnings_aside() -> None:
    """Send warnings of the raylet to standard error. Call it after ray.init.

    Ray's driver prints them to standard output whatever `log_to_driver` is, even into the middle of a verdict in JSON.
    """
    from ray._private import worker

    show = getattr(worker, "print_to_stdstream", None)
    if show is not None and not hasattr(show, "__wrapped__"):

        @functools.wraps(show)
        def aside(data: dict[str, Any], *args: Any, **kwargs: Any) -> None:
            show({**data, "is_err": True}, *args, **kwargs)

        worker.print_to_stdstream = aside
