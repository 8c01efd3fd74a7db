"""Weight digests: blake2b-128 of a tensor's dtype, shape and raw bytes, equal wherever the same tensor is.

A norm cannot tell swapped q and k rows from right ones; a digest can. It reads values and copies a tensor from its device,
so it is a probe of its own that the caller asks for. Speed: about one gigabyte a second and core.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

SIZE = 16  # bytes


def digest(tensor: Any) -> str:
    """Hex digest of one torch tensor (any device), NumPy array, array.array or bytes.

    Hashed are the text `dtype:size,size\\n` (torch's dtype name without its prefix) and then the little-endian bytes in row-major
    order, so that equal bytes under another dtype or shape differ.
    """
    if hasattr(tensor, "data_ptr"):
        tensor = tensor.detach().to("cpu").contiguous()
        length = tensor.numel() * tensor.element_size()
        # Through ctypes, because bfloat16 and float8 have no NumPy image; `tensor` is alive until the hash is done.
        raw = memoryview((ctypes.c_ubyte * length).from_address(tensor.data_ptr())) if length else memoryview(b"")
        return _hash(str(tensor.dtype).removeprefix("torch."), tensor.shape, raw)
    view = memoryview(tensor)
    names = {"b": "int8", "B": "uint8", "h": "int16", "i": "int32", "q": "int64", "e": "float16", "f": "float32",
             "d": "float64", "?": "bool", "l": f"int{8 * view.itemsize}"}  # fmt: skip
    dtype = str(tensor.dtype) if hasattr(tensor, "dtype") else names.get(view.format, view.format)
    return _hash(dtype, view.shape, view if view.c_contiguous else memoryview(view.tobytes()))


def digests(tensors: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> dict[str, str]:
    """The `digests` field of a `weights` event, from a state dict or `named_parameters()`."""
    return {name: digest(tensor) for name, tensor in (tensors.items() if isinstance(tensors, Mapping) else tensors)}


def combine(parts: Mapping[str, str]) -> str:
    """One hex digest of named digests, whatever their order: a whole model, a whole batch."""
    whole = hashlib.blake2b(digest_size=SIZE)
    for name in sorted(parts):
        whole.update(f"{name}={parts[name]}\n".encode())
    return whole.hexdigest()


def _hash(dtype: str, shape: Iterable[int], raw: memoryview) -> str:
    whole = hashlib.blake2b(f"{dtype}:{','.join(str(int(size)) for size in shape)}\n".encode(), digest_size=SIZE)
    whole.update(raw)
    return whole.hexdigest()
