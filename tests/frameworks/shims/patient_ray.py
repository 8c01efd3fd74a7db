"""Ray gives its own first node 30 s to register, a constant; on a machine that is busy otherwise it takes minutes."""

from __future__ import annotations

from typing import Any

from after_import import after

TIMES = 20


@after("ray._private.node")
def _patient(module: Any) -> None:
    clock = module.time

    class Slow:
        def __getattr__(self, name: str) -> Any:
            return getattr(clock, name)

        @staticmethod
        def monotonic() -> float:
            return float(clock.monotonic() / TIMES)

    module.time = Slow()
