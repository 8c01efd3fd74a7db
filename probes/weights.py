"""Weight digests: SHA-256, cut to 128 bits, of a tensor's dtype, shape and raw bytes. Equal tensors have equal
digests.

A norm does not show that the rows of q and k were swapped; a digest does. Taking it reads and copies the values from
their device, so it is a probe of its own that the caller asks for.

Why SHA-256: processors have instructions for it (x86 since Ice Lake and Zen, ARMv8). Measured with a model of 51
tensors and 3.0 MB in one thread of a Xeon core whose other thread was busy: 2.1 ms, against 3.9 to 4.2 ms for BLAKE2b
and 0.15 ms for an empty loop over the tensors. Digests of different hashes cannot be compared, so a new hash means a
new version of the format.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

HASH = "SHA-256"
SIZE = 16  # bytes of the hash that are kept
_NAMES = {"b": "int8", "B": "uint8", "h": "int16", "i": "int32", "q": "int64", "f": "float32", "d": "float64"}


def digest(tensor: Any) -> str:
    """Return the hex digest of one torch tensor (on any device), NumPy array, array.array or bytes.

    The hashed bytes are the ASCII text `dtype:size,size` with a newline (torch's dtype name without its prefix), then
    the little-endian values in row-major order. So equal bytes of another dtype or shape have another digest.
    """
    if hasattr(tensor, "data_ptr"):
        tensor = tensor.detach().to("cpu").contiguous()
        length = tensor.numel() * tensor.element_size()
        # Read through ctypes, because bfloat16 and float8 cannot become NumPy arrays. `tensor` stays alive until the
        # hash is done.
        raw: Any = (ctypes.c_ubyte * length).from_address(tensor.data_ptr()) if length else b""
        return _hash(str(tensor.dtype).removeprefix("torch."), tensor.shape, raw)
    view = memoryview(tensor)
    dtype = str(tensor.dtype) if hasattr(tensor, "dtype") else _NAMES[view.format]
    return _hash(dtype, view.shape or (), view if view.c_contiguous else view.tobytes())


def digests(tensors: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> dict[str, str]:
    """Return the `digests` field of a `weights` event, from a state dict or from `named_parameters()`."""
    return {name: digest(tensor) for name, tensor in (tensors.items() if isinstance(tensors, Mapping) else tensors)}


def combine(parts: Mapping[str, str]) -> str:
    """Return one hex digest of named digests, independent of their order: for a whole model or a whole batch."""
    return hashlib.sha256("".join(f"{name}={parts[name]}\n" for name in sorted(parts)).encode()).hexdigest()[: 2 * SIZE]


def _hash(dtype: str, shape: Iterable[int], raw: Any) -> str:
    sizes = ",".join(str(int(size)) for size in shape)
    hasher = hashlib.sha256(f"{dtype}:{sizes}\n".encode())
    hasher.update(raw)
    return hasher.hexdigest()[: 2 * SIZE]
