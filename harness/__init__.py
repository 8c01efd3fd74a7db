"""Diagnostics and reproducibility harness for RLHF runs: is it still the same run after the engine was swapped, and if
not, why?

`run_parity`, `run_scenario` and `diff` are the commands as functions. Each returns plain data (a
`reports.model.Verdict`, or a path), so that a pytest or a notebook can gate on it. Nothing heavy is imported before one
of them is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.parity.runs.run import diff, run_parity, run_scenario

__all__ = ["diff", "run_parity", "run_scenario"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name in __all__:
        from harness.parity.runs import run

        return getattr(run, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
