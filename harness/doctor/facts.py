"""What was measured of one node, before anybody judges it: plain frozen data, rebuilt from what `gather` returned.

Sizes are bytes, ages and durations seconds. A section that could not be gathered is None, and `gaps` says why.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from reports import codec


@dataclass(frozen=True)
class Tracing:
    """Whether one process may read another's stack. `attempt`: what py-spy did to a child of ours."""

    uid: int = 0
    ptrace: bool = True  # CAP_SYS_PTRACE is effective
    scope: int | None = None  # kernel.yama.ptrace_scope; None where the kernel has no Yama
    seccomp: int = 0  # 0 none, 2 a filter, as containers have
    attempt: str = "allowed"  # allowed, only nonblocking, denied, absent, failed
    detail: str = ""


@dataclass(frozen=True)
class Limits:
    """None is unlimited, or not told by this kernel."""

    files_soft: int | None = None
    files_hard: int | None = None
    processes: int | None = None  # ulimit -u, which counts threads
    memlock: int | None = None
    map_count: int | None = None
    tasks_max: int | None = None  # pids.max of the cgroup
    tasks_now: int | None = None
    cpus: int = 1  # of the host
    cpus_allowed: int = 1  # by affinity
    cpu_quota: float | None = None  # by cgroup, in cores


@dataclass(frozen=True)
class Memory:
    total: int
    available: int
    limit: int | None = None  # of the cgroup, where it is below the host's total
    used: int | None = None  # of the cgroup, without page cache that can be dropped
    overcommit: int = 0  # vm.overcommit_memory


@dataclass(frozen=True)
class Segment:
    """A file in shared memory that no living process has mapped or open."""

    name: str
    size: int
    age_s: float


@dataclass(frozen=True)
class SharedMemory:
    total: int
    free: int
    stale: tuple[Segment, ...] = ()
    unreadable: int = 0  # of our processes, how many could not be asked what they have mapped


@dataclass(frozen=True)
class Place:
    """A directory that a run writes to. `existing`: the nearest parent that is there; sizes are of its file system."""

    purpose: str
    path: str
    existing: str
    device: int
    total: int
    free: int
    inodes: int = 0  # 0: the file system has none to count
    inodes_free: int = 0
    writable: bool = True


@dataclass(frozen=True)
class Storage:
    places: tuple[Place, ...]
    ray: str = "/tmp/ray"
    root_device: int = 0
    sessions: int = 0  # Ray sessions of earlier runs whose processes are gone
    sessions_size: int = 0
    sessions_partial: bool = False  # there were too many files to count


@dataclass(frozen=True)
class Lock:
    """A lock file of a build of torch's extensions. `holder`: a process that has it open, 0 where none is known."""

    path: str
    age_s: float
    holder: int = 0


@dataclass(frozen=True)
class Builds:
    folder: str
    locks: tuple[Lock, ...] = ()
    unreadable: int = 0  # processes that could not be asked what they have open
    remote: bool = False  # a file system of the network: a holder may be on another machine


@dataclass(frozen=True)
class Interface:
    name: str
    up: bool
    loopback: bool
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True)
class Listener:
    port: int
    address: str
    pid: int = 0  # 0: another user's, or in another container
    command: str = ""


@dataclass(frozen=True)
class Network:
    hostname: str
    interfaces: tuple[Interface, ...] = ()
    infiniband: tuple[str, ...] = ()
    resolved: tuple[str, ...] = ()  # addresses of the host's own name
    resolve_error: str = ""
    resolve_s: float = 0.0
    listening: tuple[Listener, ...] = ()
    ephemeral: tuple[int, int] = (32768, 60999)
    ray_address_open: bool | None = None  # whether something listens at $RAY_ADDRESS; None: it is not set
    ray_remembered: str = ""  # address of the last `ray start`, which ray.init() without an address takes
    ray_remembered_file: str = ""
    ray_remembered_open: bool | None = None


@dataclass(frozen=True)
class Leftover:
    """A process of Ray or of an engine. `orphan`: whoever started it has ended."""

    pid: int
    title: str
    kind: str  # ray, engine
    age_s: float
    orphan: bool
    mine: bool = True  # same user as the doctor
    zombie: bool = False
    gpu: int = 0  # bytes of GPU memory that it holds


@dataclass(frozen=True)
class Processes:
    found: tuple[Leftover, ...] = ()
    shell_age_s: float = 0.0


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
    variables: dict[str, str] = field(default_factory=dict)  # whitelisted names only, none that sounds like a secret
    proxies: tuple[str, ...] = ()  # names of the proxy variables that are set; their values may hold passwords
    no_proxy: tuple[str, ...] = ()
    in_front: tuple[tuple[str, str], ...] = ()  # (library, path) that LD_LIBRARY_PATH puts before the packages' own
    own: dict[str, str] = field(default_factory=dict)  # library -> path below this interpreter's packages
    torch_cuda: str = ""  # CUDA version that torch was built for
    writable: dict[str, bool] = field(default_factory=dict)  # variable that names a file prefix -> can it be written


@dataclass(frozen=True)
class Imports:
    """What happened when compiled packages were imported in a process of their own."""

    tried: tuple[Import, ...] = ()
    foreign: tuple[tuple[str, str], ...] = ()  # (library, path) that they loaded in place of the interpreter's own


@dataclass(frozen=True)
class Gpu:
    index: int
    name: str
    driver: str
    used: int
    total: int
    mig: bool = False
    uncorrected: int = 0  # ECC errors since the driver was loaded
    holders: tuple[tuple[int, str], ...] = ()  # (pid, command) of the processes that hold memory


@dataclass(frozen=True)
class Gpus:
    found: tuple[Gpu, ...] = ()
    amd: int = 0  # AMD GPUs that the kernel knows
    error: str = ""  # why the driver could not be asked, where there is one


@dataclass(frozen=True)
class Facts:
    """Everything of one place: the shell that asks, or a worker on a node of the cluster."""

    where: str
    shell: bool = True
    tracing: Tracing | None = None
    limits: Limits | None = None
    memory: Memory | None = None
    shm: SharedMemory | None = None
    storage: Storage | None = None
    builds: Builds | None = None
    network: Network | None = None
    processes: Processes | None = None
    software: Software | None = None
    imports: Imports | None = None
    gpus: Gpus | None = None
    gaps: dict[str, str] = field(default_factory=dict)  # section -> why it is missing
    skew_s: float | None = None  # clock of the node against ours
    skew_error_s: float = 0.0  # how far off that may be: half the round trip
    same_host: bool = True  # as the shell

    @staticmethod
    def from_dict(data: dict[str, Any], **more: Any) -> Facts:
        """Rebuild from `gather.node()`; ValueError, one sentence, on a key that no field has or another type."""
        return codec.convert({**data, **more}, Facts)
