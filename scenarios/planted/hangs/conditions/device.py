"""Conditions under which a program of the lab runs again. sitecustomize.py switches them on in its processes.

`spin`: collectives are only launched, and their caller waits for the device in a compiled function that spins, as on
a GPU. That function has no Python frame of its own. `helper`: a thread of the process computes forever, with a third
of a core. `logger`: a thread of the process writes 40 kB per second.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

LIBRARY = "RLHF_HARNESS_LAB_DEVICE"
COLLECTIVES = (
    "all_reduce", "all_gather", "all_gather_into_tensor", "broadcast", "barrier", "gather", "reduce", "scatter",
    "all_to_all_single",
)  # fmt: skip
SHARE = 0.35  # of a core: more than the share that counts as work when seen from outside
LINE, LINES_PER_S = b"x" * 2_000 + b"\n", 20


def library() -> ctypes.CDLL:
    device_library = ctypes.CDLL(os.environ[LIBRARY])
    device_library.compute_for_ever.argtypes = [ctypes.c_double]
    return device_library


def synchronize(done: Callable[[], bool]) -> None:
    """Spin until `done` is true; another thread asks. The caller is in compiled code all the time."""
    flag = ctypes.c_int(0)

    def watch() -> None:
        while not done():
            time.sleep(0.002)
        flag.value = 1

    threading.Thread(target=watch, daemon=True, name="device").start()
    library().cudaStreamSynchronize(ctypes.byref(flag))


def launched(collective: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(collective)
    def launch(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("async_op"):
            return collective(*args, **kwargs)
        work = collective(*args, **{**kwargs, "async_op": True})
        if work is not None:  # None: this rank is not in the group
            synchronize(work.is_completed)
            work.wait()
        return None

    return launch


def scattered(module: Any) -> Callable[..., Any]:
    """Return reduce_scatter_tensor built from the all_reduce that gloo uses for it.

    gloo's own work object of it never reports completion (torch 2.13), so nothing could spin until it completes.
    """
    original = module.reduce_scatter_tensor

    def reduce_scatter_tensor(output: Any, source: Any, *args: Any, group: Any = None, **kwargs: Any) -> Any:
        if kwargs.get("async_op"):
            return original(output, source, *args, group=group, **kwargs)
        summed = source.clone()
        module.all_reduce(summed, *args, group=group, **kwargs)
        output.copy_(summed.chunk(module.get_world_size(group))[module.get_rank(group)].view_as(output))

    return reduce_scatter_tensor


def spin() -> None:
    """Replace the collectives as soon as torch.distributed is loaded."""
    while True:
        package, module = sys.modules.get("torch.distributed"), sys.modules.get("torch.distributed.distributed_c10d")
        if module is not None and hasattr(package, "init_device_mesh"):  # the last name that the package imports
            break
        time.sleep(0.02)
    replacements = {name: launched(getattr(module, name)) for name in COLLECTIVES}
    replacements["reduce_scatter_tensor"] = scattered(module)
    for name, replaced in replacements.items():
        setattr(module, name, replaced)
        setattr(package, name, replaced)


def compute() -> None:
    library().compute_for_ever(SHARE)


def write() -> None:
    with tempfile.TemporaryFile() as log:
        while True:
            log.write(LINE)
            log.flush()
            time.sleep(1 / LINES_PER_S)


def switch_on(condition: str) -> None:
    work = {"spin": spin, "helper": compute, "logger": write}[condition]
    threading.Thread(target=work, daemon=True, name=condition).start()
