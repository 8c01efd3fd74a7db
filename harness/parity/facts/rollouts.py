"""Engine against engine: the two rollouts of one step, token by token.

In guided mode every position is compared (each choice was made given the baseline's tokens); where the tokens differ,
the log-probability is of another token and is left out. Otherwise a sample is compared up to its first difference.
Rollouts of a step are compared only while the weights are not known to differ.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from harness.parity.facts import order, readings
from harness.parity.facts.align import Grid, Match, equal_rows, shared
from harness.parity.facts.confounders import Confounder
from harness.parity.facts.evidence import Ending, Evidence, Reason, version_of
from harness.parity.facts.floor import implausible
from harness.parity.facts.gaps import CACHED, FINISH
from harness.tables import Table
from reports.model import Finding, Place
from reports.text import figure

MOST_ENDINGS = 100_000
SERIES = ("step", "max_delta_logprob", "mean_delta_logprob", "flips", "flips_beyond_margin")


def rollouts(e: Evidence, b: Table, c: Table, experience: Table | None) -> None:
    step = b.step
    match = Match.of(b.sample, c.sample)
    e.unpaired(match, f"step {step}: in the baseline only", f"step {step}: in the candidate only")
    judged = _judged_rows(e, b, c, match)
    for name in SERIES:
        e.series[name].append(float("nan") if name in SERIES[1:3] else 0.0)
    e.series["step"][-1] = float(step)
    e.note_recorded(CACHED, step, *(table.flat("cached") is not None for table in (b, c)))
    columns = [b.rows("output"), c.rows("output")]
    output, output2 = columns
    if output is None or output2 is None or judged is None or not len(match.sample):
        return
    e.count("samples", np.count_nonzero(judged))
    grid = shared([(output, match.a), (output2, match.b)])
    one, two = grid.take(output, match.a), grid.take(output2, match.b)
    differs = one != two
    comparable = judged[grid.row] if not judged.all() else np.ones(grid.size, bool)
    same = comparable & ~differs
    if not e.guided and differs.any():
        first = grid.first(differs)[grid.row]
        same &= grid.position < first
        e.count("tokens after the first difference", np.count_nonzero(comparable & (grid.position > first)))
        comparable &= grid.position <= first
    e.count("compared_tokens", np.count_nonzero(comparable))
    if differs.any():
        order.sources(e, b, c, match)
    lookup = _Learner(experience, match.sample)
    flipped = np.flatnonzero(comparable & differs)
    if len(flipped):
        _flips(e, b, match, grid, one, two, flipped, lookup)
    _ends(e, b, c, match, grid, judged, differs, output.lengths[match.a], output2.lengths[match.b])
    p, q = b.rows("logprob"), c.rows("logprob")
    if (
        p is not None
        and q is not None
        and np.array_equal(p.lengths, output.lengths)
        and np.array_equal(q.lengths, output2.lengths)
    ):
        _logprobs(e, b, c, match, grid, one, same, grid.take(p, match.a), grid.take(q, match.b), lookup)
    else:
        e.notes.setdefault("no logprobs", []).append(step)


def _judged_rows(e: Evidence, b: Table, c: Table, match: Match) -> np.ndarray | None:
    """Which matched samples of this step can be compared between the runs; None, with the reason noted, if none can."""
    versions = [table.fields.get("weight_version") for table in (b, c)]
    equal = e.weights.equal(b.step, *versions)
    everything = e.confounded("everything")
    before = e.confounded("train", "experience", "prompts", step=b.step - 1)
    parted = e.counts.get("flips", 0) + e.counts.get("length differences", 0)
    reason = ""
    if everything is not None:
        reason = f"the runs differ in {everything.finding.name}"
    elif e.mode == "native" and not e.notes.get("seeded"):
        reason = "native sampling: samples are compared as distributions"
    elif equal is False:
        reason = "the learners' weights differ"
    elif equal is None and before is not None and e.notes.get("train"):
        reason = f"{before.finding.name} may have parted the learners before it, and no weight digests say otherwise"
    elif equal is None and parted and not e.guided and e.notes.get("train"):
        reason = "the runs trained on other tokens before it, and no weight digests say otherwise"
    if reason:
        e.unjudged_steps[b.step] = reason
        return None
    if equal is None:
        e.notes.setdefault("weights unknown", []).append(b.step)
    prompt, prompt2 = b.rows("prompt"), c.rows("prompt")
    if prompt is None or prompt2 is None:
        e.notes.setdefault("prompts unknown", []).append(b.step)
        return np.ones(len(match.sample), bool)
    judged = equal_rows(prompt, match.a, prompt2, match.b)
    if not judged.all():
        others = int(np.count_nonzero(~judged))
        e.count("samples with other prompts", others)
        if not any(one.finding.name == "data" for one in e.confounders):
            summary = f"in step {b.step} the prompts of {others} of {len(judged)} samples differ, first that of sample "
            summary += str(int(match.sample[~judged][0]))
            e.confounders.append(Confounder(Finding("data", summary, details={"steps": [b.step]}), "prompts", b.step))
    return judged


class _Learner:
    """Margin and runner-up of single tokens, from the baseline's experience."""

    def __init__(self, experience: Table | None, sample: np.ndarray) -> None:
        self.tokens, self.margin, self.runner_up = (
            (experience.rows("tokens"), experience.rows("margin"), experience.rows("runner_up"))
            if experience
            else (None, None, None)
        )
        self.row = np.full(len(sample), -1)
        if experience is not None:
            match = Match.of(sample, experience.sample)
            self.row[match.a] = match.b

    def at(self, row: np.ndarray, position: np.ndarray, token: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(margin, runner-up) where the learner was asked about this very token; NaN and -1 elsewhere."""
        margin, best = np.full(len(row), np.nan), np.full(len(row), -1)
        if self.tokens is None or self.margin is None or self.runner_up is None:
            return margin, best
        there = self.row[row]
        known = np.flatnonzero(
            (there >= 0) & (position < self.tokens.lengths[there]) & (position < self.margin.lengths[there])
        )
        place = self.tokens.offsets[there[known]] + position[known]
        right = self.tokens.values[place] == token[known]
        known, place = known[right], place[right]
        margin[known], best[known] = self.margin.values[place], self.runner_up.values[place]
        return margin, best


def _flips(
    e: Evidence,
    b: Table,
    match: Match,
    grid: Grid,
    one: np.ndarray,
    two: np.ndarray,
    flipped: np.ndarray,
    lookup: _Learner,
) -> None:
    row, position = grid.row[flipped], grid.position[flipped]
    margin, best = lookup.at(row, position, one[flipped])
    # Without a bound the margin says that one of the two tokens lies outside of what the filters leave. Rounding may
    # move a token at their edge over it; so many of them it does not.
    outside = np.isinf(margin)
    judged = implausible(int(outside.sum()), grid.size, e.tolerance.cap, e.tolerance.temperature)
    known = np.isfinite(margin) | (outside & judged)
    benign = known & (np.abs(margin) <= e.tolerance.margin) & (best == two[flipped])
    beyond = known & ~benign
    e.count("flips", len(flipped))
    rows = np.unique(row)
    e.items.setdefault("any flip", []).append(np.stack([np.full(len(rows), b.step), match.sample[rows]], axis=1))
    e.count("benign_flips", np.count_nonzero(benign))
    e.count("flips_beyond_margin", np.count_nonzero(beyond))
    e.count("flips without margin", np.count_nonzero(~known))
    e.count("flips without any margin", np.count_nonzero(np.isnan(margin)))  # not even one without a bound
    e.series["flips"][-1] = float(len(flipped))
    e.series["flips_beyond_margin"][-1] = float(np.count_nonzero(beyond))
    for kind, chosen in (("flip", beyond), ("unjudged flip", ~known)):
        index = np.flatnonzero(chosen)
        if len(index):
            at = int(index[0])
            sample = int(match.sample[row[at]])
            gap = float(margin[at])
            e.diverges(
                kind,
                match.sample[np.unique(row[index])],
                Place(
                    b.step,
                    "rollout",
                    int(b.rank[match.a[row[at]]]),
                    sample,
                    int(position[at]),
                    "token",
                    int(one[flipped[at]]),
                    int(two[flipped[at]]),
                    gap if np.isfinite(gap) else None,
                    context=f"the learner's second choice is {int(best[at])}; "
                    f"a gap up to {figure(e.tolerance.margin)} would be benign"
                    if not np.isinf(gap)
                    else "one of the two lies outside of what top-k, top-p and min-p leave",
                ),
            )
    e.flips.add(
        np.full(np.count_nonzero(beyond), b.step),
        match.sample[row[beyond]],
        position[beyond],
        one[flipped[beyond]],
        two[flipped[beyond]],
        margin=margin[beyond],
    )
    negative = int(np.count_nonzero(beyond & (margin < 0)))
    e.count("flips where the learner sides with the candidate", negative)


def _ends(
    e: Evidence,
    b: Table,
    c: Table,
    match: Match,
    grid: Grid,
    judged: np.ndarray,
    differs: np.ndarray,
    lengths: np.ndarray,
    lengths2: np.ndarray,
) -> None:
    """Lengths and finish reasons. A guided sample that was cut at a flip ("flip") was not compared beyond it; its last
    token is that flip, and one that ends with its guide's token was cut by something else.
    """
    finish, finish2 = b.finish, c.finish
    finish = finish[match.a] if finish is not None else None
    finish2 = finish2[match.b] if finish2 is not None else None
    cut = (finish2 == "flip") if finish2 is not None else np.zeros(len(judged), bool)
    any_flip = grid.any(differs)
    last = np.zeros(len(judged), bool)
    ends = np.flatnonzero(grid.length)
    last[ends] = differs[grid.start[1:][ends] - 1]
    if e.guided:
        short = judged & cut & last & (lengths2 < lengths)
        e.count("tokens not reached under the guide", int((lengths - lengths2)[short].sum()))
        wrong = np.flatnonzero(judged & (lengths != lengths2) & ~short)
    else:
        wrong = np.flatnonzero(judged & (lengths != lengths2) & ~any_flip)
    if len(wrong):
        e.count("length differences", len(wrong))
        row = int(wrong[0])
        _note_endings(e, b, c, match, wrong, finish, finish2)
        e.diverges(
            "length",
            match.sample[wrong],
            Place(
                b.step,
                "rollout",
                int(b.rank[match.a[row]]),
                int(match.sample[row]),
                int(min(lengths[row], lengths2[row])),
                "length",
                int(lengths[row]),
                int(lengths2[row]),
                context=f"the tokens before it are equal; finish {finish[row] if finish is not None else '?'} against "
                f"{finish2[row] if finish2 is not None else '?'}",
            ),
        )
    e.note_recorded(FINISH, b.step, *(one is not None and bool((one[judged] != "").all()) for one in (finish, finish2)))
    if finish is None or finish2 is None:
        return
    said = (finish != "") & (finish2 != "")
    comparable = judged & said & (lengths == lengths2) & ~(last if e.guided else any_flip | cut)
    e.count("finish reasons", np.count_nonzero(comparable))
    wrong = np.flatnonzero(comparable & (finish != finish2))
    if len(wrong):
        row, output = int(wrong[0]), b.rows("output")
        assert output is not None
        for at in wrong[: MOST_ENDINGS - len(e.reasons)].tolist():
            token = int(output.row(int(match.a[at]))[-1]) if lengths[at] else -1
            said = str(finish[at]), str(finish2[at])
            e.reasons.append(Reason(b.step, int(match.sample[at]), int(lengths[at]), token, said))
        e.diverges(
            "finish",
            match.sample[wrong],
            Place(
                b.step,
                "rollout",
                int(b.rank[match.a[row]]),
                int(match.sample[row]),
                int(lengths[row]) - 1,
                "finish_reason",
                str(finish[row]),
                str(finish2[row]),
            ),
        )


def _note_endings(
    e: Evidence,
    b: Table,
    c: Table,
    match: Match,
    wrong: np.ndarray,
    finish: np.ndarray | None,
    finish2: np.ndarray | None,
) -> None:
    """How each of these samples ends in either run."""
    output, output2, prompt = b.rows("output"), c.rows("output"), b.rows("prompt")
    assert output is not None and output2 is not None
    for row in wrong[: MOST_ENDINGS - len(e.endings)]:
        ends = output.row(int(match.a[row])), output2.row(int(match.b[row]))
        shorter, longer = sorted(ends, key=len)
        e.endings.append(
            Ending(
                b.step,
                int(match.sample[row]),
                len(prompt.row(int(match.a[row]))) if prompt is not None else 0,
                (len(ends[0]), len(ends[1])),
                ("" if finish is None else str(finish[row]), "" if finish2 is None else str(finish2[row])),
                int(shorter[-1]) if len(shorter) else -1,
                int(longer[len(shorter)]),
                int(longer[-1]),
            )
        )


def _logprobs(
    e: Evidence,
    b: Table,
    c: Table,
    match: Match,
    grid: Grid,
    token: np.ndarray,
    same: np.ndarray,
    p: np.ndarray,
    q: np.ndarray,
    lookup: _Learner,
) -> None:
    at = slice(None) if same.all() else same
    cached, cached2 = b.flat("cached"), c.flat("cached")
    either = np.maximum(cached[match.a], cached2[match.b]) if cached is not None and cached2 is not None else None
    size = np.abs(q - p)
    e.engines.add(
        p[at],
        q[at],
        row=grid.row[at],
        position=grid.position[at],
        sample=match.sample,
        cached=either,
        step=b.step,
        version=version_of(b),
    )
    if same.any():
        sizes = size[at]
        e.series["max_delta_logprob"][-1], e.series["mean_delta_logprob"][-1] = (
            float(np.nan_to_num(sizes, nan=np.inf).max()),  # NaN in a series means: not compared
            float(sizes.mean(dtype=np.float64)),
        )
    found = e.weigh("logprob", grid, same, size)
    if not len(found.beyond):
        return
    first = found.deciding[:1]
    margin, _ = lookup.at(grid.row[first], grid.position[first], token[first])
    gap = float(margin[0]) if np.isfinite(margin[0]) else None
    context = f"of token {int(token[first[0]])}; "
    context += f"{len(found.beyond)} tokens of this step differ by more than {figure(e.tolerance.value)}"
    place = _logprob_place(b, match, grid, p, q, first[0], gap, context)
    if e.differs("logprob", found, match.sample[np.unique(grid.row[found.deciding])], place):
        readings.reread(e, "logprob", b.step, match.sample, grid, p, q, same, either)


def _logprob_place(
    b: Table, match: Match, grid: Grid, p: np.ndarray, q: np.ndarray, at: Any, gap: float | None, context: str
) -> Place:
    row = int(grid.row[at])
    return Place(
        b.step,
        "rollout",
        int(b.rank[match.a[row]]),
        int(match.sample[row]),
        int(grid.position[at]),
        "logprob",
        float(p[at]),
        float(q[at]),
        gap,
        context,
    )
