"""Every check, in the order of the report. A new one is a function of facts, and a line here."""

from harness.doctor.checks import cluster, graphics, network, processes, recorder, software, storage, system
from harness.doctor.outcome import Check, Comparison

CHECKS: tuple[Check, ...] = (
    Check("ptrace", ("tracing",), system.ptrace),
    Check("file-limit", ("limits",), system.file_limit),
    Check("task-limit", ("limits",), system.task_limit),
    Check("memlock", ("limits", "network"), system.memlock),
    Check("map-count", ("limits",), system.map_count),
    Check("cores", ("limits",), system.cores),
    Check("memory", ("memory",), system.memory),
    Check("overcommit", ("memory",), system.overcommit),
    Check("slurm", ("software", "limits"), system.slurm),
    Check("shared-memory", ("shm", "memory"), storage.shared_memory),
    Check("stale-segments", ("shm",), storage.stale_segments),
    Check("disk-space", ("storage",), storage.space),
    Check("inodes", ("storage",), storage.inodes),
    Check("ray-directory", ("storage",), storage.ray_directory),
    Check("old-sessions", ("storage",), storage.old_sessions),
    Check("hostname", ("network", "software"), network.hostname),
    Check("interfaces", ("network", "software"), network.interfaces),
    Check("infiniband", ("network", "software"), network.infiniband),
    Check("ports", ("network", "software"), network.ports),
    Check("ray-address", ("network", "software"), network.ray_address),
    Check("proxy", ("software",), network.proxy),
    Check("nccl-settings", ("software", "gpus"), recorder.nccl_settings),
    Check("nccl-cumem", ("software", "gpus"), recorder.nccl_cumem),
    Check("flight-recorder", ("software",), recorder.flight_recorder),
    Check("dump-files", ("software",), recorder.dump_files),
    Check("timeouts", ("software",), recorder.timeouts),
    Check("debuggers", ("software",), recorder.debuggers),
    Check("libraries", ("software",), software.libraries),
    Check("imports", ("imports",), software.imports),
    Check("gpu-driver", ("gpus", "software"), graphics.driver),
    Check("gpu-kinds", ("gpus",), graphics.kinds),
    Check("gpu-memory", ("gpus",), graphics.held),
    Check("gpu-errors", ("gpus",), graphics.errors),
    Check("visible-devices", ("software", "gpus"), graphics.visible),
    Check("amd-variables", ("software", "gpus"), graphics.amd),
    Check("allocator", ("software",), graphics.allocator),
    Check("leftover-engines", ("processes",), processes.engines),
    Check("leftover-ray", ("processes",), processes.ray),
)  # fmt: skip

COMPARISONS: tuple[Comparison, ...] = (
    Comparison("worker-libraries", ("software",), cluster.libraries),
    Comparison("worker-variables", ("software",), cluster.variables),
    Comparison("packages", ("software",), cluster.packages),
    Comparison("gpus-alike", ("gpus",), cluster.gpus),
    Comparison("clocks", (), cluster.clocks),
    Comparison("nodes", (), cluster.nodes),
)
