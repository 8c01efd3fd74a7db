"""What was measured of one node, before anything is judged: the sections of `gather`, rebuilt from what it returned.

Sizes are bytes; ages and durations are seconds. A section that could not be gathered is None, and `gaps` says why.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from harness.doctor.gather.builds import Builds
from harness.doctor.gather.graphics import Gpus
from harness.doctor.gather.limits import Limits, Memory
from harness.doctor.gather.network import Network
from harness.doctor.gather.processes import Processes
from harness.doctor.gather.software import Imports, Software
from harness.doctor.gather.storage import SharedMemory, Storage
from harness.doctor.gather.tracing import Tracing
from reports import codec


@dataclass(frozen=True)
class Facts:
    """All facts of one place: the shell of the user, or a worker on a node of the cluster."""

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
    skew_s: float | None = None  # seconds that the node's clock is ahead of ours
    skew_error_s: float = 0.0  # error bound of that, half the round trip
    same_host: bool = True  # the place is on the shell's host

    @property
    def variables(self) -> dict[str, str]:
        """Return the environment variables, for checks that need the section `software`."""
        assert self.software is not None
        return self.software.variables

    @staticmethod
    def from_dict(data: dict[str, Any], **more: Any) -> Facts:
        """Rebuild from `gather.node()`. Raises ValueError with one sentence for an unknown key or a wrong type."""
        return codec.convert({**data, **more}, Facts)
