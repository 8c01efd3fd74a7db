"""Planted: coupled engines draw at another temperature than the one that was asked for."""

from __future__ import annotations

from typing import Any

from after_import import after

WARM = 4.0


@after("scenarios.jobs.openrlhf")
@after("scenarios.jobs.trl")
def _draws(module: Any) -> None:
    drawn = module.drawn

    def warm(*args: Any, **options: Any) -> Any:
        told = drawn(*args, **options)
        told.extra_args[module.DRAW]["temperature"] = WARM
        return told

    module.drawn = warm
