"""What one side shows without the other: its engine against its learner, its prompts, its weight version and its floor.

Both sides of a pair and the only side of an audit are judged by it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from harness.parity.facts.align import AlignedTokens, Match, around, first_difference
from harness.parity.facts.divergence import Kind
from harness.parity.facts.evidence import SideCounts
from harness.parity.facts.evidence_builder import EvidenceBuilder, SideBuilder, items_of, version_of
from harness.parity.subjects.log_probabilities import observed_drifts, observed_rereading, observed_separations
from harness.parity.subjects.log_probabilities.observed_pairs import LogprobPairs
from harness.parity.subjects.log_probabilities.observed_properties import StepTokens
from harness.parity.subjects.log_probabilities.observed_rereading import tokenizer, vocabulary
from harness.parity.subjects.precision.observed_floor import asked_again
from harness.parity.subjects.precision.observed_rounding import both, misrounded
from harness.parity.subjects.prompts import observed as prompts_observed
from harness.parity.subjects.sampling.observed_flip_table import FarChoices
from harness.parity.subjects.sampling.observed_flips import far_margin
from harness.recordings.tables import Rows, Table
from reports.model import Place, place_of_step

LARGEST_ID = 1 << 20  # larger than any vocabulary; a larger id is a fault of its own


def rollout_of_side(e: EvidenceBuilder, side: SideBuilder, rollout: Table, experience: Table | None) -> None:
    """Note what one step's rollout of a side shows, and compare it with `experience`, what its learner made of it.

    Without `experience`, or where the learner had other weights, there is nothing to compare it with.
    """
    output = rollout.rows("output")
    if output is None:
        return
    cached = rollout.flat("cached")
    side.counts += SideCounts(
        samples=len(rollout.sample),
        tokens=len(output.values),
        unknown_ids=int(np.count_nonzero(output.values >= vocabulary(e))),
        cached_tokens=int(cached.sum()) if cached is not None else 0,
    )
    prompts_observed.note(e, side, rollout)
    _stops(side, rollout, output)
    _not_finite(e, side, rollout)
    version = rollout.header.weight_version
    side.versions.setdefault(version, []).append(rollout.step)
    if experience is None:
        side.no_experience.append(rollout.step)
        return
    # Numbers of other weights differ by an update. That is noted instead of every number.
    trained_version = experience.header.weight_version
    if None not in (version, trained_version) and version != trained_version:
        e.note_divergence(
            Kind.VERSION.of(),
            [],
            place_of_step(
                step=rollout.step,
                phase="rollout",
                rank=int(rollout.rank[0]),
                field="weight_version",
                baseline=version,
                candidate=trained_version,
                context=f"{side.name}: the rollout used version {version}, the learner was at {trained_version}",
            ),
        )
        return
    _against_learner(e, side, rollout, output, experience)


def _stops(side: SideBuilder, rollout: Table, output: Rows) -> None:
    """Count the tokens at which samples stop, and the tokens inside of samples."""
    ends = np.flatnonzero(output.lengths > 0)
    last = output.offsets[1:][ends] - 1
    if rollout.finish is not None:
        stopped = output.values[last[rollout.finish[ends] == "stop"]]
        for token, count in zip(*(part.tolist() for part in np.unique(stopped, return_counts=True)), strict=True):
            side.stops[token] = side.stops.get(token, 0) + count
    inner = np.delete(output.values, last)
    inner = inner[(inner >= 0) & (inner < LARGEST_ID)]
    counts = np.bincount(inner, minlength=len(side.inner))
    counts[: len(side.inner)] += side.inner
    side.inner = counts


def _scored_as(e: EvidenceBuilder, rollout: Table) -> str:
    """Return the column of the engine's log-probabilities that come from the distribution that its learner scores.

    In a run by itself those of the importance ratio count too, whatever they are of. Two runs have the same ratio.
    """
    header = rollout.header
    return "processed_logprob" if header.tempered or (e.alone and header.in_ratio) else "logprob"


def _not_finite(e: EvidenceBuilder, side: SideBuilder, rollout: Table) -> None:
    """Find log-probabilities that are NaN or infinite, whatever the other side has for the token."""
    logprob = rollout.rows(_scored_as(e, rollout))
    if logprob is None:
        return
    bad = np.flatnonzero(~np.isfinite(logprob.values))
    if not len(bad):
        return
    rows = logprob.row_of(bad)
    row = int(rows[0])
    position = int(bad[0] - logprob.offsets[row])
    e.note_divergence(
        Kind.NOT_FINITE.of(side.name),
        rollout.sample[np.unique(rows)],
        Place(
            **rollout.at(row),
            phase="rollout",
            position=position,
            field="logprob",
            **side.paired(float(logprob.values[bad[0]]), None),
            context=f"the {side.name} reports a log-probability that is not a number",
        ),
    )


def _against_learner(e: EvidenceBuilder, side: SideBuilder, rollout: Table, output: Rows, experience: Table) -> None:
    """Compare tokens, choices and log-probabilities of the engine with the learner's, at equal tokens.

    `pairs` have the engine first and the learner second, so Δ is learner − engine. `reread` wants the truth first:
    hence `backwards`.
    """
    tokens = experience.rows("tokens")
    if tokens is None:
        side.no_experience.append(rollout.step)
        return
    if experience.header.unmatched and side.unmatched is None:
        side.unmatched = (rollout.step, experience.header.unmatched)
    match = Match.of(rollout.sample, experience.sample)
    where = f"step {rollout.step}: {side.name}"
    e.unpaired(match, where, "rolled out but not trained on", "trained on but not rolled out")
    if rollout.header.uncompared is not None:  # for a framework's tools or environment
        side.uncompared = side.uncompared or (rollout.step, rollout.header.uncompared)
        side.no_experience.append(rollout.step)
        return
    follows_guide = rollout.header.guided  # then it trains on the baseline's tokens and not on its own
    aligned = AlignedTokens.of(rollout, experience, match, output, tokens)
    grid = aligned.grid
    tokens_equal = aligned.tokens_a == aligned.tokens_b
    side.counts += SideCounts(trained_tokens=grid.size)
    if not follows_guide:
        _trained_tokens(e, side, aligned, tokens_equal)
    # In half precision the learner itself may be off: that is not held against the engine.
    off = _learner_off(e, aligned, tokens_equal)
    _choices(e, side, aligned, tokens_equal, off)
    actor, logprob = experience.per_token("actor_logprob", tokens), rollout.per_token(_scored_as(e, rollout), output)
    if actor is None or logprob is None:
        side.no_experience.append(rollout.step)
        return
    p, q = aligned.take_a(logprob), aligned.take_b(actor)
    cached = rollout.flat("cached")
    cached = None if cached is None else cached[match.a]
    pairs = LogprobPairs(grid, tokens_equal, p, q, match.sample, cached)
    side.to_learner.add(pairs, step=rollout.step, version=version_of(rollout))
    observed_drifts.against_learner(e, side, aligned, pairs)
    kind = Kind.ENGINE.of(side.name)
    weighed = e.weigh(kind, grid, tokens_equal, pairs.size, items_of(rollout.step, match.sample))
    if not len(weighed.beyond):
        return
    if e.note_differences(
        kind,
        weighed,
        match.sample[np.unique(grid.row[weighed.deciding])],
        _place_against_learner(side, aligned, int(weighed.deciding[0]), (p, q)),
    ):
        # Read the numbers in other ways, and ask which property the differing tokens share: causes are made of both.
        prompt = rollout.rows("prompt")
        lengths = prompt.lengths[match.a] if prompt is not None else None
        observed_rereading.reread(e, kind, aligned, pairs.exchanged(), prompt=lengths, rounded=off > 0)
        step = StepTokens(aligned, p, q, cached, tokenizer(e).specials)
        differs = np.zeros(grid.size, bool)
        differs[weighed.beyond] = True
        observed_separations.count(e.separations.setdefault(kind, {}), step, differs, tokens_equal)


def _place_against_learner(
    side: SideBuilder, tokens: AlignedTokens, at: int, logprobs: tuple[np.ndarray, np.ndarray]
) -> Place:
    """Return the place of one position of the grid. `logprobs`: the engine's and the learner's."""
    row, (engine, learner) = int(tokens.grid.row[at]), (float(numbers[at]) for numbers in logprobs)
    margin = tokens.b.per_token("margin", tokens.column_b)
    gap = float(tokens.take_b(margin)[at]) if margin is not None else float("nan")
    return Place(
        **tokens.at(row),
        phase="rollout",
        position=int(tokens.grid.position[at]),
        field="logprob against the learner",
        **side.paired(engine, learner),
        margin=gap if np.isfinite(gap) else None,
        context=f"the {side.name}'s engine reports {engine:.6g} for token {int(tokens.tokens_a[at])}, "
        f"the learner computes {learner:.6g}",
    )


def _trained_tokens(e: EvidenceBuilder, side: SideBuilder, tokens: AlignedTokens, tokens_equal: np.ndarray) -> None:
    match, grid = tokens.match, tokens.grid
    wrong = np.union1d(np.flatnonzero(tokens.lengths_a != tokens.lengths_b), np.unique(grid.row[~tokens_equal]))
    if not len(wrong):
        return
    row = int(wrong[0])
    drawn_ids, trained_ids = tokens.column_a.row(int(match.a[row])), tokens.column_b.row(int(match.b[row]))
    at = first_difference(drawn_ids, trained_ids)
    e.note_divergence(
        Kind.TRAINED.of(side.name),
        match.sample[wrong],
        Place(
            **tokens.at(row),
            phase="experience",
            position=at,
            field="token trained on",
            **side.paired(around(trained_ids, at), around(drawn_ids, at)),
            context=f"{side.name}: rolled out against trained on, from position {at}",
        ),
    )
    observed_rereading.reread_tokens(e, Kind.TRAINED.of(side.name), tokens)


def _learner_off(e: EvidenceBuilder, tokens: AlignedTokens, tokens_equal: np.ndarray) -> np.ndarray:
    """Return by how many nats the learner's number is wrong where the engine's is right (`misrounded`), on `grid`.

    It is 0 elsewhere, in float32, and where the float32 log-probabilities were not recorded.
    """
    by = np.zeros(tokens.grid.size)
    logprob = tokens.a.per_token("logprob", tokens.column_a)
    learner_logprobs = both(tokens.b, "actor_logprob", "exact_logprob")
    if not e.tolerance.half or learner_logprobs is None or logprob is None:
        return by
    engine, (learner, exact) = tokens.take_a(logprob), map(tokens.take_b, learner_logprobs)
    places = np.flatnonzero(tokens_equal)
    places = places[misrounded(engine[places], learner[places], exact[places], e.tolerance.extreme_drawn)]
    by[places] = np.abs(learner[places].astype(np.float64) - exact[places])
    return by


def _choices(
    e: EvidenceBuilder, side: SideBuilder, tokens: AlignedTokens, tokens_equal: np.ndarray, off: np.ndarray
) -> None:
    """Find tokens that the learner would not have drawn with the same random numbers: its margin is negative beyond the
    tolerance.

    `off`: the result of `_learner_off`.
    """
    experience, trained, grid = tokens.b, tokens.column_b, tokens.grid
    margin = experience.per_token("margin", trained)
    if margin is None or (tokens.a.header.mode or e.mode) not in ("coupled", "greedy"):
        return
    gap = tokens.take_b(margin)
    judged = tokens_equal & np.isfinite(gap)
    side.counts += SideCounts(choices=int(np.count_nonzero(judged)))
    beyond = np.flatnonzero(judged & (gap < -e.tolerance.margin))
    if not len(beyond):
        return
    # In half precision a few choices may be reversed further than the tolerance: where a token rounds far, where the
    # learner's own number is off, or at a filter's edge. They are kept aside and judged by their number.
    reach, edge = far_margin(e), experience.per_token("edge", trained)
    turned = gap[beyond] >= -reach
    by = off[beyond] / max(e.tolerance.temperature, 1e-6)  # in nats of logits/T, like the gap
    turned |= (by > 0) & (gap[beyond] + by >= -reach)
    if reach and edge is not None:
        turned |= tokens.take_b(edge)[beyond] <= e.tolerance.extreme_drawn
    far = bool(turned.all())
    row, position = int(grid.row[beyond[0]]), int(grid.position[beyond[0]])
    best = experience.rows("runner_up")
    token = int(tokens.tokens_b[beyond[0]])
    instead: Any = int(tokens.take_b(best)[beyond[0]]) if best is not None else "another token"
    side.counts += SideCounts(choices_against_learner=len(beyond))
    samples = tokens.match.sample[np.unique(grid.row[beyond])]
    place = Place(
        **tokens.at(row),
        phase="rollout",
        position=position,
        field="token against the learner's choice",
        **side.paired(token, instead),
        margin=float(gap[beyond[0]]),
        context=f"the {side.name}'s engine drew {token}, the learner would have drawn {instead}",
    )
    if far:
        e.far.append(FarChoices(Kind.CHOICE.of(side.name), samples, place, gap[beyond]))
    else:
        e.note_divergence(Kind.CHOICE.of(side.name), samples, place)


def note_floors(e: EvidenceBuilder) -> None:
    """Add a divergence for a floor above the cap, and for flips of an engine against itself that ties do not
    explain.
    """
    for side in e.sides:
        floor, where = side.floor, side.floor.where
        if floor.exceeds(e.of_engines):
            how = asked_again([str(where.get("variant"))])
            context = f"the {side.name}, asked again {how}, differs from itself by more than the cap"
            if floor.not_finite:
                context = f"the {side.name} reports {floor.not_finite} log-probabilities that are not finite"
        elif floor.implausible_flips(e.of_engines.cap, e.tolerance.temperature):
            context = f"the {side.name} does not draw the same tokens twice"
        else:
            continue
        values = (where.get("base"), where.get("other"))
        e.note_divergence(
            Kind.FLOOR.of(side.name),
            [],
            Place(
                step=int(where.get("step", -1)),
                phase="floor",
                rank=int(where.get("rank", 0)),
                sample=int(where.get("sample", -1)),
                position=int(where.get("position", -1)),
                field=f"logprob of the {side.name} against itself",
                baseline=values[0],
                candidate=values[1],
                context=context,
            ),
        )
