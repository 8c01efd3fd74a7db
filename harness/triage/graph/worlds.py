"""Which processes number their ranks alike: those of one launch, or of one engine's own world."""

from __future__ import annotations

from harness.triage.evidence import Process


def same_world(process: Process | None, peer: Process | None) -> bool:
    """Whether two met at one address; where either's is unknown, whether they are of one engine and one size.

    None is a process of which only a dump is known: two such are ranks of one job.
    """
    if process is None or peer is None:
        return process is peer
    mine, its = met_at(process), met_at(peer)
    is_compatible = process.engine == peer.engine or process.world_size == peer.world_size
    return mine == its and is_compatible if mine and its else same_kind(process, peer)


def same_kind(process: Process | None, peer: Process | None) -> bool:
    """Whether two are of one engine, and of one size as far as is known."""
    if process is None or peer is None:
        return False
    sizes = {process.world_size, peer.world_size} - {None}
    return process.engine == peer.engine and len(sizes) < 2


def met_at(process: Process) -> tuple[str, ...]:
    """Where its ranks meet, empty where it was not started with an address."""
    address, port = process.environ.get("MASTER_ADDR", ""), process.environ.get("MASTER_PORT", "")
    local = address in ("localhost", "127.0.0.1", "::1")
    return (process.host if local else address, port) if port else ()
