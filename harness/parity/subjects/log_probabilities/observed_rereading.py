"""Re-readings: the recorded numbers read in another way, sample by sample, and the difference that is left.

A re-reading shifts log-probabilities by one or two positions, scales them by one factor, takes them as
softmax(logits/T) or as renormalised over a nucleus, or looks at one side of a position only. A cause is named for the
samples whose difference its re-reading removes, and for no others. So two faults in one run stay apart, and so does a
fault that starts at a later step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from harness.parity.facts.align import AlignedTokens, Grid
from harness.parity.facts.comparison import Comparison, RecordedSide
from harness.parity.facts.divergence import DivergenceKey
from harness.parity.facts.evidence_builder import EvidenceBuilder
from harness.parity.subjects.log_probabilities.observed_pairs import LogprobPairs
from harness.recordings.records.frame_header import FrameHeader
from harness.recordings.records.tokenizer_info import NO_TOKENIZER, TokenizerInfo
from probes.format import number
from scenarios.engines.canonical import FILTERS

SHIFTS = (1, -1, 2, -2)
SLIPS = (1, 2, 3, 4, -1, -2, -3, -4)  # positions by which numbers slip where one id became several, or several one
GRIDS = {"bfloat16": 8, "float16": 11}  # bits of a significand, by type; float32 has 24
LEAST_SLIPPED = 3  # tokens of a row behind the place
SLIPPED_ROWS = 64  # rows of a step that are read so; whether a step's numbers slip needs no more


def reread(
    e: EvidenceBuilder,
    key: DivergenceKey,
    tokens: AlignedTokens,
    pairs: LogprobPairs,
    prompt: np.ndarray | None = None,
    rounded: np.ndarray | None = None,
) -> None:
    """Add one step's samples: what each re-reading of the engine's numbers leaves beyond the tolerance of the truth.

    `pairs`: the truth first, the engine second. `prompt`: prompt tokens of each row. `rounded`: flat positions at which
    the truth itself is off (`observed_rounding.misrounded`), where no factor has to fit.
    """
    grid, tokens_equal, truth, engine = pairs.grid, pairs.same, pairs.first, pairs.second
    tolerance = e.tolerated(key.kind).value
    delta = engine - truth
    beyond = tokens_equal & ~(np.abs(delta) <= tolerance)
    columns = _extent(tokens, tokens_equal, beyond)
    columns |= {"cached": _integers(grid, pairs.cached), "prompt": _integers(grid, prompt)}
    columns["size"] = _per_row(grid, np.where(beyond, np.nan_to_num(np.abs(delta), nan=0.0, posinf=0.0), 0.0))
    for shift in SHIFTS:
        columns |= _at_shift(pairs, beyond, tolerance, shift)
    reference = _of_the_reference(tokens)
    for name, numbers in (("engine", engine), ("truth", truth)):
        apart = np.full(grid.size, np.nan) if reference is None else np.abs(numbers - reference)
        columns[f"{name} off reference"] = _per_row(grid, tokens_equal & ~(apart <= tolerance))
    columns |= _slipped(grid, truth, engine, columns["first"])
    numbers = np.isfinite(engine) & (engine != 0.0)
    columns["numbers"] = _per_row(grid, numbers)
    for name, bits in GRIDS.items():
        columns[f"{name} numbers"] = _per_row(grid, numbers & _on_grid(engine, bits))
    columns |= _scaled(pairs, columns["beyond"], tolerance, rounded)
    for name, (low, high) in _semantics(e, tokens.a.header, truth).items():
        outside = ~((engine >= low - tolerance) & (engine <= high + tolerance))
        columns[f"{name} left"] = _per_row(grid, tokens_equal & outside)
        # Tokens that this reading explains and the learner's raw log-probability does not.
        telling = beyond & ((truth < low - tolerance) | (truth > high + tolerance) | (name == "renormalised"))
        columns[f"{name} telling"] = _per_row(grid, telling)
    e.readings.setdefault(key, []).append(columns)


def _at_shift(pairs: LogprobPairs, beyond: np.ndarray, tolerance: float, shift: int) -> dict[str, np.ndarray]:
    """Read each number of the engine `shift` positions later: tokens compared and left, and nats before and after."""
    grid, tokens_equal, truth = pairs.grid, pairs.same, pairs.first
    moved, inside = shifted(grid, pairs.second, shift)
    # The token must be equal at the position that is read from as well, or the number belongs to another token.
    valid = tokens_equal & inside & np.roll(tokens_equal, -shift)
    before, apart = np.abs(pairs.second - truth), np.abs(moved - truth)
    moving = valid & beyond & np.isfinite(before) & np.isfinite(apart)  # a shift does not repair NaN or infinity
    return {
        f"shift {shift:+d} compared": _per_row(grid, valid & beyond),
        f"shift {shift:+d} left": _per_row(grid, valid & ~(apart <= tolerance)),
        f"shift {shift:+d} size before": _per_row(grid, np.where(moving, np.nan_to_num(before), 0.0)),
        f"shift {shift:+d} size": _per_row(grid, np.where(moving, np.nan_to_num(apart), 0.0)),
    }


def _scaled(
    pairs: LogprobPairs, beyond: np.ndarray, tolerance: float, rounded: np.ndarray | None
) -> dict[str, np.ndarray]:
    """Multiply the engine's numbers by the step's common factor: the factor, the tokens that it leaves, and how far
    they are off, in nats of the learner."""
    grid, tokens_equal, truth, engine = pairs.grid, pairs.same, pairs.first, pairs.second
    # The best factor of each row in the least-squares sense, Σ truth·engine / Σ engine², then the rows' median.
    used = tokens_equal & np.isfinite(truth) & np.isfinite(engine)
    products = _per_row(grid, np.where(used, truth * engine, 0.0))
    squares = _per_row(grid, np.where(used, engine * engine, 0.0))
    factor = _common(products / np.maximum(squares, 1e-30), beyond)
    # A factor above 1 multiplies the engine's own error.
    apart = np.abs(factor * engine - truth) / max(1.0, abs(factor))
    fits = apart <= tolerance
    remaining = tokens_equal & ~(fits if rounded is None else fits | rounded)
    return {
        "scale": np.full(len(grid.length), factor),
        "scale left": _per_row(grid, remaining),
        "scale size": _per_row(grid, np.where(remaining, np.nan_to_num(apart, nan=np.inf), 0.0)),
    }


def _on_grid(values: np.ndarray, bits: int) -> np.ndarray:
    """Return which values have no more significant bits; 2^(bits − 24) of float32's do by chance."""
    significand, _ = np.frexp(values.astype(np.float64))
    steps = np.ldexp(significand, bits)
    on_grid: np.ndarray = steps == np.rint(steps)
    return on_grid


def _of_the_reference(tokens: AlignedTokens) -> np.ndarray | None:
    """Return the reference model's numbers where the second table has them, flat."""
    reference = tokens.b.per_token("reference_logprob", tokens.column_b)
    return tokens.take_b(reference) if reference is not None else None


def _slipped(grid: Grid, truth: np.ndarray, engine: np.ndarray, first: np.ndarray) -> dict[str, np.ndarray]:
    """Return for each row by how many positions the engine's numbers slip behind its first differing token.

    `slip`: the one of `SLIPS` that leaves the smallest share of the nats. `slip before`, `slip after`: the nats of the
    same tokens, before and after the truth is read so many positions further. All are 0 where none leaves fewer, and in
    rows beyond the first `SLIPPED_ROWS` that differ.
    """
    slip, before, after = np.zeros(len(grid.length), np.int64), *np.zeros((2, len(grid.length)))
    for row in np.flatnonzero(first >= 0)[:SLIPPED_ROWS]:
        start, end, least = int(grid.start[row]), int(grid.start[row + 1]), 1.0
        for by in SLIPS:
            # The ids that were split, or joined, have no partner, so as many positions behind the place are left out.
            begin, stop = start + int(first[row]) + abs(by) + 1, end - max(by, 0)
            if stop - begin < LEAST_SLIPPED:
                continue
            numbers = engine[begin:stop]
            sizes = [float(np.nansum(np.abs(numbers - truth[begin + at : stop + at]))) for at in (0, by)]
            if sizes[1] < least * sizes[0]:
                least, slip[row], before[row], after[row] = sizes[1] / sizes[0], by, *sizes
    return {"slip": slip, "slip before": before, "slip after": after}


def reread_tokens(e: EvidenceBuilder, key: DivergenceKey, tokens: AlignedTokens) -> None:
    """Do the same for tokens: whether the trained tokens (`b`) are those of the rollout (`a`), shifted."""
    grid, drawn, trained = tokens.grid, tokens.tokens_a, tokens.tokens_b
    differs = drawn != trained
    columns = _extent(tokens, np.ones(grid.size, bool), differs)
    columns["other"][:] = 0
    for shift in SHIFTS:
        moved, inside = shifted(grid, trained, shift)
        columns[f"shift {shift:+d} compared"] = _per_row(grid, inside & differs)
        columns[f"shift {shift:+d} left"] = _per_row(grid, inside & (moved != drawn))
    e.readings.setdefault(key, []).append(columns)


def shifted(grid: Grid, values: np.ndarray, shift: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (the value `shift` positions later in the same row, whether that position exists), flat."""
    inside = (grid.position + shift >= 0) & (grid.position + shift < grid.length[grid.row])
    return np.roll(values, -shift), inside


def _extent(tokens: AlignedTokens, tokens_equal: np.ndarray, beyond: np.ndarray) -> dict[str, np.ndarray]:
    grid = tokens.grid
    rows = len(grid.length)
    first = grid.first(beyond)
    places = np.flatnonzero(beyond)
    last = np.full(rows, -1, np.int64)
    last[grid.row[places]] = grid.position[places]  # positions rise, and the last assignment to a row wins
    count = _per_row(grid, beyond)
    first = np.where(count > 0, first, -1)
    return {
        "step": np.full(rows, tokens.step, np.int64),
        "sample": np.asarray(tokens.match.sample, np.int64),
        "tokens": _per_row(grid, tokens_equal),
        "other": _per_row(grid, ~tokens_equal),
        "beyond": count,
        "first": first,
        "last": last,
        "before": _per_row(grid, tokens_equal & (grid.position < first[grid.row])),
        "after": _per_row(grid, tokens_equal & (grid.position > last[grid.row])),
    }


def _integers(grid: Grid, values: np.ndarray | None) -> np.ndarray:
    """Return what was recorded of each row as integers; -1 where nothing was."""
    return np.full(len(grid.length), -1, np.int64) if values is None else np.asarray(values, np.int64)


def _per_row(grid: Grid, values: np.ndarray) -> np.ndarray:
    """Return the sum over each row: an integer count of booleans, or a float."""
    if values.dtype == bool:
        return np.bincount(grid.row[values], minlength=len(grid.length)).astype(np.int64)
    return np.bincount(grid.row, weights=values, minlength=len(grid.length))


def _common(scales: np.ndarray, beyond: np.ndarray) -> float:
    """Return the median factor of the samples that differ; 1.0 where there are none."""
    usable_scales = scales[(beyond > 0) & np.isfinite(scales) & (scales != 0)]
    return float(np.median(usable_scales)) if len(usable_scales) else 1.0


def _semantics(e: EvidenceBuilder, header: FrameHeader, truth: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return by reading the bounds of a reported log-probability, given the true one: "tempered" or "renormalised".

    Renormalised over tokens of mass S it is log p − log S. A nucleus has S ≥ top_p. Other filters tell no least S.
    `header`: of the engine's numbers. Processed ones have a truth that is after the temperature already.
    """
    sampling = e.baseline.recording.records.settings.sampling
    temperature, top_p = number(sampling.get("temperature"), 1.0), number(sampling.get("top_p"), 1.0)
    processed = header.tempered or header.in_ratio
    if temperature > 0 and temperature != 1.0 and not processed:
        return {"tempered": tempered_bounds(truth, temperature, vocabulary(e))}
    filters = filtered_by(sampling)
    if "top_p" in filters and top_p > 0 and (filters == ["top_p"] or not processed):
        return {"renormalised": (truth, np.minimum(truth - np.log(top_p), 0.0))}
    return {"renormalised": (truth, np.zeros_like(truth))} if filters and processed else {}


def filtered_by(sampling: Mapping[str, Any]) -> list[str]:
    """Return the parameters that keep only some tokens to draw from."""
    return [parameter.name for parameter in FILTERS if parameter.restricts(number(sampling.get(parameter.name)))]


def tempered_bounds(truth: np.ndarray, temperature: float, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the (least, largest) log-probability after temperature, given the raw one and a vocabulary of `size` ids.

    With a = 1/T, log softmax(a·logits) of a token of probability p is a·log p − log Σ pᵢᵃ. The sum lies between p^a +
    (1−p)^a (all other mass on one token) and p^a + (V−1)^(1−a)·(1−p)^a (other mass spread evenly).
    """
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        a, p = 1.0 / temperature, np.exp(np.minimum(truth, 0.0))
        token_mass, other_mass = p**a, (1.0 - p) ** a
        spread = other_mass * float(size - 1) ** (1.0 - a)
        ends = np.stack([a * truth - np.log(token_mass + other_mass), a * truth - np.log(token_mass + spread)])
    return ends.min(axis=0), np.minimum(ends.max(axis=0), 0.0)


def vocabulary(e: Comparison[RecordedSide]) -> int:
    """Return the size of the run's vocabulary; 2^20, more than any has, where it was not recorded."""
    size = tokenizer(e).size
    return 1 << 20 if size is None else size


def tokenizer(e: Comparison[RecordedSide]) -> TokenizerInfo:
    """Return the tokenizer of the run, the baseline's first; an empty record where neither side has one."""
    recorded = (side.recording.records.tokenizer for side in e.sides)
    return next((tokenizer for tokenizer in recorded if tokenizer is not None), NO_TOKENIZER)
