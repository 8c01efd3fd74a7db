"""Durations and sizes as people write them."""

from __future__ import annotations

import math
import re

from harness.errors import BadInput

_UNITS = {"ms": 0.001, "s": 1.0, "sec": 1.0, "": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_SIZES = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}  # powers of two


def seconds(text: str, option: str = "--stall") -> float:
    """A duration such as 90s, 1.5m or 1h, in seconds. Raises BadInput, which names `option`, for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*(ms|s|sec|min|m|h|)", text.strip())
    value = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if not 0 < value < math.inf:
        raise BadInput(
            f"{option} {text!r} is not a duration{' above 0' if match else ''}", fix=f"{option} 90s   # or 5m, 1h"
        )
    return value


def stall_seconds(text: str) -> float:
    """A duration as `seconds` reads it, or 0 for a run that is not watched."""
    return 0.0 if text.strip() in ("0", "0s") else seconds(text)


def size(text: str, option: str = "--keep-size") -> int:
    """A number of bytes such as 500M, 1G or 1.5GiB (powers of two). Raises BadInput for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d*)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    value = int(float(match[1]) * 2 ** _SIZES[match[2].upper()]) if match else 0
    if not value:
        raise BadInput(f"{option} {text!r} is not a size", fix=f"{option} 500M   # or 1G")
    return value
