"""One engine by itself: against its own floor, against the prompts it was sent, and against its learner."""

from __future__ import annotations

from typing import Any

import numpy as np

from harness.parity import interventions
from harness.parity.align import Grid, Match, equal_rows, shared
from harness.parity.evidence import Evidence, Side, version_of
from harness.tables import Rows, Table
from reports.model import Place

SHOWN_IDS = 12


def one_engine(e: Evidence, side: Side, rollout: Table, experience: Table | None) -> None:
    output = rollout.rows("output")
    if output is None:
        return
    side.samples += len(rollout.sample)
    side.tokens += len(output.values)
    cached = rollout.flat("cached")
    side.cached_tokens += int(cached.sum()) if cached is not None else 0
    _prompts_seen(e, side, rollout)
    version = rollout.fields.get("weight_version")
    e.notes.setdefault(f"versions:{side.name}", {}).setdefault(version, rollout.step)
    if experience is None:
        e.notes.setdefault(f"no experience:{side.name}", []).append(rollout.step)
        return
    trained_version = experience.fields.get("weight_version")
    if None not in (version, trained_version) and version != trained_version:
        e.diverges(
            "version",
            [],
            Place(
                rollout.step,
                "rollout",
                int(rollout.rank[0]),
                -1,
                -1,
                "weight_version",
                version,
                trained_version,
                context=f"{side.name}: the rollout used version {version}, the learner was at {trained_version}",
            ),
        )
        return
    _against_learner(e, side, rollout, output, experience)


def _prompts_seen(e: Evidence, side: Side, rollout: Table) -> None:
    sent, seen = rollout.rows("prompt"), rollout.rows("prompt_seen")
    if sent is None or seen is None:
        return
    every = np.arange(len(rollout.sample))
    reported = seen.lengths > 0
    side.seen_samples += int(reported.sum())
    wrong = np.flatnonzero(reported & ~equal_rows(sent, every, seen, every))
    if not len(wrong):
        return
    wrong = wrong[np.argsort(rollout.sample[wrong])]
    kinds = e.notes.setdefault(f"prompt kinds:{side.name}", {})
    for row in wrong[:1000]:
        kinds.setdefault(interventions.how_prompt_differs(sent.row(row), seen.row(row)), []).append(
            (rollout.step, int(rollout.sample[row]))
        )
    row = int(wrong[0])
    one, two = sent.row(row), seen.row(row)
    values = (one[:SHOWN_IDS].tolist(), two[:SHOWN_IDS].tolist())
    e.diverges(
        f"prompt:{side.name}",
        rollout.sample[wrong],
        Place(
            rollout.step,
            "prompt",
            int(rollout.rank[row]),
            int(rollout.sample[row]),
            interventions.first_difference(one, two),
            "prompt_seen",
            *side.paired(values[1], values[0]),
            context=f"{side.name}: sent {len(one)} ids, the engine saw {len(two)}: "
            + interventions.how_prompt_differs(one, two),
        ),
    )


def _against_learner(e: Evidence, side: Side, rollout: Table, output: Rows, experience: Table) -> None:
    tokens, actor, logprob = experience.rows("tokens"), experience.rows("actor_logprob"), rollout.rows("logprob")
    if tokens is None:
        e.notes.setdefault(f"no experience:{side.name}", []).append(rollout.step)
        return
    match = Match.of(rollout.sample, experience.sample)
    e.unpaired(
        match,
        f"step {rollout.step}: {side.name}: rolled out but not trained on",
        f"step {rollout.step}: {side.name}: trained on but not rolled out",
    )
    follows_guide = bool(rollout.fields.get("guided"))  # then it trains on the baseline's tokens, not on its own
    grid = shared([(output, match.a), (tokens, match.b)])
    drawn, trained = grid.take(output, match.a), grid.take(tokens, match.b)
    same = drawn == trained
    if not follows_guide:
        _trained_tokens(e, side, rollout, output, tokens, match, grid, same)
    _choices(e, side, rollout, experience, match, grid, same)
    if (
        actor is None
        or logprob is None
        or not np.array_equal(actor.lengths, tokens.lengths)
        or not np.array_equal(logprob.lengths, output.lengths)
    ):
        e.notes.setdefault(f"no experience:{side.name}", []).append(rollout.step)
        return
    p, q = grid.take(logprob, match.a), grid.take(actor, match.b)
    cached = rollout.flat("cached")
    cached = None if cached is None else cached[match.a]
    at = slice(None) if same.all() else same
    side.to_learner.add(
        p[at],
        q[at],
        row=grid.row[at],
        position=grid.position[at],
        sample=match.sample,
        cached=cached,
        step=rollout.step,
        version=version_of(rollout),
    )
    kind = f"learner:{side.name}"
    found = e.weigh(kind, grid, same, np.abs(q - p))
    if not len(found.beyond):
        return
    first = found.deciding[0]
    row, engine, learner = int(grid.row[first]), float(p[first]), float(q[first])
    margin = experience.rows("margin")
    known = margin is not None and np.array_equal(margin.lengths, tokens.lengths)
    gap = float(grid.take(margin, match.b)[first]) if margin is not None and known else float("nan")
    place = Place(
        rollout.step,
        "rollout",
        int(rollout.rank[match.a[row]]),
        int(match.sample[row]),
        int(grid.position[first]),
        "logprob against the learner",
        *side.paired(engine, learner),
        gap if np.isfinite(gap) else None,
        context=f"the {side.name}'s engine reports {engine:.6g} for token {int(drawn[first])}, "
        f"the learner computes {learner:.6g}",
    )
    if e.differs(kind, found, match.sample[np.unique(grid.row[found.deciding])], place):
        interventions.reread(e, kind, grid, q, p, same, cached)


def _trained_tokens(
    e: Evidence, side: Side, rollout: Table, output: Rows, tokens: Rows, match: Match, grid: Grid, same: np.ndarray
) -> None:
    wrong = np.union1d(np.flatnonzero(output.lengths[match.a] != tokens.lengths[match.b]), np.unique(grid.row[~same]))
    if not len(wrong):
        return
    row = int(wrong[0])
    one, two = output.row(int(match.a[row])), tokens.row(int(match.b[row]))
    at = interventions.first_difference(one, two)
    e.diverges(
        f"trained:{side.name}",
        match.sample[wrong],
        Place(
            rollout.step,
            "experience",
            int(rollout.rank[match.a[row]]),
            int(match.sample[row]),
            at,
            "token trained on",
            one[at : at + SHOWN_IDS].tolist(),
            two[at : at + SHOWN_IDS].tolist(),
            context=f"{side.name}: rolled out against trained on, from position {at}",
        ),
    )
    interventions.reread_tokens(e, f"trained:{side.name}", grid, grid.take(output, match.a), grid.take(tokens, match.b))


def _choices(
    e: Evidence, side: Side, rollout: Table, experience: Table, match: Match, grid: Grid, same: np.ndarray
) -> None:
    """Tokens that the learner, under the same randomness, would not have drawn: its margin is negative beyond the
    tolerance.
    """
    margin, tokens = experience.rows("margin"), experience.rows("tokens")
    if (
        margin is None
        or tokens is None
        or not np.array_equal(margin.lengths, tokens.lengths)
        or e.mode not in ("coupled", "greedy")
    ):
        return
    gap = grid.take(margin, match.b)
    judged = same & np.isfinite(gap)
    e.count(f"choices:{side.name}", np.count_nonzero(judged))
    beyond = np.flatnonzero(judged & (gap < -e.tolerance.margin))
    if not len(beyond):
        return
    row, position = int(grid.row[beyond[0]]), int(grid.position[beyond[0]])
    best = experience.rows("runner_up")
    token = int(grid.take(tokens, match.b)[beyond[0]])
    instead: Any = int(grid.take(best, match.b)[beyond[0]]) if best is not None else "another token"
    e.count(f"choices against the learner:{side.name}", len(beyond))
    e.diverges(
        f"choice:{side.name}",
        match.sample[np.unique(grid.row[beyond])],
        Place(
            rollout.step,
            "rollout",
            int(rollout.rank[match.a[row]]),
            int(match.sample[row]),
            position,
            "token against the learner's choice",
            *side.paired(token, instead),
            margin=float(gap[beyond[0]]),
            context=f"the {side.name}'s engine drew {token}, the learner would have drawn {instead}",
        ),
    )


def note_floors(e: Evidence) -> None:
    """A floor above the cap, and flips that ties do not explain, as divergences."""
    for side in e.sides:
        floor, where = side.floor, side.floor.where
        if floor.exceeds(e.tolerance.cap):
            context = f"the {side.name} differs from itself by more than the cap ({where.get('variant')} against base)"
            if floor.not_finite:
                context = f"the {side.name} reports {floor.not_finite} log-probabilities that are not finite"
        elif floor.implausible_flips(e.tolerance.cap, e.tolerance.temperature):
            context = f"the {side.name} does not draw the same tokens twice"
        else:
            continue
        values = (where.get("base"), where.get("other"))
        e.diverges(
            f"floor:{side.name}",
            [],
            Place(
                int(where.get("step", -1)),
                "floor",
                int(where.get("rank", 0)),
                int(where.get("sample", -1)),
                int(where.get("position", -1)),
                f"logprob of the {side.name} against itself",
                *values,
                context=context,
            ),
        )
