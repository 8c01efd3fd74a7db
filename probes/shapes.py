"""Shape probe: shape, dtype and device of tensors at a phase boundary.

It reads attributes only, never a value, and so never waits for a device: a probe that synchronised would hide the very
race that it should show. The sizes in tokens that stand beside shapes are their caller's: the readers of frameworks sum
a mask, which waits once a batch where the mask lies on a device.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def describe(tensor: Any) -> list[Any]:
    """[shape, dtype, device] of a torch tensor or a NumPy array; of a list, its length and the device "python"."""
    shape = getattr(tensor, "shape", None)
    if shape is None:
        return [[len(tensor)] if hasattr(tensor, "__len__") else [], type(tensor).__name__, "python"]
    dtype = str(getattr(tensor, "dtype", "")).removeprefix("torch.")
    return [[int(size) for size in shape], dtype, str(getattr(tensor, "device", "cpu"))]


def describe_all(tensors: Mapping[str, Any]) -> dict[str, list[Any] | None]:
    """The `tensors` field of a `shapes` event; None (an absent tensor) stays None."""
    return {name: None if tensor is None else describe(tensor) for name, tensor in tensors.items()}
