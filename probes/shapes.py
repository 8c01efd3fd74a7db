"""Shape probe: shape, dtype and device of tensors at a phase boundary.

It reads attributes only, never a value, and so never waits for a device: a probe that synchronised would hide the
very race that it should show. The caller gives the sizes in tokens that are recorded with the shapes: readers of
frameworks sum a mask, which waits once per batch where the mask is on a device.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def describe(tensor: Any) -> list[Any]:
    """Return [shape, dtype, device] of a torch tensor or a NumPy array; for a list, its length and the device
    "python".
    """
    shape = getattr(tensor, "shape", None)
    if shape is None:
        return [[len(tensor)] if hasattr(tensor, "__len__") else [], type(tensor).__name__, "python"]
    dtype = str(getattr(tensor, "dtype", "")).removeprefix("torch.")
    return [[int(size) for size in shape], dtype, str(getattr(tensor, "device", "cpu"))]


def describe_all(tensors: Mapping[str, Any]) -> dict[str, list[Any] | None]:
    """Return the `tensors` field of a `shapes` event; None (an absent tensor) stays None."""
    return {name: None if tensor is None else describe(tensor) for name, tensor in tensors.items()}
