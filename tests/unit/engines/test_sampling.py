"""Every sampler keeps the same tokens: in the order of the vocabulary, sorted once, and written out token by token."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scenarios.engines.coupling import Draw, choose, gumbel
from scenarios.engines.sampling import Ordered, Reading, Tempered, filtered, read

pytestmark = pytest.mark.slow

VOCABULARY = 23
DRAWS = st.builds(
    Draw,
    seed=st.integers(0, 2**32),
    sample=st.integers(0, 99),
    temperature=st.sampled_from([0.3, 0.9, 1.0, 2.5]),
    top_k=st.sampled_from([-1, 1, 5, VOCABULARY - 1, VOCABULARY, VOCABULARY + 1]),
    top_p=st.sampled_from([0.05, 0.5, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.02, 0.4]),
    joint=st.booleans(),
    exclusive=st.booleans(),
)


def probabilities(row: list[float], draw: Draw) -> list[float]:
    """The canonical order, one token after the other; 0 outside of what is kept."""
    tempered = [value / draw.temperature for value in row]
    best = max(tempered)
    weight = [math.exp(value - best) for value in tempered]
    order = sorted(range(len(row)), key=lambda token: (-row[token], token))
    kept = set(order)
    if 0 < draw.top_k < len(row):
        kept = {token for token in order if row[token] >= row[order[draw.top_k - 1]]}
    mass, before = sum(weight[token] for token in (order if draw.joint else kept)), 0.0
    for token in order:
        counted = before + weight[token] if draw.exclusive and token != order[0] else before
        if draw.top_p < 1 and counted >= draw.top_p * mass:
            kept.discard(token)
        before += weight[token]
    kept = {token for token in kept if weight[token] >= draw.min_p * (1 - 1e-12)}
    total = sum(weight[token] for token in kept)
    return [weight[token] / total if token in kept else 0.0 for token in range(len(row))]


@given(draw=DRAWS, seed=st.integers(0, 2**32), ties=st.booleans(), barred=st.booleans())
def test_all_samplers_agree(draw: Draw, seed: int, ties: bool, barred: bool) -> None:
    logits = 2 * torch.randn(4, VOCABULARY, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    logits = logits.round() if ties else logits
    if barred:  # an end that may not be drawn yet
        logits[:, 3] = float("-inf")
    wanted = torch.tensor([probabilities(row, draw) for row in logits.tolist()], dtype=torch.float64)

    scores = filtered(logits, draw)
    assert torch.equal(scores.isfinite(), wanted > 0)
    assert torch.allclose(scores.softmax(-1), wanted)

    noise = gumbel(draw.seed, torch.full((4,), draw.sample), torch.arange(4), VOCABULARY)
    assert torch.equal(choose(logits, [draw] * 4, [0, 1, 2, 3]), (wanted.log() + noise).argmax(-1))

    rule = draw.top_p_rule
    for token in range(VOCABULARY):
        target = torch.full((4,), token)
        tempered = Tempered(Ordered.of(logits, target), draw.temperature)
        kept = tempered.kept(draw, rule=rule).minimum(logits.isfinite().sum(-1))  # no filter bars a token
        assert torch.equal(kept, (wanted > 0).sum(-1))
        for reading in (
            read(logits, target, draw.temperature, draw, rule=rule),
            tempered.reading(draw, rule=rule),
        ):
            agrees(reading, wanted, token, ties=ties)


def agrees(reading: Reading, wanted: torch.Tensor, token: int, *, ties: bool) -> None:
    own = wanted[:, token]
    log_p = wanted.log().masked_fill(wanted == 0, 0.0)
    entropy = -(wanted * log_p).sum(-1)
    assert torch.allclose(reading.processed.exp(), own)
    assert not (reading.outside[own > 0] > 0).any()
    if not ties:  # of equal tokens at the edge top-p keeps the first, and no error is needed to let the others in
        assert (reading.outside[own == 0] > 0).all()
    assert torch.allclose(reading.entropy, entropy, atol=1e-9)
    assert torch.allclose(reading.varentropy, (wanted * log_p**2).sum(-1) - entropy**2, atol=1e-9)
    places = torch.arange(VOCABULARY)
    ahead = (wanted > own[:, None]) | ((wanted == own[:, None]) & (places < token))
    inside = own > 0
    assert torch.allclose(reading.before[inside], torch.where(ahead, wanted, 0.0).sum(-1)[inside])
    assert torch.allclose(reading.second.exp(), wanted.topk(2, dim=-1).values[:, 1])
