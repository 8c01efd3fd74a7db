"""Weight sync: whether every tensor was sent, arrived, and is used by the engine.

There are four kinds of evidence for each version: the digests of the received tensors against the learner's, the names
of tensors that were not sent, what each worker holds after the load against what arrived, and the proof. The proof is
the engine's teacher-forced log-probabilities of a fixed sequence against the learner's. Digests prove the transport,
the proof proves the load. The job of a framework has no such proof. There the samples drawn with a version serve as
one, since the learner scored them with the same weights.

In float32 the proof also tells which of two versions the engine computes with, even after an update of 1e-5 nats, where
every other number is within the tolerance. In half precision the samples tell it (`observed_lag`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.parity.facts.divergence import Kind
from harness.parity.facts.evidence_builder import EvidenceBuilder, SideBuilder
from harness.parity.subjects.weights.observed_sync_record import SyncNotes, SyncRecord
from harness.recordings.records.weight_sync import LEARNER, RECEIVED, SyncProof, WeightSync
from probes.format import number, whole
from reports.model import place_of_step
from reports.text import counted, figure, part_of

# An engine that a sync did not change keeps its distance from the learner, up to the noise of its own numbers. The
# proofs of sound engines were 1e-7 nats off on average (measured), which is this share of 1e-4 nats.
UNMOVED = 1e-3
LEAST_PROOF = 32  # tokens; a proof over fewer proves little

Digests = dict[int, dict[str, str]]  # version -> tensor -> digest


def weight_syncs(e: EvidenceBuilder) -> None:
    """Read the syncs of both runs into each side's `sync`, and add the divergences of those that failed."""
    for side in e.sides:
        side.sync = _read(e, side)


@dataclass(frozen=True)
class _Sync:
    """One weight sync: what the learner had to send, what arrived, and what the engine holds. Digests are by tensor."""

    recorded: WeightSync
    version: int
    learner: dict[str, str]
    arrived: dict[str, str]
    absent: list[str]  # tensors that were not sent
    wrong: list[str]  # tensors of which the engine holds other values than the learner
    older: frozenset[str]  # of these the ones that arrived with the learner's values of an earlier version

    @property
    def altered(self) -> list[str]:
        """Return tensors that arrived with values that the learner does not have, in this version or before."""
        return [name for name in self.wrong if name not in self.stale]

    @property
    def stale(self) -> list[str]:
        """Return tensors of which the engine has an older version: they were not sent, or arrived as they had been."""
        unsent = {name for name in self.absent if name not in self.arrived}
        return [name for name in self.wrong if name in unsent or name in self.older]


def _read(e: EvidenceBuilder, side: SideBuilder) -> SyncRecord:
    learner = _merged(_digests(side, LEARNER))
    received = _everywhere(_digests(side, RECEIVED), learner)
    used: dict[Any, int] = {v: steps[0] for v, steps in side.versions.items() if v is not None}
    record = SyncNotes(learner=learner)
    record.manifest = {*side.recording.records.model_tensors}
    every_tensor = record.manifest.union(*learner.values())
    record.unlisted = sorted(every_tensor - record.manifest) if record.manifest else []
    record.unchanged = _unchanged(learner)
    engine_digests: dict[str, str] = {}  # the last digest that the engine received of each tensor
    previous: dict[str, str] | None = None  # the learner's digests of the version before
    for version, recorded in _by_version(side):
        arrived = received.get(version, {})
        engine_digests.update(arrived)
        sync = _sync(version, recorded, learner, arrived, engine_digests)
        record.versions.append(version)
        _note_transport(record, sync, every_tensor)
        _note_tensors(record, sync)
        not_loaded = _not_loaded(record, sync)
        beyond = _note_proof(e, side, record, sync, used)
        _judge(e, side, sync, used, not_loaded, beyond)
        # A tensor that was not sent and moves the proof, arrived altered or was not loaded is a fault of its own. The
        # distance between two versions is measured only where no such fault explains it.
        named = sync.wrong or not_loaded or (sync.absent and beyond is not None)
        if version in used and previous not in (None, sync.learner) and not (named or e.tolerance.half):
            _note_distance(record, sync)
        previous = sync.learner
    _note_unsynced(e, side, record, used)
    findings = record.record()
    _note_behind(e, side, findings, used)
    return findings


def _unchanged(learner: Digests) -> bool:
    """Whether each of several versions has the same digests as the first."""
    first = learner[min(learner)] if learner else {}
    return len(learner) > 1 and all(digests == first for digests in learner.values())


def _by_version(side: SideBuilder) -> list[tuple[int, WeightSync]]:
    """Return (version, sync) of the syncs that recorded their weight version, in order."""
    syncs = [(sync.version, sync) for sync in side.recording.records.syncs if sync.version is not None]
    return sorted(syncs, key=lambda versioned: versioned[0])


def _sync(
    version: int,
    recorded: WeightSync,
    by_version: Digests,
    arrived: dict[str, str],
    engine_digests: dict[str, str],
) -> _Sync:
    """Join one sync with the learner's digests, and with the last digest that the engine received of each tensor."""
    learner = by_version.get(version, {})
    absent = sorted(recorded.absent)
    unreported = {name for name in recorded.unreported if name not in arrived}  # sent, but not reported
    wrong = {*recorded.mismatched}
    for name, digest in learner.items():
        # The engine still holds the last received value of a tensor that was not sent. Nothing is known of a tensor
        # that neither side mentions.
        is_accounted = name in arrived or name in absent
        if is_accounted and name not in unreported and engine_digests.get(name, digest) != digest:
            wrong.add(name)
    earlier = [digests for before, digests in by_version.items() if before < version]
    return _Sync(
        recorded=recorded,
        version=version,
        learner=learner,
        arrived=arrived,
        absent=absent,
        wrong=sorted(wrong),
        older=frozenset(name for name in wrong & arrived.keys() if _is_one_of(arrived[name], name, earlier)),
    )


def _is_one_of(digest: str, name: str, versions: list[dict[str, str]]) -> bool:
    """Whether a tensor had this digest in one of these weight versions."""
    return any(digest == digests.get(name) for digests in versions)


def _note_transport(record: SyncNotes, sync: _Sync, every_tensor: set[str]) -> None:
    """Note how many tensors arrived, and how many were not reported as received."""
    version, learner, arrived, absent = sync.version, sync.learner, sync.arrived, sync.absent
    if not learner:
        record.undigested.append(version)
    if not arrived:
        record.without_digests.append(version)
    # The learner may not have digested every tensor that the sync counts, nor the sync counted any.
    sent = max(len(learner), whole(sync.recorded.tensors)) - len(absent)
    came = sum(name in arrived for name in learner if name not in absent)
    record.tensors = came if record.tensors is None else min(record.tensors, came)
    if arrived and learner and came < sent:
        partly = part_of(sent - came, sent, "tensor")
    elif learner and len(learner) < len(every_tensor):
        partly = part_of(len(every_tensor) - len(learner), len(every_tensor), "tensor")
    else:
        return
    reported = learner.keys() & {*arrived, *absent}
    unreported = sorted(every_tensor - reported)
    if unreported:
        partly += f" ({', '.join(unreported[:3])}{', ...' if len(unreported) > 3 else ''})"
    record.partly[version] = partly


def _note_tensors(record: SyncNotes, sync: _Sync) -> None:
    """Note the tensors that this version has to send, and those that the engine holds otherwise."""
    record.names.update(sync.learner)
    for listed, first_versions, version_lists in (
        (sync.stale, record.stale, record.stale_versions),
        (sync.altered, record.altered, record.altered_versions),
        (sync.absent, record.absent, record.absent_versions),
    ):
        for name in listed:
            first_versions.setdefault(name, sync.version)
            version_lists.setdefault(name, []).append(sync.version)


def _note_proof(
    e: EvidenceBuilder, side: SideBuilder, record: SyncNotes, sync: _Sync, used: dict[Any, int]
) -> float | None:
    """Note whether the proof exists. Return its largest |Δ| where it fails, else None."""
    proof = sync.recorded.proof
    if proof.largest is None or _is_short(proof):
        _without_proof(e, side, record, sync.version, used)
    beyond = _failed(e, proof)
    if beyond is not None:
        record.proof_beyond[sync.version] = beyond
    record.largest_proof = float(np.fmax(record.largest_proof, number(proof.largest)))
    return beyond


def _is_short(proof: SyncProof) -> bool:
    """Whether a proof covers too few tokens. One that does not count them is not short."""
    return proof.tokens is not None and not proof.tokens >= LEAST_PROOF


def _note_distance(record: SyncNotes, sync: _Sync) -> None:
    """Note the engine's mean distance from the weights of this version, and from those of the version before."""
    proof, version = sync.recorded.proof, sync.version
    mean = number(proof.mean)
    record.distances[version] = (np.nan, np.nan) if _is_short(proof) else (mean, proof.behind_mean)
    record.furthest[version] = proof.furthest_engine
    if abs(proof.stale_mean - mean) <= UNMOVED * mean:
        record.still.add(version)


def _note_unsynced(e: EvidenceBuilder, side: SideBuilder, record: SyncNotes, used: dict[Any, int]) -> None:
    """Note the versions that samples were drawn with, but that no sync brought."""
    first_sync = min(record.versions, default=0)
    for version in sorted(version for version in used if version not in record.versions):
        if side.recording.records.manifest.framework and version < first_sync:
            _without_proof(e, side, record, version, used)  # both read them from the disk
        else:
            record.unsynced.append(version)


def _not_loaded(record: SyncNotes, sync: _Sync) -> str:
    """Note the tensors that workers did not load in one sync.

    Returns the first of them in words; "" where everything that could be read back equals what arrived.
    """
    if (loaded := sync.recorded.loaded) is not None:
        record.loaded = loaded if record.loaded is None else min(record.loaded, loaded)
    first = ""
    for report in sync.recorded.misloaded:
        where = worker(report.engine, report.rank)
        workers_by_tensor = record.kept if report.kept else record.misloaded
        workers_by_tensor.setdefault(report.tensor, {}).setdefault(sync.version, []).append(where)
        verb = "kept an older" if report.kept else "holds another"
        first = first or f"{where or 'the engine'} {verb} {report.tensor}"
    return first


def worker(engine: int | None, rank: int | None) -> str:
    """Return the words for a worker of an engine; "" where there is one engine with one worker."""
    parts = (f"{what} {number}" for what, number in (("engine", engine), ("rank", rank)) if number is not None)
    return ", ".join(parts)


def _note_behind(e: EvidenceBuilder, side: SideBuilder, record: SyncRecord, used: dict[Any, int]) -> None:
    for version in record.behind:
        now, before = record.distances[version]
        context = f"by the proof of weight version {version} the {side.name} is {figure(now)} nats from the learner's "
        context += f"weights and {figure(before)} from those before the last update, on average"
        place = place_of_step(
            step=used[version],
            phase="rollout",
            field="distance from the learner's weights",
            **side.paired(now, before),
            context=context,
        )
        e.note_divergence(Kind.BEHIND.of(side.name), [], place)


def _without_proof(
    e: EvidenceBuilder, side: SideBuilder, record: SyncNotes, version: int, used: dict[Any, int]
) -> None:
    """Note a version without a proof. In a framework's job the samples of the engine against its learner may prove
    it.
    """
    tokens, total, largest = side.to_learner.versions.get(version, (0, 0.0, 0.0))
    within = total <= tokens * e.tolerance.value and largest <= e.tolerance.extreme
    if not side.recording.records.manifest.framework:
        record.unproven.append(version)
    elif tokens >= LEAST_PROOF and within:
        record.by_samples.append(version)
        record.largest_proof = float(np.fmax(record.largest_proof, largest))
    else:
        (record.unproven if version in used else record.unused).append(version)


def _failed(e: EvidenceBuilder, proof: SyncProof) -> float | None:
    """Return the proof's largest |Δ| where it fails, else None.

    The mean must be within the tolerance. No position may be beyond the cap, after ten times the learner's own rounding
    there is subtracted (`unexplained`): the sequences of the proof end in ids that no model would draw, where rounding
    is largest. NaN fails, since it proves nothing.
    """
    if proof.largest is None:
        return None
    if proof.mean is None:
        good = proof.largest <= e.tolerance.cap
    else:
        unexplained = proof.largest if proof.unexplained is None else proof.unexplained
        good = 0.0 <= proof.mean <= e.tolerance.value and unexplained <= e.tolerance.extreme
    return None if good else proof.largest


@dataclass(frozen=True)
class _Symptom:
    """A sign that a sync failed: a field with the value of a good sync, and the value of this one."""

    field: str
    expected: Any
    got: Any
    context: str


def _judge(
    e: EvidenceBuilder, side: SideBuilder, sync: _Sync, used: dict[Any, int], not_loaded: str, proof: float | None
) -> None:
    """Add one divergence for the worst sign of a failed sync. Its step is the first one that drew with these
    weights.
    """
    symptom = _worst(e, sync, not_loaded, proof)
    if symptom is None:
        return
    context = symptom.context
    if proof is not None and (sync.wrong or not_loaded):
        context += f"; the proof is {figure(proof)} nats from the learner"
    first_step = used.get(sync.version)
    sync_step = -1 if sync.recorded.step is None else sync.recorded.step
    # Without wrong tensors only the proof shows the engine at fault.
    rank = sync.recorded.proof.furthest_engine
    if rank is None or sync.wrong:
        rank = sync.recorded.rank or 0
    place = place_of_step(
        step=sync_step if first_step is None else first_step,
        phase="sync",
        rank=rank,
        field=symptom.field,
        **side.paired(symptom.got, symptom.expected),
        context=f"{side.name}: {context}",
    )
    # Weights that a step drew with were in the engine before that step's prompts.
    e.note_divergence(Kind.SYNC.of(side.name), [], place, phase="floor" if first_step is not None else "sync")


def _worst(e: EvidenceBuilder, sync: _Sync, not_loaded: str, proof: float | None) -> _Symptom | None:
    """Return the worst sign of a failed sync: first a refusal, then wrong tensors, then a failed load, then the proof
    alone.
    """
    version, absent, stale = sync.version, sync.absent, sync.stale
    if not sync.recorded.succeeded:
        message = sync.recorded.message or "failed"
        return _Symptom("status", "ok", message, f"the engine refused weight version {version}")
    if sync.wrong:
        wrong = stale or sync.altered
        digest = f"{'kept an older' if stale else 'received another'} {wrong[0]}"
        unsent = sum(name in absent for name in wrong)
        context = f"weight version {version}: {counted(len(wrong), 'tensor')}, {unsent} of them not sent"
        return _Symptom("weight digest", f"the learner's {wrong[0]}", digest, context)
    if not_loaded:
        context = f"weight version {version} after the load: {not_loaded}"
        return _Symptom("weights after the load", "what arrived", not_loaded, context)
    if proof is None:
        return None
    engine = sync.recorded.proof.furthest_engine
    which = "the engine" if engine is None else f"engine {engine}"
    context = f"weight version {version}: {which} does not compute with the learner's weights"
    context += f"; not sent: {', '.join(absent[:3])}" if absent else ""
    return _Symptom("proof_max_delta", f"at most {figure(e.tolerance.extreme)}", proof, context)


def _digests(side: SideBuilder, source: str) -> dict[str, Digests]:
    """Return the digests by the process that reported them. Shards and engines may each report a tensor."""
    by_process: dict[str, Digests] = {}
    for version, record in side.recording.records.digests_of(source):
        by_process.setdefault(record.file, {}).setdefault(version, {}).update(record.nonempty)
    return by_process


def _merged(by_process: dict[str, Digests]) -> Digests:
    merged: Digests = {}
    for by_version in by_process.values():
        for version, digests in by_version.items():
            merged.setdefault(version, {}).update(digests)
    return merged


def _everywhere(by_process: dict[str, Digests], learner: Digests) -> Digests:
    """Return what arrived in all receiving processes.

    Of a tensor that differs from the learner's in any process that digest is returned. A tensor that a process did not
    report is left out, for the versions since that process's first.
    """
    first = {file: min(by_version) for file, by_version in by_process.items()}
    arrived: Digests = {}
    for version in sorted(set().union(*by_process.values())):
        # A process that started later has not missed the versions before its first.
        started = [by_version for file, by_version in by_process.items() if version >= first[file]]
        process_digests = [by_version.get(version, {}) for by_version in started]
        arrived[version] = _arrived(process_digests, learner.get(version, {}))
    return arrived


def _arrived(process_digests: list[dict[str, str]], truth: dict[str, str]) -> dict[str, str]:
    """Return what arrived of one version in all of these processes. `truth`: the learner's digests of it."""
    arrived: dict[str, str] = {}
    for name in dict.fromkeys(name for digests in process_digests for name in digests):
        tensor_digests = [digests.get(name, "") for digests in process_digests]
        wrong = [digest for digest in tensor_digests if digest and digest != truth.get(name, digest)]
        if wrong:  # one process with another value is enough: its samples are drawn with it
            arrived[name] = wrong[0]
        elif all(tensor_digests):
            arrived[name] = tensor_digests[0]
    return arrived
