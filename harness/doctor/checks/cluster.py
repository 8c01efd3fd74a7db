"""Checks of differences between this shell and Ray's workers, and between nodes. Each gets all places, the shell
first."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence

from harness import extras
from harness.doctor.facts import Facts
from harness.doctor.gather.software import Software
from harness.doctor.outcome import Asked, Fine, Outcome, Problem, comparison
from scenarios.engines import registry

Placed = tuple[str, Outcome]

_LINKING = ("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH")
_STEERING = re.compile(
    r"((NCCL|GLOO|TORCH_NCCL|TORCH_FR|TORCH_DISTRIBUTED|TP_SOCKET|UCX|RCCL|HF|FLASHINFER|PYTORCH)_"
    rf"|{'|'.join(registry.variables())}).*|CUDA_DEVICE_MAX_CONNECTIONS|CUDA_LAUNCH_BLOCKING|PYTHONHASHSEED"
)
_LOCAL = re.compile(r".*(IFNAME|IB_HCA|HOSTID|HOST_IP|_PORT)$")  # variables that may differ from node to node
_SAME = re.compile(r"rlhf-harness|pandas|pyarrow")  # packages that workers do not need


@comparison("worker-libraries", "software")
def libraries(places: Sequence[Facts], request: Asked) -> Iterator[Placed]:
    """Compares LD_LIBRARY_PATH, LD_PRELOAD and PYTHONPATH of the shell and each worker. Warning when they
    differ, error when an import also fails in the worker."""
    shell, *workers = places
    shell_variables = shell.variables
    for worker in workers:
        theirs = worker.variables
        different = [name for name in _LINKING if shell_variables.get(name, "") != theirs.get(name, "")]
        if not different:
            yield worker.where, Fine("LD_LIBRARY_PATH, LD_PRELOAD and PYTHONPATH as in this shell")
            continue
        broken = worker.imports is not None and any(not item.ok for item in worker.imports.tried)
        wanted = {name: shell_variables[name] for name in different if name in shell_variables}
        pair = "; ".join(
            f"{name}: shell {shell_variables.get(name, 'not set')}, worker {theirs.get(name, 'not set')}"
            for name in different
        )
        fix = _runtime_env(wanted) if wanted else f"unset {' '.join(different)}   # where `ray start` is called"
        yield (
            worker.where,
            Problem(
                "error" if broken else "warning",
                "Ray's workers find their libraries elsewhere than this shell does",
                pair,
                "an import that works in this shell fails in a worker with `undefined symbol`, or the "
                "other way round: workers have the variables of the shell that called `ray start`",
                fix,
            ),
        )


@comparison("worker-variables", "software")
def variables(places: Sequence[Facts], request: Asked) -> Iterator[Placed]:
    """Compares NCCL, gloo, torch and engine variables of all workers and the shell. Error when nodes differ
    (info for names of interfaces and devices), warning when the workers do not have the shell's."""
    shell, *workers = places
    shell_variables, unlike = shell.variables, False
    names = sorted({name for place in places for name in place.variables if _STEERING.fullmatch(name)})
    for name in names:
        # Where workers differ from each other, the shell must differ from one of them: that is one report, not two.
        values = {worker.where: worker.variables.get(name) for worker in workers}
        distinct = set(values.values())
        values_text = ", ".join(f"{where} {_or_not(value)}" for where, value in list(values.items())[:4])
        if len(distinct) > 1:
            unlike = True
            yield (
                "between nodes",
                Problem(
                    "info" if _LOCAL.fullmatch(name) else "error",
                    f"{name} differs between nodes",
                    values_text,
                    "ranks of one group then speak over different transports, or time out at "
                    "different moments: the group fails to form, or hangs",
                    f"{_runtime_env({name: shell_variables.get(name) or next(filter(None, distinct))})}",
                ),
            )
        elif (theirs := next(iter(distinct))) != shell_variables.get(name):
            unlike = True
            yield (
                "workers",
                Problem(
                    "warning",
                    f"{name} is another one in Ray's workers than in this shell",
                    f"shell {_or_not(shell_variables.get(name))}, workers {_or_not(theirs)}",
                    "what you export here does not reach a cluster that is already running",
                    _runtime_env({name: shell_variables[name]})
                    if name in shell_variables
                    else f"unset {name}   # where `ray start` is called",
                ),
            )
    if not unlike:
        yield "workers", Fine(f"{len(names)} NCCL, gloo, torch and engine variables, equal everywhere")


@comparison("packages", "software")
def packages(places: Sequence[Facts], request: Asked) -> Iterator[Placed]:
    """Compares Python and all packages of the shell and each worker, with --nodes each node. Error when Python's
    minor version, torch, NCCL, Ray, vLLM or SGLang differ; warning for any other package."""
    shell, *workers = places
    assert shell.software is not None
    is_equal = True
    engines = {name for spec in registry.specs().values() if not spec.embedded for name in spec.distributions}
    wire_formats = {"torch", "ray", "nvidia-nccl-cu12", "nvidia-nccl-cu13", *engines}
    for worker in workers:
        assert worker.software is not None
        ours, theirs = shell.software.packages, worker.software.packages
        if shell.software.python != worker.software.python:
            is_equal = False
            yield worker.where, _other_python(shell.software, worker.software)
        for name in sorted({*ours, *theirs}):
            if ours.get(name) != theirs.get(name) and not _SAME.fullmatch(name):
                is_equal = False
                yield worker.where, _other_package(name, shell.software, worker.software, wire=name in wire_formats)
    if is_equal:
        yield (
            "workers",
            Fine(f"Python {shell.software.python} and {len(shell.software.packages)} packages, equal everywhere"),
        )


def _other_python(shell: Software, worker: Software) -> Problem:
    is_same_minor = shell.python.rpartition(".")[0] == worker.python.rpartition(".")[0]
    return Problem(
        "info" if is_same_minor else "error",
        "Python is another one there than in this shell",
        f"shell {shell.python}, there {worker.python}",
        "pickles between two minor versions may not load, and Ray lets no node of another version join",
        f"{shlex.quote(worker.executable)} --version   # on that node",
    )


def _other_package(name: str, shell: Software, worker: Software, *, wire: bool) -> Problem:
    """The problem of a package that differs. `wire`: whether ranks exchange what it writes."""
    ours, theirs = shell.packages, worker.packages
    why = "what works when tried in this shell says nothing about the run"
    if wire:
        why += "; ranks with different builds of it do not understand each other"
    fix = f"pip install {name}=={theirs.get(name)}   # here, or leave it"
    if name in ours:
        fix = extras.install_into(worker.executable, f"{name}=={ours[name]}")
    return Problem(
        "error" if wire else "warning",
        f"{name} is another one there than in this shell",
        f"shell {ours.get(name, 'absent')}, there {theirs.get(name, 'absent')}",
        why,
        fix,
    )


@comparison("gpus-alike", "gpus")
def gpus(places: Sequence[Facts], request: Asked) -> Iterator[Placed]:
    """Compares names and drivers of the GPUs between nodes. Warning when they differ."""
    kinds = {
        worker.where: tuple(sorted({f"{gpu.name}, driver {gpu.driver}" for gpu in worker.gpus.found}))
        for worker in places[1:]
        if worker.gpus is not None and worker.gpus.found
    }
    if len(set(kinds.values())) > 1:
        yield (
            "between nodes",
            Problem(
                "warning",
                "nodes have different GPUs or drivers",
                "; ".join(f"{where}: {', '.join(names)}" for where, names in kinds.items()),
                "collectives go as fast as the slowest, and kernels, and so log-probabilities, differ",
                "ray start --resources='{\"h100\": 8}'   # on each kind, and ask for it",
            ),
        )
    else:
        yield "workers", Fine("; ".join({" + ".join(names) for names in kinds.values()}) or "no node has a GPU")


@comparison("clocks")
def clocks(places: Sequence[Facts], request: Asked) -> Iterator[Placed]:
    """Measures each node's clock by a round trip. Warning when it is off by more than 1 s beyond half of the
    round trip. Our bound: two logs are then out of order."""
    for worker in places[1:]:
        if worker.skew_s is None:
            continue
        measured = f"{worker.skew_s:+.3f} s ± {worker.skew_error_s:.3f} s"
        if abs(worker.skew_s) - worker.skew_error_s > 1:
            yield (
                worker.where,
                Problem(
                    "warning",
                    "the node's clock is off",
                    measured,
                    "logs and recordings of different nodes cannot be put in order: the first error "
                    "looks like a consequence",
                    "sudo chronyc makestep   # or: sudo timedatectl set-ntp true",
                ),
            )
        else:
            yield worker.where, Fine(measured)


@comparison("nodes")
def nodes(places: Sequence[Facts], request: Asked) -> Iterator[Placed]:
    """Reads Ray's table of nodes. Warning when one is dead."""
    if request.dead:
        yield (
            "the cluster",
            Problem(
                "warning",
                "nodes of the cluster are dead",
                ", ".join(request.dead),
                "actors that were placed there are gone, and their peers wait",
                "ray list nodes   # then start Ray there again, or restart the cluster",
            ),
        )
    else:
        yield "the cluster", Fine(f"{request.nodes} alive")


def _runtime_env(variables: dict[str, str]) -> str:
    """The option that passes variables to every worker of a job."""
    return f"ray job submit --runtime-env-json={shlex.quote(json.dumps({'env_vars': variables}))} …"


def _or_not(value: str | None) -> str:
    return "not set" if value is None else value or "(empty)"
