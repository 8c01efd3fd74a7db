"""The causes STALE_WEIGHTS (a sync left a tensor out, or the engine did not load it) and WEIGHTS (a tensor arrived
altered).

Digests are records and prove nothing by themselves. The proof is a re-reading: the difference is gone when the steps
drawn with the affected weight versions are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from harness.parity.causes.family import CauseFamily, OnBench, Rival, Seen, of_each_side
from harness.parity.causes.proof import either
from harness.parity.facts.divergence import NATIVE, ROLLOUT, Kind, keys
from harness.parity.facts.evidence import Evidence, Side
from harness.parity.facts.explanation import Explained, Explanation, from_step, in_steps, when, without_steps
from harness.parity.subjects.log_probabilities.observed_systematic import ROUGHER
from harness.parity.subjects.weights.observed_sync_record import SyncRecord
from reports.model import Cause, CauseKey, Proof
from reports.text import agreeing, counted, figure, first_of, listed

ALL = "all tensors"
WrongLoads = Mapping[str, Mapping[int, tuple[str, ...]]]  # tensor -> weight version -> workers
SINGLE = 3  # up to this many tensors are named one by one; more are named together


@of_each_side
def stale_weights(e: Evidence, side: Side, so_far: Explained) -> Iterator[Explanation]:
    """Find tensors that a sync left out or brought as they had been, where a digest or the proof of the sync shows
    that the engine has older values.
    """
    # Tensors that are stale at the same weight versions have one cause: the steps cannot tell them apart.
    record = side.sync
    groups: dict[tuple[int, ...], list[str]] = {}
    for name in {**record.absent, **record.stale}:
        # A tensor that was not sent may not have changed. It counts where its digest is old, or the proof fails.
        stale_versions = record.stale_versions.get(name, ())
        proven = [version for version in record.absent_versions.get(name, ()) if version in record.proof_beyond]
        versions = tuple(sorted({*stale_versions, *proven}))
        if versions:
            groups.setdefault(versions, []).append(name)
    for versions, tensors in sorted(groups.items()):
        titled = list(_titled(STALE_WEIGHTS, sorted(tensors), record.names))
        for key, members in titled:
            yield _stale(e, side, key, members, versions, beside=len(titled) - 1)


def _titled(family: CauseFamily, tensors: list[str], all_names: frozenset[str]) -> Iterator[tuple[CauseKey, list[str]]]:
    """Yield a cause and its tensors: few by name, more as the whole model, as one module, or as a count."""
    if len(tensors) <= SINGLE:
        yield from ((family.key(name), [name]) for name in tensors)
    elif set(tensors) >= all_names:
        yield family.key(ALL, many=True), tensors
    else:
        # The longest dotted prefix that all tensors share, to name a module where the whole of it is concerned.
        prefix = tensors[0].rpartition(".")[0]
        while prefix and not all(name.startswith(f"{prefix}.") for name in tensors):
            prefix = prefix.rpartition(".")[0]
        is_whole_module = prefix and {name for name in all_names if name.startswith(f"{prefix}.")} == set(tensors)
        count_key = family.key(counted(len(tensors), "tensor"), many=True)
        yield (family.key(prefix) if is_whole_module else count_key), tensors


def _stale(
    e: Evidence, side: Side, key: CauseKey, tensors: list[str], versions: tuple[int, ...], beside: int
) -> Explanation:
    """Build the explanation of tensors that were stale at the same weight versions.

    `beside`: the number of other causes with the same versions, which the steps do not tell from this one.
    """
    record = side.sync
    jump = max((record.proof_beyond[v] for v in versions if v in record.proof_beyond), default=None)
    steps = steps_of(e, side, versions)
    proofs = _without(e, side, steps, versions)
    stale_digests = sum(name in record.stale for name in tensors)
    digests = "its digest is" if stale_digests == 1 else f"{stale_digests:,} digests are"
    facts = [f"{digests} not the learner's at version {versions[0]}"] if stale_digests else []
    if jump:
        facts.append(f"the proof jumps to {figure(jump)} nats")
    if proofs and beside:
        facts.append(f"{beside} more left out at the same time, which the steps do not tell apart")
    # An old value may have two reasons: the tensor was not sent, or it arrived with an older value.
    arrived = not any(name in record.absent for name in tensors)
    if arrived:
        summary = f"at weight version {versions[0]} the engine loaded older values of {key.parts[0]}"
        kept = "the engine loaded the learner's own values of an earlier weight version"
    else:
        summary = f"the sync of weight version {versions[0]} left {key.parts[0]} out"
        kept = f"the engine kept {agreeing(len(tensors), 'its old value', 'their old values')}"
    if steps:
        kept += f", and drew with {agreeing(len(tensors), 'it', 'them')} {when(e, steps)}"
    cause = Cause.of(
        key=key,
        party=side.name,
        summary=summary,
        evidence="; ".join([kept, *facts]),
        details={"tensors": tensors[:100], "versions": list(versions), "proof": jump, "steps": sorted(steps)},
        proofs=proofs,
        observed=(Seen.OLDER_HELD if arrived else Seen.NOT_SENT,),
    )
    return _of_versions(cause, side, steps, versions)


def _of_versions(cause: Cause, side: Side, steps: set[int], versions: Sequence[int]) -> Explanation:
    """Return the explanation of a cause that acts in these steps, and in the syncs of these weight versions."""
    reached = in_steps(steps | {version - 1 for version in versions})
    return Explanation(cause, keys((Kind.SYNC, *ROLLOUT, *NATIVE), side.name), reached)


@of_each_side
def altered_weights(e: Evidence, side: Side, so_far: Explained) -> Iterator[Explanation]:
    """Find tensors whose received digest differs from the digest that the learner sent."""
    for name, versions in list(side.sync.altered_versions.items())[:8]:
        steps = steps_of(e, side, tuple(versions))
        cause = Cause.of(
            key=WEIGHTS.key(name),
            party=side.name,
            summary=f"at weight version {versions[0]} the engine received another {name} than the learner sent",
            evidence="the digests of what was sent and of what was received differ",
            details={"tensor": name, "versions": list(versions), "steps": sorted(steps)},
            proofs=_without(e, side, steps, tuple(versions)),
            observed=(Seen.ARRIVED_OTHERWISE,),
        )
        yield _of_versions(cause, side, steps, versions)


@of_each_side
def not_loaded(e: Evidence, side: Side, so_far: Explained) -> Iterator[Explanation]:
    """Find tensors that arrived as they were sent, but were not what a worker held after the load."""
    kept, misloaded = side.sync.kept, side.sync.misloaded
    yield from _not_loaded(e, side, STALE_WEIGHTS, kept, "kept the one before", Seen.KEPT_ON_LOAD)
    # A tensor that any worker kept is reported as stale, and not as altered in addition.
    misloaded = {name: by_version for name, by_version in misloaded.items() if name not in kept}
    yield from _not_loaded(e, side, WEIGHTS, misloaded, "loaded something else", Seen.LOADED_OTHERWISE)


def _not_loaded(
    e: Evidence, side: Side, family: CauseFamily, loads: WrongLoads, did: str, observed: Seen
) -> Iterator[Explanation]:
    titled = list(_titled(family, sorted(loads), side.sync.names))
    for key, tensors in titled:
        versions = tuple(sorted(set().union(*(loads[name] for name in tensors))))
        workers: set[str] = set()
        for name in tensors:
            workers.update(*loads[name].values())
        who = " and ".join(filter(None, sorted(workers)))
        steps = steps_of(e, side, versions)
        proofs = _without(e, side, steps, versions)
        evidence = f"read back after the load, {who or 'the engine'} held something else than what had arrived"
        if proofs and len(titled) > 1:
            evidence += f"; {len(titled) - 1} more at the same time, which the steps do not tell apart"
        whose = f"{who} of the {side.name}'s engine" if who else f"the {side.name}'s engine"
        cause = Cause.of(
            key=key,
            party=side.name,
            summary=f"{whose} was sent {key.parts[0]} with weight version {versions[0]} and {did}",
            evidence=evidence,
            details={"tensors": tensors[:100], "versions": list(versions), "steps": sorted(steps)},
            proofs=proofs,
            observed=(observed,),
        )
        yield _of_versions(cause, side, steps, versions)


@of_each_side
def one_update_behind(e: Evidence, side: Side, so_far: Explained) -> Iterator[Explanation]:
    """Find an engine that computes with the learner's weights before the last update.

    The engine is nearer to the earlier weights, and no further from them than rounding explains. Log-probabilities do
    not say which tensors are old. In float32 the proofs of the syncs also recognise an engine that loads nothing any
    more and falls further behind.
    """
    kind = Kind.BEHIND.of(side.name)
    if kind not in e.first or not len(so_far.left(kind)):
        return
    place, first = e.first[kind].place, int(e.found(kind)[:, 0].min())
    # Half precision has a mean over all updates, and the learner's own rounding is in it. Float32 has one proof for
    # each sync, and the proof of the first sync that tells is taken.
    if e.tolerance.half:
        in_use, rounding = e.weights_in_use[side.name], e.tolerance.rounding.mean
        now, then, allowed = in_use.now, in_use.before, ROUGHER * rounding
        evidence = f"mean distance from float32 with the learner's weights {figure(now)} nats, with those before "
        evidence += f"{figure(then)}; the learner rounds by {figure(rounding)}"
        key, summary = ONE_BEHIND, BEFORE.format(f"the {side.name}'s engine")
    else:
        record = side.sync
        now, then = record.distances[record.behind[0]]
        rounding, allowed = 0.0, e.tolerance.value
        key, summary, evidence = _older(side, record, allowed)
    # Nearer to the old weights is not enough: an engine with some other weights may be nearer to them, too.
    if not then <= allowed:
        return
    before, after = (max(0.0, distance - rounding) for distance in (now, then))
    yield Explanation(
        Cause.of(
            key=key,
            party=side.name,
            summary=f"from step {first} on {summary}",
            evidence=f"{place.context}; {evidence}",
            details={"now": now, "before": then},
            proofs=[
                Proof("hold it against the learner's weights before the last update", before, after, "nats a token")
            ],
            observed=(Seen.OLDER_AGREES,),
        ),
        keys((Kind.SYNC, *ROLLOUT, *NATIVE), side.name),
        from_step(first),
    )


def _older(side: Side, record: SyncRecord, allowed: float) -> tuple[CauseKey, str, str]:
    """Return (cause, summary, evidence) for what the float32 proofs say of the engine's weights."""
    older_versions = record.older(allowed)
    number = record.furthest.get(min(older_versions, default=-1))
    engine = f"the {side.name}'s engine" if number is None else f"engine {number} of the {side.name}"
    # An older version that serves more than one sync means that the engine stopped loading.
    counts = Counter(older_versions.values())
    frozen = [version for version, count in counts.items() if count > 1]
    if None in counts:
        evidence = f"{counted(len(record.behind), 'proof')} of {len(record.distances)} are nearer to the version before"
        return STALE_WEIGHTS.key("earlier versions", many=True), f"{engine} computes with earlier weights", evidence
    if not frozen:
        evidence = f"{counted(len(older_versions), 'proof')} of {len(record.distances)} say so"
        return ONE_BEHIND, BEFORE.format(engine), evidence
    after = [version for version, older in older_versions.items() if older == frozen[0]][1:]
    evidence = f"the {counted(len(after), 'sync')} after it (version {listed(after)}) did not change what it computes"
    key = STALE_WEIGHTS.key(f"frozen at version {frozen[0]}", many=True)
    return key, f"{engine} is frozen at weight version {frozen[0]}", evidence


def _without(e: Evidence, side: Side, steps: set[int], versions: tuple[int, ...]) -> list[Proof]:
    """Return the proof of leaving out the steps that were drawn with these weight versions."""
    noun = agreeing(len(versions), "version", "versions")
    what = f"leave out the steps drawn with weight {noun} {first_of(versions, 3)}"
    return without_steps(e, side.name, steps, what)


def steps_of(e: Evidence, side: Side, versions: tuple[int, ...]) -> set[int]:
    """Return the steps whose rollouts were drawn with these weight versions."""
    return {step for version in versions for step in side.versions.get(version, ())}


_HELD = (Seen.HELD_OTHERWISE, Seen.NOT_SENT, Seen.ARRIVED_OTHERWISE, Seen.KEPT_ON_LOAD, Seen.LOADED_OTHERWISE)
_SENT_AGAIN = "the tensor is sent again"


def _recorded_digest(bench: OnBench) -> str:
    """Never contradict the cause: no later sync changes a digest that was recorded."""
    return ""


STALE_WEIGHTS = CauseFamily(
    "STALE_WEIGHTS",
    meaning="the engine computes with older values of the named tensors than the learner's",
    details={
        ALL: "every tensor of the model",
        "one update behind": "the weights of one update before, in every step",
        "earlier versions": "the weights of earlier updates, of changing age",
        "those of the reference": "the weights of the start, which are those of the reference",
    },
    named="a tensor of the model, the module that holds such tensors, their number, or the version at which the "
    "engine's weights are frozen",
    contradicted=_recorded_digest,
    fix="send the named tensors in every weight sync, see that every worker loads them, and generate only then",
    rivals=(
        Rival(
            "WEIGHTS",
            (Seen.NOT_SENT, Seen.KEPT_ON_LOAD, Seen.REFUSED, Seen.OLDER_HELD, Seen.OLDER_AGREES, Seen.REFERENCES),
        ),
        Rival("STALE_DERIVED", (*_HELD, Seen.MOVED, Seen.OLDER_AGREES, Seen.REFERENCES)),
    ),
    premise=True,
    cured_by=_SENT_AGAIN,
    proof=either("sent again, or without the steps of these versions, nothing differs"),
)
WEIGHTS = CauseFamily(
    "WEIGHTS",
    meaning="the engine received other values of the named tensor than the learner sent",
    details={
        ALL: "every tensor of the model",
        "loading": "what a sync does with the weights, where no single tensor could be named",
    },
    named="a tensor of the model, the module that holds such tensors, or their number",
    contradicted=_recorded_digest,
    fix="check how the weight sync maps the named tensor: name, shard, order of rows, dtype",
    rivals=(
        Rival(
            "STALE_WEIGHTS",
            (Seen.NEVER_LEARNERS, Seen.ARRIVED_OTHERWISE, Seen.LOADED_OTHERWISE, Seen.CHANGED, Seen.REARRANGED),
        ),
        Rival("STALE_DERIVED", (*_HELD, Seen.MOVED)),
    ),
    premise=True,
    cured_by=_SENT_AGAIN,
    proof=either("with the tensor as the engine holds it, or without the steps of these versions, nothing differs"),
)
BEFORE = "{} computes with weights before the learner's last update"
ONE_BEHIND = STALE_WEIGHTS.key("one update behind", many=True)

FAMILIES = (STALE_WEIGHTS, WEIGHTS)
