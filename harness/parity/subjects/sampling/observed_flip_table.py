"""The flips of a run, as tables. `observed_flips` collects them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from harness.parity.facts.divergence import DivergenceKey
from reports.model import Place


@dataclass(frozen=True)
class FlipRows:
    """Flips beyond the margin, of one step. `table`: columns as in `Flips.table`."""

    table: np.ndarray
    margin: np.ndarray

    @staticmethod
    def of(*columns: np.ndarray, margin: np.ndarray) -> FlipRows:
        return FlipRows(np.stack(columns, axis=1).astype(np.int64), margin)


@dataclass(frozen=True)
class FarChoices:
    """Choices of one step that one of the few tokens may reverse which half precision rounds beyond the tolerance.

    `flips`: the choices, where they are flips.
    """

    key: DivergenceKey
    samples: np.ndarray
    place: Place
    margin: np.ndarray
    flips: FlipRows | None = None


@dataclass(frozen=True)
class Flips:
    """Every flip beyond the margin, and the samples with any flip."""

    # Step, sample, position, the baseline's token, the candidate's token.
    table: np.ndarray = field(default_factory=lambda: np.empty((0, 5), np.int64))
    margin: np.ndarray = field(default_factory=lambda: np.zeros(0))
    # (step, sample) of every sample with a flip, benign ones included.
    samples: np.ndarray = field(default_factory=lambda: np.empty((0, 2), np.int64))
    too_many: bool = False  # too many without a margin, for engines within the tolerance of each other
    too_many_ties: bool = False
    # The first step in which both learners' margins of one draw differ: step, how many do, of how many.
    margins_apart: tuple[int, int, int] | None = None

    @staticmethod
    def joined(
        rows: list[FlipRows],
        samples: list[np.ndarray],
        *,
        too_many: bool,
        too_many_ties: bool,
        margins_apart: tuple[int, int, int] | None,
    ) -> Flips:
        """Return the flips of all steps."""
        none = Flips()
        return Flips(
            table=np.concatenate([part.table for part in rows]) if rows else none.table,
            margin=np.concatenate([part.margin for part in rows]) if rows else none.margin,
            samples=np.concatenate(samples) if samples else none.samples,
            too_many=too_many,
            too_many_ties=too_many_ties,
            margins_apart=margins_apart,
        )
