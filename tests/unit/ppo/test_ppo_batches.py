"""Padding and packing: where tokens go, and that both give the same log-probabilities, values and losses."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ppo_support import random_models

from scenarios import models
from scenarios.ppo import batches, losses
from scenarios.ppo.batches import Sample
from scenarios.ppo.role import response_logits, token_logprobs
from scenarios.settings import PPO

pytestmark = pytest.mark.slow  # it imports Transformers, which takes 2 s


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return random_models(tmp_path_factory.mktemp("models"))


def ragged(count: int, seed: int = 0) -> list[Sample]:
    rng = random.Random(seed)

    def ids(low: int, high: int) -> tuple[int, ...]:
        return tuple(rng.randrange(7, 500) for _ in range(rng.randint(low, high)))

    return [Sample(number, ids(3, 20), ids(1, 12)) for number in range(count)]


def test_padding_is_on_the_right_and_needs_no_mask() -> None:
    samples = [Sample(0, (5, 6), (7,)), Sample(1, (8,), (9, 10, 11))]
    batch = batches.make(samples, pad=0, packing=False, device="cpu")
    assert batch.ids.tolist() == [[5, 6, 7, 0], [8, 9, 10, 11]]
    assert list(batch.inputs()) == ["input_ids"]
    assert (batch.padded_tokens, batch.real_tokens, batch.longest) == (8, 7, 4)


def test_a_response_token_is_predicted_one_place_before_it() -> None:
    batch = batches.make([Sample(0, (5, 6), (7,)), Sample(1, (8,), (9, 10))], pad=0, packing=False, device="cpu")
    assert batch.row.tolist() == [0, 1, 1]
    assert batch.column.tolist() == [1, 0, 1]
    assert batch.target.tolist() == [7, 9, 10]
    assert [part.tolist() for part in batch.split(batch.target)] == [[7], [9, 10]]


def test_packing_fills_rows_and_restarts_positions() -> None:
    samples = [Sample(0, (1,) * 2, (2,)), Sample(1, (3,) * 4, (4,)), Sample(2, (5,), (6,))]
    batch = batches.make(samples, pad=0, packing=True, device="cpu")
    assert batch.ids.tolist() == [[3, 3, 3, 3, 4], [1, 1, 2, 5, 6]]
    assert batch.positions is not None and batch.positions[1].tolist() == [0, 1, 2, 0, 1]
    assert batch.mask is not None
    seen = batch.mask[1, 0] == 0
    assert seen.tolist() == [
        [True, False, False, False, False],
        [True, True, False, False, False],
        [True, True, True, False, False],
        [False, False, False, True, False],
        [False, False, False, True, True],
    ]


@given(st.integers(1, 12), st.integers(0, 1000))
def test_packing_loses_no_token_and_wastes_no_more_than_padding(count: int, seed: int) -> None:
    samples = ragged(count, seed)
    packed = batches.make(samples, pad=0, packing=True, device="cpu")
    padded = batches.make(samples, pad=0, packing=False, device="cpu")
    assert packed.target.tolist() == padded.target.tolist()
    assert int((packed.ids != 0).sum()) == packed.real_tokens == padded.real_tokens
    assert packed.padded_tokens <= padded.padded_tokens
    after = packed.ids[packed.row, packed.column + 1]
    assert after.tolist() == packed.target.tolist()


@pytest.mark.parametrize("seed", range(3))
def test_both_give_the_same_losses_and_gradients(paths: dict[str, str], seed: int) -> None:
    samples = ragged(6, seed)
    tokens = sum(len(sample.response) for sample in samples)
    old, advantage = (torch.randn(tokens, generator=torch.Generator().manual_seed(seed + k)) for k in range(2))
    seen = []
    for packing in (False, True):
        model = models.load_policy(paths["policy"])
        batch = batches.make(samples, pad=0, packing=packing, device="cpu")
        logits = response_logits(model, batch)
        logprob = token_logprobs(logits, batch.target)
        loss = losses.policy_loss(
            logprob, logprob.detach() + 0.1 * old, advantage, losses.entropy(logits), PPO(clip=0.2, entropy_coef=0.01),
            count=tokens,
        )  # fmt: skip
        loss.total.backward()
        norm = torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None])
        seen.append((logprob.detach(), loss.total.detach(), norm))
    for padded, packed in zip(*seen, strict=True):
        torch.testing.assert_close(packed, padded, rtol=1e-4, atol=2e-5)


def test_both_give_the_same_values(paths: dict[str, str]) -> None:
    samples = ragged(6)
    critic = models.load_value(paths["policy"], seed=3)
    both = []
    for packing in (False, True):
        batch = batches.make(samples, pad=0, packing=packing, device="cpu")
        both.append(critic(**batch.inputs())[batch.row, batch.column])
    torch.testing.assert_close(both[1], both[0], rtol=1e-4, atol=1e-5)


def test_logprobs_are_those_of_each_sample_alone(paths: dict[str, str]) -> None:
    samples = ragged(5)
    model = models.load_policy(paths["policy"])
    batch = batches.make(samples, pad=0, packing=False, device="cpu")
    with torch.no_grad():
        together = batch.split(token_logprobs(response_logits(model, batch), batch.target))
        for sample, row in zip(samples, together, strict=True):
            ids = torch.tensor([sample.prompt + sample.response])
            logits = model(input_ids=ids).logits[0].log_softmax(-1)
            first = len(sample.prompt)
            alone = [logits[first + t - 1, token].item() for t, token in enumerate(sample.response)]
            assert row.tolist() == pytest.approx(alone, abs=2e-5)


def test_micro_batches_cover_everything_in_order() -> None:
    assert [list(range(10))[part] for part in batches.micro(range(10), 4)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_packed_bfloat16_masks_have_no_nan(paths: dict[str, str]) -> None:
    model = models.load_policy(Path(paths["policy"]), dtype="bfloat16")
    batch = batches.make(ragged(4), pad=0, packing=True, device="cpu", dtype=torch.bfloat16)
    with torch.no_grad():
        assert bool(response_logits(model, batch).isfinite().all())
