"""TF32, which a GPU computes float32 in where nobody forbids it: 10 bits of mantissa, and small faults drown in it.

Triton's `tl.dot` truncates float32 to TF32 by default, and with it the attention of vLLM and SGLang: on an H200 both
were 1e-5 nats from their learner in the median and 5e-3 at most, and a learner whose attention truncates alike was
1e-6 from them (docs/measurements/gpu.md).
"""

from __future__ import annotations

import os

FORBIDDEN = {
    "TRITON_F32_DEFAULT": "ieee",  # triton/knobs.py, `language.fp32_default`
    "NVIDIA_TF32_OVERRIDE": "0",  # cuBLAS and cuDNN, read when they are loaded
}
_ours: set[str] = set()


def forbid(device: str, *, pure: bool) -> bool:
    """Forbid it to the processes that this one starts from here on, and to libraries that it has not loaded, unless on
    a CPU, or `pure`: with nothing of ours in place. What the user has set stays. Returns whether we forbade it."""
    while _ours:
        os.environ.pop(_ours.pop(), None)
    if device != "cpu" and not pure:
        _ours.update(FORBIDDEN.keys() - os.environ.keys())
        os.environ.update({name: FORBIDDEN[name] for name in _ours})
    return bool(_ours) and not allowed(device)


def allowed(device: str) -> bool:
    """Whether kernels on `device` may use it, in processes that this one has started."""
    return device != "cpu" and any(os.environ.get(name) != value for name, value in FORBIDDEN.items())
