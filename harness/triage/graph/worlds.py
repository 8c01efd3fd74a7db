"""Which processes share one numbering of ranks: those of one launch, or of one engine's own world."""

from __future__ import annotations

from harness.triage.evidence import NO_PROCESS, Process

MEETING = ("MASTER_ADDR", "MASTER_PORT")  # variables that say where the ranks of a world meet
LOCAL_ADDRESSES = ("localhost", "127.0.0.1", "::1")


def same_world(process: Process, peer: Process) -> bool:
    """Whether two processes have met at one address. If either address is unknown: whether engine and world size are
    equal.

    Two processes of which only a dump is known are ranks of one job.
    """
    if process is NO_PROCESS or peer is NO_PROCESS:
        return process is peer
    mine, its = met_at(process), met_at(peer)
    is_compatible = process.engine == peer.engine or process.world_size == peer.world_size
    return mine == its and is_compatible if mine and its else same_kind(process, peer)


def world(process: Process) -> tuple[object, ...]:
    """What `same_world` and `same_kind` ask of a process: two of an equal world have the same peers."""
    return () if process is NO_PROCESS else (met_at(process), process.engine, process.world_size)


def same_kind(process: Process, peer: Process) -> bool:
    """Whether two processes are of the same engine, and of the same world size as far as it is known."""
    if process is NO_PROCESS or peer is NO_PROCESS:
        return False
    sizes = {process.world_size, peer.world_size} - {None}
    return process.engine == peer.engine and len(sizes) < 2


def met_at(process: Process) -> tuple[str, ...]:
    """The address at which the ranks of this process meet; empty if it was started without one."""
    address, port = (process.environ.get(name, "") for name in MEETING)
    return (process.host if address in LOCAL_ADDRESSES else address, port) if port else ()
