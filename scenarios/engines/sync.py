"""Weight sync from the learner to engines: a separate process group, one broadcast per tensor, a sender that can be
stopped.

A receiver that refuses (SGLang without `begin_weight_update`, vLLM's `load_weights` on a CPU) leaves the sender of a
plain broadcast blocked until its timeout, and the reason in a return value that nobody reads. Here the sender polls
an abort flag in small steps, so a refusal ends both sides at once. `c10d`'s own abort does not help: measured with
torch 2.13, gloo's `abort()` leaves a pending broadcast pending, and dropping the group blocks until the timeout. So
an aborted group is kept, unused, until the process ends.
"""

from __future__ import annotations

import datetime
import socket
import threading
import time
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist

from probes import collectives, install
from probes.weights import digest
from scenarios.engines.engine_interface import EngineError, SyncGroup, WeightMeta

CONNECT_TIMEOUT = datetime.timedelta(seconds=60)
_abandoned: list[Any] = []


class SyncAborted(EngineError):
    """The other side refused the sync. The message is the other side's."""


def describe(named: Iterable[tuple[str, torch.Tensor]]) -> list[WeightMeta]:
    """Return name, shape, dtype and digest of each tensor, in the order in which they will be sent."""
    return [
        WeightMeta(name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), digest(tensor.detach()))
        for name, tensor in named
    ]


def process_group(store: dist.Store, group: SyncGroup, rank: int) -> Any:
    """Return a bare c10d backend for `group`, outside torch's registry, so that no default group is needed.

    The prefixes of the store are those of torch's `_new_process_group_helper` under SGLang's
    `init_custom_process_group`, so that all three engines meet in one rendezvous.
    """
    device = "cuda" if group.backend == "nccl" else "cpu"
    prefixed = dist.PrefixStore(f"{device}/", dist.PrefixStore(f"{group.name}/", dist.PrefixStore(group.name, store)))
    if group.backend == "nccl":
        return dist.ProcessGroupNCCL(prefixed, rank, group.world_size, dist.ProcessGroupNCCL.Options())
    return dist.ProcessGroupGloo(prefixed, rank, group.world_size, timeout=CONNECT_TIMEOUT)


def join(group: SyncGroup, rank: int) -> Any:
    """Join as a receiver. Blocks until every member has joined, at most `CONNECT_TIMEOUT`."""
    store = dist.TCPStore(group.address, group.port, group.world_size, is_master=False, timeout=CONNECT_TIMEOUT)
    return process_group(store, group, rank)


def broadcast(backend: Any, tensor: torch.Tensor) -> Any:
    """Start one broadcast from rank 0, and return the pending work."""
    options = dist.BroadcastOptions()
    options.rootRank, options.rootTensor = 0, 0
    return backend.broadcast([tensor], options)


def receive(backend: Any, weights: list[WeightMeta], device: torch.device) -> Iterable[tuple[str, torch.Tensor]]:
    """Yield each tensor as its broadcast arrives, in the sender's order."""
    for meta in weights:
        tensor = torch.empty(meta.shape, dtype=getattr(torch, meta.dtype), device=device)
        broadcast(backend, tensor).wait()
        yield meta.name, tensor


class WeightSender:
    """Rank 0 of a sync group, inside the learner. One group serves many syncs, until one of them is aborted."""

    def __init__(self) -> None:
        self._backend: Any = None
        self._group: SyncGroup | None = None
        self._store: dist.TCPStore | None = None
        self._aborted = threading.Event()

    def open(self, world_size: int, backend: str, name: str) -> SyncGroup:
        """Start the rendezvous store, and return where it is. `world_size` counts the learner and every engine
        worker.
        """
        self._aborted.clear()
        address = _own_address()
        # The store listens on that address only; on a single machine it is the loopback.
        self._store = dist.TCPStore(
            address, 0, world_size, is_master=True, wait_for_workers=False, timeout=CONNECT_TIMEOUT
        )
        self._group = SyncGroup(address, self._store.port, world_size, 1, name, backend)
        return self._group

    def connect(self) -> None:
        """Wait for the engines. Raises EngineError when one does not come."""
        assert self._store is not None and self._group is not None, "open() first"
        try:
            self._backend = process_group(self._store, self._group, 0)
        except RuntimeError as error:
            raise EngineError(
                f"weight sync group {self._group.name!r} did not form within {CONNECT_TIMEOUT}: {error}"
            ) from error
        size = self._group.world_size
        for recorder in install.live():  # torch does not register such a group, and its flight recorder names it ""
            collectives.record_group(
                recorder, name=self._group.name, backend=self._group.backend, rank=0, world_size=size,
                members=range(size), torch_name="",
            )  # fmt: skip

    def send(self, named: Iterable[tuple[str, torch.Tensor]]) -> float:
        """Broadcast every tensor, and return the seconds it took.

        Raises SyncAborted as soon as another thread calls `abort`.
        """
        if self._backend is None:
            raise EngineError("the weight sync group is not connected")
        started = time.perf_counter()
        for name, tensor in named:
            work = broadcast(self._backend, tensor.detach().contiguous())
            pause = 0.0
            while not work.is_completed():
                if self._aborted.is_set():
                    # Keep the pending broadcast alive: dropping it would block until the timeout.
                    _abandoned.append((self._backend, work, self._store))
                    self._backend = None
                    raise SyncAborted(f"weight sync was stopped at tensor {name!r}: the receiver refused or died")
                time.sleep(pause)
                pause = min(0.002, pause + 0.0001)
            work.wait()
        return time.perf_counter() - started

    def abort(self) -> None:
        self._aborted.set()


def _own_address() -> str:
    """Return the address at which the cluster reaches this process: Ray's node address inside Ray, else the
    loopback.
    """
    try:
        import ray

        if ray.is_initialized():
            return str(ray.util.get_node_ip_address())
    except ImportError:
        pass
    return socket.gethostbyname("localhost")
