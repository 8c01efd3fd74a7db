"""Learner against learner: both must make the same numbers of the same tokens, bit for bit unless something confounds
them.

The learners of the harness are deterministic and take the samples in one order. Where every token of a step is equal,
every bit of what they make of it is equal as well. In other jobs another batch, or another order, may round
differently. Log-probabilities then stay within their tolerance. Columns without a tolerance of their own stay within a
few roundings of the learner's type at the column's scale.

Rounding has mean zero. What a frozen model makes of equal tokens, the reward and the reference model's log-probability,
is therefore also tested for a mean difference, over the run and each step. All these tests share one error rate. Values
are clustered by their prompt (`observed_clusters`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from harness.parity.facts.align import Grid, Match, around, equal_rows, first_difference, shared
from harness.parity.facts.divergence import Kind
from harness.parity.facts.evidence import Counts
from harness.parity.facts.evidence_builder import EvidenceBuilder, items_of
from harness.parity.facts.probabilities import student_limit
from harness.parity.subjects.log_probabilities.observed_clusters import Clusters, Mean, prompts
from harness.parity.subjects.log_probabilities.observed_systematic import ALLOWED_BIAS, FALSE_ALARM
from harness.parity.subjects.precision.observed_floor import EPSILON, RESOLUTION
from harness.parity.subjects.recording.observed_missing_steps import COLUMNS, note_experience
from harness.parity.subjects.sampling import observed_margins
from harness.recordings.tables import Rows, Table
from reports.model import Place, place_of_step
from reports.text import counted, figure

ROUNDINGS = 4  # that a reward, value, advantage or return may differ by, in another batch than the other run's
SPACING = {"bfloat16": 2.0**-8, "float16": 2.0**-11}  # half the distance of two numbers near one
_LOGPROBS = ("actor_logprob", "reference_logprob", "kl")
FROZEN = ("reward", "reference_logprob")  # functions of the tokens alone
NORMALISED = ("advantage", "return")  # over the batch
_DELTA, _SQUARE, _SIZE, _BASELINE, _CANDIDATE = range(1, 6)  # columns of the sums


def experiences(e: EvidenceBuilder, baseline: Table, candidate: Table) -> None:
    """Compare what the learners made of the same tokens, for one step."""
    blocked = e.confounded("everything", "experience", "prompts", step=baseline.step)
    if blocked is not None or baseline.step in e.unjudged_steps:
        return
    note_experience(e, baseline, candidate)
    match = Match.of(baseline.sample, candidate.sample)
    baseline_tokens, candidate_tokens = baseline.rows("tokens"), candidate.rows("tokens")
    if baseline_tokens is None or candidate_tokens is None or not len(match.sample):
        return
    e.unpaired(match, f"step {baseline.step}", "trained on in the baseline only", "trained on in the candidate only")
    tokens_equal = equal_rows(baseline_tokens, match.a, candidate_tokens, match.b)
    is_whole_batch = bool(tokens_equal.all())
    if not is_whole_batch:
        e.other_tokens.append(baseline.step)
        if e.guided:
            _note_other_tokens(e, candidate, match, (baseline_tokens, candidate_tokens), ~tokens_equal)
    e.counts += Counts(experience_samples=int(np.count_nonzero(tokens_equal)))
    baseline_rows, candidate_rows = match.a[tokens_equal], match.b[tokens_equal]
    sample = match.sample[tokens_equal]
    # Every bit is only to be expected where nothing rounds otherwise: one cut of the batch, one order, whole batches.
    rounds = bool(e.learners.cuts) or e.of_a_framework
    exact = not rounds and is_whole_batch and not len(match.only_a) and not len(match.only_b)
    observed_margins.note_apart(e, baseline, candidate, baseline_rows, candidate_rows, exact=exact)
    # Advantages and returns are normalised over the batch, so a sample that differs moves those of all others.
    compared_columns = COLUMNS if is_whole_batch else [name for name in COLUMNS if name not in NORMALISED]
    for values in _paired_values(baseline, candidate, baseline_rows, candidate_rows, sample, compared_columns):
        # Frozen models answer the same in both runs. Where rounding hides a single difference, its mean may still show.
        if values.name in FROZEN and not exact:
            _shift(e, values)
        if values.name == "reward":
            both_finite = np.isfinite(values.baseline) & np.isfinite(values.candidate)
            e.counts += Counts(rewards=int(np.count_nonzero(both_finite)))
        _same_numbers(e, Kind.REWARD if values.name == "reward" else Kind.EXPERIENCE, values, exact=exact)


def _note_other_tokens(
    e: EvidenceBuilder, candidate: Table, match: Match, tokens: tuple[Rows, Rows], differing: np.ndarray
) -> None:
    """Note samples of a guided run that the learners trained on with other tokens."""
    row = int(np.flatnonzero(differing)[0])
    baseline_ids, candidate_ids = tokens[0].row(int(match.a[row])), tokens[1].row(int(match.b[row]))
    at = first_difference(baseline_ids, candidate_ids)
    e.note_divergence(
        Kind.TRAINED.of("candidate"),
        match.sample[differing],
        Place(
            **candidate.at(int(match.b[row])),
            phase="experience",
            position=at,
            field="token trained on",
            baseline=around(baseline_ids, at),
            candidate=around(candidate_ids, at),
            context="guided runs train on the baseline's tokens",
        ),
    )


def _paired_values(
    baseline: Table,
    candidate: Table,
    baseline_rows: np.ndarray,
    candidate_rows: np.ndarray,
    sample: np.ndarray,
    names: Sequence[str],
) -> Iterator[_PairedValues]:
    """Yield these columns and the reward, on rows of equal tokens.

    `observed_missing_steps` reports columns that were not recorded.
    """
    for name in names:
        of_baseline, of_candidate = baseline.rows(name), candidate.rows(name)
        if of_baseline is not None and of_candidate is not None:
            grid = shared([(of_baseline, baseline_rows), (of_candidate, candidate_rows)])
            values = grid.take(of_baseline, baseline_rows), grid.take(of_candidate, candidate_rows)
            yield _PairedValues(name, baseline.step, sample, candidate.rank[candidate_rows], *values, grid)
    baseline_reward, candidate_reward = baseline.flat("reward"), candidate.flat("reward")
    if baseline_reward is not None and candidate_reward is not None:
        yield _PairedValues(
            "reward",
            baseline.step,
            sample,
            candidate.rank[candidate_rows],
            baseline_reward[baseline_rows],
            candidate_reward[candidate_rows],
        )


@dataclass(frozen=True)
class _PairedValues:
    """One column of a step in both runs, on the same tokens.

    The values are flat on `grid`, or one for each sample where that is None. `sample`, and `rank` in the candidate: for
    each row.
    """

    name: str
    step: int
    sample: np.ndarray
    rank: np.ndarray
    baseline: np.ndarray
    candidate: np.ndarray
    grid: Grid | None = None

    @property
    def row(self) -> np.ndarray:
        return np.arange(len(self.sample)) if self.grid is None else self.grid.row

    def rows_of(self, flat: np.ndarray) -> np.ndarray:
        """Return the row of each of a few positions of the flat arrays."""
        return flat if self.grid is None else self.grid.row_of(flat)

    def position_of(self, flat: int, row: int) -> int:
        return -1 if self.grid is None else flat - int(self.grid.start[row])


def _same_numbers(e: EvidenceBuilder, kind: Kind, values: _PairedValues, *, exact: bool) -> None:
    name, baseline_values, candidate_values = values.name, values.baseline, values.candidate
    apart = baseline_values != candidate_values
    if apart.any():
        apart &= ~(np.isnan(baseline_values) & np.isnan(candidate_values))
    if not apart.any():
        return
    e.not_identical.setdefault(name, values.step)
    allowed = 0.0 if exact else _allowed(e, name, baseline_values)
    size = np.abs(candidate_values - baseline_values)
    beyond = np.flatnonzero(apart & ~(size <= allowed))
    within = size[apart & (size <= allowed)]
    e.apart[name] = max(e.apart.get(name, (0.0, 0.0)), (float(np.max(within, initial=0.0)), allowed))
    if len(beyond):
        rows, at = values.rows_of(beyond), int(beyond[0])
        row = int(rows[0])
        differing = values.sample[np.unique(rows)]
        e.differing.setdefault(name, []).append(items_of(values.step, differing))
        e.note_divergence(
            kind.of(),
            differing,
            Place(
                step=values.step,
                phase="experience",
                rank=int(values.rank[row]),
                sample=int(values.sample[row]),
                position=values.position_of(at, row),
                field=name,
                baseline=float(baseline_values[at]),
                candidate=float(candidate_values[at]),
                context=f"on the same tokens; {counted(len(beyond), 'value')} "
                + (f"differ by more than {figure(allowed)}" if allowed else "not bit-identical"),
            ),
        )


def _allowed(e: EvidenceBuilder, name: str, values: np.ndarray) -> float:
    """Return how far a number of another batch may be off by rounding."""
    spacing = SPACING.get(e.tolerance.dtype)
    if spacing is None or name in _LOGPROBS:
        return e.tolerance.value
    scale = float(np.max(np.abs(values[np.isfinite(values)]), initial=1.0))
    return ROUNDINGS * spacing * scale


def _shift(e: EvidenceBuilder, values: _PairedValues) -> None:
    """Note one step's differences of a column that frozen models make, by prompt."""
    rollout = e.baseline.recording.table("rollout", values.step)
    finite = np.isfinite(values.baseline) & np.isfinite(values.candidate)
    if rollout is None or not finite.any():
        return
    order = np.argsort(rollout.sample)
    sample = values.sample[values.row][finite]
    at = order[np.searchsorted(rollout.sample[order], sample).clip(max=len(order) - 1)]
    baseline, candidate = values.baseline[finite].astype(np.float64), values.candidate[finite].astype(np.float64)
    delta = candidate - baseline
    columns = (delta, delta * delta, np.maximum(np.abs(baseline), np.abs(candidate)), baseline, candidate)
    steps = e.frozen_means.setdefault(values.name, {})
    steps.setdefault(values.step, Clusters()).add(prompts(rollout)[at], *columns)


def note_means(e: EvidenceBuilder) -> None:
    """Turn mean differences that rounding cannot have into divergences, where no single value diverged already."""
    sums = list(_sums_of_means(e))
    for name, where, step, table in sums:
        key = (Kind.REWARD if name == "reward" else Kind.EXPERIENCE).of()
        count = table[:, 0].sum()
        mean = Mean.of(table, table[:, _DELTA]) if count else None
        if mean is None or not table[:, _SQUARE].any():
            continue
        if mean.clusters < 2:
            if where == "the run":
                e.untested_means[name] = f"{name} differs over one prompt only, which tells no mean"
            continue
        # A mean may be off by the resolution of the type at the column's scale. Log-probabilities of normalised
        # distributions also have a bias of second order, see `observed_systematic`.
        bound = RESOLUTION * EPSILON * max(1.0, float(table[:, _SIZE].sum() / count))
        if name in _LOGPROBS:
            bound += ALLOWED_BIAS * float(table[:, _SQUARE].sum() / count)
        # All tests share one error rate (Bonferroni); each is two-sided, with Student's t over the prompts.
        critical = student_limit(FALSE_ALARM / len(sums) / 2, mean.clusters - 1)
        if key in e.first or not abs(mean.value) - bound > critical * mean.error:
            continue
        context = f"on the same tokens: {name} of {where} is {figure(mean.value)} higher in the candidate on average, "
        context += f"standard error {figure(mean.error)} over {counted(mean.clusters, 'prompt')}; rounding has no mean"
        place = place_of_step(
            step=step,
            phase="experience",
            field=f"mean {name}",
            baseline=float(table[:, _BASELINE].sum() / count),
            candidate=float(table[:, _CANDIDATE].sum() / count),
            context=context,
        )
        e.note_divergence(key, [], place)


def _sums_of_means(e: EvidenceBuilder) -> Iterator[tuple[str, str, int, np.ndarray]]:
    """Yield (column, where, step, sums of each prompt), of each step and of the run."""
    for name, steps in e.frozen_means.items():
        # A framework may refresh its reference model from its learner. After the learners diverge, it differs as well.
        parted = e.learners.parted
        last = np.inf if name == "reward" or parted is None else parted
        run = Clusters()
        for step, clusters in sorted(steps.items()):
            if step <= last:
                run.extend(clusters)
                yield name, f"step {step}", step, clusters.table()
        yield name, "the run", min(steps), run.table()
