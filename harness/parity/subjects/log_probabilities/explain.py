"""Causes that re-reading the recorded numbers finds: the reading that removes the difference names the cause."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from harness.parity.causes.family import Seen, of_each_side
from harness.parity.facts.divergence import NATIVE, ROLLOUT, DivergenceKey, Kind, keys
from harness.parity.facts.evidence import Evidence, Side
from harness.parity.facts.explanation import (
    Explained,
    Explanation,
    among,
    and_native,
    and_runs,
    from_step,
    keys_of,
    scored_otherwise,
    when,
)
from harness.parity.facts.history import later_steps, right_before
from harness.parity.facts.odd_one import engines_compared
from harness.parity.facts.probabilities import binomial_limit
from harness.parity.subjects.learner.causes import TRAINER, scored_wrongly
from harness.parity.subjects.log_probabilities.causes import ALIGNMENT
from harness.parity.subjects.log_probabilities.observed_outliers import FALSE_OUTLIERS
from harness.parity.subjects.log_probabilities.observed_properties import ZERO
from harness.parity.subjects.log_probabilities.observed_readings import Readings
from harness.parity.subjects.log_probabilities.observed_rereading import GRIDS, SHIFTS, filtered_by
from harness.parity.subjects.precision.observed_floor import CAPS
from harness.parity.subjects.prompts.causes_retokenization import RETOKENIZATION
from harness.parity.subjects.sampling.causes_meaning import LOGPROB_SEMANTICS
from harness.parity.subjects.weights.causes import STALE_WEIGHTS
from harness.parity.subjects.weights.causes_mixed_version import MIXED_VERSION
from probes.format import SIDES
from reports.model import RESIDUE, Cause, Proof
from reports.text import figure, part_of

BESIDE = 0.25  # and at most this share of a sample next to tokens that differ themselves
CLEAR = 5  # tokens from which a sample decides by itself; shorter samples follow those of their step
LEAST = 10  # tokens that a re-reading must repair over all samples
MOST_OF_IT = 0.1  # a re-reading that leaves less than this share of the nats is right, though more is wrong
SAME_SCALE = 0.01  # relative: two samples share a factor when theirs differ by less
FEWEST_SLIPPED = 3  # samples whose numbers slip; fewer may do so by chance
AT_ONE = 2  # tokens: positions this close count as the same position
_Repair = tuple[np.ndarray, bool, Proof]  # rows that a shift repairs, whether something else is left in them, proof
MOST_SAMPLES = 0.9  # share of a step's differing samples that must show the cause


def _open(kind: DivergenceKey, readings: Readings, so_far: Explained) -> np.ndarray:
    """Return a row mask: samples that still differ, and that no cause named so far explains."""
    return (readings["beyond"] > 0) & np.isin(keys_of(readings.keys), keys_of(so_far.left(kind)))


@dataclass(frozen=True)
class _Engine:
    """An engine of which some samples differ from its learner. `readings`: what was measured of each of them."""

    side: Side
    kind: DivergenceKey
    readings: Readings


def _of_each_engine(
    rule: Callable[[Evidence, _Engine, Explained], Iterator[Explanation]],
) -> Callable[[Evidence, Explained], Iterator[Explanation]]:
    """Make the `run` of a `Rule` from a function that re-reads the numbers of one engine."""

    @of_each_side
    @functools.wraps(rule)
    def run(e: Evidence, side: Side, so_far: Explained) -> Iterator[Explanation]:
        kind = Kind.ENGINE.of(side.name)
        readings = e.log_probabilities.readings.get(kind)
        if readings is not None:
            yield from rule(e, _Engine(side, kind, readings), so_far)

    return run


def _with_short_ones(readings: Readings, open_: np.ndarray, good: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Return those of the `good` rows that count: samples of at least `CLEAR` tokens, and the short ones of their
    steps.

    Later steps that have short samples only count too, where the re-reading repairs all of them.
    """
    clear = good & (size >= CLEAR)
    if size[clear].sum() < LEAST:
        return np.zeros(len(good), bool)
    steps = readings["step"]
    contradicted = np.isin(steps, steps[open_ & ~good & (size > 0)])
    follows = np.isin(steps, steps[clear]) | ((steps > steps[clear].min()) & ~contradicted)
    sound: np.ndarray = good & follows
    return sound


# Divergences that are measured as an engine's distance from its learner, and so appear when the learner's numbers are
# wrong.
_FROM_THE_LEARNER = (Kind.TRAINER_DRIFT.of(), *(kind.of(side) for kind in (Kind.BEHIND, Kind.DRIFT) for side in SIDES))
# Words for a pair of engine and learner that disagree, where nothing else shows which of the two is wrong.
_EITHER = "which of the two is off no equal token of a second run shows"


def _whose(e: Evidence, side: str, affected: np.ndarray) -> str:
    """Return whose numbers are wrong in samples where an engine and its learner disagree.

    - the side's name: the two engines disagree there too.
    - "trainer": the learners disagree there too, or both engines disagree with their learners.
    - "either": too few tokens could be compared between the engines to tell.
    - "": the engines agree within the tolerance, so that the other run misreads nothing either.
    """
    if e.alone:
        return "either"
    here = among(affected)
    if here(e.found(Kind.LOGPROB.of())).any():
        return side
    other_side = next(each_side.name for each_side in e.sides if each_side.name != side)
    if here(e.found(Kind.EXPERIENCE.of())).any() or here(e.found(Kind.ENGINE.of(other_side))).any():
        return "trainer"  # the learners differ on the same tokens, or both engines differ from their learners
    return "" if engines_compared(e) else "either"


@of_each_side
def alignment(e: Evidence, side: Side, so_far: Explained) -> Iterator[Explanation]:
    """Find log-probabilities, or trained tokens, that are shifted: the difference is gone when they are read one or two
    positions further.
    """
    for kind in (Kind.ENGINE.of(side.name), Kind.TRAINED.of(side.name)):
        for shift in SHIFTS:
            repair = _shift(e, so_far, kind, shift)
            if repair is not None:
                yield from _misaligned(e, side, kind, shift, repair)


def _misaligned(e: Evidence, side: Side, kind: DivergenceKey, shift: int, repair: _Repair) -> Iterator[Explanation]:
    """Explain the rows that a shift repairs, if the other comparisons show whose numbers are shifted."""
    rows, partial, proof = repair
    affected = e.log_probabilities.readings[kind].keys[rows]
    is_trained = kind.kind is Kind.TRAINED
    whose = "trainer" if is_trained else _whose(e, side.name, affected)
    if not whose:
        return
    where, places = when(e, affected[:, 0]), abs(shift)
    kinds: tuple[DivergenceKey, ...]
    if is_trained:
        text = f"the tokens trained on are those rolled out, shifted by {places} (a mask is off) {where}"
        of_side = Kind.ENGINE.of(side.name), Kind.CHOICE.of(side.name)
        kinds = (kind, *of_side, Kind.EXPERIENCE.of(), Kind.REWARD.of(), Kind.LEARNER.of())
    elif whose == "either":
        text = f"log-probabilities of the {side.name}'s engine and of its learner are {places} position"
        text += f"{'s' * (places > 1)} apart {where}; {_EITHER}"
        kinds = (kind,)
    elif whose == "trainer":  # the engines agree with each other
        text = f"log-probabilities of the learner are shifted by {places} {where}"
        kinds = (kind, *_FROM_THE_LEARNER)
    else:
        text = f"log-probabilities are shifted by {places} {where}: each stands "
        text += f"{'after' if shift > 0 else 'before'} its token"
        kinds = (Kind.LOGPROB.of(), kind, *scored_otherwise(e, side.name))
    evidence = f"read {shift:+d} position, {figure(proof.after)} of {figure(proof.before)} {proof.unit} are left"
    evidence += "; what is left has another cause" if partial else ""
    details = {"shift": shift, "samples": len(affected), "steps": np.unique(affected[:, 0]).tolist()}
    party = "trainer" if whose == "trainer" else side.name
    cause = Cause.of(ALIGNMENT.key(), party, text, evidence, details, [proof])
    if whose == "trainer" and not is_trained:
        yield scored_wrongly(e, cause, kinds, affected, partial=partial)
    else:
        yield Explanation(cause, kinds, and_runs(affected), partial)


def _rounded_far(e: Evidence, compared: np.ndarray) -> np.ndarray:
    """Return for each sample how many tokens half precision may round beyond the tolerance: 0 or 1.

    More occur with a probability of `FALSE_OUTLIERS` at most. Samples shorter than 2 · `CLEAR` tokens get none.
    """
    if not e.tolerance.half:
        return np.zeros(len(compared))
    likely = binomial_limit(FALSE_OUTLIERS, compared, e.tolerance.share.most)
    return np.asarray((compared >= 2 * CLEAR) * np.minimum(likely, 1.0))


def _rounding_beside(
    e: Evidence, readings: Readings, kind: DivergenceKey, open_rows: np.ndarray, shift: int
) -> np.ndarray:
    """Return those of `open_rows` in which a shift leaves no more than half precision rounds.

    All tokens that the shift leaves are as few as a sound pair of engines may have beyond the tolerance, and none is
    further off than a single token may be.
    """
    compared, remaining = readings[f"shift {shift:+d} compared"], readings[f"shift {shift:+d} left"]
    has_sizes = f"shift {shift:+d} size" in readings
    if not (e.tolerance.half and has_sizes and open_rows.any()):
        return np.zeros(len(open_rows), bool)
    tolerated, all_ = e.tolerated(kind.kind), compared > 0
    if remaining[all_].sum() > tolerated.share.allowed(int(compared[all_].sum())):
        return np.zeros(len(open_rows), bool)
    reach = tolerated.extreme + tolerated.value * compared
    return np.asarray(open_rows & all_ & (remaining < compared) & (readings[f"shift {shift:+d} size"] <= reach))


def _shift(e: Evidence, so_far: Explained, kind: DivergenceKey, shift: int) -> _Repair | None:
    """Return what the shift repairs; None where it repairs nothing."""
    readings = e.log_probabilities.readings.get(kind)
    if readings is None:
        return None
    open_ = _open(kind, readings, so_far)
    compared, remaining = readings[f"shift {shift:+d} compared"], readings[f"shift {shift:+d} left"]
    # Beside a token that differs, the shift reads the number of another token. That does not speak against the shift.
    beside = np.minimum(2 * readings["other"], BESIDE * compared)
    good = open_ & (remaining <= np.maximum.reduce([RESIDUE * compared, beside, _rounded_far(e, compared)]))
    rows = _with_short_ones(readings, open_, good, compared)
    if rows.any():
        rows |= _rounding_beside(e, readings, kind, open_ & ~rows, shift)
        return rows, False, Proof(f"read {shift:+d} position", int(compared[rows].sum()), int(remaining[rows].sum()))
    # The shift leaves too much in each sample. It still explains the difference if it removes most of the nats.
    if f"shift {shift:+d} size" not in readings:
        return None
    rows = (readings["beyond"] > 0) & (compared >= CLEAR)
    before, after = (
        float(readings[f"shift {shift:+d} size before"][rows].sum()),
        float(readings[f"shift {shift:+d} size"][rows].sum()),
    )
    if before > 0 and compared[rows].sum() >= 2 * LEAST and after <= MOST_OF_IT * before:
        return rows, True, Proof(f"read {shift:+d} position", before, after, "nats")
    return None


@_of_each_engine
def scaled(e: Evidence, engine: _Engine, so_far: Explained) -> Iterator[Explanation]:
    """Find one factor that turns the engine's log-probabilities into the learner's: a division by the temperature,
    say.
    """
    side, kind, readings = engine.side, engine.kind, engine.readings
    rows = _scaled_rows(e, readings, _open(kind, readings, so_far))
    if not rows.any():
        return
    # One division gives every sample the same factor. Samples with another one are left to other causes.
    factor = float(np.median(readings["scale"][rows]))
    rows &= np.abs(readings["scale"] - factor) <= SAME_SCALE * abs(factor)
    affected, remaining = readings.keys[rows], readings["scale left"]
    before, after = int(readings["beyond"][rows].sum()), int(remaining[rows].sum())
    where = when(e, affected[:, 0])
    match _whose(e, side.name, affected):
        case "trainer":
            key, party = TRAINER.key("log-probabilities scaled"), "trainer"
            text = f"log-probabilities of the learner are scaled by {figure(factor)} {where}"
        case "either":
            key, party = LOGPROB_SEMANTICS.key("scaled"), side.name
            text = f"log-probabilities of the {side.name}'s learner are {figure(factor)} times its engine's "
            text += f"{where}; {_EITHER}"
        case "":
            return
        case _:
            key, party = LOGPROB_SEMANTICS.key("scaled"), side.name
            text = f"log-probabilities of the {side.name} are scaled by {figure(1 / factor)} {where}"
    evidence = f"after an exact linear fit {part_of(after, before, 'token')} still differ"
    evidence += _named_factor(factor, e.tolerance.temperature)
    details = {"scale": factor, "samples": len(affected), "steps": np.unique(affected[:, 0]).tolist()}
    proof = Proof(f"multiply by {figure(factor)}", before, after)
    cause = Cause.of(key, party, text, evidence, details, [proof])
    affected = np.concatenate([affected, _quiet(readings, rows, remaining)])
    if party == "trainer":
        yield scored_wrongly(e, cause, (kind, *_FROM_THE_LEARNER), affected)
    else:
        kinds = (kind, Kind.LOGPROB.of(), *scored_otherwise(e, side.name))
        yield Explanation(cause, kinds, and_runs(affected))


def _scaled_rows(e: Evidence, readings: Readings, open_: np.ndarray) -> np.ndarray:
    """Return the samples that a factor of their own repairs, without steps whose other samples do not show it."""
    beyond = readings["beyond"]
    remaining = readings["scale left"]
    # Half precision leaves a token of some samples that is no further off than a single one may be.
    rounded = (remaining <= _rounded_far(e, beyond)) & (readings["scale size"] <= e.tolerance.extreme)
    repaired = (remaining <= RESIDUE * beyond) | rounded
    good = open_ & repaired & (np.abs(readings["scale"] - 1) > SAME_SCALE)
    rows = _with_short_ones(readings, open_, good, beyond)
    # A wrong scale affects every number of a step.
    return rows & ~np.isin(readings["step"], _other_steps(readings, open_ & (beyond >= CLEAR), rows))


def _named_factor(factor: float, temperature: float) -> str:
    """Say that a factor is the run's temperature or its inverse; "" where it is neither, or where the temperature is
    1.
    """
    if temperature == 1.0:
        return ""
    for name, value in (("T", temperature), ("1/T", 1 / temperature)):
        if abs(factor - value) < SAME_SCALE:
            return f"; the factor is the {name} of the run"
    return ""


def _quiet(readings: Readings, rows: np.ndarray, remaining: np.ndarray) -> np.ndarray:
    """Return (step, sample) of the quiet samples of the same steps: they allow this reading and are within the
    tolerance of their own learner.

    A fault in all numbers of a step affects them too. There it adds to what the other run rounds by.
    """
    quiet: np.ndarray = readings.keys[np.isin(readings["step"], readings["step"][rows]) & (remaining == 0)]
    return quiet


def _other_steps(readings: Readings, clear: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the steps in which most samples that decide by themselves are not in `rows`."""
    steps = np.unique(readings["step"][rows])
    of = readings["step"]
    return np.array([s for s in steps if (rows & clear & (of == s)).sum() < MOST_SAMPLES * (clear & (of == s)).sum()])


@_of_each_engine
def as_the_reference(e: Evidence, engine: _Engine, so_far: Explained) -> Iterator[Explanation]:
    """Find an engine, or a learner, that has the reference's numbers after an update: of the three the odd one out is
    the one that no other agrees with.

    Of the first weights the learner is the reference, so only later steps tell.
    """
    side, kind, readings = engine.side, engine.kind, engine.readings
    if side.sync.unchanged or not right_before(e, side.name):
        return
    open_ = _open(kind, readings, so_far) & np.isin(readings["step"], later_steps(e, side.name))
    beyond, affected = int(readings["beyond"][open_].sum()), readings.keys[open_]
    if beyond < 2 * LEAST:
        return
    # Of three that should agree, one equals the reference: the engine kept the first weights, or the learner's numbers
    # were taken from the reference model. Where neither or both are near it, nothing is told.
    engine_off, learner_off = (int(readings[f"{name} off reference"][open_].sum()) for name in ("engine", "truth"))
    where, steps = when(e, affected[:, 0]), np.unique(affected[:, 0]).tolist()
    details = {"samples": len(affected), "steps": steps}
    evidence = f"engine and learner differ at {beyond:,} tokens; the engine differs from the reference there at "
    evidence += f"{engine_off:,}, the learner at {learner_off:,}"
    if engine_off <= RESIDUE * beyond < learner_off:
        text = f"the {side.name}'s engine computes with the reference's weights {where}: no update reached it"
        proof = Proof("hold the engine against the reference's numbers", beyond, engine_off)
        key = STALE_WEIGHTS.key("those of the reference", many=True)
        cause = Cause.of(key, side.name, text, evidence, details, proofs=[proof], observed=[Seen.REFERENCES])
        yield Explanation(cause, keys((Kind.SYNC, *ROLLOUT, *NATIVE), side.name), from_step(steps[0]))
    elif learner_off <= RESIDUE * beyond < engine_off:
        text = f"the learner's log-probabilities are the reference's {where}, not those of the weights drawn with"
        cause = Cause.of(TRAINER.key("scored with the reference"), "trainer", text, evidence, details)
        yield scored_wrongly(e, cause, (kind, *_FROM_THE_LEARNER), affected)


@_of_each_engine
def slipped(e: Evidence, engine: _Engine, so_far: Explained) -> Iterator[Explanation]:
    """Find samples of which the numbers slip by some positions from one place on: ids that were encoded again, or left
    out, stand in place of those that the numbers belong to.

    The numbers behind the place were computed after other ids, so they come near to the learner's and do not equal
    them: this supports the cause.
    """
    side, kind, readings = engine.side, engine.kind, engine.readings
    open_ = _open(kind, readings, so_far)
    before, after = readings["slip before"], readings["slip after"]
    large = before > LEAST * e.tolerated(kind.kind).value
    rows = open_ & large & (readings["slip"] != 0) & (after <= MOST_OF_IT * before)
    if rows.sum() < FEWEST_SLIPPED or 2 * rows.sum() < open_.sum():
        return
    affected = readings.keys[rows]
    slips = ", ".join(f"{by:+d}" for by in np.unique(readings["slip"][rows]))
    yield Explanation(
        Cause.of(
            RETOKENIZATION.key(),
            side.name,
            f"from one place on the numbers of {len(affected):,} samples belong to other ids: as if their text had "
            f"been encoded again {when(e, affected[:, 0])}",
            f"read {slips} positions further behind that place, {figure(float(before[rows].sum()))} nats become "
            f"{figure(float(after[rows].sum()))}",
            {"samples": len(affected), "steps": np.unique(affected[:, 0]).tolist()},
        ),
        (kind, Kind.LOGPROB.of(), *keys((Kind.CHOICE,), side.name)),
        among(affected),
    )


@of_each_side
def placeholders(e: Evidence, side: Side, so_far: Explained) -> Iterator[Explanation]:
    """Find an engine of which only tokens with a log-probability of exactly 0 differ: a number was put in their place.

    What the engine computes for all other tokens is the learner's.
    """
    kind = Kind.ENGINE.of(side.name)
    separations, items = e.log_probabilities.separations.get(kind, ()), so_far.left(kind)
    exact = [separation for separation in separations if separation.exact]
    zero = next((separation for separation in exact if separation.name == ZERO), None)
    if zero is None or not zero.having_differing or not len(items):
        return
    where = "; ".join(separation.in_words() for separation in exact if separation.complete)
    yield Explanation(
        Cause.of(
            LOGPROB_SEMANTICS.key("placeholder"),
            side.name,
            f"the {side.name}'s engine gives 0.0 for {zero.having_differing:,} tokens: a placeholder, not their "
            "log-probability",
            where or zero.in_words(),
            {"samples": len(items), "tokens": zero.having_differing},
            [Proof("leave out the tokens that carry 0.0", zero.differing, zero.lacking_differing)],
        ),
        (kind, Kind.LOGPROB.of(), Kind.NATIVE_LEARNER.of(side.name), *scored_otherwise(e, side.name)),
        and_native(items),
    )


@_of_each_engine
def rounded(e: Evidence, engine: _Engine, so_far: Explained) -> Iterator[Explanation]:
    """Find an engine of which every number is one of half precision: it was rounded after the model had computed it.

    It explains differences within what that type is believed to round. How the numbers were made does not follow.
    """
    side, kind, readings = engine.side, engine.kind, engine.readings
    count, rows = int(readings["numbers"].sum()), _open(kind, readings, so_far)
    name = next((name for name in GRIDS if readings[f"{name} numbers"].sum() == count), "")
    if not name or count < 2 * LEAST:
        return
    rows &= readings["size"] <= CAPS[name] * readings["beyond"]
    affected = readings.keys[rows]
    if not len(affected):
        return
    yield Explanation(
        Cause.of(
            LOGPROB_SEMANTICS.key("rounded"),
            side.name,
            f"the {side.name}'s engine reports log-probabilities rounded to {name} {when(e, affected[:, 0])}",
            f"all {count:,} numbers have at most {GRIDS[name]} significant bits, those of float32 have 24",
            {"samples": len(affected), "numbers": count, "type": name},
        ),
        (kind, Kind.LOGPROB.of(), Kind.NATIVE_LEARNER.of(side.name), *scored_otherwise(e, side.name)),
        and_native(affected),
    )


@_of_each_engine
def semantics(e: Evidence, engine: _Engine, so_far: Explained) -> Iterator[Explanation]:
    """Find log-probabilities reported after temperature, or renormalised over the nucleus: each lies within the bounds
    of that reading.

    Bounds remove no difference, since one token's log-probability cannot be tempered without the whole distribution. So
    the records only support this cause. A live engine proves it.
    """
    side, kind, readings = engine.side, engine.kind, engine.readings
    for name in ("tempered", "renormalised"):
        if f"{name} left" not in readings:
            continue
        outside, telling = readings[f"{name} left"], readings[f"{name} telling"]
        open_ = _open(kind, readings, so_far)
        good = open_ & (outside <= RESIDUE * readings["tokens"])
        rows = _with_short_ones(readings, open_, good, readings["beyond"])
        # Bounds also hold for many small faults. So most of what differs must lie within them, and enough tokens
        # must tell.
        if telling[rows].sum() < 2 * LEAST or rows.sum() < MOST_SAMPLES * _open(kind, readings, so_far).sum():
            continue
        affected = readings.keys[rows]
        sampling = e.baseline.recording.records.settings.sampling
        parameters = {"tempered": ["temperature"], "renormalised": filtered_by(sampling)}[name]
        by = " and ".join(f"{parameter} {sampling.get(parameter)}" for parameter in parameters)
        yield Explanation(
            Cause.of(
                LOGPROB_SEMANTICS.key(name),
                side.name,
                f"the {side.name}'s engine reports log-probabilities {name} by {by} {when(e, affected[:, 0])}",
                f"{int((readings['tokens'] - outside)[rows].sum())} of {int(readings['tokens'][rows].sum())} "
                f"tokens lie within the bounds that this sets; at {int(telling[rows].sum())} the raw one would not",
                {"samples": len(affected), "steps": np.unique(affected[:, 0]).tolist()},
            ),
            (kind, Kind.LOGPROB.of(), *scored_otherwise(e, side.name)),
            among(np.concatenate([affected, _quiet(readings, rows, outside)])),
        )


@_of_each_engine
def mixed_version(e: Evidence, engine: _Engine, so_far: Explained) -> Iterator[Explanation]:
    """Find samples that differ up to one position only, or from one position on: the weights changed while they were
    drawn.

    Only a sync changes weights, so no sample can be split before the first sync.
    """
    side, kind, readings = engine.side, engine.kind, engine.readings
    if not right_before(e, side.name):
        return
    open_ = _open(kind, readings, so_far)
    for ahead in (True, False):
        change = _change(e, readings, open_, ahead)
        if change is not None:
            yield _changed_midway(e, side, readings, change)


@dataclass(frozen=True)
class _Change:
    """A change of weights while samples were drawn. `ahead`: the tokens before it differ, else those from it on.

    Row masks: `split`, samples with tokens on both sides of it; `rows`, those and all others that it explains; `steps`,
    the samples of its steps. For each row: `cut`, the position of the change; `clean`, the tokens that agree.
    """

    ahead: bool
    split: np.ndarray
    rows: np.ndarray
    steps: np.ndarray
    cut: np.ndarray
    clean: np.ndarray


def _change(e: Evidence, readings: Readings, open_: np.ndarray, ahead: bool) -> _Change | None:
    clean = readings["after" if ahead else "before"]
    dense = 2 * readings["beyond"] >= readings["tokens"] - clean
    split = open_ & dense & (clean >= 2) & (readings["beyond"] >= 2)
    cut = readings["last"] + 1 if ahead else readings["first"]
    if split.sum() < 3 or clean[split].sum() < 2 * LEAST:
        return None
    # Samples that lie entirely on one side of the change, or nearly, belong to its steps as well.
    consistent = (readings["last"] < cut[split].max()) if ahead else (readings["first"] >= cut[split].min())
    steps = np.isin(readings["step"], readings["step"][split])
    rows = open_ & dense & consistent & steps
    if rows.sum() < MOST_SAMPLES * open_[steps].sum():
        return None
    # So do samples of these steps in which fewer tokens are beyond the tolerance, or one more by rounding.
    in_half = ahead and e.tolerance.half
    within_cut = readings["beyond"] <= cut[split].max() if in_half else np.zeros(len(rows), bool)
    return _Change(ahead, split, rows | (open_ & steps & (consistent | within_cut)), steps, cut, clean)


def _changed_midway(e: Evidence, side: Side, readings: Readings, change: _Change) -> Explanation:
    split, rows, ahead = change.split, change.rows, change.ahead
    cuts = change.cut[split]
    flipped = _flipped(e, int(cuts.max()) if ahead else 0, rows, readings)
    affected = np.concatenate([readings.keys[rows], flipped])
    going_on = change.steps & (readings["tokens"] > np.median(cuts))
    differing, agreeing = ("before", "behind") if ahead else ("from", "ahead of")
    intervention = f"read the tokens {agreeing} the position of the change only"
    cause = Cause.of(
        key=MIXED_VERSION.key(),
        party=side.name,
        summary=f"the weights changed in mid-generation {when(e, affected[:, 0])}",
        evidence=f"the engine differs from its learner {differing} one position of each sample, and agrees "
        f"{agreeing} it; {int(split.sum())} samples are split, at positions {int(cuts.min())} to {int(cuts.max())}; "
        f"{int(change.clean[split].sum())} tokens on the other side agree",
        details={"samples": len(affected), "positions": np.unique(cuts).tolist()[:20]},
        proofs=[Proof(intervention, int(readings["beyond"][rows].sum()), 0)],
        observed=[
            *[Seen.CUTS_VARY] * _vary(change.cut, readings["prompt"], split, ahead),
            *[Seen.MOST_SPLIT] * bool(2 * (rows & going_on).sum() >= going_on.sum()),
        ],
    )
    return Explanation(cause, keys((Kind.LOGPROB, Kind.ENGINE, Kind.FLIP, Kind.CHOICE), side.name), among(affected))


def _vary(cut: np.ndarray, prompt: np.ndarray, split: np.ndarray, ahead: bool) -> bool:
    """Whether the position of the change varies between samples, counted from the response and from the prompt.

    A fault of the position itself begins or ends at one position, up to a few tokens there that happen to agree.
    """
    for cuts in (cut[split], (cut + prompt)[split]):
        near = cuts >= cuts.max() - AT_ONE if ahead else cuts <= cuts.min() + AT_ONE
        if 2 * near.sum() >= len(cuts):
            return False
    return bool((prompt[split] >= 0).all())


def _flipped(e: Evidence, cut: int, rows: np.ndarray, readings: Readings) -> np.ndarray:
    """Return samples of the same steps whose flips all lie before the change: older weights drew them."""
    flips = e.flips.table
    flips = flips[np.isin(flips[:, 0], readings["step"][rows])]
    keys = keys_of(flips[:, :2])
    late = np.unique(keys[flips[:, 2] > cut])
    return flips[~np.isin(keys, late), :2] if cut else np.empty((0, 2), np.int64)
