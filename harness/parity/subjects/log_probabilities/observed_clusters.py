"""Sums over clusters of tokens, and what a mean over clusters is worth.

Tokens of one sample share its prefix, samples of one prompt the prompt: what rounds one of them rounds the others. The
cluster is the prompt, over the whole run, and the standard error that of a mean of clusters (Liang and Zeger 1986,
with the correction G/(G-1) for G clusters); tests use Student's t with G-1 degrees of freedom.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from scipy import special

from harness.recordings.tables import Table

_MULTIPLIERS = np.random.default_rng(0).integers(1, 1 << 62, 1 << 12).astype(np.uint64) * 2 + 1


@dataclass
class Clusters:
    """Per cluster the count of its tokens and the sums of some columns, collected step by step."""

    parts: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)

    def add(self, cluster: np.ndarray, *columns: np.ndarray) -> None:
        """Flat: one cluster key and one number of each column a token."""
        keys, place = np.unique(cluster, return_inverse=True)
        sums: list[np.ndarray] = [np.bincount(place, minlength=len(keys)).astype(np.float64)]
        sums += [np.bincount(place, weights=column, minlength=len(keys)) for column in columns]
        if len(keys):
            self.parts.append((keys, np.stack(sums, axis=1)))

    def extend(self, clusters: Clusters) -> None:
        self.parts.extend(clusters.parts)

    def add_sums(self, keys: np.ndarray, rows: np.ndarray) -> None:
        """One row a key, as in `table`; no key twice. Rows without tokens are left out."""
        with_tokens = rows[:, 0] > 0
        if with_tokens.any():
            self.parts.append((keys[with_tokens], rows[with_tokens]))

    def table(self) -> np.ndarray:
        """One row a cluster: its tokens, then its sum of each column. No rows where nothing was added."""
        if not self.parts:
            return np.zeros((0, 1))
        keys, place = np.unique(np.concatenate([keys for keys, _ in self.parts]), return_inverse=True)
        rows = np.concatenate([rows for _, rows in self.parts])
        totals = np.zeros((len(keys), rows.shape[1]))
        np.add.at(totals, place, rows)
        return totals


@lru_cache(maxsize=4096)  # every step of a run asks for the same few
def student(tail: float, free: int) -> float:
    """What Student's t with `free` degrees of freedom exceeds with probability `tail`."""
    return -float(special.stdtrit(free, tail))


@dataclass(frozen=True)
class Mean:
    """A mean over all tokens, with its standard error between clusters; infinite where there are fewer than two."""

    value: float
    error: float
    clusters: int
    tokens: int

    @staticmethod
    def of(table: np.ndarray, sums: np.ndarray) -> Mean:
        """`sums`: of each cluster of `table`."""
        count, clusters = table[:, 0], len(table)
        total = float(count.sum())
        if not total:
            return Mean(float("nan"), float("inf"), clusters, 0)
        value = float(sums.sum()) / total
        residuals = sums - value * count
        error = (
            float(np.sqrt(clusters / (clusters - 1) * (residuals @ residuals))) / total
            if clusters > 1
            else float("inf")
        )
        return Mean(value, error, clusters, int(total))


def prompts(table: Table) -> np.ndarray:
    """A key for each row that rows of the same prompt share, in every step; of a row whose prompt was not recorded its
    sample."""
    prompt = table.rows("prompt")
    if prompt is None:
        return table.sample.astype(np.uint64)
    lengths = prompt.lengths
    position = np.arange(len(prompt.values)) - np.repeat(prompt.offsets[:-1], lengths)
    with np.errstate(over="ignore"):
        mixed = (prompt.values.astype(np.uint64) + np.uint64(1)) * _MULTIPLIERS[position % len(_MULTIPLIERS)]
        running = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mixed, dtype=np.uint64)])
    keys: np.ndarray = running[prompt.offsets[1:]] - running[prompt.offsets[:-1]]
    return keys
