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


@dataclass(frozen=True)
class _Frame:
    """One frame of native samples. `columns`: a number of each sample, NaN where the learner did not score it."""

    prompts: list[bytes]
    outputs: list[bytes]
    finish: list[Any]
    columns: dict[str, np.ndarray]
    tokens: Tokens | None
    fits: tuple[SamplerFit, ...] = ()


def samples_of(side: RecordedSide, draws: int) -> Samples:
    """Return what one side drew in the first draws of the native stage; empty where there was none."""
    missing: list[str] = []
    frames = [frame for table in tables(side, "native", draws) if (frame := _frame(side, table, missing)) is not None]
    columns = {
        name: np.concatenate([frame.columns[name] for frame in frames]) if frames else np.zeros(0)
        for name in (*QUANTITIES, "likelihood", "sample", "draw")
    }
    likelihood, sample, draw = (columns.pop(name) for name in ("likelihood", "sample", "draw"))
    # Each draw was fitted by itself. The one in which the fits gain most shows the sampler best.
    fits = max([(), *(frame.fits for frame in frames)], key=_gain)
    return Samples(
        prompt=np.array([prompt for frame in frames for prompt in frame.prompts], object),
        output=[output for frame in frames for output in frame.outputs],
        finish=np.array([reason for frame in frames for reason in frame.finish], object),
        values=columns,
        likelihood=likelihood,
        sample=sample,
        draw=draw,
        tokens=[frame.tokens for frame in frames if frame.tokens is not None],
        fits=fits,
        missing=list(dict.fromkeys(missing)),
    )


def _gain(fits: tuple[SamplerFit, ...]) -> float:
    return sum(number(fit.gain, 0.0) for fit in fits)


def _frame(side: RecordedSide, table: Table, missing: list[str]) -> _Frame | None:
    """Read one frame and what the learner scored of it; None without prompts or outputs."""
    prompt, output = table.rows("prompt"), table.rows("output")
    if prompt is None or output is None:
        return None
    n = len(table.sample)
    total, drawn, reward = np.full(n, np.nan), np.full(n, np.nan), np.full(n, np.nan)
    fits: tuple[SamplerFit, ...] = ()
    score = side.recording.table("native_score", table.step)
    tokens = _scored(side, table, output, score, missing)
    if tokens is not None and score is not None:
        total[tokens.rows] = tokens.sums(tokens.learner)
        drawn[tokens.rows] = tokens.sums(tokens.views.get("processed_logprob", tokens.learner))
        reward = _rewards(table, score)
        fits = score.header.fits or ()
    lengths = output.lengths.astype(np.float64)
    columns = {
        "length": lengths, "reward": reward, "surprisal": -total / np.maximum(lengths, 1), "likelihood": drawn,
        "sample": table.sample, "draw": np.full(n, draw_of(table.step)),
    }  # fmt: skip
    return _Frame(
        prompts=[prompt.row(row).tobytes() for row in range(n)],
        outputs=[output.row(row).tobytes() for row in range(n)],
        finish=[None] * n if table.finish is None else list(table.finish),
        columns=columns,
        tokens=tokens if score is not None else None,
        fits=fits,
    )


def _rewards(table: Table, score: Table) -> np.ndarray:
    reward = np.full(len(table.sample), np.nan)
    recorded = score.flat("reward")
    if recorded is not None:
        match = Match.of(table.sample, score.sample)
        reward[match.a] = recorded[match.b]
    return reward


def _scored(side: RecordedSide, table: Table, output: Rows, score: Table | None, missing: list[str]) -> Tokens | None:
    if score is None or (learner := score.rows("learner_logprob")) is None:
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
