"""The catalogue of tamperings: what the mutation trial does to a sound pair of recordings, and what must come of it.

A tampering is one field and one operation on it. `place` says in which run it is done: in one, in both alike, or the
field is exchanged between the runs. Each ends in one of three ways, by its `ends`:

- STOPPED: it changes what the recording says, and the verdict must not be EQUIVALENT.
- TOLD: the field belongs to a suspicion that never decides; EQUIVALENT may stay, and the suspicion is not ruled out.
- KEPT: a control. It changes nothing that a verdict rests on, and the verdict must stay EQUIVALENT.
"""

from __future__ import annotations

import copy
import dataclasses
import pickle
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from framework_recordings import PLAN, job
from recordings import FrameRecord, Jagged, Recording, digest, jagged, make, scenario, stage

from harness.parity import judge
from probes import weights
from reports.model import SUSPICIONS, Verdict
from scenarios.settings import Scenario

STOPPED, TOLD, KEPT = "stopped", "told", "kept"
OWN, FOREIGN = "own", "foreign"
PAIRS = (OWN, FOREIGN)  # of the table
HALF = "half"  # our own in bfloat16, which must be stopped wherever that in float32 is
GREEDY, FILTERED = "greedy", "filtered"  # our own, drawn greedily or with top-p: margins mean something else there
ONE, BOTH, SWAPPED = ("baseline", "candidate"), "both", "swapped"
ALIKE = "another sound job would have recorded the same in both runs, and nothing else speaks of it"
STEPS = 4
_WITH_NATIVE = ("native", "repeat")


@dataclass
class Runs:
    """A pair of recordings, and the second run of the baseline that a framework's pair has for its floor."""

    baseline: Recording
    candidate: Recording
    again: Recording | None = None

    def of(self, side: str) -> Recording:
        return self.baseline if side == "baseline" else self.candidate


def own(kind: str) -> Scenario:
    plan = scenario(steps=STEPS, dtype="bfloat16" if kind == HALF else "float32")
    if kind == GREEDY:
        plan = scenario(steps=STEPS, mode="greedy", temperature=0.0)
    if kind == FILTERED:
        plan = dataclasses.replace(plan, sampling=dataclasses.replace(plan.sampling, top_p=0.95))
    return plan


def sound(kind: str, *, native: bool) -> Runs:
    """A pair that is EQUIVALENT: our own with everything, or a framework's without margins, floor and native stage."""
    runs: Runs = pickle.loads(_pickled(kind, native))
    return runs


@cache
def _pickled(kind: str, native: bool) -> bytes:
    return pickle.dumps(
        _made(kind, native)
    )  # a copy of a thousand small arrays is read faster than `deepcopy` makes it


def _made(kind: str, native: bool) -> Runs:
    if kind != FOREIGN:
        runs = Runs(make("baseline", own(kind), native=native), make("candidate", own(kind), native=native))
        runs.baseline.made, runs.candidate.made = {}, {}
        if kind == HALF:
            runs.baseline.stage, runs.candidate.stage = stage("baseline", own(kind)), stage("candidate", own(kind))
        return runs
    plan = dataclasses.replace(PLAN, steps=STEPS)
    runs = Runs(job("baseline", plan=plan), job("candidate", plan=plan), job("baseline", plan=plan, noise=2e-7))
    assert runs.again is not None
    for opened in runs.again.events("open"):
        opened["wall_ns"] += 10**9
    runs.again.made = {}
    for side in ("baseline", "candidate"):
        run = runs.of(side)
        run.made = {}
        run.manifest["backend"] = "vllm" if side == "baseline" else "sglang"
        for info in run.events("engine_info"):
            info.update(engine=run.manifest["backend"], version="0.32.0" if side == "baseline" else "0.5.23")
    return runs


Change = Callable[[Recording, Recording, np.random.Generator], None]


@dataclass(frozen=True)
class Tampering:
    """`change(run, other, rng)` alters `run` in place; `other` is the other run as it was. `exchange` exchanges the
    field between both. `check`: of a TOLD one, the suspicion that speaks of it. `alike`: the pairs in which the same
    change in both runs leaves recordings that another sound job could have written."""

    name: str
    change: Change
    ends: str = STOPPED
    check: str = ""
    pairs: tuple[str, ...] = (*PAIRS, HALF)
    places: tuple[str, ...] = (*ONE, BOTH)
    alike: tuple[str, ...] = ()
    exchange: Callable[[Recording, Recording], None] | None = None

    @property
    def native(self) -> bool:
        """Does it need a native stage?"""
        return any(word in self.name for word in _WITH_NATIVE) or self.ends == KEPT

    def expected(self, kind: str, place: str) -> str:
        return KEPT if place == BOTH and kind in self.alike else self.ends


def tamper(runs: Runs, tampering: Tampering, place: str, seed: int = 0) -> bool:
    """Do it; returns whether anything changed at all: equal columns that are exchanged are no tampering."""
    before = fingerprint(runs)
    if place == SWAPPED:
        assert tampering.exchange is not None
        tampering.exchange(runs.baseline, runs.candidate)
    else:
        pristine: Runs = pickle.loads(pickle.dumps(runs))
        for side in ONE:
            if place in (side, BOTH):
                other = pristine.candidate if side == "baseline" else pristine.baseline
                tampering.change(runs.of(side), other, np.random.default_rng(seed))
        if runs.again is not None and place == BOTH:  # a job that does it does it again
            tampering.change(runs.again, pristine.candidate, np.random.default_rng(seed))
    return fingerprint(runs) != before


def verdict(kind: str, name: str, place: str, seed: int = 0) -> Verdict | None:
    """That on a tampered pair; None where the tampering changed nothing."""
    one = CATALOGUE[name]
    runs = sound(kind, native=one.native)
    return judged(runs) if tamper(runs, one, place, seed) else None


def judged(runs: Runs) -> Verdict:
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        again = {} if runs.again is None else {"baseline": runs.again.write(where / "again")}
        return judge(runs.baseline.write(where / "baseline"), runs.candidate.write(where / "candidate"), again=again)


def fingerprint(runs: Runs) -> str:
    told = []
    every = [runs.baseline, runs.candidate]
    for run in [*every, *(run.stage for run in every if run.stage is not None)]:
        frames = [
            (frame.kind, frame.step, frame.fields, {name: _bytes(one) for name, one in frame.arrays.items()})
            for log in run.logs.values()
            for frame in log.frames
        ]
        told.append(
            (run.manifest, [(log.role, log.rank, log.pid, log.events, log.closed) for log in run.logs.values()])
        )
        told.append(frames)
    return digest(told)


def _bytes(column: np.ndarray | Jagged) -> tuple[bytes, ...]:
    parts = (column.values, column.lengths) if isinstance(column, Jagged) else (column,)
    return tuple(part.tobytes() for part in parts)


# --- operations on a column of frames -----------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """A column of the frames of one kind. `where`: values of frame fields that select them."""

    kind: str
    name: str
    where: dict[str, Any] = field(default_factory=dict)

    def frames(self, run: Recording) -> Iterator[FrameRecord]:
        return run.frames(self.kind, **self.where)

    def each(self, operation: Callable[[np.ndarray | Jagged, np.random.Generator], np.ndarray | Jagged]) -> Change:
        def change(run: Recording, other: Recording, rng: np.random.Generator) -> None:
            for frame in self.frames(run):
                if self.name in frame.arrays:
                    frame.arrays[self.name] = operation(frame.arrays[self.name], rng)

        return change

    def drop(self) -> Change:
        def change(run: Recording, other: Recording, rng: np.random.Generator) -> None:
            for frame in self.frames(run):
                frame.arrays.pop(self.name, None)

        return change

    def copied(self) -> Change:
        def change(run: Recording, other: Recording, rng: np.random.Generator) -> None:
            theirs = {(frame.step, frame.fields.get("variant")): frame for frame in self.frames(other)}
            for frame in self.frames(run):
                found = theirs.get((frame.step, frame.fields.get("variant")))
                if found is not None and self.name in found.arrays:
                    frame.arrays[self.name] = copy.deepcopy(found.arrays[self.name])

        return change

    def exchanged(self, one: Recording, two: Recording) -> None:
        first, second = copy.deepcopy(one), copy.deepcopy(two)
        rng = np.random.default_rng(0)
        self.copied()(one, second, rng)
        self.copied()(two, first, rng)


def flat(operation: Callable[[np.ndarray, np.random.Generator], np.ndarray]) -> Any:
    """An operation on values, of ragged and of flat columns."""

    def on(column: np.ndarray | Jagged, rng: np.random.Generator) -> np.ndarray | Jagged:
        if isinstance(column, Jagged):
            return Jagged(operation(column.values, rng), column.lengths.copy())
        return operation(column, rng)

    return on


def rows(operation: Callable[[list[Any]], list[Any]]) -> Any:
    def on(column: np.ndarray | Jagged, rng: np.random.Generator) -> np.ndarray | Jagged:
        if isinstance(column, Jagged):
            return jagged(operation(column.rows()))
        return np.array(operation(list(column)), column.dtype)

    return on


def _filled(value: float) -> Any:
    return flat(lambda values, rng: np.full_like(values, value))


OPERATIONS: dict[str, Any] = {
    "zero": _filled(0),
    "constant": flat(lambda values, rng: np.full_like(values, values[0])),
    "NaN": _filled(np.nan),
    "infinite": _filled(np.inf),
    "permuted": flat(lambda values, rng: values[rng.permutation(len(values))]),
    "samples rotated": rows(lambda found: [*found[1:], found[0]]),
    "rows cut": rows(lambda found: [row[: len(row) // 2] for row in found]),
    "shifted by one": rows(lambda found: [np.roll(row, 1) for row in found]),
}


def column(
    kind: str, name: str, *operations: str, where: dict[str, Any] | None = None, **options: Any
) -> Iterator[Tampering]:
    """The tamperings of one column: these operations, `dropped`, `copied` and `exchanged` among them."""
    found = Column(kind, name, where or {})
    title = f"{name} of {kind}" if not where else f"{name} of {kind} ({', '.join(map(str, where.values()))})"
    for operation in operations:
        if operation == "dropped":
            yield Tampering(f"{title}: dropped", found.drop(), **options)
        elif operation == "copied":
            yield Tampering(f"{title}: copied from the other run", found.copied(), **options | {"places": ONE})
        elif operation == "exchanged":
            told = options | {"places": (SWAPPED,)}
            yield Tampering(f"{title}: exchanged", found.copied(), exchange=found.exchanged, **told)
        else:
            yield Tampering(f"{title}: {operation}", found.each(OPERATIONS[operation]), **options)


# --- operations on fields of frames, events and run.json -----------------------------------------------


def frames(kind: str, **fields: Any) -> Change:
    """Set fields of every frame of a kind; a callable is given the old value and rng, None drops the field."""

    def change(run: Recording, other: Recording, rng: np.random.Generator) -> None:
        for frame in run.frames(kind):
            _set(frame.fields, fields, rng)

    return change


def events(kind: str, _where: dict[str, Any] | None = None, **fields: Any) -> Change:
    """The same of events."""

    def change(run: Recording, other: Recording, rng: np.random.Generator) -> None:
        for event in run.events(kind, **(_where or {})):
            _set(event, fields, rng)

    return change


def _set(target: dict[str, Any], fields: dict[str, Any], rng: np.random.Generator) -> None:
    for name, value in fields.items():
        if value is None:
            target.pop(name, None)
        elif name in target:
            target[name] = value(target[name], rng) if callable(value) else value


def without(*kinds: str, later: bool = False) -> Change:
    """Drop events and frames of these kinds; `later`: those of the second half of the steps."""

    def change(run: Recording, other: Recording, rng: np.random.Generator) -> None:
        for log in run.logs.values():
            log.events = [e for e in log.events if e[0] not in kinds or (later and e[1].get("step", 0) < STEPS // 2)]
            log.frames = [f for f in log.frames if f.kind not in kinds or (later and f.step < STEPS // 2)]

    return change


def in_turn(kind: str, *names: str, **where: Any) -> Change:
    """Each event of a kind says what the next one of its kind said."""

    def change(run: Recording, other: Recording, rng: np.random.Generator) -> None:
        found = list(run.events(kind, **where))
        told = [{name: copy.deepcopy(event.get(name)) for name in names} for event in found]
        for event, next_ in zip(found, [*told[1:], *told[:1]], strict=True):
            event.update(next_)

    return change


def first_for_all(kind: str, *names: str, **where: Any) -> Change:
    """Every event of a kind says what the first one said."""

    def change(run: Recording, other: Recording, rng: np.random.Generator) -> None:
        found = list(run.events(kind, **where))
        for event in found[1:]:
            event.update({name: copy.deepcopy(found[0].get(name)) for name in names})

    return change


def from_other(kind: str, *names: str, **where: Any) -> Change:
    """What the other run's events of a kind say, in their order."""

    def change(run: Recording, other: Recording, rng: np.random.Generator) -> None:
        for event, theirs in zip(run.events(kind, **where), other.events(kind, **where), strict=False):
            event.update({name: copy.deepcopy(theirs[name]) for name in names if name in theirs})

    return change


def exchanging(change: Change) -> Callable[[Recording, Recording], None]:
    def exchange(one: Recording, two: Recording) -> None:
        first, second = copy.deepcopy(one), copy.deepcopy(two)
        rng = np.random.default_rng(0)
        change(one, second, rng)
        change(two, first, rng)

    return exchange


def manifest(path: str, value: Any) -> Change:
    """Set `a.b.c` of run.json; None drops it."""

    def change(run: Recording, other: Recording, rng: np.random.Generator) -> None:
        *parents, last = path.split(".")
        target: Any = run.manifest
        for part in parents:
            target = target.setdefault(part, {})
        if value is None:
            target.pop(last, None)
        else:
            target[last] = value

    return change


def together(*changes: Change) -> Change:
    def change(run: Recording, other: Recording, rng: np.random.Generator) -> None:
        for one in changes:
            one(run, other, rng)

    return change


# --- tamperings of their own -------------------------------------------------------------------------


def _learners_bits(but: int) -> Change:
    """The learner's own log-probabilities as the engine's, but for so many tokens of the run."""

    def change(run: Recording, other: Recording, rng: np.random.Generator) -> None:
        left = but
        for frame in run.frames("rollout"):
            truth = run.frame("experience", frame.step).arrays["actor_logprob"]
            assert isinstance(truth, Jagged)
            found = truth.copy()
            if left:
                found.values[0], left = found.values[0] + 3e-7, left - 1
            frame.arrays["logprob"] = found

    return change


def _every_second(by: float) -> Change:
    """So many nats more in every second token."""

    def change(run: Recording, other: Recording, rng: np.random.Generator) -> None:
        for frame in run.frames("rollout"):
            found = frame.arrays["logprob"]
            assert isinstance(found, Jagged)
            found.values = found.values + np.float32(by) * (np.arange(len(found.values)) % 2)

    return change


def _unreached(run: Recording, other: Recording, rng: np.random.Generator) -> None:
    """Every step says that its engine did not reach 20 positions of the guide, and has them."""
    for frame in run.frames("rollout"):
        frame.fields["uncompared"] = 20


def _learners_bits_in(share: float) -> Change:
    """The learner's own log-probabilities in this share of the tokens, drawn at random."""

    def change(run: Recording, other: Recording, rng: np.random.Generator) -> None:
        for frame in run.frames("rollout"):
            found, truth = frame.arrays["logprob"], run.frame("experience", frame.step).arrays["actor_logprob"]
            assert isinstance(found, Jagged) and isinstance(truth, Jagged)
            copied = rng.random(len(found.values)) < share
            found.values = np.where(copied, truth.values, found.values)

    return change


def _of_engine(name: str) -> Change:
    """An engine of this name draws."""

    def change(run: Recording, other: Recording, rng: np.random.Generator) -> None:
        run.manifest["backend"] = name
        for info in run.events("engine_info"):
            info["engine"] = name

    return change


def _other_prompts(run: Recording, other: Recording, rng: np.random.Generator) -> None:
    """Other prompts of equal lengths, sent and seen, whose digests and boundaries nobody made anew."""
    for frame in run.frames("rollout"):
        for name in ("prompt", "prompt_seen"):
            found = frame.arrays[name]
            assert isinstance(found, Jagged)
            frame.arrays[name] = Jagged(np.where(found.values > 10, found.values + 1, found.values), found.lengths)


def _one_tensor(*sources: str) -> Change:
    def change(run: Recording, other: Recording, rng: np.random.Generator) -> None:
        for event in run.events("weights"):
            if event["source"] in sources:
                event["digests"] = dict(list(event["digests"].items())[:1])
        for sync in run.events("sync"):
            if len(sources) > 1 and "tensors" in sync:
                sync["tensors"] = 1

    return change


def _one_tensor_under_its_digest(run: Recording, other: Recording, rng: np.random.Generator) -> None:
    """One tensor of eight, and the actor's digest made of it anew: the recording of a model with one tensor."""
    _one_tensor("learner", "received")(run, other, rng)
    made = {
        event["version"] - 1: weights.combine(event["digests"]) for event in run.events("weights", source="learner")
    }
    for event in run.events("learner"):
        event["actor"] = made[event["step"]]


def _tensors_renamed(run: Recording, other: Recording, rng: np.random.Generator) -> None:
    """The digests that arrived, each under the next tensor's name."""
    for event in run.events("weights", source="received"):
        found = event["digests"]
        event["digests"] = dict(zip(found, [*list(found.values())[1:], next(iter(found.values()))], strict=True))


def _all_tensors(field: str) -> Change:
    """Every sync lists all of its tensors in `field`, while their digests arrive."""

    def change(run: Recording, other: Recording, rng: np.random.Generator) -> None:
        for sync in run.events("sync"):
            sync[field] = [
                name for event in run.events("weights", version=sync["version"]) for name in event["digests"]
            ]

    return change


def _received_twice(run: Recording, other: Recording, rng: np.random.Generator) -> None:
    """Before the digests of each version others arrive under the same names."""
    for log in run.logs.values():
        log.events = [
            one
            for kind, event in log.events
            for one in (
                *(
                    [(kind, event | {"digests": {name: digest("other", name) for name in event["digests"]}})]
                    if kind == "weights" and event["source"] == "received"
                    else []
                ),
                (kind, event),
            )
        ]


def _token_file(run: Recording, other: Recording, rng: np.random.Generator) -> None:
    """The engine's token file is a copy of the other run's."""
    run.logs["rollout"].frames = copy.deepcopy(other.logs["rollout"].frames)
    if not run.logs["rollout"].frames:
        return
    for mine, theirs in zip(run.frames("rollout"), other.frames("rollout"), strict=True):
        mine.fields["guided"] = theirs.fields["guided"]


def _native_copied(run: Recording, other: Recording, rng: np.random.Generator) -> None:
    for kind in ("native", "repeat", "native_score"):
        for mine, theirs in zip(run.frames(kind), other.frames(kind), strict=True):
            mine.arrays = copy.deepcopy(theirs.arrays)
            mine.fields["finish"] = copy.deepcopy(theirs.fields.get("finish"))


def _floor_copied(run: Recording, other: Recording, rng: np.random.Generator) -> None:
    for mine, theirs in zip(run.frames("floor"), other.frames("floor"), strict=True):
        mine.arrays = copy.deepcopy(theirs.arrays)


def _floor_of_few(run: Recording, other: Recording, rng: np.random.Generator) -> None:
    for frame in run.frames("floor"):
        frame.take([0, 1])


def _variant_lost(name: str) -> Change:
    def change(run: Recording, other: Recording, rng: np.random.Generator) -> None:
        for log in run.logs.values():
            log.frames = [frame for frame in log.frames if frame.fields.get("variant") != name]

    return change


def _no_role(role: str) -> Change:
    def change(run: Recording, other: Recording, rng: np.random.Generator) -> None:
        run.logs.pop(role, None)

    return change


def _unclosed(run: Recording, other: Recording, rng: np.random.Generator) -> None:
    run.logs["rollout"].closed = False


def _ended_badly(run: Recording, other: Recording, rng: np.random.Generator) -> None:
    log = run.logs["rollout"]
    log.closed = False
    log.event("close", ok=False, reason="killed", frames=len(log.frames))


def _within(kind: str, field: str) -> Callable[..., Change]:
    """Other values in a field of every event of a kind."""

    def with_(**values: Any) -> Change:
        def change(run: Recording, other: Recording, rng: np.random.Generator) -> None:
            for event in run.events(kind):
                _set(event[field], values, rng)

        return change

    return with_


_resolved, _metrics = _within("engine_info", "resolved"), _within("step", "metrics")
_canonical = _within("sampling", "canonical")  # what the engine says that it was asked; run.json is as it was


def _temperature(value: Any) -> Change:
    return together(manifest("scenario.sampling.temperature", value), _canonical(temperature=value))


def _half_the_samples(run: Recording, other: Recording, rng: np.random.Generator) -> None:
    for kind in ("rollout", "experience"):
        for frame in run.frames(kind):
            frame.take(list(range(len(frame.arrays["sample"]) // 2)))


def _nothing_of_the_environment(run: Recording, other: Recording, rng: np.random.Generator) -> None:
    without("environment")(run, other, rng)
    events("open", packages=None, env=None)(run, other, rng)


def _other_versions(by: int) -> Change:
    """Every frame says another weight version, rollouts and experience alike."""

    def change(run: Recording, other: Recording, rng: np.random.Generator) -> None:
        for kind in ("rollout", "experience"):
            for frame in run.frames(kind):
                frame.fields["weight_version"] = max(0, frame.fields["weight_version"] + by)

    return change


# --- controls ---------------------------------------------------------------------------------------


def _reordered_samples(run: Recording, other: Recording, rng: np.random.Generator) -> None:
    for kind in ("rollout", "experience", "floor"):
        for frame in run.frames(kind):
            frame.fields.pop("order", None)
            frame.take(rng.permutation(len(frame.arrays["sample"])).tolist())


def _reordered_events(run: Recording, other: Recording, rng: np.random.Generator) -> None:
    """Events of different kinds that no clock orders: each process writes its kinds one after the other."""
    for log in run.logs.values():
        first, rest = log.events[:1], log.events[1:]
        log.events = first + sorted(rest, key=lambda one: one[0])


def _reordered_frames(run: Recording, other: Recording, rng: np.random.Generator) -> None:
    for log in run.logs.values():
        log.frames = [log.frames[i] for i in rng.permutation(len(log.frames))]


def _other_processes(run: Recording, other: Recording, rng: np.random.Generator) -> None:
    for log in run.logs.values():
        log.pid += 700
        for kind, event in log.events:
            if kind == "open":
                event["pid"] = log.pid


def _other_times(run: Recording, other: Recording, rng: np.random.Generator) -> None:
    for kind, name in (("span", "start_ns"), ("span", "dur_ns"), ("sync", "seconds"), ("probe_cost", "self_ns")):
        for event in run.events(kind):
            event[name] = event[name] * 2 + 1
    for opened in run.events("open"):
        opened["wall_ns"] += 12345


def _unknown_things(run: Recording, other: Recording, rng: np.random.Generator) -> None:
    run.manifest["tracker"] = "none"
    for log in run.logs.values():
        log.event("note", text="anything")
        log.event("of our own", value=1)
    for frame in run.frames("rollout"):
        frame.fields["unknown"] = 1
        frame.arrays["unknown"] = np.zeros(len(frame.arrays["sample"]), np.float32)


def in_stage(*changes: Change) -> Change:
    """The same of the run's lifted stage."""

    def change(run: Recording, other: Recording, rng: np.random.Generator) -> None:
        if run.stage is not None and other.stage is not None:
            together(*changes)(run.stage, other.stage, rng)

    return change


def _off(run: Recording, other: Recording, rng: np.random.Generator) -> None:
    """A fault that bfloat16 hides."""
    for frame in run.frames("rollout"):
        logprob = frame.arrays["logprob"]
        assert isinstance(logprob, Jagged)
        logprob.values = logprob.values + np.float32(0.02)


def _stage_in_half(run: Recording, other: Recording, rng: np.random.Generator) -> None:
    assert run.stage is not None
    run.stage.manifest["scenario"]["model"]["dtype"] = "bfloat16"


def _without_a_stage(run: Recording, other: Recording, rng: np.random.Generator) -> None:
    run.stage = None


def _the_others_stage(run: Recording, other: Recording, rng: np.random.Generator) -> None:
    run.stage = copy.deepcopy(other.stage)


def _catalogue() -> Iterator[Tampering]:
    numbers = ("zero", "constant", "NaN", "infinite", "permuted", "dropped")
    own, foreign = (OWN, HALF), (FOREIGN,)
    # what the engine drew
    yield from column("rollout", "logprob", *numbers, "samples rotated", "shifted by one", "rows cut", "copied")
    symmetric = column("rollout", "logprob", "exchanged", ends=KEPT)  # both are the learner's to within the tolerance
    yield from symmetric
    biased = Column("rollout", "logprob").each(flat(lambda values, rng: values + np.float32(2e-5)))
    yield Tampering("logprob of rollout: 2e-5 nats more", biased, pairs=PAIRS)
    yield Tampering("logprob of rollout: 2e-5 nats more in every second token", _every_second(2e-5), pairs=PAIRS)
    yield Tampering("logprob of rollout: the learner's bits", _learners_bits(0))
    yield Tampering("logprob of rollout: the learner's bits but one", _learners_bits(1))
    yield Tampering("logprob of rollout: the learner's bits in three of four tokens", _learners_bits_in(0.75))
    unknown = together(_of_engine("trtllm"), _learners_bits(0))
    yield Tampering("logprob of rollout: the learner's bits, of an unknown engine", unknown)
    yield from column("rollout", "output", "zero", "permuted", "samples rotated", "rows cut", "dropped")
    yield from column("rollout", "prompt", "zero", "samples rotated", "rows cut")
    yield from column("rollout", "prompt", "dropped")
    yield Tampering("prompt of rollout: others under the old digest", _other_prompts)
    yield from column("rollout", "sample", "zero", "constant")
    yield from column("rollout", "cached", "dropped", ends=TOLD, check=SUSPICIONS[8])
    yield Tampering("rollout: the token file of the other run", _token_file, places=ONE)
    yield Tampering("rollout: dropped", without("rollout"))
    yield Tampering("rollout: dropped from half of the steps on", without("rollout", later=True))
    yield Tampering("rollout and experience: half of the samples", _half_the_samples)
    flip = {"stop": "length", "length": "stop"}
    yield Tampering("finish of rollout: dropped", frames("rollout", finish=None))
    yield Tampering("finish of rollout: empty", frames("rollout", finish=lambda old, rng: [""] * len(old)))
    yield Tampering("finish of rollout: constant", frames("rollout", finish=lambda old, rng: ["stop"] * len(old)))
    yield Tampering(
        "finish of rollout: inverted", frames("rollout", finish=lambda old, rng: [flip[one] for one in old])
    )
    yield Tampering(
        "finish of rollout: permuted",
        frames("rollout", finish=lambda old, rng: [old[i] for i in rng.permutation(len(old))]),
    )
    yield Tampering("finish of rollout: given up", frames("rollout", finish=lambda old, rng: ["abort"] * len(old)))
    yield Tampering("weight_version of rollout: dropped", frames("rollout", weight_version=None))
    yield Tampering("weight_version of rollout: constant", frames("rollout", weight_version=0))
    yield Tampering("weight_version of rollout: one later", frames("rollout", weight_version=lambda old, rng: old + 1))
    yield Tampering("weight_version of rollout and experience: one earlier", _other_versions(-1), alike=foreign)
    yield Tampering("mode of rollout: another", frames("rollout", mode="greedy"))
    yield Tampering("uncompared of rollout: 20 positions that are there", _unreached, pairs=own)
    yield Tampering("guided of rollout: not", frames("rollout", guided=False), pairs=own, places=("candidate",))
    yield Tampering("mode of rollout: unknown", frames("rollout", mode="magic"))
    # what the learner made of it
    for name in ("actor_logprob", "value", "advantage", "return"):
        yield from column(
            "experience", name, "zero", "constant", "permuted", alike=foreign if name != "actor_logprob" else ()
        )
        yield from column("experience", name, "NaN", "infinite", "rows cut")
        yield from column("experience", name, "dropped", alike=foreign if name != "actor_logprob" else ())
    for name in ("reference_logprob", "kl"):  # a framework whose loss has the KL has a penalty of zero
        yield from column("experience", name, "zero", alike=foreign if name == "kl" else ())
        yield from column("experience", name, "constant", "permuted")
        yield from column("experience", name, "dropped", alike=foreign)
        yield from column("experience", name, "NaN")
    yield from column("experience", "reward", "zero", "constant", "permuted", alike=foreign)
    yield from column("experience", "reward", "NaN")
    yield from column("experience", "reward", "infinite")
    yield from column("experience", "reward", "dropped")
    yield from column("experience", "tokens", "zero", "permuted", "rows cut", "samples rotated", "dropped")
    margins = (*own, GREEDY, FILTERED)
    yield from column(
        "experience", "margin", "zero", "constant", "NaN", "infinite", "rows cut", "dropped", pairs=margins
    )
    yield from column("experience", "margin", "permuted", pairs=margins, places=ONE)
    yield from column("experience", "runner_up", "zero", "constant", pairs=margins)
    yield Tampering("experience: dropped", without("experience"))
    yield Tampering("experience: dropped from half of the steps on", without("experience", later=True))
    yield Tampering("weight_version of experience: dropped", frames("experience", weight_version=None), alike=foreign)
    # the prompts that the engine saw
    yield from column("rollout", "prompt_seen", "zero", "samples rotated", "rows cut", "dropped")
    # the floor
    yield Tampering("floor: dropped", without("floor"), pairs=own)
    yield Tampering("floor: copied from the other run", _floor_copied, pairs=own, places=ONE)
    yield Tampering(
        "floor: exchanged", _floor_copied, KEPT, pairs=own, places=(SWAPPED,), exchange=exchanging(_floor_copied)
    )
    yield Tampering("floor: of two samples", _floor_of_few, pairs=own)
    for variant in ("base", "batch", "order", "prefill"):
        # What neither engine can do is no fault of one of them, and is told.
        alike = own if variant == "prefill" else ()
        yield Tampering(f"floor: without {variant}", _variant_lost(variant), pairs=own, alike=alike)
    yield from column("floor", "logprob", "zero", "constant", "NaN", "infinite", "permuted", "dropped", pairs=own)
    yield from column("floor", "logprob", "permuted", where={"variant": "prefill"}, pairs=own)
    # the native stage
    yield Tampering("native: copied from the other run", _native_copied, pairs=own, places=ONE)
    yield Tampering(
        "native: dropped", without("native", "repeat", "native_score"), pairs=own, ends=TOLD, check="native"
    )
    yield Tampering("native_score: dropped", without("native_score"), pairs=own, ends=TOLD, check="native")
    yield Tampering("repeat: dropped", without("repeat"), pairs=own, ends=TOLD, check="native")
    yield from column("native", "logprob", "constant", "permuted", "shifted by one", pairs=own)
    yield from column("native", "logprob", "NaN", "dropped", pairs=own, ends=TOLD, check="native")
    yield from column("native", "prompt_seen", "rows cut", "samples rotated", pairs=own)
    for name in ("entropy", "mass_before", "processed_logprob"):
        yield from column("native_score", name, "NaN", "dropped", pairs=own, ends=TOLD, check="native")
    # weights and their proofs
    yield Tampering("weights, sent: one tensor of eight", _one_tensor("learner"))
    yield Tampering("weights, received: one tensor of eight", _one_tensor("received"))
    yield Tampering("weights: one tensor of eight, sent and received", _one_tensor("learner", "received"))
    yield Tampering("weights: one tensor of eight, and the actor's digest of it", _one_tensor_under_its_digest)
    yield Tampering("model: dropped", without("model"), pairs=own)
    yield Tampering("model: one tensor of eight", events("model", tensors=lambda old, rng: old[:1]), pairs=own)
    yield Tampering(
        "model: a tensor more", events("model", tensors=lambda old, rng: [*old, "lm_head.weight"]), pairs=own
    )
    yield Tampering("weights, received: under each other's names", _tensors_renamed)
    yield Tampering("weights, received: of the next version", in_turn("weights", "digests", source="received"))
    yield Tampering(
        "weights: always the first",
        together(
            first_for_all("weights", "digests", source="learner"),
            first_for_all("weights", "digests", source="received"),
        ),
    )
    yield Tampering("weights, received: always the first", first_for_all("weights", "digests", source="received"))
    yield Tampering(
        "weights, received: empty",
        events("weights", {"source": "received"}, digests=lambda old, rng: dict.fromkeys(old, "")),
    )
    yield Tampering("weights: dropped", without("weights"))
    yield Tampering("sync: dropped", without("sync"))
    yield Tampering("sync: does not say that it went well", events("sync", ok=None))
    yield Tampering("sync: failed", events("sync", ok=False))
    yield Tampering("tensors of sync: 3", events("sync", tensors=3))
    yield Tampering("sync: says of every tensor that it was not sent", _all_tensors("absent"))
    yield Tampering("sync: says of every tensor that it has no digest of it", _all_tensors("unreported"))
    yield Tampering("weights, received: twice, and otherwise at first", _received_twice)
    yield Tampering("floor: at the first weights", frames("floor", weight_version=0), pairs=(OWN, HALF))
    yield Tampering("floor: at weights that there never were", frames("floor", weight_version=9), pairs=(OWN, HALF))
    yield Tampering("proof of sync: dropped", events("sync", proof_max_delta=None, proof_mean_delta=None), pairs=own)
    yield Tampering("proof of sync: zero", events("sync", proof_max_delta=0.0, proof_mean_delta=0.0), pairs=own)
    yield Tampering(
        "proof of sync: NaN", events("sync", proof_max_delta=float("nan"), proof_mean_delta=float("nan")), pairs=own
    )
    yield Tampering(
        "proof of sync: always the first", first_for_all("sync", "proof_max_delta", "proof_mean_delta"), pairs=own
    )
    proofs = from_other("sync", "proof_max_delta", "proof_mean_delta")
    yield Tampering("proof of sync: the other run's", proofs, pairs=own, places=ONE)
    yield Tampering(
        "proof of sync: of few tokens",
        lambda run, other, rng: [one.update(proof_tokens=3) for one in run.events("sync")] and None,
        pairs=own,
    )
    yield Tampering("proof of sync: silent on the version before", events("sync", proof_behind=None), pairs=(OWN,))
    yield Tampering("proof of sync: as near to the version before", events("sync", proof_behind=2e-7), pairs=(OWN,))
    left_out = events("sync", absent=["lm_head.weight"], proof_behind=2e-7)
    yield Tampering("proof of sync: as near to the version before, a tensor left out", left_out, pairs=(OWN,))
    for name in ("exact_logprob", "behind_logprob", "behind_exact_logprob"):
        yield from column(
            "experience", name, "zero", "constant", "permuted", "NaN", "rows cut", "dropped", pairs=(HALF,)
        )
    # the lifted stage: whatever half precision hides is seen there, and damage must not hide it again
    half = (HALF,)
    yield Tampering("lifted stage: off by 0.02 nats", in_stage(_off), pairs=half)
    yield Tampering("lifted stage: none in one run", _without_a_stage, pairs=half, places=ONE)
    yield Tampering("lifted stage: the other run's", _the_others_stage, pairs=half, places=ONE)
    yield Tampering("lifted stage: in bfloat16 by its run.json", _stage_in_half, pairs=half)
    for what, damage in (
        ("a journal that does not end", _unclosed),
        ("no rollouts", without("rollout")),
        ("no log-probabilities", Column("rollout", "logprob").drop()),
        ("no floor", without("floor")),
        ("no weights", without("weights")),
        ("an engine in bfloat16", _resolved(dtype="bfloat16")),
        ("an engine without a dtype", _resolved(dtype=None)),
        ("with a step that was not run", manifest("lifted.stop", STEPS + 3)),
        ("said to be skipped", manifest("lifted.skipped", "no room")),
    ):
        yield Tampering(f"lifted stage: {what}", in_stage(damage), pairs=half)
        yield Tampering(f"lifted stage: off by 0.02 nats, {what}", in_stage(_off, damage), pairs=half)
    yield Tampering(
        "control: frames of the lifted stage in another order", in_stage(_reordered_frames), KEPT, pairs=half
    )
    # the updates
    yield Tampering("learner: dropped", without("learner"))
    yield Tampering("learner: of the next step", in_turn("learner", "actor", "critic", "batch"))
    yield Tampering("learner: always the first", first_for_all("learner", "actor", "critic", "batch"))
    yield Tampering("actor of learner: constant", events("learner", actor="0" * 32))
    yield Tampering("critic of learner: constant", events("learner", critic="0" * 32), places=ONE)
    yield Tampering("batch of learner: constant", events("learner", batch="0" * 32), alike=foreign)
    yield Tampering("batch of learner: dropped", events("learner", batch=None), alike=foreign)
    yield Tampering("losses of step: NaN", _metrics(policy_loss=float("nan"), value_loss=float("nan")))
    yield Tampering("losses of step: others", _metrics(policy_loss=-0.5), places=ONE)
    yield Tampering("metrics of step: dropped", events("step", metrics=None), pairs=own)
    yield Tampering("means of step: others", _metrics(reward_mean=9.0, length_mean=9.0), pairs=own)
    # data and configuration
    yield Tampering("data: dropped", without("data"))
    yield Tampering("prompts of data: constant", events("data", prompts="0" * 32))
    yield Tampering("prompts of data: of the next step", in_turn("data", "prompts"))
    yield Tampering("scenario: dropped", manifest("scenario", None))
    yield Tampering("scenario: no dtype", together(manifest("scenario.model.dtype", None), _resolved(dtype=None)))
    yield Tampering("scenario: another dtype", manifest("scenario.model.dtype", "bfloat16"), alike=foreign)
    yield Tampering("scenario: temperature 0 though coupled", _temperature(0.0))
    yield Tampering("scenario: temperature NaN", _temperature("nan"))
    yield Tampering("scenario: no temperature", _temperature(None))
    yield Tampering("scenario: steps that were not run", manifest("scenario.steps", STEPS + 2))
    yield Tampering("scenario: another mode", manifest("scenario.rollout.mode", "greedy"))
    yield Tampering("run.json: another mode", manifest("sampling_mode", "native"))
    yield Tampering("run.json: a failed job", manifest("exit_code", 1))
    yield Tampering("run.json: another framework", manifest("framework", "other"), places=ONE)
    yield Tampering("run.json: another engine", manifest("backend", "hf"))
    yield Tampering("run.json: another seed", manifest("scenario.seed", 77), places=ONE)
    yield Tampering("run.json: other seeds than its scenario's", manifest("seeds.engine", 77), pairs=own)
    yield Tampering("sampling: another temperature than run.json's", _canonical(temperature=0.5))
    yield Tampering("sampling: dropped", without("sampling"), ends=TOLD, check=SUSPICIONS[7])
    # engines and environments
    yield Tampering("engine_info: dropped", without("engine_info"))
    yield Tampering("engine_info: no version", events("engine_info", version=None))
    yield Tampering("engine_info: no engine", events("engine_info", engine=None))
    info = from_other("engine_info", "engine", "version")
    yield Tampering("engine_info: the other run's", info, places=ONE)
    yield Tampering("engine_info: exchanged", info, places=(SWAPPED,), exchange=exchanging(info))
    yield Tampering("engine_info: no dtype", _resolved(dtype=None))
    yield Tampering("engine_info: another dtype", _resolved(dtype="bfloat16"), TOLD, SUSPICIONS[6])
    yield Tampering("environment: nothing of it", _nothing_of_the_environment)
    yield Tampering(
        "environment: another torch", events("open", packages=lambda old, rng: {**old, "torch": "1.0"}), places=ONE
    )
    yield Tampering("tokenizer: dropped", without("tokenizer"), ends=KEPT)
    for role in ("actor", "critic", "reference", "reward"):
        yield Tampering(f"{role}: no journal", _no_role(role), pairs=own)
    yield Tampering("rollout: a journal that does not end", _unclosed)
    yield Tampering("rollout: a process that ended badly", _ended_badly)
    # what only suspicions look at
    yield Tampering("boundaries: dropped", without("boundaries"), ends=TOLD, check=SUSPICIONS[2])
    yield Tampering("boundaries: of the next sample", in_turn("boundaries", "output_first", "output_last"))
    yield Tampering("boundaries: constant ends", events("boundaries", output_last=[7], finish="stop"))
    yield Tampering("shapes: dropped", without("shapes"), ends=TOLD, check=SUSPICIONS[3])
    yield Tampering("shapes: others", events("shapes", real_tokens=5, longest=5, samples=1), pairs=own)
    yield Tampering("group: dropped", without("group"), ends=TOLD, check=SUSPICIONS[5])
    # controls
    yield Tampering(
        "control: nothing is done to it", lambda run, other, rng: manifest("command", "again")(run, other, rng), KEPT
    )
    yield Tampering("control: samples in another order", _reordered_samples, KEPT)
    yield Tampering("control: frames in another order", _reordered_frames, KEPT)
    yield Tampering("control: independent events in another order", _reordered_events, KEPT)
    yield Tampering("control: other process ids", _other_processes, KEPT)
    yield Tampering("control: other times", _other_times, KEPT)
    yield Tampering("control: events, fields and arrays that nobody knows", _unknown_things, KEPT)


CATALOGUE: dict[str, Tampering] = {one.name: one for one in _catalogue()}
CASES = [(kind, name, place) for name, one in CATALOGUE.items() for kind in one.pairs for place in one.places]


# --- the page ---------------------------------------------------------------------------------------

PLACES = ("candidate", BOTH, SWAPPED)  # of the table; what is done to a baseline is tried as well
HEAD = "| tampering | must be | " + " | ".join(f"{kind}, {place}" for kind in PAIRS for place in PLACES) + " |"
NOTHING = "–"


def cell(verdict: Verdict) -> str:
    return verdict.verdict


def row(name: str, found: dict[tuple[str, str], str]) -> str:
    """One line of the table; `found`: (kind, place) -> what it ended as."""
    one = CATALOGUE[name]
    cells = [found.get((kind, place), NOTHING) for kind in PAIRS for place in PLACES]
    wanted = {STOPPED: "stopped", KEPT: "EQUIVALENT", TOLD: f"told by {one.check}"}[one.ends]
    if one.alike:
        wanted += f"; in both runs of {' or '.join(pair for pair in PAIRS if pair in one.alike)} pairs EQUIVALENT"
    return f"| {name} | {wanted} | {' | '.join(cells)} |"


def read_table(text: str) -> dict[str, dict[tuple[str, str], str]]:
    """Tampering -> (kind, place) -> what it ends as, from the page."""
    found: dict[str, dict[tuple[str, str], str]] = {}
    for line in text.partition(HEAD)[2].splitlines()[2:]:
        if not line.startswith("| "):
            break
        name, _, *cells = (part.strip() for part in line.strip("|").split(" | "))
        places = [(kind, place) for kind in PAIRS for place in PLACES]
        found[name] = dict(zip(places, cells, strict=True))
    return found
