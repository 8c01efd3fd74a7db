"""Coupled sampling: the generator is Philox, the draw is exact, and the forced token is what every greedy sampler
takes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from scenarios.engines.coupling import Draw, choose, force, gumbel, perturbed, philox
from scenarios.engines.sampling import filtered
from scenarios.planted.differences.coupled_draw import PlantedDraw
from scenarios.plants import INSIDE


def words(*values: int) -> tuple[torch.Tensor, ...]:
    return tuple(torch.tensor([value], dtype=torch.int64) for value in values)


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        # Known answers of Random123 1.14 (kat_vectors, philox4x32 10).
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (
            (0xFFFFFFFF,) * 4,
            (0xFFFFFFFF,) * 2,
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        ),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_known_answers(counter, key, expected) -> None:
    assert tuple(int(word) for word in philox(words(*counter), key)) == expected


def test_noise_is_a_pure_function_of_seed_sample_and_position() -> None:
    rows = gumbel(3, torch.tensor([5, 9, 5]), torch.tensor([0, 0, 7]), 101)
    alone = gumbel(3, torch.tensor([9]), torch.tensor([0]), 101)
    assert torch.equal(rows[1], alone[0])
    assert not torch.equal(rows[0], rows[2])
    assert not torch.equal(rows, gumbel(4, torch.tensor([5, 9, 5]), torch.tensor([0, 0, 7]), 101))


def test_noise_follows_the_gumbel_distribution() -> None:
    noise = gumbel(0, torch.arange(64), torch.zeros(64, dtype=torch.int64), 512).flatten().numpy()
    assert stats.kstest(noise, "gumbel_r").pvalue > 0.001


@pytest.mark.slow
@pytest.mark.parametrize(
    "draw",
    [
        Draw(seed=1, sample=0),
        Draw(seed=1, sample=0, temperature=0.7),
        Draw(seed=1, sample=0, top_k=5),
        Draw(seed=1, sample=0, top_p=0.8, temperature=1.3),
        Draw(seed=1, sample=0, top_k=8, top_p=0.9, min_p=0.05),
    ],
)
def test_coupled_draws_are_an_exact_sample_of_the_filtered_softmax(draw: Draw) -> None:
    """Chi-squared over 20,000 positions against softmax(filtered logits); a wrong tail, order or temperature fails
    it."""
    logits = torch.randn(1, 24, generator=torch.Generator().manual_seed(7)) * 1.5
    n = 20_000
    scores = perturbed(logits.expand(n, -1), draw, torch.arange(n))
    counts = torch.bincount(scores.argmax(-1), minlength=24).double()
    target = torch.softmax(filtered(logits, draw), -1)[0]
    allowed = target > 0
    assert counts[~allowed].sum() == 0
    assert stats.chisquare(counts[allowed].numpy(), (target[allowed] * n).numpy()).pvalue > 0.001


@pytest.mark.slow
def test_the_chi_squared_test_would_notice_another_temperature() -> None:
    logits = torch.randn(1, 24, generator=torch.Generator().manual_seed(7)) * 1.5
    n = 20_000
    counts = torch.bincount(
        perturbed(logits.expand(n, -1), Draw(seed=1, sample=0, temperature=0.9), torch.arange(n)).argmax(-1),
        minlength=24,
    )
    target = torch.softmax(logits.double(), -1)[0]
    assert stats.chisquare(counts.double().numpy(), (target * n).numpy()).pvalue < 1e-6


@pytest.mark.slow
def test_consecutive_positions_are_independent() -> None:
    logits = torch.zeros(1, 4)
    tokens = perturbed(logits.expand(8_000, -1), Draw(seed=2, sample=11), torch.arange(8_000)).argmax(-1)
    table = torch.zeros(4, 4)
    for before, after in zip(tokens[:-1].tolist(), tokens[1:].tolist(), strict=True):
        table[before, after] += 1
    assert stats.chi2_contingency(table.numpy()).pvalue > 0.001


def test_top_k_then_top_p_then_min_p_in_that_order() -> None:
    logits = torch.log(torch.tensor([[0.4, 0.3, 0.2, 0.1]], dtype=torch.float64))
    kept = lambda **kw: torch.isfinite(filtered(logits, Draw(seed=0, sample=0, **kw)))[0].tolist()  # noqa: E731
    assert kept(top_k=3) == [True, True, True, False]
    # Of the top 2, renormalised to 4/7 and 3/7, the first already covers p = 0.5; over the unfiltered mass it would
    # not.
    assert kept(top_k=2, top_p=0.5) == [True, False, False, False]
    assert kept(top_p=0.5) == [True, True, False, False]
    assert kept(min_p=0.6) == [True, True, False, False]


@pytest.mark.parametrize("draw", [
    Draw(seed=0, sample=0, top_p=0.8), Draw(seed=0, sample=0, top_k=5), Draw(seed=0, sample=0, min_p=0.2),
    Draw(seed=0, sample=0, top_k=8, top_p=0.7, min_p=0.05), Draw(seed=0, sample=0, top_k=8, top_p=0.7, joint=True),
])  # fmt: skip
def test_slack_holds_the_edges_of_every_engine_that_rounds_by_half_as_much(draw: Draw) -> None:
    """What any such engine keeps is within the wider filter, and what the narrower one keeps all of them keep."""
    random = torch.Generator().manual_seed(3)
    logits = torch.randn(200, 24, generator=random, dtype=torch.float64) * 2
    rounded = logits + 0.1 * (torch.rand(200, 24, generator=random, dtype=torch.float64) - 0.5)
    kept, wide, narrow = (
        filtered(table, draw, slack).isfinite() for table, slack in ((rounded, 0.0), (logits, 0.1), (logits, -0.1))
    )
    assert not (kept & ~wide).any() and not (narrow & ~kept).any()
    assert narrow.any(dim=-1).all()
    assert (wide & ~narrow).any() and torch.equal(filtered(logits, draw), filtered(logits, draw, 0.0))


def test_end_ids_are_masked_until_min_tokens() -> None:
    logits = torch.tensor([[0.0, 50.0, 0.0]])
    draw = Draw(seed=0, sample=0, min_tokens=3, end_ids=(1,))
    tokens = perturbed(logits.expand(5, -1), draw, torch.arange(5)).argmax(-1).tolist()
    assert 1 not in tokens[:3] and tokens[3:] == [1, 1]


@pytest.mark.slow
@given(
    st.integers(0, 2**40),
    st.lists(st.tuples(st.integers(0, 2**50), st.integers(0, 5000)), min_size=1, max_size=5),
    st.sampled_from([{}, {"top_k": 3}, {"top_p": 0.6}, {"min_p": 0.1}, {"temperature": 0.3}]),
)
def test_a_batch_draws_what_each_row_draws_alone(seed, places, params) -> None:
    logits = torch.randn(len(places), 33, generator=torch.Generator().manual_seed(seed % 1000))
    draws = [Draw(seed=seed, sample=sample, **params) for sample, _ in places]
    positions = [position for _, position in places]
    together = choose(logits, draws, positions).tolist()
    alone = [choose(logits[i : i + 1], [draws[i]], [positions[i]]).item() for i in range(len(places))]
    single = [
        perturbed(logits[i : i + 1], draws[i], torch.tensor([positions[i]])).argmax(-1).item()
        for i in range(len(places))
    ]
    assert together == alone == single


def test_forced_logits_leave_one_choice() -> None:
    forced = force(torch.randn(3, 9), torch.tensor([4, 0, 8]))
    assert forced.argmax(-1).tolist() == [4, 0, 8]
    assert torch.softmax(forced, -1).max(-1).values.tolist() == [1.0, 1.0, 1.0]


def test_a_draw_survives_json() -> None:
    import json

    draw = Draw(seed=2**40, sample=7, offset=3, top_k=4, min_tokens=2, end_ids=(1, 2))
    assert Draw.from_json(json.loads(json.dumps(draw.to_json()))) == draw


def test_a_planted_draw_reaches_an_engines_process_only_where_the_session_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent = PlantedDraw(seed=3, sample=7, second=2).to_json()
    with pytest.raises(TypeError, match="jitter"):
        Draw.from_json(sent)
    monkeypatch.setenv(INSIDE, "scenarios.planted.differences.inside")
    assert Draw.from_json(sent) == PlantedDraw(seed=3, sample=7, second=2)
    assert type(Draw.from_json(Draw(seed=3, sample=7).to_json())) is Draw
