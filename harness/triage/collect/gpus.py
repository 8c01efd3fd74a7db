"""GPUs of this host and the processes on them, by nvidia-smi.

A program can be given up on. NVML in this process would never return from a driver that hangs.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from harness.triage.collect import bounded
from harness.triage.evidence import Gpu

TIMEOUT_S = 5.0  # chosen: within the eight seconds of a look (`collect`); a driver that hangs takes for ever
DRIVER = Path("/proc/driver/nvidia")
FIELDS = "uuid,index,name,memory.used,memory.total,utilization.gpu"


def look(host: str, *, timeout_s: float = TIMEOUT_S) -> tuple[tuple[Gpu, ...], str]:
    """Return the GPUs, and a note if there is a driver that does not answer. Without GPUs: nothing and no note."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return (), "no GPU state: nvidia-smi is not on the PATH" if DRIVER.exists() else ""
    cards = _ask(program, f"--query-gpu={FIELDS}", timeout_s)
    if isinstance(cards, str):
        return (), cards
    apps = _ask(program, "--query-compute-apps=gpu_uuid,pid", timeout_s)
    pids: dict[str, list[int]] = {}
    for uuid, pid, *_ in [] if isinstance(apps, str) else apps:
        if pid.isdigit():
            pids.setdefault(uuid, []).append(int(pid))
    return tuple(_gpu(host, row, pids) for row in cards if len(row) == 6), ""


def _ask(program: str, query: str, timeout_s: float) -> list[list[str]] | str:
    """Rows that a query returned, or the text of a note."""
    try:
        done = bounded.run([program, query, "--format=csv,noheader,nounits"], timeout_s)
    except OSError as error:
        return f"no GPU state: {program} cannot be run: {error.strerror}"
    if done.code is None:
        return f"no GPU state: nvidia-smi had no answer within {timeout_s:.0f} s; the driver may hang (see dmesg)"
    if done.code:
        output_lines = (done.out or done.err).strip().splitlines()
        return f"no GPU state: nvidia-smi says {output_lines[0][:200]!r}" if output_lines and DRIVER.exists() else ""
    return [[cell.strip() for cell in line.split(",")] for line in done.out.splitlines() if line.strip()]


def _gpu(host: str, row: list[str], pids: dict[str, list[int]]) -> Gpu:
    uuid, index, name, used, total, busy = row
    return Gpu(
        host=host,
        index=int(index),
        name=name,
        used_bytes=_mib(used),
        total_bytes=_mib(total),
        utilization=_number(busy) / 100,
        pids=tuple(pids.get(uuid, ())),
    )


def _mib(cell: str) -> int:
    return int(_number(cell)) << 20


def _number(cell: str) -> float:
    """The number in a cell; 0 for what a card does not report: [N/A], [Not Supported]."""
    try:
        return float(cell)
    except ValueError:
        return 0.0
