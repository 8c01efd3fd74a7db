"""What the weight syncs of one side showed; `weightsync` reads it from a recording."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

# So many times nearer, on average, to one version of the learner's weights than to the other. Rounding that no update
# knows of moves an engine from the one as far as from the other: it would have to follow the update to feign this.
NEARER = 2.0


@dataclass
class SyncRecord:
    """What one side's syncs showed."""

    versions: list[int] = field(default_factory=list)  # those with a sync event
    unproven: list[int] = field(default_factory=list)  # without a proof
    by_samples: list[int] = field(default_factory=list)  # proven by what was drawn, in a framework's job
    unused: list[int] = field(default_factory=list)  # not proven, and nothing was drawn with them, in a framework's job
    without_digests: list[int] = field(default_factory=list)  # the engine did not say what it received
    partly: dict[int, str] = field(default_factory=dict)  # version -> how many tensors nobody says to have arrived
    manifest: set[str] = field(default_factory=set)  # names of the learner's tensors, where the recording has them
    unlisted: list[str] = field(default_factory=list)  # sent, but not in the manifest: it is no whole one
    undigested: list[int] = field(default_factory=list)  # the learner did not say what it sent
    unsynced: list[int] = field(default_factory=list)  # rolled out, but no sync event
    unchanged: bool = False  # of several versions each has the learner's digests of the first
    largest_proof: float = 0.0
    tensors: int | None = None  # that arrived as the learner's, in the sync with the fewest
    stale: dict[str, int] = field(default_factory=dict)  # tensor -> the first version that the engine lacked
    altered: dict[str, int] = field(default_factory=dict)  # tensor -> the first version that arrived as something else
    absent: dict[str, int] = field(default_factory=dict)  # tensor -> the first version that left it out
    # The same tensors with every version of which that is true: a later sync may have fixed it.
    stale_versions: dict[str, list[int]] = field(default_factory=dict)
    altered_versions: dict[str, list[int]] = field(default_factory=dict)
    absent_versions: dict[str, list[int]] = field(default_factory=dict)
    # Tensor -> version -> workers that did not load what arrived, in words ("" for an only one): those that kept their
    # part of the sync before, and those that hold something else.
    kept: dict[str, dict[int, list[str]]] = field(default_factory=dict)
    misloaded: dict[str, dict[int, list[str]]] = field(default_factory=dict)
    loaded: int | None = None  # tensors that were read back after the load, in the sync with the fewest
    names: set[str] = field(default_factory=set)  # every tensor that the learner had to send
    learner: dict[int, dict[str, str]] = field(default_factory=dict)  # version -> tensor -> the learner's digest
    proof_beyond: dict[int, float] = field(default_factory=dict)  # version -> proof beyond the tolerance
    # In float32: version -> mean distance of the engine from the learner's weights, and from those before; nats.
    distances: dict[int, tuple[float, float]] = field(default_factory=dict)
    still: set[int] = field(default_factory=set)  # of these, syncs that did not change what the engine computes
    furthest: dict[int, int | None] = field(
        default_factory=dict
    )  # the number of the engine that they are about, or None

    @property
    def behind(self) -> list[int]:
        """Versions of which the engine computes with the one before."""
        return [version for version, (now, before) in self.distances.items() if NEARER * before < now]

    def older(self, allowed: float) -> dict[int, int | None]:
        """Version -> the older one that the engine computes with instead; None where it is an unknown one. `allowed`:
        the distance of equal weights."""
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
        """Versions that the engine is not clearly nearer to than to the one before."""
        return [version for version, (now, before) in self.distances.items() if not NEARER * now < before]
