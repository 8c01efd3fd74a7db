"""The interpreter, its packages, the variables that steer a run, and the libraries that the linker would really
load."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
import sysconfig
from dataclasses import dataclass, field
from typing import Any

from probes import redaction
from probes.engines import ENGINES
from probes.environment import packages, variables
from probes.secret_names import is_secret


@dataclass(frozen=True)
class Import:
    name: str
    ok: bool
    error: str = ""


@dataclass(frozen=True)
class Software:
    python: str = ""
    executable: str = ""
    packages: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)  # whitelisted names only, and none that looks like a secret
    proxies: tuple[str, ...] = ()  # names of the proxy variables that are set; values may contain passwords
    no_proxy: tuple[str, ...] = ()
    in_front: tuple[tuple[str, str], ...] = ()  # (library, path) that LD_LIBRARY_PATH puts before the packages' own
    own: dict[str, str] = field(default_factory=dict)  # library -> path below this interpreter's packages
    torch_cuda: str = ""  # CUDA version that torch was built for
    writable: dict[str, bool] = field(default_factory=dict)  # variable with a file prefix -> whether it can be written


@dataclass(frozen=True)
class Imports:
    """What happened when compiled packages were imported in a process of their own."""

    tried: tuple[Import, ...] = ()
    foreign: tuple[tuple[str, str], ...] = ()  # (library, path) that they loaded instead of the interpreter's own


_MORE = re.compile(
    r"TMPDIR|SLURM_(JOB_ID|JOB_NUM_NODES|NNODES|NTASKS_PER_NODE|CPUS_PER_TASK|GPUS_PER_NODE|JOB_END_TIME|NODEID|PROCID)"
)
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
# Libraries that a process must load exactly once, and in the right build.
_SHARED = re.compile(
    r"lib(torch|torch_cpu|torch_cuda|torch_python|c10|c10_cuda|nccl|cudnn\w*|cublas|cublasLt|cudart|cusparse|cusparseLt"
    r"|nvJitLink|nvshmem_host|rccl)[-.].*so.*|libc10\.so|libtorch\.so"
)
_COMPILED = {  # distribution -> a module that loads its compiled part
    "torch": "torch", "flash-attn": "flash_attn_2_cuda", "xformers": "xformers.ops",
    **{name: module for engine in ENGINES.values() for name, module in engine.compiled.items()},
    "transformer-engine": "transformer_engine.pytorch", "apex": "amp_C", "deepspeed": "deepspeed",
}  # fmt: skip
_PATIENCE_S = 60.0  # chosen: enough to read a GiB of libraries from a cold network disk
_TRY = """
import importlib, json, sys
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
        said = ""
    except BaseException as error:
        said = f"{type(error).__name__}: {error}"
    print("\\n" + json.dumps({"imported": name, "said": said}), flush=True)
with open("/proc/self/maps", errors="replace") as maps:
    paths = sorted({line.split(maxsplit=5)[5].strip() for line in maps if ".so" in line})
print("\\n" + json.dumps({"mapped": paths}), flush=True)
"""


def software() -> dict[str, Any]:
    """Return the fields of `Software`."""
    names = {name: value for name, value in os.environ.items() if _MORE.fullmatch(name)}
    kept = {**variables(), **{name: redaction.text(value) for name, value in names.items()}}
    outside = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    own_paths = _own_libraries()
    return {
        "python": platform.python_version(), "executable": sys.executable, "packages": packages(),
        "variables": {name: value for name, value in sorted(kept.items()) if not is_secret(name)},
        "proxies": [name for name in _PROXIES if os.environ.get(name) or os.environ.get(name.upper())],
        "no_proxy": [redaction.text(part.strip()) for part in outside.split(",") if part.strip()],
        "in_front": _in_front(own_paths), "own": own_paths, "torch_cuda": _torch_cuda(), "writable": _prefixes(),
    }  # fmt: skip


def imports() -> dict[str, Any]:
    """Return the fields of `Imports`: installed compiled packages, imported in a process with this one's variables."""
    modules = [module for name, module in _COMPILED.items() if name in packages() and _is_installed(module)]
    if not modules:
        return {"tried": []}
    printed, ended = _import_apart(modules)
    answers = [json.loads(line) for line in printed.splitlines() if line.startswith('{"imported"')]
    errors = {answer["imported"]: answer["said"].splitlines()[0][:300] if answer["said"] else "" for answer in answers}
    tried = []
    for module in modules:
        tried.append({"name": module, "ok": errors.get(module) == "", "error": errors.get(module, ended)})
        if module not in errors:
            break  # the modules after it were never tried
    return {"tried": tried, "foreign": _foreign(printed)}


def _import_apart(modules: list[str]) -> tuple[str, str]:
    """Import modules in a process of their own; return what it printed, and why it fell silent at a module."""
    try:
        done = subprocess.run(
            [sys.executable, "-B", "-c", _TRY, *modules],
            cwd="/",
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=_PATIENCE_S,
        )
        printed, ended = done.stdout, f"the import ended the interpreter with status {done.returncode}"
    except subprocess.TimeoutExpired as error:
        printed = error.stdout.decode(errors="replace") if isinstance(error.stdout, bytes) else error.stdout or ""
        ended = f"not imported within {_PATIENCE_S:.0f} s"
    return printed, ended


def _foreign(printed: str) -> list[tuple[str, str]]:
    """Libraries that those imports loaded from elsewhere although this interpreter has its own."""
    own_paths, foreign = _own_libraries(), []
    for line in printed.splitlines():
        if line.startswith('{"mapped"'):
            for path in json.loads(line)["mapped"]:
                name = os.path.basename(path)
                if name in own_paths and os.path.realpath(path) != os.path.realpath(own_paths[name]):
                    foreign.append((name, path))
    return foreign


def _is_installed(module: str) -> bool:
    """Whether the module's package can be found. Whether it can be imported is what `imports` tests."""
    try:
        return importlib.util.find_spec(module.split(".")[0]) is not None
    except (ImportError, ValueError):
        return False


def _own_libraries() -> dict[str, str]:
    """Library -> path below this interpreter's packages: torch/lib and nvidia/*/lib."""
    libraries: dict[str, str] = {}
    for root in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        folders = [os.path.join(root, "torch", "lib")]
        nvidia = os.path.join(root, "nvidia")
        if os.path.isdir(nvidia):
            folders += [os.path.join(nvidia, name, "lib") for name in sorted(os.listdir(nvidia))]
        for folder in folders:
            libraries.update({name: os.path.join(folder, name) for name in _shared(folder)})
    return libraries


def _in_front(own_paths: dict[str, str]) -> list[tuple[str, str]]:
    """Libraries in LD_LIBRARY_PATH that are not this interpreter's own. The linker takes them before those of a
    RUNPATH."""
    shadowing: dict[str, str] = {}
    for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":"):
        for name in _shared(folder):
            path = os.path.join(folder, name)
            if name not in shadowing and os.path.realpath(path) != os.path.realpath(own_paths.get(name, "")):
                shadowing[name] = path
    return sorted(shadowing.items())


def _shared(folder: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(folder) if _SHARED.fullmatch(name)) if folder else []
    except OSError:  # LD_LIBRARY_PATH may name missing folders
        return []


def _torch_cuda() -> str:
    """The CUDA version in torch/version.py, a few assignments, read without importing torch."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.origin:
        return ""
    try:
        with open(os.path.join(os.path.dirname(spec.origin), "version.py")) as file:
            match = re.search(r"^cuda[^=\n]*= *['\"]([^'\"]+)", file.read(), re.MULTILINE)
    except OSError:  # this build of torch has no version.py
        return ""
    return match[1] if match else ""


def _prefixes() -> dict[str, bool]:
    """For each variable that names a dump's file prefix: whether a file can be created there."""
    writable = {}
    for name in ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"):
        if value := os.environ.get(name):
            writable[name] = os.access(os.path.dirname(os.path.abspath(value)), os.W_OK | os.X_OK)
    return writable
