"""TF32: a GPU computes float32 with 10 bits of mantissa unless that is forbidden, and small faults are lost in it.

Triton's `tl.dot` truncates float32 to TF32 by default, and so does the attention of vLLM and SGLang. On an H200 both
were 1e-5 nats from their learner in the median and 5e-3 at most. A learner whose attention truncates in the same way
was 1e-6 from them (docs/measurements/gpu.md).
"""

from __future__ import annotations

import os

FORBIDDEN = {
    "TRITON_F32_DEFAULT": "ieee",  # triton/knobs.py, `language.fp32_default`
    "NVIDIA_TF32_OVERRIDE": "0",  # cuBLAS and cuDNN, read when they are loaded
}
_ours: set[str] = set()


def forbid(device: str, *, pure: bool) -> bool:
    """Forbid TF32 to processes that are started from now on and to libraries that are not loaded yet. Return whether
    we did.

    Nothing is changed on a CPU, with `pure` (nothing of ours in place), or where the user has set the variables.
    """
    while _ours:
        os.environ.pop(_ours.pop(), None)
    if device != "cpu" and not pure:
        _ours.update(FORBIDDEN.keys() - os.environ.keys())
        os.environ.update({name: FORBIDDEN[name] for name in _ours})
    return bool(_ours) and not allowed(device)


def allowed(device: str) -> bool:
    """Whether kernels on `device` may use TF32 in processes that this one has started."""
    return device != "cpu" and any(os.environ.get(name) != value for name, value in FORBIDDEN.items())
