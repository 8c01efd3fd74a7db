"""Engine against engine: the two rollouts of one step, token by token.

In guided mode every position is compared, because each choice was made given the baseline's tokens. Where tokens
differ, the log-probabilities are of different tokens and are left out. In other modes a sample is compared up to its
first difference. A step's rollouts are compared unless the weights are known to differ.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from harness.parity.facts.align import AlignedTokens, Match, equal_rows
from harness.parity.facts.divergence import Kind
from harness.parity.facts.evidence import Counts
from harness.parity.facts.evidence_builder import EvidenceBuilder, items_of, version_of
from harness.parity.subjects.log_probabilities import observed_drifts, observed_rereading
from harness.parity.subjects.log_probabilities.observed_pairs import LogprobPairs
from harness.parity.subjects.order import observed as order_observed
from harness.parity.subjects.recording.observed_confounders import Confounder
from harness.parity.subjects.recording.observed_missing_steps import CACHED, cached
from harness.parity.subjects.sampling import observed_flips
from harness.parity.subjects.sampling.observed_flips import Learner
from harness.parity.subjects.stop_conditions import observed as stop_conditions_observed
from harness.recordings.tables import Table
from probes.format import number, whole
from reports.model import Finding, Place
from reports.text import counted, figure, part_of

SERIES = ("step", "max_delta_logprob", "mean_delta_logprob", "flips", "flips_beyond_margin")


def rollouts(e: EvidenceBuilder, b: Table, c: Table, trained: list[Table | None]) -> None:
    """Compare the rollouts of one step: tokens, ends, log-probabilities.

    `b`, `c`: the baseline's and the candidate's. `trained`: what each side's learner made of them, which has the
    margins of its choices.
    """
    step = b.step
    match = Match.of(b.sample, c.sample)
    e.unpaired(match, f"step {step}", "in the baseline only", "in the candidate only")
    judged = _judged_rows(e, b, c, match)
    # A step that cannot be compared keeps its place in every series.
    for name in SERIES:
        e.series[name].append(float("nan") if name in SERIES[1:3] else 0.0)
    e.series["step"][-1] = float(step)
    e.note_recorded(CACHED, step, *(cached(table) for table in (b, c)))
    output, output2 = b.rows("output"), c.rows("output")
    if output is None or output2 is None or judged is None or not len(match.sample):
        return
    e.counts += Counts(samples=int(np.count_nonzero(judged)))
    tokens = AlignedTokens.of(b, c, match, output, output2)
    grid = tokens.grid
    _unreached(e, b, c, int(np.maximum(tokens.lengths_a - tokens.lengths_b, 0).sum()))
    longest = np.maximum(tokens.lengths_a, tokens.lengths_b)
    e.counts += Counts(drawn=int(longest[judged].sum()))
    # Positions at which tokens can be compared, and those of them at which log-probabilities can: equal tokens.
    differs = tokens.tokens_a != tokens.tokens_b
    comparable = judged[grid.row] if not judged.all() else np.ones(grid.size, bool)
    tokens_equal = comparable & ~differs
    # Without a guide, contexts differ after the first flip of a sample: later tokens cannot be compared.
    if not e.guided and differs.any():
        first = grid.first(differs)[grid.row]
        tokens_equal &= grid.position < first
        e.counts += Counts(after_first_difference=int(np.count_nonzero(comparable & (grid.position > first))))
        comparable &= grid.position <= first
    e.counts += Counts(compared_tokens=int(np.count_nonzero(comparable)))
    if differs.any():
        order_observed.sources(e, b, c, match)
    lookup = Learner(trained[0], match.sample)
    flipped = np.flatnonzero(comparable & differs)
    if len(flipped):
        second = Learner(trained[1], match.sample) if observed_flips.same_draw(e) else None
        observed_flips.note(e, tokens, flipped, lookup, second)
    stop_conditions_observed.note(e, tokens, judged, differs)
    # Log-probabilities are compared only where every token has one.
    p, q = b.per_token("logprob", output), c.per_token("logprob", output2)
    if p is not None and q is not None:
        logprobs, most_cached = (tokens.take_a(p), tokens.take_b(q)), _most_cached(b, c, match)
        _logprobs(e, tokens, LogprobPairs(grid, tokens_equal, *logprobs, match.sample, most_cached), lookup)
    else:
        e.no_logprobs.append(step)


def _unreached(e: EvidenceBuilder, b: Table, c: Table, lacking: int) -> None:
    """Note how many positions of a guide a run reports that its engine did not reach.

    `lacking`: how many tokens the candidate's samples have less than the baseline's. A report of more contradicts the
    samples.
    """
    for side, table in zip(e.sides, (b, c), strict=True):
        reported = table.header.unreached
        if not reported:
            continue
        most = lacking if side is e.candidate and e.guided else 0  # only a guided candidate follows anything
        if not 0 <= number(reported) <= most:
            e.odd_unreached.setdefault(side.name, (b.step, reported, most))
        else:
            text = f"the {side.name}'s engine did not draw {counted(whole(reported), 'token')} that it was to follow"
            e.missing.append(f"step {b.step}: {text}")


def _judged_rows(e: EvidenceBuilder, b: Table, c: Table, match: Match) -> np.ndarray | None:
    """Return a mask of the matched samples that can be compared between the runs; None, with the reason noted, if none
    can.
    """
    weights_equal = e.weights.equal(b.step, *(table.header.weight_version for table in (b, c)))
    if reason := _unjudged(e, b.step, weights_equal):
        e.unjudged_steps[b.step] = reason
        return None
    if weights_equal is None:
        e.weights_unknown.append(b.step)
    prompt, prompt2 = b.rows("prompt"), c.rows("prompt")
    if prompt is None or prompt2 is None:
        e.prompts_unknown.append(b.step)
        return np.ones(len(match.sample), bool)
    judged = equal_rows(prompt, match.a, prompt2, match.b)
    if not judged.all():
        differing = int(np.count_nonzero(~judged))
        e.counts += Counts(other_prompts=differing)
        if not any(confounder.finding.name == "data" for confounder in e.confounders):
            summary = f"in step {b.step} the prompts of {part_of(differing, len(judged), 'sample')} differ, "
            summary += f"first that of sample {int(match.sample[~judged][0])}"
            e.confounders.append(Confounder(Finding("data", summary, details={"steps": [b.step]}), "prompts", b.step))
    return judged


def _unjudged(e: EvidenceBuilder, step: int, weights_equal: bool | None) -> str:
    """Return why no sample of this step can be compared; "" where they can. `weights_equal`: None where unknown."""
    everything = e.confounded("everything")
    if everything is not None:
        return f"the runs differ in {everything.finding.name}"
    if e.mode == "native" and not e.seeded:
        return "native sampling: samples are compared as distributions"
    if weights_equal is False:
        return "the learners' weights differ"
    if weights_equal or not e.train:
        return ""
    # Without digests the learners are the same only if nothing before this step can have parted them.
    before = e.confounded("train", "experience", "prompts", step=step - 1)
    if before is not None:
        return f"{before.finding.name} may have parted the learners before it, and no weight digests say otherwise"
    if not e.guided and e.counts.flips + e.counts.length_differences:
        return "the runs trained on other tokens before it, and no weight digests say otherwise"
    return ""


def _most_cached(b: Table, c: Table, match: Match) -> np.ndarray | None:
    """Return for each row the prompt tokens that either engine's prefix cache held; None unless both recorded them."""
    baseline_cached, candidate_cached = b.flat("cached"), c.flat("cached")
    if baseline_cached is None or candidate_cached is None:
        return None
    most: np.ndarray = np.maximum(baseline_cached[match.a], candidate_cached[match.b])
    return most


def _logprobs(e: EvidenceBuilder, tokens: AlignedTokens, pairs: LogprobPairs, lookup: Learner) -> None:
    """Compare the log-probabilities of the engines; the baseline's are the first of `pairs`."""
    grid, tokens_equal, size = pairs.grid, pairs.same, pairs.size
    e.between_engines.add(pairs, step=tokens.step, version=version_of(tokens.a))
    if tokens_equal.any():
        sizes = size if tokens_equal.all() else size[tokens_equal]
        e.series["max_delta_logprob"][-1], e.series["mean_delta_logprob"][-1] = (
            float(np.nan_to_num(sizes, nan=np.inf).max()),  # NaN in a series means: not compared
            float(sizes.mean(dtype=np.float64)),
        )
    observed_drifts.engines(e, tokens, pairs)
    within = e.tolerance.within  # in half precision: ten floors of one engine against itself
    if e.finer is None and within < e.tolerance.cap:
        e.counts += Counts(beyond_ten_floors=int(np.count_nonzero(tokens_equal & ~(size <= within))))
    key = Kind.LOGPROB.of()
    weighed = e.weigh(key, grid, tokens_equal, size, items_of(tokens.step, tokens.match.sample))
    if not len(weighed.beyond):
        return
    first = weighed.deciding[:1]
    margin, _ = lookup.at(grid.row[first], grid.position[first], tokens.tokens_a[first])
    gap = float(margin[0]) if np.isfinite(margin[0]) else None
    context = f"of token {int(tokens.tokens_a[first[0]])}; "
    context += f"{len(weighed.beyond):,} tokens of this step differ by more than {figure(e.of_engines.value)}"
    place = _logprob_place(tokens, pairs, first[0], gap, context)
    if e.note_differences(key, weighed, tokens.match.sample[np.unique(grid.row[weighed.deciding])], place):
        observed_rereading.reread(e, key, tokens, pairs)


def _logprob_place(tokens: AlignedTokens, pairs: LogprobPairs, at: Any, gap: float | None, context: str) -> Place:
    row = int(tokens.grid.row[at])
    return Place(
        **tokens.at(row),
        phase="rollout",
        position=int(tokens.grid.position[at]),
        field="logprob",
        baseline=float(pairs.first[at]),
        candidate=float(pairs.second[at]),
        margin=gap,
        context=context,
    )
