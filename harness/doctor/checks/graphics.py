"""Checks of GPUs: driver, models, memory in use, and the variables that say which process sees which GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator

from harness.doctor.facts import Facts
from harness.doctor.gather.graphics import Gpus
from harness.doctor.gather.software import Software
from harness.doctor.outcome import GIB, Asked, Fine, Outcome, Problem, Unseen, bytes_, check

_NONE = "no NVIDIA GPU here"
_SICK, _ASK = "the GPU driver does not answer as it should (gpu-driver)", "nvidia-smi"
_OLDEST_DRIVER = {"11": 450, "12": 525, "13": 580}  # CUDA major version -> oldest driver (CUDA release notes, Linux)


@check("gpu-driver", "gpus", "software", host=True)
def driver(facts: Facts, request: Asked) -> Iterator[Outcome]:
    """Asks nvidia-smi for the driver, and torch for its CUDA. Error when the driver does not answer, or is
    older than CUDA's major version needs: 450, 525, 580 for CUDA 11, 12, 13 (CUDA's release notes, Linux).
    Warning with a CPU build of torch."""
    assert facts.gpus is not None and facts.software is not None
    if facts.gpus.error:
        yield Problem(
            "error",
            "the GPU driver does not answer as it should",
            facts.gpus.error,
            "every rank of this node fails at its first tensor, or hangs in it",
            "nvidia-smi; sudo dmesg | grep -i xid",
        )
    elif not facts.gpus.found:
        yield Unseen(_NONE)
    else:
        yield _fitting(facts.gpus, facts.software)


def _fitting(detected: Gpus, software: Software) -> Outcome:
    """Whether driver and torch fit together."""
    gpus, cuda = detected.found, software.torch_cuda
    versions = sorted({gpu.driver for gpu in gpus})
    majors = [version.partition(".")[0] for version in versions]
    needs = _OLDEST_DRIVER.get(cuda.partition(".")[0], 0)
    measured = f"driver {', '.join(versions)}, torch for CUDA {cuda or 'none'}"
    if "torch" in software.packages and not cuda:
        return Problem(
            "warning",
            "this interpreter's torch is a CPU build on a machine with GPUs",
            measured,
            "learners that run here compute on the processor",
            "pip install torch   # a CUDA build",
        )
    if any(major.isdigit() and int(major) < needs for major in majors):
        return Problem(
            "error",
            "the driver is too old for this torch",
            f"{measured} (needs {needs} or newer)",
            "CUDA does not initialise: every rank ends at its first tensor",
            "update the driver, or install a torch built for an older CUDA",
        )
    return Fine(measured)


def _unseen(gpus: Gpus) -> Unseen | None:
    """Why nothing can be said of this node's GPUs; None where they answered."""
    if gpus.error:
        return Unseen(_SICK, _ASK)
    return None if gpus.found else Unseen(_NONE)


@check("gpu-kinds", "gpus", host=True)
def kinds(facts: Facts, request: Asked) -> Iterator[Outcome]:
    """Compares names and memory of the node's GPUs. Warning when they differ, info with MIG: NCCL takes two
    instances of one GPU for the same GPU."""
    assert facts.gpus is not None
    if unseen := _unseen(facts.gpus):
        yield unseen
        return
    names = sorted({gpu.name for gpu in facts.gpus.found})
    sizes = sorted({gpu.total for gpu in facts.gpus.found})
    sliced = [gpu.index for gpu in facts.gpus.found if gpu.mig]
    if len(names) > 1 or len(sizes) > 1:
        yield Problem(
            "warning",
            "the GPUs of this node are of several kinds",
            ", ".join(names) + f", {bytes_(sizes[0])} to {bytes_(sizes[-1])}",
            "a tensor-parallel engine or a sharded learner goes as fast, and holds as "
            "much, as the weakest; kernels differ and so do log-probabilities",
            "export CUDA_VISIBLE_DEVICES=NUMBERS   # of the GPUs of one kind",
        )
    elif sliced:
        yield Problem(
            "info",
            "GPUs are cut into MIG instances",
            f"GPUs {', '.join(map(str, sliced))}",
            "NCCL takes two instances of one GPU for the same GPU",
            "sudo nvidia-smi -mig 0",
        )
    else:
        yield Fine(f"{len(facts.gpus.found)} × {names[0]}")


@check("gpu-memory", "gpus", host=True)
def memory_in_use(facts: Facts, request: Asked) -> Iterator[Outcome]:
    """Reads the memory in use on each GPU. Warning when a process holds some, or more than 2 GiB is in use by
    none that can be seen. Our bound."""
    assert facts.gpus is not None
    if unseen := _unseen(facts.gpus):
        yield unseen
        return
    outcomes: list[Outcome] = []
    why = "an engine that takes 90 % of the memory fails to start, or the learner runs out of it at its longest batch"
    for gpu in facts.gpus.found:
        if gpu.holders:
            pids = " ".join(str(pid) for pid, _ in gpu.holders)
            holders_text = "; ".join(f"pid {pid} {command or '(unseen)'}" for pid, command in gpu.holders[:4])
            outcomes.append(
                Problem(
                    "warning",
                    f"processes hold memory of GPU {gpu.index}",
                    f"{bytes_(gpu.used)} of {bytes_(gpu.total)}: {holders_text}",
                    why,
                    f"ps -fp {pids.replace(' ', ',')}   # an earlier run's? kill {pids}",
                )
            )
        elif gpu.used > 2 * GIB:
            outcomes.append(
                Problem(
                    "warning",
                    f"memory of GPU {gpu.index} is held by nobody that can be seen",
                    f"{bytes_(gpu.used)} of {bytes_(gpu.total)}",
                    why,
                    f"sudo fuser -v /dev/nvidia{gpu.index}   # in the host: another container, or a zombie",
                )
            )
    yield from outcomes or [Fine(f"{len(facts.gpus.found)} GPUs free")]


@check("gpu-errors", "gpus", host=True)
def errors(facts: Facts, request: Asked) -> Iterator[Outcome]:
    """Reads the counters of uncorrectable ECC errors (nvidia-smi). Error when one is above zero."""
    assert facts.gpus is not None
    if unseen := _unseen(facts.gpus):
        yield unseen
        return
    sick = [gpu for gpu in facts.gpus.found if gpu.uncorrected]
    if sick:
        yield Problem(
            "error",
            "GPU memory has had uncorrectable errors",
            ", ".join(f"GPU {gpu.index}: {gpu.uncorrected}" for gpu in sick),
            "kernels on it fail or hang, and its peers wait in the next collective",
            "nvidia-smi -q -d ECC,PAGE_RETIREMENT   # reset the GPU or take the node out",
        )
    else:
        yield Fine("none counted")


@check("visible-devices", "software", "gpus")
def visible(facts: Facts, request: Asked) -> Iterator[Outcome]:
    """Reads CUDA_VISIBLE_DEVICES and RAY_EXPERIMENTAL_NOSET_*. Error when it names a GPU that is not there:
    CUDA ignores that one and all behind it (CUDA C++ Programming Guide). Info when it leaves GPUs out, or when
    Ray does not choose the GPUs of its workers."""
    assert facts.software is not None and facts.gpus is not None
    variables, count = facts.software.variables, len(facts.gpus.found)
    outcomes: list[Outcome] = []
    ray_switches = [name for name in variables if name.startswith("RAY_EXPERIMENTAL_NOSET_")]
    noset = [name for name in ray_switches if variables[name] not in ("", "0", "false")]
    if noset:
        outcomes.append(
            Problem(
                "info",
                "Ray does not choose the GPUs of its workers",
                ", ".join(noset),
                "every worker sees every GPU and has to choose by itself: an engine or learner that does "
                "not lands on GPU 0 beside the others",
                f"unset {' '.join(noset)}   # unless the framework asks for it",
            )
        )
    chosen = variables.get("CUDA_VISIBLE_DEVICES")
    # Ray sets the variable in its workers: there it says nothing about the GPUs that a job may use.
    if chosen is not None and facts.shell and count:
        outcomes += _chosen_devices(chosen, count)
    yield from outcomes or [Fine(f"CUDA_VISIBLE_DEVICES={chosen}" if chosen is not None else "Ray decides")]


def _chosen_devices(chosen: str, count: int) -> Iterator[Problem]:
    """Compare the value of CUDA_VISIBLE_DEVICES with the number of GPUs of this node."""
    devices = [item for item in chosen.split(",") if item.strip()]
    # A device may also be named by its UUID, which says nothing about its number.
    numbers = [int(item) for item in devices if item.strip().isdigit()]
    if any(number >= count for number in numbers):
        yield Problem(
            "error",
            "CUDA_VISIBLE_DEVICES names a GPU that is not there",
            f"CUDA_VISIBLE_DEVICES={chosen}, {count} GPUs",
            "CUDA ignores it and all behind it",
            "unset CUDA_VISIBLE_DEVICES",
        )
    elif len(devices) < count:
        yield Problem(
            "info",
            "a Ray started from this shell will not use all GPUs",
            f"CUDA_VISIBLE_DEVICES={chosen or '(empty)'}, {count} GPUs",
            "placement groups that count on all of them wait for ever",
            "unset CUDA_VISIBLE_DEVICES",
        )


@check("amd-variables", "software", "gpus")
def amd(facts: Facts, request: Asked) -> Iterator[Outcome]:
    """Compares ROCR_, HIP_ and CUDA_VISIBLE_DEVICES. Error with ROCR alone, which Ray refuses
    (ray/_private/accelerators/amd_gpu.py), with a ROCR list beside HIP that does not begin at 0, since HIP
    counts within it, and when HIP and CUDA differ."""
    assert facts.software is not None and facts.gpus is not None
    variables = facts.software.variables
    names = [f"{name}_VISIBLE_DEVICES" for name in ("ROCR", "HIP", "CUDA")]
    rocr, hip, cuda = map(variables.get, names)
    settings_text = ", ".join(f"{name}={variables[name]}" for name in names if name in variables)
    if rocr is not None and hip is None:
        yield Problem(
            "error",
            "ROCR_VISIBLE_DEVICES is set without HIP_VISIBLE_DEVICES",
            settings_text,
            'Ray refuses to count GPUs with it: "Please use HIP_VISIBLE_DEVICES instead"',
            "export HIP_VISIBLE_DEVICES=$ROCR_VISIBLE_DEVICES; unset ROCR_VISIBLE_DEVICES",
        )
    elif rocr is not None:
        devices = rocr.split(",")
        starts_at_zero = devices == [str(number) for number in range(len(devices))]
        yield Problem(
            "info" if starts_at_zero else "error",
            "ROCR_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES are both set",
            settings_text,
            "HIP counts within what ROCR leaves: a list that does not begin at 0 selects other GPUs, or none",
            "unset ROCR_VISIBLE_DEVICES",
        )
    elif hip is not None and cuda is not None and hip != cuda:
        yield Problem(
            "error",
            "HIP_VISIBLE_DEVICES and CUDA_VISIBLE_DEVICES differ",
            settings_text,
            "torch and Ray read different ones: ranks share a GPU while another idles",
            "unset CUDA_VISIBLE_DEVICES",
        )
    else:
        yield Fine(settings_text if hip is not None else f"{facts.gpus.amd} AMD GPUs, none of the variables set")


@check("allocator", "software")
def allocator(facts: Facts, request: Asked) -> Iterator[Outcome]:
    """Looks for expandable_segments:True in the allocator's variables. Warning: vLLM refuses it with KV
    connectors (vllm/config/vllm.py), SGLang's mooncake too, and older vLLM's sleep mode asserts against it."""
    assert facts.software is not None
    variables = facts.software.variables
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"):
        if re.search(r"expandable_segments\s*:\s*true", variables.get(name, ""), re.IGNORECASE):
            yield Problem(
                "warning",
                "expandable segments are on for engines too",
                f"{name}={variables[name]}",
                "sleep mode of older vLLM asserts against them, KV connectors refuse them; set them for the "
                "trainer's actors only",
                f"unset {name}",
            )
            return
    yield Fine("no expandable segments")
