"""Sums over clusters of tokens, and the standard error of a mean over clusters.

The tokens of a sample share its prefix, and the samples of a prompt share the prompt. What makes one of them round
makes the others round too, so tokens are not independent. A cluster is therefore a prompt, over the whole run. The
standard error is that of a mean of clusters (Liang and Zeger 1986), with the correction G/(G-1) for G clusters. Tests
use Student's t with G-1 degrees of freedom.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from harness.recordings.tables import Table

_MULTIPLIERS = np.random.default_rng(0).integers(1, 1 << 62, 1 << 12).astype(np.uint64) * 2 + 1


@dataclass
class Clusters:
    """Token counts and column sums of each cluster, collected step by step."""

    parts: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)

    def add(self, cluster: np.ndarray, *columns: np.ndarray) -> None:
        """Add tokens, flat: one cluster key and one value of each column for every token."""
        keys, place = np.unique(cluster, return_inverse=True)
        sums: list[np.ndarray] = [np.bincount(place, minlength=len(keys)).astype(np.float64)]
        sums += [np.bincount(place, weights=column, minlength=len(keys)) for column in columns]
        if len(keys):
            self.parts.append((keys, np.stack(sums, axis=1)))

    def extend(self, clusters: Clusters) -> None:
        self.parts.extend(clusters.parts)

    def add_sums(self, keys: np.ndarray, rows: np.ndarray) -> None:
        """Add one row of sums for each key, as in `table`; keys are unique. Rows without tokens are left out."""
        with_tokens = rows[:, 0] > 0
        if with_tokens.any():
            self.parts.append((keys[with_tokens], rows[with_tokens]))

    def table(self) -> np.ndarray:
        """Return one row for each cluster: its token count, then its sum of each column. There are no rows where
        nothing was added.
        """
        if not self.parts:
            return np.zeros((0, 1))
        keys, place = np.unique(np.concatenate([keys for keys, _ in self.parts]), return_inverse=True)
        rows = np.concatenate([rows for _, rows in self.parts])
        totals = np.zeros((len(keys), rows.shape[1]))
        np.add.at(totals, place, rows)
        return totals


@dataclass(frozen=True)
class Mean:
    """A mean over all tokens with its standard error between clusters, which is infinite for fewer than two
    clusters.
    """

    value: float
    error: float
    clusters: int
    tokens: int

    @staticmethod
    def of(table: np.ndarray, sums: np.ndarray) -> Mean:
        """Return the mean of `sums`, which holds one value for each cluster of `table`."""
        count, clusters = table[:, 0], len(table)
        total = float(count.sum())
        if not total:
            return Mean(float("nan"), float("inf"), clusters, 0)
        value = float(sums.sum()) / total
        if clusters < 2:
            return Mean(value, float("inf"), clusters, int(total))
        residuals = sums - value * count
        error = float(np.sqrt(clusters / (clusters - 1) * (residuals @ residuals))) / total
        return Mean(value, error, clusters, int(total))


def prompts(table: Table) -> np.ndarray:
    """Return a key for each row, equal for rows of the same prompt in every step; the sample number where no prompt was
    recorded.

    The key is a hash: the sum of (token + 1) times a random odd multiplier of its position, modulo 2^64.
    """
    prompt = table.rows("prompt")
    if prompt is None:
        return table.sample.astype(np.uint64)
    lengths = prompt.lengths
    position = np.arange(len(prompt.values)) - np.repeat(prompt.offsets[:-1], lengths)
    with np.errstate(over="ignore"):
        mixed = (prompt.values.astype(np.uint64) + np.uint64(1)) * _MULTIPLIERS[position % len(_MULTIPLIERS)]
        # Unsigned integers wrap around, so that differences of running sums are exact modulo 2^64.
        running = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mixed, dtype=np.uint64)])
    keys: np.ndarray = running[prompt.offsets[1:]] - running[prompt.offsets[:-1]]
    return keys
