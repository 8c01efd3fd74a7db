"""The node's GPUs as the driver reports them, without initialising one."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from typing import Any

from harness.doctor.gather.files import read, title


@dataclass(frozen=True)
class Gpu:
    index: int
    name: str
    driver: str
    used: int
    total: int
    mig: bool = False
    uncorrected: int = 0  # uncorrected ECC errors since the driver was loaded
    holders: tuple[tuple[int, str], ...] = ()  # (pid, command) of the processes that hold memory


@dataclass(frozen=True)
class Gpus:
    found: tuple[Gpu, ...] = ()
    amd: int = 0  # AMD GPUs that the kernel knows
    error: str = ""  # why the driver could not be asked, if there is one


_PATIENCE_S = 15.0  # chosen: on a healthy host nvidia-smi answers within seconds, even if it wakes the driver
_FIELDS = (
    "index,uuid,name,driver_version,memory.used,memory.total,mig.mode.current,ecc.errors.uncorrected.volatile.total"
)


def gpus() -> dict[str, Any]:
    """Return the fields of `Gpus`. `found` is empty if there are none, or if `error` says why they cannot be listed."""
    try:
        has_nvidia = os.path.isdir("/proc/driver/nvidia/gpus") or _program()
        return {"found": _nvidia() if has_nvidia else [], "amd": _amd()}
    except RuntimeError as error:
        return {"amd": _amd(), "error": str(error)}


def _program() -> str | None:
    return shutil.which("nvidia-smi")


def _nvidia() -> list[dict[str, Any]]:
    if not _program():
        raise RuntimeError("the kernel has an NVIDIA driver and there is no nvidia-smi to ask")
    holders: dict[str, list[tuple[int, str]]] = {}
    for words in _ask("--query-compute-apps=gpu_uuid,pid"):
        uuid, pid = words if len(words) == 2 else ("", "")
        if pid.isdigit():
            holders.setdefault(uuid, []).append((int(pid), title(int(pid))[:120]))
    return [
        {"index": int(words[0]), "name": words[2], "driver": words[3], "used": _mib(words[4]), "total": _mib(words[5]),
         "mig": words[6] == "Enabled", "uncorrected": int(words[7]) if words[7].isdigit() else 0,
         "holders": holders.get(words[1], [])}
        for words in _ask(f"--query-gpu={_FIELDS}") if len(words) == 8 and words[0].isdigit()
    ]  # fmt: skip


def _ask(query: str) -> list[list[str]]:
    try:
        done = subprocess.run(
            [_program() or "nvidia-smi", query, "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=_PATIENCE_S,
        )
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(
            f"nvidia-smi did not answer within {_PATIENCE_S:.0f} s: the driver or a GPU is sick"
        ) from error
    if done.returncode:
        output_lines = (done.stdout + done.stderr).strip().splitlines()
        raise RuntimeError(f"nvidia-smi failed: {output_lines[-1] if output_lines else done.returncode}")
    return [[word.strip() for word in line.split(",")] for line in done.stdout.splitlines()]


def _mib(word: str) -> int:
    return int(word) << 20 if word.isdigit() else 0


def _amd() -> int:
    """Number of GPUs among the kernel's compute nodes; processors have the id 0."""
    root = "/sys/class/kfd/kfd/topology/nodes"
    names = os.listdir(root) if os.path.isdir(root) else []
    return sum(read(f"{root}/{name}/gpu_id") not in ("", "0") for name in names)
