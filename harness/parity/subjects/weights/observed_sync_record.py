"""The record of the weight syncs of one side, which `observed_sync` fills from a recording."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

# An engine is attributed to one of two versions when it is this many times nearer to it, on average. Rounding moves an
# engine away from both alike: it would have to follow the update to imitate this.
NEARER = 2.0


@dataclass
class SyncRecord:
    """The findings on the weight syncs of one side."""

    versions: list[int] = field(default_factory=list)  # those with a sync event
    unproven: list[int] = field(default_factory=list)  # versions without a proof
    by_samples: list[int] = field(default_factory=list)  # proven by the samples drawn with them (frameworks)
    unused: list[int] = field(default_factory=list)  # not proven, and no sample was drawn with them (frameworks)
    without_digests: list[int] = field(default_factory=list)  # the engine did not report what it received
    partly: dict[int, str] = field(default_factory=dict)  # version -> how many tensors were not reported as received
    manifest: set[str] = field(default_factory=set)  # names of the learner's tensors, where the recording has them
    unlisted: list[str] = field(default_factory=list)  # sent, but not in the manifest, which is therefore incomplete
    undigested: list[int] = field(default_factory=list)  # the learner did not report what it sent
    unsynced: list[int] = field(default_factory=list)  # samples were drawn with them, but there is no sync event
    unchanged: bool = False  # there are several versions, and all have the learner's digests of the first
    largest_proof: float = 0.0
    tensors: int | None = None  # tensors that arrived as the learner's, in the sync with the fewest
    stale: dict[str, int] = field(default_factory=dict)  # tensor -> the first version of it that the engine lacks
    altered: dict[str, int] = field(default_factory=dict)  # tensor -> the first version that arrived altered
    absent: dict[str, int] = field(default_factory=dict)  # tensor -> the first version that left it out
    # The same tensors with every version for which this holds: a later sync may have fixed it.
    stale_versions: dict[str, list[int]] = field(default_factory=dict)
    altered_versions: dict[str, list[int]] = field(default_factory=dict)
    absent_versions: dict[str, list[int]] = field(default_factory=dict)
    # Tensor -> version -> workers that did not load what arrived, in words ("" for the only worker). `kept`: workers
    # that kept their part of the sync before. `misloaded`: workers that hold something else.
    kept: dict[str, dict[int, list[str]]] = field(default_factory=dict)
    misloaded: dict[str, dict[int, list[str]]] = field(default_factory=dict)
    loaded: int | None = None  # tensors that were read back after the load, in the sync with the fewest
    names: set[str] = field(default_factory=set)  # every tensor that the learner had to send
    learner: dict[int, dict[str, str]] = field(default_factory=dict)  # version -> tensor -> the learner's digest
    proof_beyond: dict[int, float] = field(default_factory=dict)  # version -> largest |Δ| of a proof that failed, nats
    # In float32: version -> mean distance of the engine from the learner's weights, and from those before, in nats.
    distances: dict[int, tuple[float, float]] = field(default_factory=dict)
    still: set[int] = field(default_factory=set)  # those of `distances` whose sync left the engine as it was
    furthest: dict[int, int | None] = field(default_factory=dict)  # version -> number of the furthest engine, or None

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
