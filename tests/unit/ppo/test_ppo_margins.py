"""Margins: the draw's own token has a positive one, and it names the token that nearly won."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ppo_support import with_

from scenarios.engines.coupling import Draw, choose, perturbed
from scenarios.ppo import margins
from scenarios.ppo.batches import Sample
from scenarios.ppo.margins import Margins
from scenarios.settings import Scenario

pytestmark = pytest.mark.slow  # it imports Transformers, which takes 2 s

LOGITS = torch.randn(40, 60, generator=torch.Generator().manual_seed(0)) * 2


def drawn(seed: int = 0, number: int = 7, **draw: float) -> tuple[int, ...]:
    return tuple(choose(LOGITS, [Draw(seed, number, **draw)] * len(LOGITS), list(range(len(LOGITS)))).tolist())


def test_the_coupled_draw_has_a_positive_margin_everywhere() -> None:
    rows = Margins(Scenario(), 2)(Sample(7, (1,), drawn()), LOGITS)
    margin, runner_up = rows.margin, rows.runner_up
    assert (margin > 0).all()
    assert all(other != own for other, own in zip(runner_up, drawn(), strict=True))


def test_another_token_has_a_negative_margin_and_the_draw_as_runner_up() -> None:
    other = tuple((token + 1) % 60 for token in drawn())
    rows = Margins(Scenario(), 2)(Sample(7, (1,), other), LOGITS)
    margin, runner_up = rows.margin, rows.runner_up
    assert (margin < 0).all()
    assert tuple(runner_up) == drawn()


def test_the_margin_is_the_difference_of_the_perturbed_logits() -> None:
    scores = perturbed(LOGITS, Draw(0, 7), torch.arange(len(LOGITS)))
    best = scores.topk(2, dim=-1)
    rows = Margins(Scenario(), 2)(Sample(7, (1,), drawn()), LOGITS)
    margin, runner_up = rows.margin, rows.runner_up
    np.testing.assert_allclose(margin, (best.values[:, 0] - best.values[:, 1]).numpy(), rtol=1e-5)
    assert runner_up.tolist() == best.indices[:, 1].tolist()


def test_greedy_margins_are_plain_logits() -> None:
    greedy = with_(Scenario(), rollout={"mode": "greedy"}, sampling={"temperature": 0.0})
    best = LOGITS.topk(2, dim=-1)
    sample = Sample(0, (1,), tuple(best.indices[:, 0].tolist()))
    rows = Margins(greedy, 2)(sample, LOGITS)
    margin, runner_up = rows.margin, rows.runner_up
    np.testing.assert_allclose(margin, (best.values[:, 0] - best.values[:, 1]).numpy(), rtol=1e-5)
    assert runner_up.tolist() == best.indices[:, 1].tolist()


def test_no_greedy_margin_is_smaller_than_its_probability_says() -> None:
    """What the judge holds greedy margins against (`harness.parity.subjects.sampling.observed_margins`)."""
    greedy = with_(Scenario(), rollout={"mode": "greedy"}, sampling={"temperature": 0.0})
    sharp = LOGITS * 4
    best = sharp.argmax(dim=-1)
    margin = Margins(greedy, 2)(Sample(0, (1,), tuple(best.tolist())), sharp).margin
    share = sharp.double().softmax(dim=-1).gather(-1, best[:, None])[:, 0].numpy()
    assert (share > 0.5).any() and (margin >= np.log(share / (1 - share)) - 1e-5).all()


def test_native_sampling_has_no_margin() -> None:
    rows = Margins(with_(Scenario(), rollout={"mode": "native"}), 2)(Sample(0, (1,), drawn()), LOGITS)
    margin, runner_up = rows.margin, rows.runner_up
    assert np.isnan(margin).all()
    assert (runner_up == -1).all()


def test_a_single_token_left_by_top_k_wins_without_a_runner_up() -> None:
    scenario = with_(Scenario(), sampling={"top_k": 1})
    sample = Sample(7, (1,), drawn(top_k=1))
    rows = Margins(scenario, 2)(sample, LOGITS)
    margin, runner_up = rows.margin, rows.runner_up
    assert (margin == np.inf).all()
    assert (runner_up == -1).all()


@pytest.mark.parametrize("mode", ["coupled", "greedy"])
def test_the_end_token_cannot_win_before_min_tokens(mode: str) -> None:
    scenario = with_(Scenario(), sampling={"min_tokens": 5}, rollout={"mode": mode})
    logits = LOGITS.clone()
    logits[:, 2] = 100.0
    margin = Margins(scenario, 2)(Sample(0, (1,), (2,) * len(logits)), logits).margin
    assert (margin[:5] == -np.inf).all()
    assert (margin[5:] > 0).all()


def test_chunks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Margins(Scenario(), 2)(Sample(7, (1,), drawn()), LOGITS)
    monkeypatch.setattr(margins, "CHUNK", 7)
    parts = Margins(Scenario(), 2)(Sample(7, (1,), drawn()), LOGITS)
    np.testing.assert_array_equal(whole.margin, parts.margin)
    np.testing.assert_array_equal(whole.runner_up, parts.runner_up)


def test_in_half_precision_a_choice_at_the_edge_of_a_filter_has_no_margin() -> None:
    """The best token is in with one engine and out with another: both draw as they were asked."""
    scenario = with_(Scenario(), sampling={"top_p": 0.7})
    exact, half = (Margins(scenario, 2, half=one)(Sample(7, (1,), drawn()), LOGITS).margin for one in (False, True))
    same = np.isclose(exact, half, equal_nan=True) | (np.isinf(exact) & np.isinf(half))
    assert np.isinf(half[~same]).all() and same.sum() > 0
    generator = torch.Generator().manual_seed(1)
    rounded = LOGITS + 0.02 * (torch.rand(LOGITS.shape, generator=generator) - 0.5)
    # Whatever engine rounds so, where it chooses otherwise the margin is none, or no more than rounding turns.
    draw, places = Draw(0, 7, top_p=0.7), torch.arange(len(LOGITS))
    draws = [perturbed(table, draw, places).argmax(-1) for table in (LOGITS, rounded)]
    rows = Margins(scenario, 2, half=True)(Sample(7, (1,), tuple(draws[0].tolist())), LOGITS)
    own, instead = rows.margin, rows.runner_up
    apart = (draws[0] != draws[1]).numpy()
    assert apart.any() and (own[apart] > 0).all()
    told = np.isinf(own[apart]) & (instead[apart] >= 0)
    assert (told | (np.abs(own[apart]) <= 0.1)).all()
    assert (instead[apart] == draws[1].numpy()[apart]).all()


def test_the_edge_says_how_far_a_filter_must_move_for_another_engines_draw() -> None:
    """An engine that rounds draws what the learner would not: both of two near tokens, or one of them, may be left."""
    scenario, draw = with_(Scenario(), sampling={"top_p": 0.7}), Draw(0, 7, top_p=0.7)
    places = torch.arange(len(LOGITS))
    own = perturbed(LOGITS, draw, places).argmax(-1)
    rows = Margins(scenario, 2, half=True)(Sample(7, (1,), tuple(own.tolist())), LOGITS)
    margin, edge = rows.margin, rows.edge
    assert (margin >= 0).all() and (edge == 0).all()
    generator = torch.Generator().manual_seed(1)
    seen = 0
    for _ in range(20):
        rounded = LOGITS + 0.2 * (torch.rand(LOGITS.shape, generator=generator) - 0.5)
        drawn = perturbed(rounded, draw, places).argmax(-1)
        rows = Margins(scenario, 2, half=True)(Sample(7, (1,), tuple(drawn.tolist())), LOGITS)
        margin, edge = rows.margin, rows.edge
        apart = margin < -0.2  # a gap up to it is turned without any filter
        assert (edge[apart] <= 0.2).all(), (margin[apart], edge[apart])
        seen += int(apart.sum())
    assert seen > 0
    worst = Sample(7, (1,), tuple(LOGITS.argmin(-1).tolist()))
    for half in (True, False):
        assert np.isnan(Margins(scenario, 2, half=half)(worst, LOGITS).edge).all()


def test_the_edge_of_what_a_guided_engine_drew_is_that_of_the_same_token_when_it_is_trained_on() -> None:
    scenario, draw = with_(Scenario(), sampling={"top_p": 0.7}), Draw(0, 7, top_p=0.7)
    places = torch.arange(len(LOGITS))
    generator = torch.Generator().manual_seed(1)
    rounded = LOGITS + 0.2 * (torch.rand(LOGITS.shape, generator=generator) - 0.5)
    own, drawn = (tuple(perturbed(table, draw, places).argmax(-1).tolist()) for table in (LOGITS, rounded))
    apart = np.array(own) != np.array(drawn)
    assert apart.any() and not apart.all()
    margins_of = Margins(scenario, 2, half=True)
    guided, trained = margins_of(Sample(7, (1,), own, drawn), LOGITS), margins_of(Sample(7, (1,), drawn), LOGITS)
    far = apart & (trained.margin < 0)  # `edge` is 0 where the margin itself says that the token is drawn
    assert far.any()
    np.testing.assert_array_equal(guided.drawn_edge[far], trained.edge[far])
    assert np.isnan(guided.drawn_edge[~apart]).all() and np.isnan(trained.drawn_edge).all()
    foreign = margins_of(Sample(7, (1,), own, (LOGITS.shape[-1] + 5, *drawn[1:3])), LOGITS)
    assert np.isnan(foreign.drawn_edge[0]) and np.isnan(foreign.drawn_edge[3:]).all()
    exact = Margins(scenario, 2)(Sample(7, (1,), own, drawn), LOGITS)
    assert np.isnan(exact.drawn_edge).all()
