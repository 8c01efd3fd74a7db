"""Every check, in the order of the report. A new one is a function of facts, and a line here."""

from harness.doctor.checks import cluster, graphics, network, processes, recorder, software, storage, system
from harness.doctor.outcome import Check, Comparison

CHECKS: tuple[Check, ...] = (
    Check("ptrace", ("tracing",), system.ptrace),
    Check("file-limit", ("limits",), system.file_limit),
    Check("task-limit", ("limits",), system.task_limit),
    Check("memlock", ("limits", "network"), system.memlock),
    Check("map-count", ("limits",), system.map_count, host=True),
    Check("cores", ("limits",), system.cores, host=True),
    Check("memory", ("memory",), system.memory, host=True),
    Check("overcommit", ("memory",), system.overcommit, host=True),
    Check("slurm", ("software", "limits"), system.slurm),
    Check("shared-memory", ("shm", "memory"), storage.shared_memory, host=True),
    Check("stale-segments", ("shm",), storage.stale_segments, host=True),
    Check("disk-space", ("storage",), storage.space, host=True),
    Check("inodes", ("storage",), storage.inodes, host=True),
    Check("ray-directory", ("storage",), storage.ray_directory, host=True),
    Check("old-sessions", ("storage",), storage.old_sessions, host=True),
    Check("hostname", ("network", "software"), network.hostname, host=True),
    Check("interfaces", ("network", "software"), network.interfaces),
    Check("infiniband", ("network", "software"), network.infiniband, host=True),
    Check("ports", ("network", "software"), network.ports, host=True),
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
    Check("gpu-driver", ("gpus", "software"), graphics.driver, host=True),
    Check("gpu-kinds", ("gpus",), graphics.kinds, host=True),
    Check("gpu-memory", ("gpus",), graphics.held, host=True),
    Check("gpu-errors", ("gpus",), graphics.errors, host=True),
    Check("visible-devices", ("software", "gpus"), graphics.visible),
    Check("amd-variables", ("software", "gpus"), graphics.amd),
    Check("allocator", ("software",), graphics.allocator),
    Check("leftover-engines", ("processes",), processes.engines, host=True),
    Check("leftover-ray", ("processes",), processes.ray, host=True),
)  # fmt: skip

COMPARISONS: tuple[Comparison, ...] = (
    Comparison("worker-libraries", ("software",), cluster.libraries),
    Comparison("worker-variables", ("software",), cluster.variables),
    Comparison("packages", ("software",), cluster.packages),
    Comparison("gpus-alike", ("gpus",), cluster.gpus),
    Comparison("clocks", (), cluster.clocks),
    Comparison("nodes", (), cluster.nodes),
)
