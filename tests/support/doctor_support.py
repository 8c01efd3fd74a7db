"""A healthy node in numbers, from which each test changes the one thing that it plants."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from harness.doctor.checks import CHECKS, COMPARISONS
from harness.doctor.facts import Facts
from harness.doctor.gather.builds import Builds
from harness.doctor.gather.graphics import Gpu, Gpus
from harness.doctor.gather.limits import Limits, Memory
from harness.doctor.gather.network import Interface, Network
from harness.doctor.gather.processes import Processes
from harness.doctor.gather.software import Imports, Software
from harness.doctor.gather.storage import Place, SharedMemory, Storage
from harness.doctor.gather.tracing import Tracing
from harness.doctor.outcome import Asked, Fine, Problem, Unseen

GIB = 1 << 30
_SET = {"NCCL_CUMEM_ENABLE": "0"}


def gpu(**changes: Any) -> Gpu:
    healthy = Gpu(index=0, name="NVIDIA H100 80GB HBM3", driver="580.82.07", used=0, total=80 * GIB)
    return dataclasses.replace(healthy, **changes)


def place(**changes: Any) -> Place:
    healthy = Place(
        "Ray's logs and spilled objects", "/data/ray", "/data/ray", 2, 1000 * GIB, 900 * GIB, 10**7, 9 * 10**6
    )
    return dataclasses.replace(healthy, **changes)


def healthy(**sections: Any) -> Facts:
    """A node that nothing is wrong with; each section may be replaced, or changed by a dictionary of its fields."""
    node = Facts(
        where="this shell",
        tracing=Tracing(),
        limits=Limits(65_536, 1_048_576, 1_000_000, None, 262_144, None, None, 64, 64, None),
        memory=Memory(512 * GIB, 480 * GIB),
        shm=SharedMemory(256 * GIB, 256 * GIB),
        storage=Storage((place(),), "/data/ray", root_device=1),
        builds=Builds("/home/me/.cache/torch_extensions"),
        network=Network(
            "node-0",
            (Interface("lo", True, True, ("127.0.0.1",)), Interface("eth0", True, False, ("10.0.0.1",))),
            resolved=("10.0.0.1",),
        ),
        processes=Processes(),
        software=Software(
            "3.11.7", "/env/bin/python", {"torch": "2.13.0", "ray": "2.60.0"}, variables=_SET,
            torch_cuda="13.0",
            own={"libc10.so": "/env/torch/lib/libc10.so", "libnccl.so.2": "/env/nvidia/nccl/lib/libnccl.so.2"},
        ),
        imports=Imports(),
        gpus=Gpus((gpu(),)),
    )  # fmt: skip
    for name, changed in sections.items():
        before = getattr(node, name)
        value = dataclasses.replace(before, **changed) if isinstance(changed, dict) and before is not None else changed
        node = dataclasses.replace(node, **{name: value})
    return node


def given(**variables: str) -> dict[str, Any]:
    """The section `software` with these variables set."""
    return {"variables": {**_SET, **variables}}


def outcomes(name: str, node: Facts, **asked: Any) -> list[Problem | Fine | Unseen]:
    check = next(item for item in CHECKS if item.name == name)
    return list(check.look(node, Asked(**asked)))


def problems(name: str, node: Facts, **asked: Any) -> list[Problem]:
    return [item for item in outcomes(name, node, **asked) if isinstance(item, Problem)]


def compared(name: str, *nodes: Facts, **asked: Any) -> list[tuple[str, Problem | Fine | Unseen]]:
    comparison = next(item for item in COMPARISONS if item.name == name)
    return list(comparison.look(nodes, Asked(nodes=max(1, len(nodes) - 1), **asked)))


def worker(name: str = "worker on node-1", **sections: Any) -> Facts:
    return dataclasses.replace(healthy(**sections), where=name, shell=False, same_host=False)


def every_name() -> Iterator[str]:
    yield from (check.name for check in CHECKS)
    yield from (comparison.name for comparison in COMPARISONS)
