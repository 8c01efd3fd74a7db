"""Checks of the settings of NCCL and torch's flight recorder: will a hang leave a record before anything is torn down?

Names and defaults are those of torch's ProcessGroupNCCL.cpp and FlightRecorder.hpp.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from harness.doctor.facts import Facts
from harness.doctor.outcome import Asked, Fine, Outcome, Problem, Unseen, check

_SIZES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_ON = "export TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_TRACE_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1"
_LOST = "at a hang nobody can tell which collective each rank stands in: triage loses one of its three sources"
_HEARTBEAT_S, _NCCL_TIMEOUT_S = 480, 600
_SETTINGS = {  # variable -> (values that fail, severity, what, why)
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": (
        "0", "error", "NCCL errors and timeouts are not handled", "when a peer dies, the others wait in the collective "
        "for ever and keep their GPUs"),
    "NCCL_ASYNC_ERROR_HANDLING": (
        "0", "error", "NCCL errors and timeouts are not handled", "when a peer dies, the others wait in the collective "
        "for ever and keep their GPUs"),
    "NCCL_DEBUG": (
        "TRACE", "warning", "NCCL writes a line for every call", "gigabytes of log an hour, by default into Ray's "
        "directory: this is how /tmp fills"),
    "TORCH_DISTRIBUTED_DEBUG": (
        "DETAIL", "warning", "every collective is checked by extra collectives", "the run is slower and its order of "
        "collectives is another one: hangs move or vanish"),
    "CUDA_LAUNCH_BLOCKING": (
        "1", "warning", "every kernel launch waits", "the run is several times slower, and races hide"),
    "NCCL_P2P_DISABLE": (
        "1", "warning", "GPUs of a node do not talk to each other directly", "collectives go through host memory: "
        "several times slower, often left over from a search for a fault"),
    "NCCL_SHM_DISABLE": (
        "1", "warning", "ranks of a node do not use shared memory", "without P2P they talk over sockets: slow enough "
        "to look hung"),
    "NCCL_IB_DISABLE": (
        "1", "info", "RDMA is switched off", "nodes talk over sockets"),
}  # fmt: skip


@check("nccl-settings", "software", "gpus")
def nccl_settings(facts: Facts, request: Asked) -> Iterator[Outcome]:
    """Looks for settings left over from debugging: error with TORCH_NCCL_ASYNC_ERROR_HANDLING=0, warning with
    NCCL_DEBUG=TRACE, P2P or shared memory off, CUDA_LAUNCH_BLOCKING or TORCH_DISTRIBUTED_DEBUG=DETAIL, info
    with RDMA off (NCCL's user guide; torch/distributed documentation)."""
    variables = facts.variables
    outcomes: list[Outcome] = []
    for name, (values, severity, what, why) in _SETTINGS.items():
        if variables.get(name, "").upper() in values.split():
            problem: Outcome = Problem(severity, f"{what} ({name})", f"{name}={variables[name]}", why, f"unset {name}")  # type: ignore[arg-type]
            outcomes.append(problem)
    yield from outcomes or [Fine(_assignments(variables, "NCCL_") or "no NCCL_* variable is set")]


@check("nccl-cumem", "software", "gpus")
def nccl_cumem(facts: Facts, request: Asked) -> Iterator[Outcome]:
    """Reads NCCL_CUMEM_ENABLE on a machine with GPUs. Warning when it is not set: SGLang writes 0 into its own
    processes (srt/entrypoints/engine.py), as vLLM 0.9 did, and the trainer of the same weight-sync group keeps
    NCCL's default (SkyRL#143)."""
    assert facts.gpus is not None
    value = facts.variables.get("NCCL_CUMEM_ENABLE")
    if value is not None:
        yield Fine(f"NCCL_CUMEM_ENABLE={value} for everybody")
    elif not facts.gpus.found:
        yield Unseen("no NVIDIA GPU here")
    else:
        yield Problem(
            "warning",
            "NCCL_CUMEM_ENABLE is left to each process",
            "not set",
            "SGLang and older vLLM set it to 0 in their own processes, the trainer keeps NCCL's default: the "
            "weight-sync group of both fails or hangs when it forms",
            "export NCCL_CUMEM_ENABLE=0",
        )


@check("flight-recorder", "software")
def flight_recorder(facts: Facts, request: Asked) -> Iterator[Outcome]:
    """Reads the size of torch's flight recorder. Error when it is 0, no number, or not set with torch up to
    2.6, where it is off by default; warning below 200 entries, or when dumping at a timeout or monitoring is
    off (torch's FlightRecorder.hpp and ProcessGroupNCCL.cpp)."""
    assert facts.software is not None
    variables, torch = facts.variables, facts.software.packages.get("torch", "")
    sizes = {name: variables[name] for name in _SIZES if name in variables}
    judged = [_size(name, size) for name, size in sizes.items()] if sizes else [_default(torch)]
    outcomes: list[Outcome] = [outcome for outcome in judged if outcome is not None]
    off = ("0", "false", "n", "no", "off", "f")
    outcomes += [
        Problem("warning", f"{name} is off", f"{name}={variables[name]}", why, f"unset {name}")
        for name, why in _DUMPING.items()
        if variables.get(name, "").lower() in off
    ]
    sizes_text = ", ".join(f"{name}={size}" for name, size in sizes.items()) or "2000 entries by default"
    yield from outcomes or [Fine(f"on: {sizes_text}, torch {torch or 'unknown'}")]


_DUMPING = {
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "at a timeout no rank writes its record",
    "TORCH_NCCL_ENABLE_MONITORING": "nobody ends a process whose NCCL watchdog is stuck, and nobody dumps its record",
}


def _size(name: str, size: str) -> Outcome | None:
    """Return what is wrong with a size of the recorder; None where nothing is."""
    if not re.fullmatch(r"\d+", size):
        why = "torch raises when the first process group is made"
        return Problem("error", f"{name} is not a number", f"{name}={size}", why, _ON)
    if int(size) == 0:
        return Problem("error", "the flight recorder is switched off", f"{name}=0", _LOST, _ON)
    if int(size) < 200:
        return Problem(
            "warning", "the flight recorder remembers few collectives", f"{name}={size}",
            "a step of a model with hundreds of layers overwrites it: ranks cannot be aligned", _ON,
        )  # fmt: skip
    return None


def _default(torch: str) -> Outcome | None:
    """Return what is wrong with the default of this torch, or not known of it; None where it is on."""
    version = tuple(int(part) for part in re.findall(r"\d+", torch)[:2])
    if not torch:
        return Unseen("torch is not installed in this interpreter, and its default depends on the version", _ON)
    if version <= (2, 6):
        return Problem("error", "the flight recorder is off by default in this torch", f"torch {torch}", _LOST, _ON)
    if version < (2, 9):
        return Unseen(f"not known whether torch {torch} switches the flight recorder on by default", _ON)
    return None


@check("dump-files", "software")
def dump_files(facts: Facts, request: Asked) -> Iterator[Outcome]:
    """Tries the directories of TORCH_FR_DUMP_TEMP_FILE and TORCH_NCCL_DEBUG_INFO_TEMP_FILE. Error when one
    cannot be written."""
    assert facts.software is not None
    variables, writable = facts.variables, facts.software.writable
    outcomes: list[Outcome] = [
        Problem("error", f"{name} names a directory that cannot be written", f"{name}={variables.get(name, '')}",
             "the record of a hang is lost at the moment that it is wanted",
             f"mkdir -p \"$(dirname \"${name}\")\"   # on every node")
        for name, good in writable.items() if not good
    ]  # fmt: skip
    yield from outcomes or [
        Fine(", ".join(f"{name}={variables.get(name, '')}" for name in writable) or "torch's own default")
    ]


@check("timeouts", "software")
def timeouts(facts: Facts, request: Asked) -> Iterator[Outcome]:
    """Compares the stall threshold of `harness watch` with torch's timeouts. Error at or above NCCL's
    heartbeat, 480 s by default; warning at or above 600 s, the default of collectives (torch's
    ProcessGroupNCCL.hpp): torch would end the process before it is looked at."""
    text = facts.variables.get("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", str(_HEARTBEAT_S))
    measured = f"stall threshold {request.stall_s:g} s, NCCL heartbeat {text} s"
    fix = f"harness watch --stall {min(60, int(text) // 2) if text.isdigit() else 60}s -- COMMAND"
    if not text.isdigit():
        yield Problem(
            "error",
            "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC is not a number",
            text,
            "torch raises when the first process group is made",
            "unset TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC",
        )
    elif request.stall_s >= int(text):
        yield Problem(
            "error",
            "the stall threshold is above NCCL's heartbeat timeout",
            measured,
            "torch aborts the stuck process before anybody looks: stacks and records are gone",
            fix,
        )
    elif request.stall_s >= _NCCL_TIMEOUT_S:
        yield Problem(
            "warning",
            "the stall threshold is above NCCL's default timeout of collectives",
            f"{measured}, collectives {_NCCL_TIMEOUT_S} s",
            "ranks raise before anybody looks, and the first to raise is not the culprit",
            fix,
        )
    else:
        yield Fine(measured)


@check("debuggers", "software")
def debuggers(facts: Facts, request: Asked) -> Iterator[Outcome]:
    """Reads RAY_DEBUG and RAY_DEBUG_POST_MORTEM. Warning with either the legacy or the post-mortem debugger,
    error with both (Ray's debugging guide)."""
    variables = facts.variables
    # The worst first: each debugger alone stops a rank only at a breakpoint or an error.
    legacy = variables.get("RAY_DEBUG", "") == "legacy"
    after = variables.get("RAY_DEBUG_POST_MORTEM", "") not in ("", "0")
    settings_text = ", ".join(
        f"{name}={variables[name]}" for name in ("RAY_DEBUG", "RAY_DEBUG_POST_MORTEM") if name in variables
    )
    if legacy and after:
        yield Problem(
            "error",
            "Ray's legacy debugger and its successor are both on",
            settings_text,
            "neither works beside the other, and a rank that stops in one waits for ever",
            "unset RAY_DEBUG",
        )
    elif after:
        yield Problem(
            "warning",
            "Ray's workers stop in a debugger when they fail",
            settings_text,
            "a rank that raised waits for somebody to attach: to the others it is a hang",
            "unset RAY_DEBUG_POST_MORTEM",
        )
    elif legacy:
        yield Problem(
            "warning",
            "Ray's legacy debugger is on",
            settings_text,
            "a forgotten breakpoint() stops a rank for good: to the others it is a hang",
            "unset RAY_DEBUG",
        )
    else:
        yield Fine(settings_text or "none is on")


def _assignments(variables: dict[str, str], prefix: str) -> str:
    return ", ".join(f"{name}={value}" for name, value in variables.items() if name.startswith(prefix))
