"""The native samples of one engine, with what the learner recorded about each of their tokens."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from harness.parity.facts.align import Grid, Match, shared
from harness.parity.facts.comparison import RecordedSide
from harness.recordings.records.frame_header import SamplerFit
from harness.recordings.tables import Rows, Table
from probes.format import number

QUANTITIES = ("length", "reward", "surprisal")
# Columns that the learner may add to its plain log-probability (docs/reference/format.md).
VIEWS = ("tempered_logprob", "processed_logprob", "joint_logprob", "blind_logprob")
READINGS = ("entropy", "varentropy", "mass_before", "outside", "outside_joint")


@dataclass(frozen=True)
class Tokens:
    """Tokens that the learner scored, flat on `grid`.

    `reported`: the engine's own log-probabilities, None without. `views`: name -> the learner's log-probability in that
    meaning. `readings`: see `READINGS`.
    """

    table: Table
    rows: np.ndarray  # row of the table for each row of the grid
    grid: Grid
    learner: np.ndarray
    output: np.ndarray
    reported: np.ndarray | None
    views: dict[str, np.ndarray]
    readings: dict[str, np.ndarray]

    def sums(self, values: np.ndarray) -> np.ndarray:
        """Return the sum of token values over each of `rows`."""
        return np.bincount(self.grid.row, weights=values, minlength=len(self.rows))


@dataclass
class Samples:
    """The native samples of one engine, one entry each."""

    prompt: np.ndarray  # object: the prompt's bytes
    output: list[bytes]
    finish: np.ndarray
    values: dict[str, np.ndarray]  # length, reward, surprisal (mean per token, nats); NaN where it was not scored
    likelihood: np.ndarray  # log-probability of the whole sample as asked for, by the learner
    sample: np.ndarray
    draw: np.ndarray  # the draw that it is of; counts from 1
    tokens: list[Tokens] = field(default_factory=list)  # one entry for each frame
    # Changes of the sampler that the learner fitted, of the draw that shows them best.
    fits: tuple[SamplerFit, ...] = ()
    missing: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.output)

    @property
    def draws(self) -> int:
        """Return the number of draws that the samples are of."""
        return int(self.draw.max(initial=0))

    def first(self, draws: int) -> Samples:
        """Return the samples of the first `draws` draws."""
        n = int(np.count_nonzero(self.draw <= draws))
        return replace(
            self, prompt=self.prompt[:n], output=self.output[:n], finish=self.finish[:n],
            values={name: values[:n] for name, values in self.values.items()}, likelihood=self.likelihood[:n],
            sample=self.sample[:n], draw=self.draw[:n],
            tokens=[tokens for tokens in self.tokens if draw_of(tokens.table.step) <= draws],
        )  # fmt: skip


def draw_of(step: int) -> int:
    """Return the draw of a native frame: step -1 is the first, -2 the second. Recordings of others may have any
    step.
    """
    return max(1, -step)


def draws_of(side: RecordedSide) -> int:
    """Return how many times a side drew its native stage; 0 without one."""
    return max(map(draw_of, side.recording.steps("native")), default=0)


def tables(side: RecordedSide, kind: str, draws: int | None = None) -> list[Table]:
    """Return the frames of a kind joined by step, in the order of the draws; with `draws`, of the first draws only."""
    steps = sorted(side.recording.steps(kind), key=draw_of)
    joined = [side.recording.table(kind, step) for step in steps if draws is None or draw_of(step) <= draws]
    return [table for table in joined if table is not None]


def samples_of(side: RecordedSide, draws: int) -> Samples:
    """Return what one side drew in the first draws of the native stage; empty where there was none."""
    missing: list[str] = []
    prompts: list[bytes] = []
    outputs: list[bytes] = []
    finish: list[Any] = []
    parts: dict[str, list[np.ndarray]] = {name: [] for name in (*QUANTITIES, "likelihood", "sample", "draw")}
    scored: list[Tokens] = []
    fits: list[tuple[SamplerFit, ...]] = [()]
    for table in tables(side, "native", draws):
        prompt, output = table.rows("prompt"), table.rows("output")
        if prompt is None or output is None:
            continue
        n = len(table.sample)
        prompts += [prompt.row(i).tobytes() for i in range(n)]
        outputs += [output.row(i).tobytes() for i in range(n)]
        finish += list(table.finish) if table.finish is not None else [None] * n
        total, drawn, reward = np.full(n, np.nan), np.full(n, np.nan), np.full(n, np.nan)
        score = side.recording.table("native_score", table.step)
        tokens = _scored(side, table, output, score, missing)
        if tokens is not None and score is not None:
            scored.append(tokens)
            total[tokens.rows] = tokens.sums(tokens.learner)
            drawn[tokens.rows] = tokens.sums(tokens.views.get("processed_logprob", tokens.learner))
            reward = _rewards(table, score)
            fits.append(score.header.fits or ())
        lengths = output.lengths.astype(np.float64)
        values = (
            lengths,
            reward,
            -total / np.maximum(lengths, 1),
            drawn,
            table.sample,
            np.full(n, draw_of(table.step)),
        )
        for name, value in zip(parts, values, strict=True):
            parts[name].append(value)
    joined = {name: np.concatenate(arrays) if arrays else np.zeros(0) for name, arrays in parts.items()}
    likelihood, sample, draw = (joined.pop(name) for name in ("likelihood", "sample", "draw"))
    clearest = max(fits, key=lambda of_a_draw: sum(number(fit.gain, 0.0) for fit in of_a_draw))
    return Samples(
        prompt=np.array(prompts, object),
        output=outputs,
        finish=np.array(finish, object),
        values=joined,
        likelihood=likelihood,
        sample=sample,
        draw=draw,
        tokens=scored,
        fits=clearest,
        missing=list(dict.fromkeys(missing)),
    )


def _rewards(table: Table, score: Table) -> np.ndarray:
    reward = np.full(len(table.sample), np.nan)
    recorded = score.flat("reward")
    if recorded is not None:
        match = Match.of(table.sample, score.sample)
        reward[match.a] = recorded[match.b]
    return reward


def _scored(side: RecordedSide, table: Table, output: Rows, score: Table | None, missing: list[str]) -> Tokens | None:
    learner = score.rows("learner_logprob") if score is not None else None
    if score is None or learner is None:
        missing.append(f"{side.name}: the learner did not score the native samples")
        return None
    match = Match.of(table.sample, score.sample)
    for samples, what in ((match.only_a, "drawn but not scored"), (match.only_b, "scored but not drawn")):
        if len(samples):
            missing.append(f"{side.name}: {len(samples):,} native samples {what}, the first is {int(samples[0])}")
    # Samples of which not every token was scored cannot be aligned.
    complete = learner.lengths[match.b] == output.lengths[match.a]
    ia, ib = match.a[complete], match.b[complete]
    grid = shared([(output, ia), (learner, ib)])

    def scored_values(name: str) -> np.ndarray | None:
        rows = score.per_token(name, learner)
        return grid.take(rows, ib).astype(np.float64) if rows is not None else None

    logprob = table.per_token("logprob", output)
    if logprob is None:
        missing.append(f"{side.name}: the engine did not report a native log-probability of every token")
    return Tokens(
        table=table,
        rows=ia,
        grid=grid,
        learner=grid.take(learner, ib).astype(np.float64),
        output=grid.take(output, ia),
        reported=None if logprob is None else grid.take(logprob, ia).astype(np.float64),
        views={name: value for name in VIEWS if (value := scored_values(name)) is not None},
        readings={name: value for name in READINGS if (value := scored_values(name)) is not None},
    )
