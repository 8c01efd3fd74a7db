"""Describes the environment of a process: packages, variables, loaded libraries, device, machine. Secrets are left
out by name.

torch is asked only where it is loaded, and CUDA only where it is initialised: initialising it would break every later
fork. All imports are at the top of this module. The heartbeat's thread describes the environment; if the job forked
during an import in that thread, the child would find the import lock held forever.
"""

from __future__ import annotations

import email.parser  # noqa: F401 -- importlib.metadata's
import importlib.metadata
import os
import platform
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from probes import redaction
from probes.engines import ENGINES
from probes.secret_names import is_secret

PACKAGES = (
    "torch", "torchvision", "triton", "numpy", "transformers", "tokenizers", "safetensors", "accelerate", "peft", "ray",
    *(name for engine in ENGINES.values() for name in engine.packages),
    "flashinfer-python", "flash-attn", "xformers", "xgrammar", "deepspeed", "megatron-core", "trl", "verl", "openrlhf",
    "pandas", "pyarrow", "pydantic", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13",
    "nvidia-cublas-cu12", "nvidia-cublas", "rlhf-harness",
)  # fmt: skip
# The only list of variables whose values are recorded. Ray's are listed one by one: RAY_JOB_CONFIG_JSON_ENV_VAR, for
# example, holds the variables that the user gave to the whole job, keys included.
_RAY = (
    r"RAY_(ADDRESS|NAMESPACE|JOB_ID|NODE_ID|RAYLET_PID|TMPDIR|OVERRIDE_RESOURCES|DEDUP_LOGS|LOG_TO_STDERR|LOG_TO_DRIVER"
    r"|BACKEND_LOG_LEVEL|USAGE_STATS_ENABLED|AUTH_MODE|ACCEL_ENV_VAR_OVERRIDE_ON_ZERO|IGNORE_UNHANDLED_ERRORS"
    r"|(ENABLE|DISABLE|CGRAPH|EXPERIMENTAL|OBJECT_STORE|OBJECT_SPILLING|DATA|TRAIN|WORKER|TASK|ACTOR|HEALTH_CHECK"
    r"|PROMETHEUS|GCS|memory|worker|task|health_check|gcs|object|raylet|num|max|min|enable|kill)_\w*)"
)
# Variables that say which member of the job a process is and how it reaches the others; used in evidence of a hang.
PLACE = re.compile(
    r"RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|GROUP_RANK|NODE_RANK|ROLE_RANK|MASTER_ADDR|MASTER_PORT"
    r"|TORCHELASTIC_RUN_ID|TORCHELASTIC_RESTART_COUNT|CUDA_VISIBLE_DEVICES|TORCH_EXTENSIONS_DIR"
    r"|RAY_ADDRESS|RAY_JOB_ID|RAY_RAYLET_PID|RAY_NODE_ID|RLHF_HARNESS_(WATCH|ROLE)"
    r"|(TORCH_FR|TORCH_NCCL|NCCL|GLOO)_[A-Z0-9_]+"
)
_OF_ENGINES = "|".join(name for engine in ENGINES.values() for name in engine.variables)
_FAMILIES = (
    r"((NCCL|GLOO|UCX|FI|TP|CUDA|CUDNN|CUBLAS|NVIDIA|HIP|ROCR|TORCH|PYTORCH|TORCHINDUCTOR|TRITON|OMP|MKL|KMP"
    rf"|FLASHINFER|HF|TRANSFORMERS|TOKENIZERS)_|{_OF_ENGINES}).*"
)
# Variables that can change a run; used in a recording. The families are open-ended, and their values pass the
# scrubber.
VARIABLES = re.compile(
    r"LD_LIBRARY_PATH|LD_PRELOAD|PYTHONPATH|PYTHONHASHSEED|VIRTUAL_ENV|CONDA_PREFIX|CONDA_DEFAULT_ENV"
    rf"|{_RAY}|{_FAMILIES}|{PLACE.pattern}"
)
_WITHHELD = re.compile(rf"RAY_.*|{_FAMILIES}")
LIBRARIES = re.compile(
    r"lib(nccl|nccl-net|cuda|cudart|cublas|cublasLt|cudnn|torch_cpu|torch_cuda|gomp|iomp5|mkl_rt|openblas\w*|mpi|ibverbs|ucp"
    r"|stdc\+\+|c|tcmalloc\w*|jemalloc)([-_.].*)?\.so.*"
)


def describe() -> dict[str, Any]:
    """Return the fields of an `environment` event."""
    return {
        "packages": packages(), "env": variables(), "withheld": withheld(), "libraries": libraries(),
        "device": device(), "machine": machine(),
    }  # fmt: skip


def packages() -> dict[str, str]:
    """Return name -> version of the packages of interest that are installed."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def variables(
    environ: Mapping[str, str] | None = None, allowed: re.Pattern[str] = VARIABLES, limit: int = 0
) -> dict[str, str]:
    """Return the variables of the allow-list whose names do not look like secrets. Their values pass the scrubber.

    `limit`: most characters of a value; 0 for all of them.
    """
    environ = os.environ if environ is None else environ
    redaction.learn(environ)
    kept = (name for name in environ if allowed.fullmatch(name) and not is_secret(name))
    return {name: redaction.text(environ[name], limit) for name in sorted(kept)}


def withheld(environ: Mapping[str, str] | None = None) -> list[str]:
    """Return the names of variables of these families that are not recorded: those named like secrets, and those not
    listed.
    """
    environ = os.environ if environ is None else environ
    of_families = [name for name in environ if _WITHHELD.fullmatch(name)]
    return sorted(name for name in of_families if is_secret(name) or not VARIABLES.fullmatch(name))


def libraries() -> list[str]:
    """Return the paths of the shared libraries of interest that this process has loaded: the effect of
    LD_LIBRARY_PATH.
    """
    try:
        lines = Path("/proc/self/maps").read_text(errors="replace").splitlines()
    except OSError:  # not Linux
        return []
    paths = {line.split(maxsplit=5)[5] for line in lines if line.count("/")}
    return sorted(path for path in paths if LIBRARIES.fullmatch(os.path.basename(path)))


def device() -> dict[str, Any]:
    """Return torch's device as far as it is known without initialising one; {} where torch is not loaded."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return {}
    facts: dict[str, Any] = {}
    try:
        facts["torch"] = str(torch.__version__)
        facts["cuda_built"] = torch.version.cuda
        facts["threads"] = torch.get_num_threads()
        facts["deterministic"] = bool(torch.are_deterministic_algorithms_enabled())
        facts["cuda_initialized"] = bool(torch.cuda.is_initialized())
        if facts["cuda_initialized"]:
            current = torch.cuda.current_device()
            properties = torch.cuda.get_device_properties(current)
            facts |= {
                "device": f"cuda:{current}", "name": properties.name, "memory": properties.total_memory,
                "capability": [properties.major, properties.minor], "count": torch.cuda.device_count(),
            }  # fmt: skip
    except Exception as error:  # torch half imported, a stub of it, a broken driver: must not end the run
        facts["error"] = f"{type(error).__name__}: {error}"[:500]
    return facts


def machine() -> dict[str, Any]:
    """Return facts of the host: kernel, processor, memory in bytes, accelerators that the kernel knows."""
    return {
        "system": _system(), "cpu": _cpu_model(), "cpus": os.cpu_count(), "cpus_allowed": _cpus_allowed(),
        **_memory(), "gpus": _gpus(),
    }  # fmt: skip


def _system() -> str:
    """Return what platform.platform() does, which runs `uname -p`: a job that waits for any child would see that one
    end.
    """
    kernel = os.uname()
    return "-".join((kernel.sysname, kernel.release, kernel.machine, "with", "".join(platform.libc_ver())))


def _cpus_allowed() -> int | None:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _cpu_model() -> str:
    for line in _lines("/proc/cpuinfo"):
        if line.lower().startswith(("model name", "hardware", "cpu model")):
            return line.partition(":")[2].strip()
    return os.uname().machine


def _memory() -> dict[str, int]:
    """Return bytes from /proc/meminfo, which counts in KiB."""
    kib_by_name = dict(
        re.findall(r"^(MemTotal|MemAvailable):\s+(\d+) kB", "\n".join(_lines("/proc/meminfo")), re.MULTILINE)
    )
    names = {"MemTotal": "memory", "MemAvailable": "memory_available"}
    return {names[key]: int(kib) * 1024 for key, kib in kib_by_name.items()}


def _gpus() -> list[str]:
    """Return GPU models from the driver's own files, which needs no library and no initialisation."""
    files = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    return [line.partition(":")[2].strip() for file in files for line in _lines(file) if line.startswith("Model:")]


def _lines(path: str | Path) -> list[str]:
    try:
        return Path(path).read_text(errors="replace").splitlines()
    except OSError:  # another system, or no such device
        return []
