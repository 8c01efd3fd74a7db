"""Weight digests: blake2b-128 of a tensor's dtype, shape and raw bytes, equal wherever the same tensor is.

A norm cannot tell swapped q and k rows from right ones; a digest can. It reads values and copies them from their
device, so it is a probe of its own that the caller asks for. Speed: about one gigabyte a second on one core.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

SIZE = 16  # bytes
_NAMES = {"b": "int8", "B": "uint8", "h": "int16", "i": "int32", "q": "int64", "f": "float32", "d": "float64"}


def digest(tensor: Any) -> str:
    """Hex digest of one torch tensor (on any device), NumPy array, array.array or bytes.

    Hashed are the ASCII text `dtype:size,size` with a newline (torch's dtype name without its prefix) and then the
    little-endian bytes in row-major order, so that equal bytes of another dtype or shape have another digest.
    """
    if hasattr(tensor, "data_ptr"):
        tensor = tensor.detach().to("cpu").contiguous()
        length = tensor.numel() * tensor.element_size()
        # Through ctypes, because bfloat16 and float8 have no NumPy image; `tensor` outlives the hash.
        raw: Any = (ctypes.c_ubyte * length).from_address(tensor.data_ptr()) if length else b""
        return _hash(str(tensor.dtype).removeprefix("torch."), tensor.shape, raw)
    view = memoryview(tensor)
    dtype = str(tensor.dtype) if hasattr(tensor, "dtype") else _NAMES[view.format]
    return _hash(dtype, view.shape or (), view if view.c_contiguous else view.tobytes())


def digests(tensors: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> dict[str, str]:
    """The `digests` field of a `weights` event, from a state dict or from `named_parameters()`."""
    return {name: digest(tensor) for name, tensor in (tensors.items() if isinstance(tensors, Mapping) else tensors)}


def combine(parts: Mapping[str, str]) -> str:
    """One hex digest of named digests, whatever their order: a whole model, a whole batch."""
    whole = hashlib.blake2b(digest_size=SIZE)
    for name in sorted(parts):
        whole.update(f"{name}={parts[name]}\n".encode())
    return whole.hexdigest()


def _hash(dtype: str, shape: Iterable[int], raw: Any) -> str:
    sizes = ",".join(str(int(size)) for size in shape)
    whole = hashlib.blake2b(f"{dtype}:{sizes}\n".encode(), digest_size=SIZE)
    whole.update(raw)
    return whole.hexdigest()
