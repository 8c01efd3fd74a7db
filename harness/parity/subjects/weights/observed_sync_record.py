"""The record of the weight syncs of one side, which `observed_sync` fills from a recording."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from harness.parity.facts.plain import frozen, plain

# An engine is attributed to one of two versions when it is this many times nearer to it, on average. Rounding moves an
# engine away from both alike: it would have to follow the update to imitate this.
NEARER = 2.0


@dataclass(frozen=True)
class SyncRecord:
    """The findings on the weight syncs of one side."""

    versions: tuple[int, ...] = ()  # those with a sync event
    unproven: tuple[int, ...] = ()  # versions without a proof
    by_samples: tuple[int, ...] = ()  # proven by the samples drawn with them (frameworks)
    unused: tuple[int, ...] = ()  # not proven, and no sample was drawn with them (frameworks)
    without_digests: tuple[int, ...] = ()  # the engine did not report what it received
    partly: Mapping[int, str] = field(default_factory=dict)  # version -> how many tensors were not reported as received
    manifest: frozenset[str] = frozenset()  # names of the learner's tensors, where the recording has them
    unlisted: tuple[str, ...] = ()  # sent, but not in the manifest, which is therefore incomplete
    undigested: tuple[int, ...] = ()  # the learner did not report what it sent
    unsynced: tuple[int, ...] = ()  # samples were drawn with them, but there is no sync event
    unchanged: bool = False  # there are several versions, and all have the learner's digests of the first
    largest_proof: float = 0.0
    tensors: int | None = None  # tensors that arrived as the learner's, in the sync with the fewest
    stale: Mapping[str, int] = field(default_factory=dict)  # tensor -> the first version of it that the engine lacks
    altered: Mapping[str, int] = field(default_factory=dict)  # tensor -> the first version that arrived altered
    absent: Mapping[str, int] = field(default_factory=dict)  # tensor -> the first version that left it out
    # The same tensors with every version for which this holds: a later sync may have fixed it.
    stale_versions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    altered_versions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    absent_versions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    # Tensor -> version -> workers that did not load what arrived, in words ("" for the only worker). `kept`: workers
    # that kept their part of the sync before. `misloaded`: workers that hold something else.
    kept: Mapping[str, Mapping[int, tuple[str, ...]]] = field(default_factory=dict)
    misloaded: Mapping[str, Mapping[int, tuple[str, ...]]] = field(default_factory=dict)
    loaded: int | None = None  # tensors that were read back after the load, in the sync with the fewest
    names: frozenset[str] = frozenset()  # every tensor that the learner had to send
    learner: Mapping[int, Mapping[str, str]] = field(default_factory=dict)  # version -> tensor -> the learner's digest
    # Version -> largest |Δ| of a proof that failed, nats.
    proof_beyond: Mapping[int, float] = field(default_factory=dict)
    # In float32: version -> mean distance of the engine from the learner's weights, and from those before, in nats.
    distances: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    still: frozenset[int] = frozenset()  # those of `distances` whose sync left the engine as it was
    # Version -> number of the furthest engine, or None.
    furthest: Mapping[int, int | None] = field(default_factory=dict)

    def facts(self) -> dict[str, Any]:
        """Return the details for a verdict."""
        return {name: plain(value) for name, value in vars(self).items()}

    @property
    def behind(self) -> list[int]:
        """Return the versions for which the engine computes with the weights of the version before."""
        return [version for version, (now, before) in self.distances.items() if NEARER * before < now]

    def older(self, allowed: float) -> dict[int, int | None]:
        """Return version -> the older version that the engine uses instead; None where that version is unknown.

        `allowed`: the largest distance of equal weights, nats.
        """
        used_versions: dict[int, int | None] = {}
        for before, version in pairwise(sorted(self.versions)):
            now, then = self.distances.get(version, (0.0, 0.0))
            if version in self.behind and then <= allowed:
                used_versions[version] = before
            elif not now <= allowed:
                stays = version in self.still and self.furthest.get(before) == self.furthest[version]
                used_versions[version] = used_versions.get(before) if stays else None
        return used_versions

    @property
    def untold(self) -> list[int]:
        """Return the versions for which the engine is not clearly nearer to the version than to the one before."""
        return [version for version, (now, before) in self.distances.items() if not NEARER * now < before]


@dataclass
class SyncNotes:
    """The findings on the weight syncs of one side while they are read. `SyncRecord` describes the fields."""

    versions: list[int] = field(default_factory=list)
    unproven: list[int] = field(default_factory=list)
    by_samples: list[int] = field(default_factory=list)
    unused: list[int] = field(default_factory=list)
    without_digests: list[int] = field(default_factory=list)
    partly: dict[int, str] = field(default_factory=dict)
    manifest: set[str] = field(default_factory=set)
    unlisted: list[str] = field(default_factory=list)
    undigested: list[int] = field(default_factory=list)
    unsynced: list[int] = field(default_factory=list)
    unchanged: bool = False
    largest_proof: float = 0.0
    tensors: int | None = None
    stale: dict[str, int] = field(default_factory=dict)
    altered: dict[str, int] = field(default_factory=dict)
    absent: dict[str, int] = field(default_factory=dict)
    stale_versions: dict[str, list[int]] = field(default_factory=dict)
    altered_versions: dict[str, list[int]] = field(default_factory=dict)
    absent_versions: dict[str, list[int]] = field(default_factory=dict)
    kept: dict[str, dict[int, list[str]]] = field(default_factory=dict)
    misloaded: dict[str, dict[int, list[str]]] = field(default_factory=dict)
    loaded: int | None = None
    names: set[str] = field(default_factory=set)
    learner: dict[int, dict[str, str]] = field(default_factory=dict)
    proof_beyond: dict[int, float] = field(default_factory=dict)
    distances: dict[int, tuple[float, float]] = field(default_factory=dict)
    still: set[int] = field(default_factory=set)
    furthest: dict[int, int | None] = field(default_factory=dict)

    def record(self) -> SyncRecord:
        """Return what all syncs show, read-only."""
        return SyncRecord(**{name: frozen(value) for name, value in vars(self).items()})
