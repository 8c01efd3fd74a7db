"""Checks of the kernel and the container: tracing, files, threads, cores, memory, and the Slurm allocation."""

from __future__ import annotations

import time
from collections.abc import Iterator

from harness import extras
from harness.doctor.facts import Facts
from harness.doctor.outcome import GIB, Asked, Fine, Outcome, Problem, Unseen, bytes_, check, duration, new_container

_STACKS = "at a hang nobody could say which line each process stands in: triage loses one of its three sources"


@check("ptrace", "tracing")
def ptrace(facts: Facts, request: Asked) -> Iterator[Outcome]:
    """Runs py-spy on a child process. Error when it may not read the stack, info when it may only without
    stopping the process. The measurement names the kernel's rules: CAP_SYS_PTRACE, Yama's ptrace_scope (kernel:
    admin-guide/LSM/Yama), seccomp."""
    tracing = facts.tracing
    assert tracing is not None
    rules = (
        f"CAP_SYS_PTRACE {'yes' if tracing.ptrace else 'no'}, "
        f"yama {'none' if tracing.scope is None else tracing.scope}, seccomp {tracing.seccomp}, uid {tracing.uid}"
    )
    if tracing.attempt == "allowed":
        yield Fine(f"py-spy read a child's stack ({rules})")
    elif tracing.attempt == "only nonblocking":
        yield Problem(
            "info",
            "py-spy reads stacks only without stopping the process",
            f"{tracing.detail} ({rules})",
            "stacks of a running process may be torn; native frames are not to be had",
            _ptrace_fix(facts),
        )
    elif tracing.attempt == "absent":
        yield Problem(
            "error", "py-spy is missing from this environment", rules, _STACKS, extras.repair_command("py-spy")
        )
    elif tracing.attempt == "denied":
        yield Problem(
            "error",
            "py-spy may not read stacks, not even of its own user's processes",
            f"{tracing.detail} ({rules})",
            _STACKS,
            _ptrace_fix(facts),
        )
    else:
        yield Problem(
            "warning",
            "py-spy failed on a plain Python",
            f"{tracing.detail} ({rules})",
            _STACKS,
            "pip install --upgrade py-spy",
        )


def _ptrace_fix(facts: Facts) -> str:
    tracing = facts.tracing
    assert tracing is not None
    if tracing.scope and not tracing.ptrace and not tracing.seccomp:
        return "sudo sysctl kernel.yama.ptrace_scope=0"
    return new_container("--cap-add SYS_PTRACE", "Kubernetes: securityContext.capabilities.add")


@check("file-limit", "limits")
def file_limit(facts: Facts, request: Asked) -> Iterator[Outcome]:
    """Reads RLIMIT_NOFILE. Error below a hard limit of 4,096, where Ray warns (ray/_private/worker.py); info
    below 65,535, to which vLLM and SGLang raise it (vllm/utils/system_utils.py); warning at a soft limit below
    4,096."""
    limits = facts.limits
    assert limits is not None
    soft, hard = limits.files_soft, limits.files_hard
    measured = f"ulimit -n {_limit_text(soft)}, hard limit {_limit_text(hard)}"
    why = "each Ray worker, NCCL channel and HTTP connection of an engine takes files: a run that grows dies of EMFILE"
    if hard is not None and hard < 4096:
        yield Problem(
            "error",
            "too few open files are allowed, and nobody may raise it",
            measured,
            why,
            "ulimit -Hn 65536   # as root; of a service LimitNOFILE=; a container needs --ulimit nofile=65536:65536",
        )
    elif hard is not None and hard < 65_535:
        yield Problem(
            "info",
            "engines cannot raise the limit of open files to the 65,535 that they ask for",
            measured,
            why,
            new_container("--ulimit nofile=65536:65536", "of a service LimitNOFILE=65536"),
        )
    elif soft is not None and soft < 4096:
        yield Problem(
            "warning",
            "few open files are allowed by default",
            measured,
            f"{why}; Ray's drivers and the engines raise it themselves, torchrun does not",
            "ulimit -n 65536",
        )
    else:
        yield Fine(measured)


@check("task-limit", "limits")
def task_limit(facts: Facts, request: Asked) -> Iterator[Outcome]:
    """Reads `ulimit -u` and the container's pids.max. Warning when fewer than 4,096 processes and threads are
    left. Our bound: a Ray worker has about 50 threads before its work begins, a learner with torch about one a
    core more."""
    limits = facts.limits
    assert limits is not None
    why = (
        "ranks, engines and their thread pools take thousands; at the limit fork fails with EAGAIN in a random process"
    )
    task_limits = {"ulimit -u": limits.processes, "cgroup pids.max": limits.tasks_max}
    measured = ", ".join(f"{name} {value:,}" for name, value in task_limits.items() if value is not None)
    measured = measured or "unlimited"
    if limits.tasks_now is not None and limits.tasks_max is not None:
        measured += f", in use {limits.tasks_now:,}"
    # RLIMIT_NPROC does not bind root (getrlimit(2)).
    bound_by_limit = facts.tracing is not None and facts.tracing.uid != 0
    if bound_by_limit and limits.processes is not None and limits.processes < 4096:
        yield Problem("warning", "few processes and threads are allowed", measured, why, "ulimit -u 65536")
    elif limits.tasks_max is not None and limits.tasks_max - (limits.tasks_now or 0) < 4096:
        yield Problem(
            "warning",
            "the container allows few more processes and threads",
            measured,
            why,
            new_container("--pids-limit -1", "Kubernetes: the kubelet's podPidsLimit"),
        )
    else:
        yield Fine(measured)


@check("memlock", "limits", "network")
def memlock(facts: Facts, request: Asked) -> Iterator[Outcome]:
    """Reads RLIMIT_MEMLOCK and the RDMA devices. Error below 1 GiB beside an RDMA device: ibv_reg_mr locks the
    buffers that NCCL registers (ibv_reg_mr(3)). The bound is ours."""
    assert facts.limits is not None and facts.network is not None
    locked = facts.limits.memlock
    measured = f"ulimit -l {'unlimited' if locked is None else bytes_(locked)}"
    if not facts.network.infiniband:
        yield Fine(f"{measured}, no RDMA device")
    elif locked is not None and locked < GIB:
        yield Problem(
            "error",
            "RDMA cannot pin memory",
            f"{measured}, devices {', '.join(facts.network.infiniband)}",
            "ibv_reg_mr fails with ENOMEM inside NCCL, usually at the first large all-reduce",
            "ulimit -l unlimited   # a container needs --ulimit memlock=-1",
        )
    else:
        yield Fine(measured)


@check("map-count", "limits", host=True)
def map_count(facts: Facts, request: Asked) -> Iterator[Outcome]:
    """Reads vm.max_map_count. Warning below 65,530, the kernel's default (kernel: admin-guide/sysctl/vm)."""
    assert facts.limits is not None
    count = facts.limits.map_count
    if count is None:
        yield Unseen("this kernel does not tell vm.max_map_count")
    elif count < 65_530:  # the kernel's default
        yield Problem(
            "warning",
            "a process may have fewer memory mappings than by default",
            f"vm.max_map_count {count:,}",
            "allocators of large processes run out of mappings and report it as out of memory",
            "sudo sysctl vm.max_map_count=262144",
        )
    else:
        yield Fine(f"vm.max_map_count {count:,}")


@check("cores", "limits", host=True)
def cores(facts: Facts, request: Asked) -> Iterator[Outcome]:
    """Reads the CPU affinity and the container's CPU quota. Warning when the quota is below three quarters of
    the cores that are seen. Our bound: torch starts a thread for each core it sees, and the kernel then
    throttles them all."""
    limits = facts.limits
    assert limits is not None
    usable = min([float(limits.cpus_allowed), *([limits.cpu_quota] if limits.cpu_quota else [])])
    measured = f"{usable:g} of {limits.cpus} cores usable" + (" by quota" if limits.cpu_quota == usable else "")
    if limits.cpu_quota and limits.cpu_quota < 0.75 * limits.cpus_allowed:
        yield Problem(
            "warning",
            "the container may use fewer cores than it sees",
            measured,
            "torch starts a thread for each core that it sees; the kernel then stops all of them for the rest "
            "of each 100 ms, which looks like a straggler",
            f"export OMP_NUM_THREADS={max(1, int(usable))}",
        )
    else:
        yield Fine(measured)


@check("memory", "memory", host=True)
def memory(facts: Facts, request: Asked) -> Iterator[Outcome]:
    """Reads the memory of the machine and of the container. Error above 90 % in use, warning above 75 %: Ray's
    memory monitor kills workers at 95 % (RAY_memory_usage_threshold). Info when the container has less than
    half of the host's."""
    node_memory = facts.memory
    assert node_memory is not None
    if node_memory.limit is not None and node_memory.used is not None:
        used, of, name = node_memory.used, node_memory.limit, "the container's limit"
        measured = f"{bytes_(used)} of {bytes_(of)} in the container, {bytes_(node_memory.total)} in the host"
    else:
        used, of, name = node_memory.total - node_memory.available, node_memory.total, "the memory"
        measured = f"{bytes_(node_memory.available)} of {bytes_(node_memory.total)} available"
    why = "Ray kills workers above 95 %, and the kernel's OOM killer leaves the peers waiting in a collective"
    if of and used > 0.9 * of:
        yield Problem(
            "error",
            f"{name} is nearly used up before the run begins",
            measured,
            why,
            "ps aux --sort=-rss | head   # find who holds it, end it by pid",
        )
    elif of and used > 0.75 * of:
        yield Problem(
            "warning", f"most of {name} is in use before the run begins", measured, why, "ps aux --sort=-rss | head"
        )
    elif node_memory.limit is not None and node_memory.limit < 0.5 * node_memory.total:
        yield Problem(
            "info",
            "the container may use much less memory than the host has",
            measured,
            "libraries that size buffers by the host's memory take more than there is, if CPU offload and "
            "VLLM_CPU_KVCACHE_SPACE are not sized by hand; Ray respects the limit",
            new_container(f"--memory {node_memory.total // 2 // GIB}g", "Kubernetes: resources.limits.memory"),
        )
    else:
        yield Fine(measured)


@check("overcommit", "memory", host=True)
def overcommit(facts: Facts, request: Asked) -> Iterator[Outcome]:
    """Reads vm.overcommit_memory. Warning at 2, where the kernel refuses what is only reserved (kernel:
    mm/overcommit-accounting)."""
    assert facts.memory is not None
    if facts.memory.overcommit == 2:
        yield Problem(
            "warning",
            "the kernel refuses memory that is only reserved",
            "vm.overcommit_memory 2",
            "CUDA, Ray's object store and forked workers reserve far more than they touch: fork and mmap fail "
            "with half of the memory free",
            "sudo sysctl vm.overcommit_memory=0",
        )
    else:
        yield Fine(f"vm.overcommit_memory {facts.memory.overcommit}")


@check("slurm", "software", "limits")
def slurm(facts: Facts, request: Asked) -> Iterator[Outcome]:
    """Compares Slurm's variables with what is there. Error when fewer nodes joined Ray than were allocated;
    warning when the step has fewer cores than the task (srun has not passed on --cpus-per-task since Slurm
    22.05), or when the job ends within the hour."""
    assert facts.software is not None and facts.limits is not None
    variables = facts.software.variables
    if "SLURM_JOB_ID" not in variables:
        yield Fine("not in a Slurm job")
        return
    nodes = _number(variables.get("SLURM_JOB_NUM_NODES") or variables.get("SLURM_NNODES"))
    problems: list[Outcome] = list(_slurm_problems(variables, facts.limits.cpus_allowed, nodes, request))
    yield from problems or [Fine(f"job {variables['SLURM_JOB_ID']}, {nodes or 1} nodes")]


def _slurm_problems(variables: dict[str, str], cpus_allowed: int, nodes: int, request: Asked) -> Iterator[Problem]:
    """Yield where less is here than Slurm allocated. `nodes`: of the allocation; 0 where it is not known."""
    cpus, ends = _number(variables.get("SLURM_CPUS_PER_TASK")), _number(variables.get("SLURM_JOB_END_TIME"))
    if request.joined and nodes and request.nodes < nodes:
        yield Problem(
            "error",
            "fewer nodes joined the Ray cluster than Slurm allocated",
            f"{request.nodes} of {nodes}",
            "the placement group waits for the missing ones for ever",
            "srun --overlap -N1 -w NODE ray start --address HEAD:6379 --block",
        )
    if cpus and cpus > cpus_allowed:
        yield Problem(
            "warning",
            "this step is bound to fewer cores than the task was given",
            f"{cpus_allowed} of {cpus}",
            "srun does not pass --cpus-per-task on: raylets started by it see one core",
            "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK   # before srun",
        )
    remaining_s = ends - time.time() if ends else None
    if remaining_s is not None and remaining_s < 3600:
        yield Problem(
            "warning",
            "the Slurm job ends soon",
            f"{duration(max(0.0, remaining_s))} left",
            "Slurm ends the run in the middle of a step",
            "scontrol update JobId=$SLURM_JOB_ID TimeLimit=…",
        )


def _number(text: str | None) -> int:
    return int(text) if text and text.isdigit() else 0


def _limit_text(value: int | None) -> str:
    return "unlimited" if value is None else f"{value:,}"
