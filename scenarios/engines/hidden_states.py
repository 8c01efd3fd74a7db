"""What an engine shows of a forward pass; without torch, so that those who only pass it on need none."""

from __future__ import annotations

from typing import NamedTuple


class HiddenStates(NamedTuple):
    """What a forward pass computes.

    `layers` [embeddings and layers][tokens x projections]. `last` [tokens][width]: what enters the head, of the last
    tokens (`scenarios.engines.layers.WHOLE`).
    """

    layers: list[list[float]]
    last: list[list[float]]
