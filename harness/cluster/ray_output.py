"""Where Ray's own words go: the standard output is for what was asked of the harness."""

from __future__ import annotations

import functools
from typing import Any


def warnings_aside() -> None:
    """Warnings of the raylet go to the standard error. Ray's driver prints them to the standard output, whatever
    `log_to_driver` is: in the middle of a verdict in JSON. Call it after ray.init."""
    from ray._private import worker

    show = getattr(worker, "print_to_stdstream", None)
    if show is not None and not hasattr(show, "__wrapped__"):

        @functools.wraps(show)
        def aside(data: dict[str, Any], *args: Any, **kwargs: Any) -> None:
            show({**data, "is_err": True}, *args, **kwargs)

        worker.print_to_stdstream = aside
