"""The meaning of an engine's native log-probabilities: raw, tempered, or renormalised over the tokens that were kept.

The numbers themselves show it. The learner scores each token in every meaning, and the engine's own number must be one
of them. Engines differ in their documented defaults (vLLM: raw; SGLang: after penalties and temperature), which is a
finding. An engine that reports something else than its default is a divergence.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from harness.parity.facts.comparison import RecordedSide
from harness.parity.facts.divergence import Kind
from harness.parity.facts.evidence_builder import EvidenceBuilder, items_of
from harness.parity.subjects.log_probabilities.observed_outliers import Bounds, Weighed
from harness.parity.subjects.log_probabilities.observed_rereading import SHIFTS, shifted, tempered_bounds, vocabulary
from harness.parity.subjects.native_sampler.observed import Meaning, NativeResult, NativeStage, Shift
from harness.parity.subjects.native_sampler.observed_samples import Samples, Tokens
from harness.parity.subjects.recording.observed_unknowns import filtered
from harness.parity.subjects.sampling.observed import engine_infos
from harness.recordings.records.engine_info import NOTHING_REPORTED
from reports.model import RESIDUE, Finding, Place
from reports.text import figure, part_of
from scenarios.engines import registry

RAW, TEMPERED, RENORMALISED = "raw", "tempered", "renormalised"
# In order of preference where several fit: at T = 1 without filters all are the same.
MEANING = {
    "learner_logprob": RAW,
    "tempered_logprob": TEMPERED,
    "blind_logprob": TEMPERED,  # after a penalty that does not cover the prompt
    "processed_logprob": RENORMALISED,
    "joint_logprob": RENORMALISED,
}
FEWEST = 20  # tokens needed to recognise a meaning
ESTIMATE, STEPS = 0.05, 5  # relative error of a fitted temperature, and how many are tried on either side of it


def recognise(e: EvidenceBuilder, side: RecordedSide, samples: Samples, stage: NativeStage) -> bool:
    """Recognise the meaning of this side's log-probabilities, and add divergences where it is neither raw nor the
    documented one.

    Returns whether the engine's own numbers are the learner's in some meaning. Only then does the learner know the
    distribution from which the engine had to draw.
    """
    parts = [tokens for tokens in samples.tokens if tokens.reported is not None and tokens.grid.size]
    if not parts:
        return False
    info = next(iter(engine_infos(side, "native")), NOTHING_REPORTED)
    engine, mode = info.engine_name, info.resolved.logprobs_mode or ""
    documented = _documented(engine)
    if _unscored_temperature(e, parts) and _tempers(documented, mode):
        stage.add(
            "not_compared",
            f"{side.name}: native log-probabilities come after temperature, which cannot be undone for one token, and "
            "the learner did not score the samples at that temperature",
        )
        return False
    # Which of the learner's columns are these numbers? Sound is what the engine documents, and raw, which suits every
    # reader. All else is a fault, whose reason is looked for below.
    columns = _columns(e, parts)
    name = _recognised(e, side, columns, documented)
    recognised = MEANING.get(name, "")
    # A meaning that is neither raw nor documented is a fault. Its distance is then that from the raw numbers.
    is_sound = recognised in (RAW, documented)
    compared = name if is_sound and name else "learner_logprob"
    stage.note("learner_delta", side.name, max(_largest(e, tokens, compared) for tokens in parts))
    meaning = Meaning(
        engine=engine,
        mode=mode,
        documented=documented,
        recognised=recognised,
        column=name,
        beyond={column: len(weighed.beyond) for column, weighed in columns.items()},
        tokens=columns["learner_logprob"].compared,
    )
    stage.note("meanings", side.name, meaning)
    if is_sound:
        if recognised != RAW:  # documented, but whoever compares two engines has to know it
            stage.add("findings", _as_documented(engine or side.name, recognised, side))
        for part in parts:
            _weigh(e, side, part, compared)
        return True
    if documented == TEMPERED and not recognised and _as_drawn(e, side, parts, samples, stage):
        # Bounds hold for other small faults too: the forward pass must be known to be right from the coupled run.
        return Kind.ENGINE.of(side.name) not in e.first
    # Numbers without a meaning may be right and stand at the wrong token.
    plain = [column for column in columns if MEANING[column] in (RAW, documented)]
    shift = None if recognised else _shift(e, parts, plain)
    stage.note("meanings", side.name, replace(meaning, shift=shift))
    for part in parts:
        _note(e, side, part)
    return bool(recognised or shift)


def _documented(engine: str) -> str:
    spec = registry.find(engine)
    return RAW if spec is None else spec.logprobs


def _tempers(documented: str, mode: str) -> bool:
    """Whether the numbers are after temperature, by the engine's documentation or by the mode that it was started
    in.
    """
    return documented != RAW or "temperature" in mode or "processed" in mode


def _unscored_temperature(e: EvidenceBuilder, parts: list[Tokens]) -> bool:
    """Whether the samples were drawn at a temperature at which the learner did not score them."""
    return e.tolerance.temperature != 1.0 and not all("tempered_logprob" in tokens.views for tokens in parts)


def _columns(e: EvidenceBuilder, parts: list[Tokens]) -> dict[str, Weighed]:
    """Hold the engine's numbers against the learner's, in each meaning in which the learner scored all samples."""
    scored_columns = [name for name in MEANING if all(name in _views(tokens) for tokens in parts)]
    return {name: _remaining(e, [_difference(e, tokens, name) for tokens in parts], parts) for name in scored_columns}


def _recognised(e: EvidenceBuilder, side: RecordedSide, columns: dict[str, Weighed], documented: str) -> str:
    """Return the column that the engine's numbers equal; "" where none fits.

    Where several fit, raw is preferred if it is one of them, since they may all be equal; else the meaning that the
    engine documents.
    """
    fitting = [
        name for name, weighed in columns.items() if weighed.compared >= FEWEST and _fits(e, side, name, weighed)
    ]
    if not fitting or MEANING[fitting[0]] == RAW:
        return fitting[0] if fitting else ""
    return next((name for name in fitting if MEANING[name] == documented), fitting[0])


def _as_documented(engine: str, meaning: str, side: RecordedSide) -> Finding:
    """Return the finding of an engine that reports another meaning than raw, as it documents."""
    text = f"{engine} reports {meaning} native log-probabilities, as it documents; they were held "
    text += f"against the learner's {meaning} ones"
    return Finding("native log-probabilities", text, where=side.name)


def _fits(e: EvidenceBuilder, side: RecordedSide, name: str, weighed: Weighed) -> bool:
    """Whether the engine's numbers have this meaning.

    Renormalised numbers in half precision depend on which tokens the filters leave, and rounding moves some across
    their edges. So a few may be off by the probability of such a token. No engine documents renormalised numbers, so
    this excuses nothing.
    """
    edges = e.tolerance.half and MEANING[name] == RENORMALISED and filtered(side)
    return not weighed.diverges or (edges and len(weighed.beyond) <= RESIDUE * weighed.compared)


def _shift(e: EvidenceBuilder, parts: list[Tokens], names: list[str]) -> Shift | None:
    """Return by how many positions the numbers are shifted; None where moving them back explains nothing."""
    for name in names:
        before = _remaining(e, [_difference(e, tokens, name) for tokens in parts], parts)
        for shift in SHIFTS:
            after = _remaining(e, [_difference(e, tokens, name, shift) for tokens in parts], parts)
            if after.compared >= FEWEST and not after.diverges:
                return Shift(shift, len(before.beyond), len(after.beyond))
    return None


def _as_drawn(
    e: EvidenceBuilder, side: RecordedSide, parts: list[Tokens], samples: Samples, stage: NativeStage
) -> bool:
    """Whether tempered numbers follow from the temperature that the samples show, for an engine that documents tempered
    ones.

    Then the sampler is at fault, and not its reports. One token's number cannot be tempered again without the whole
    distribution, so it is only held against bounds.
    """
    drawn = next((fit.value for fit in samples.fits if fit.change == "temperature"), 0.0)
    if not drawn > 0:
        return False
    size, slack = vocabulary(e), e.tolerance.value
    tokens = sum(part.grid.size for part in parts)
    # The fitted temperature has an error of its own, so its neighbours are tried, and the best of them counts.
    outside = tokens
    for temperature in np.linspace(1 - ESTIMATE, 1 + ESTIMATE, 2 * STEPS + 1) * drawn:
        misfits = 0
        for part in parts:
            assert part.reported is not None
            low, high = tempered_bounds(part.learner.astype(np.float64), float(temperature), size)
            misfits += int(np.count_nonzero(~((part.reported >= low - slack) & (part.reported <= high + slack))))
        outside = min(outside, misfits)
    if outside > RESIDUE * tokens:
        return False
    engine = stage.result.meanings[side.name].engine
    text = f"the {side.name} reports native log-probabilities after temperature, as {engine} documents, and after "
    text += f"the one that they show: {part_of(outside, tokens, 'token')} lie outside of the bounds of {figure(drawn)}"
    stage.add("findings", Finding("native log-probabilities", text, where=side.name))
    return True


def _views(part: Tokens) -> dict[str, np.ndarray]:
    return {"learner_logprob": part.learner, **part.views}


def _difference(e: EvidenceBuilder, part: Tokens, name: str, shift: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return (which tokens can be compared, |difference|), of the numbers `shift` places later.

    A token that rounding let in has no value in a meaning with filters. A temperature below 1 multiplies rounding, and
    rounding in half precision was measured before temperature, so differences are scaled back.
    """
    assert part.reported is not None
    scale = min(1.0, e.tolerance.temperature) if e.tolerance.half and MEANING[name] != RAW else 1.0
    value, (reported, inside) = _views(part)[name], shifted(part.grid, part.reported, shift)
    return np.isfinite(value) & inside, scale * np.abs(reported - np.where(np.isfinite(value), value, 0.0))


def _remaining(e: EvidenceBuilder, differences: list[tuple[np.ndarray, np.ndarray]], parts: list[Tokens]) -> Weighed:
    share = e.tolerated(Kind.NATIVE_LEARNER).share
    spared = e.tolerance.spared(sum(int(np.count_nonzero(comparable)) for comparable, _ in differences))
    bounds = Bounds(e.tolerance.value, e.tolerance.extreme, share, spared, e.tolerance.most)
    pairs = zip(parts, differences, strict=True)
    return Weighed.together([Weighed.of(part.grid, comparable, size, bounds) for part, (comparable, size) in pairs])


def _largest(e: EvidenceBuilder, part: Tokens, name: str) -> float:
    size = _difference(e, part, name)[1]
    return float(np.nanmax(size)) if np.isfinite(size).any() else float("nan")


def _weigh(e: EvidenceBuilder, side: RecordedSide, part: Tokens, column: str) -> Weighed:
    """Add the distance of one draw's numbers from the learner's to the run's tail."""
    items = items_of(part.table.step, part.table.sample[part.rows])
    return e.weigh(Kind.NATIVE_LEARNER.of(side.name), part.grid, *_difference(e, part, column), items)


def _note(e: EvidenceBuilder, side: RecordedSide, part: Tokens) -> None:
    assert part.reported is not None
    kind, weighed = Kind.NATIVE_LEARNER.of(side.name), _weigh(e, side, part, "learner_logprob")
    if not len(weighed.beyond):
        return
    first = int(weighed.deciding[0])
    row = part.rows[int(part.grid.row[first])]
    place = Place(
        **part.table.at(row),
        phase="native",
        position=int(part.grid.position[first]),
        field="native logprob against the learner",
        **side.paired(float(part.reported[first]), float(part.learner[first])),
        context=part_of(len(weighed.beyond), part.grid.size, "token"),
    )
    e.note_differences(kind, weighed, part.table.sample[part.rows[np.unique(part.grid.row[weighed.deciding])]], place)


def note_other_meaning(stage: NativeStage) -> None:
    """Add a finding where two engines mean different things by their documented defaults."""
    recognised = {side: meaning.recognised for side, meaning in stage.result.meanings.items()}
    if len(recognised) == 2 and len(set(recognised.values())) == 2 and all(recognised.values()):
        clauses = ", ".join(f"the {side}'s are {what}" for side, what in recognised.items())
        stage.add(
            "findings",
            Finding("native log-probability semantics", f"{clauses}: never mix the two in one loss", where="both"),
        )


def evidence(result: NativeResult, side: str) -> str:
    """Return in one line how well the recognised meaning fits."""
    meaning, largest = result.meanings[side], figure(result.learner_delta[side])
    beyond_count = meaning.beyond.get(meaning.column, 0)
    return (
        f"{part_of(beyond_count, meaning.tokens, 'native token')} differ from the learner's in that meaning; "
        f"read as raw, the largest is {largest}"
    )
