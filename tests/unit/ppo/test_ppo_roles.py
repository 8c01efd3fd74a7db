"""Roles on their own, without an engine: what they score, how they train, and that a reset is a fresh process."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from ppo_support import random_models, scenario
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from probes import weights
from scenarios import models
from scenarios.models import tokenizer as bpe
from scenarios.ppo.batches import Sample
from scenarios.ppo.in_parts import in_parts
from scenarios.ppo.optimizer import DivergedError, Optimizer
from scenarios.ppo.parallel import DataParallel, RoleSettings
from scenarios.ppo.role import MiniBatch
from scenarios.ppo.roles import ActorRole, CriticRole, ReferenceRole, RewardRole
from scenarios.settings import Model, Scenario

pytestmark = pytest.mark.slow  # it imports Transformers, which takes 2 s

SAMPLES = [
    Sample(0, (1, 30, 40), (50, 60, 2)), Sample(1, (1, 31), (70, 71)),
    Sample(2, (1, 8, 9, 10, 11), (12, 13, 14, 15, 2)), Sample(3, (1, 99), (100,)),
]  # fmt: skip
TOKENS = sum(len(sample.response) for sample in SAMPLES)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return random_models(tmp_path_factory.mktemp("models"))


def like(seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=len(sample.response)).astype(np.float32) for sample in SAMPLES]


def share(old: list[np.ndarray], target: list[np.ndarray]) -> MiniBatch:
    return MiniBatch(SAMPLES, old, target, TOKENS)


def actor(paths: dict[str, str], settings: Scenario | None = None) -> ActorRole:
    return ActorRole((settings or scenario()).to_json(), paths)


def test_the_fresh_actor_is_the_reference(paths: dict[str, str]) -> None:
    reference = ReferenceRole(scenario().to_json(), paths).logprobs(0, SAMPLES)
    scored = actor(paths).score(0, SAMPLES)
    assert all(np.array_equal(a, b) for a, b in zip(scored.logprob, reference, strict=True))
    assert [len(row) for row in scored.margin] == [len(s.response) for s in SAMPLES]


def test_teacher_forcing_agrees_with_scoring(paths: dict[str, str]) -> None:
    role = actor(paths)
    scored = role.score(0, SAMPLES).logprob
    forced = role.teacher_forced([sample.prompt + sample.response for sample in SAMPLES])
    for sample, row, whole in zip(SAMPLES, scored, forced, strict=True):
        assert len(whole) == len(sample) - 1
        assert whole[len(sample.prompt) - 1 :] == pytest.approx(row.tolist(), abs=2e-5)


def test_a_positive_advantage_raises_the_log_probability(paths: dict[str, str]) -> None:
    role = actor(paths)
    before = role.score(0, SAMPLES).logprob
    signs = [np.full_like(row, 1 if number % 2 else -1) for number, row in enumerate(before)]
    trained = role.train(0, [share(before, signs)])
    after = role.score(1, SAMPLES).logprob
    for number, (old, new) in enumerate(zip(before, after, strict=True)):
        assert (new.mean() > old.mean()) == bool(number % 2)
    assert trained.sums["approx_kl"] == pytest.approx(0, abs=1e-6)
    assert len(trained.grad_norms) == 1


def test_the_critic_moves_towards_the_returns(paths: dict[str, str]) -> None:
    role = CriticRole(scenario().to_json(), paths)
    target = like(1)
    before = role.values(0, SAMPLES)
    for step in range(10):
        role.train(step, [share(role.values(step, SAMPLES), target)])
    after = role.values(10, SAMPLES)

    def error(rows: list[np.ndarray]) -> float:
        return float(np.mean((np.concatenate(rows) - np.concatenate(target)) ** 2))

    assert error(after) < 0.5 * error(before)


@pytest.mark.parametrize("packing", [False, True])
def test_micro_batches_do_not_change_the_update(paths: dict[str, str], packing: bool) -> None:
    after = []
    for size in (1, 4):
        role = actor(paths, scenario(micro_batch_size=size, packing=packing))
        role.train(0, [share(like(2), like(3))])
        after.append(np.concatenate(role.score(0, SAMPLES).logprob))
    np.testing.assert_allclose(after[0], after[1], atol=2e-4)


def test_equal_roles_train_to_equal_bits_and_a_reset_is_a_fresh_role(paths: dict[str, str]) -> None:
    shares = [share(like(2), like(3)), share(like(4), like(5))]
    first, second = actor(paths), actor(paths)
    fresh = first.weight_meta()
    ends = [first.train(0, shares).digest, second.train(0, shares).digest]
    first.reset()
    assert first.weight_meta() == fresh
    ends.append(first.train(0, shares).digest)
    assert len(set(ends)) == 1
    critic = CriticRole(scenario().to_json(), paths)
    once = critic.train(0, shares).digest
    critic.reset()
    assert critic.train(0, shares).digest == once


def test_adopted_weights_go_with_a_reset(paths: dict[str, str], tmp_path: Path) -> None:
    role = actor(paths)
    role.train(0, [share(like(2), like(3))])
    role.save_policy(str(tmp_path / "policy"))
    trained = role.score(0, SAMPLES).logprob
    role.reset()
    fresh = role.score(0, SAMPLES).logprob
    role.adopt(str(tmp_path / "policy"))
    assert all(np.array_equal(a, b) for a, b in zip(role.score(0, SAMPLES).logprob, trained, strict=True))
    role.reset()
    assert all(np.array_equal(a, b) for a, b in zip(role.score(0, SAMPLES).logprob, fresh, strict=True))


def test_learner_state_continues_to_the_same_bits(paths: dict[str, str], tmp_path: Path) -> None:
    shares = [share(like(2), like(3))]
    role = actor(paths)
    role.train(0, shares)
    role.save_policy(str(tmp_path / "policy"))
    state = role.learner_state()
    expected = role.train(1, shares).digest
    other = actor(paths)
    other.load_learner(str(tmp_path / "policy"), state)
    assert other.train(1, shares).digest == expected


def test_weight_meta_has_every_tensor_once_in_order(paths: dict[str, str]) -> None:
    role = actor(paths)
    state = role.model.state_dict()
    meta = role.weight_meta()
    assert [one.name for one in meta] == list(state)
    assert all(one.digest == weights.digest(state[one.name]) for one in meta)
    role.train(0, [share(like(2), like(3))])
    assert all(a.digest != b.digest for a, b in zip(meta, role.weight_meta(), strict=True))


def test_a_tied_tensor_is_sent_once(tmp_path: Path) -> None:
    role = actor(random_models(tmp_path, tied=True))
    names = [one.name for one in role.weight_meta()]
    assert "model.embed_tokens.weight" in names
    assert "lm_head.weight" not in names


def test_the_reward_is_the_classifier_s(paths: dict[str, str]) -> None:
    rewards = RewardRole(scenario().to_json(), paths).rewards(0, SAMPLES)
    model = AutoModelForSequenceClassification.from_pretrained(paths["reward"])
    for sample, reward in zip(SAMPLES, rewards, strict=True):
        with torch.no_grad():
            expected = model(input_ids=torch.tensor([sample.prompt + sample.response])).logits.item()
        assert reward == pytest.approx(expected, abs=1e-5)


def test_an_id_without_a_row_in_the_reward_model_has_no_reward_of_its_own(paths: dict[str, str]) -> None:
    """A policy with more rows than its tokenizer has tokens draws such ids."""
    role = RewardRole(scenario().to_json(), paths)
    rows = role.model.get_input_embeddings().num_embeddings
    beyond = dataclasses.replace(SAMPLES[0], response=(*SAMPLES[0].response[:-1], rows, SAMPLES[0].response[-1]))
    assert role.rewards(0, [beyond]).tolist() == role.rewards(0, [SAMPLES[0]]).tolist()


def test_a_reward_model_of_another_tokenizer_reads_text(paths: dict[str, str], tmp_path: Path) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(paths["reward"])
    model.save_pretrained(tmp_path)
    bpe.train(1).save_pretrained(tmp_path)
    own, other = AutoTokenizer.from_pretrained(paths["policy"]), AutoTokenizer.from_pretrained(tmp_path)
    assert own.get_vocab() != other.get_vocab()
    sample = Sample(0, tuple(own.encode("Tell me about the mill.")), tuple(own.encode(" It is warm.")[1:]))
    reward = RewardRole(scenario().to_json(), paths | {"reward": str(tmp_path)}).rewards(0, [sample])
    with torch.no_grad():
        ids = torch.tensor([other.encode("Tell me about the mill. It is warm.")])
        assert reward[0] == pytest.approx(model(input_ids=ids).logits.item(), abs=1e-5)


def test_bfloat16_weights_move_by_less_than_their_own_resolution(paths: dict[str, str]) -> None:
    """At this learning rate a bfloat16 weight near one would round every update away; its float32 master does not."""
    settings = dataclasses.replace(scenario(actor_lr=1e-5), model=Model(dtype="bfloat16"))
    role = actor(paths, settings)
    norm = next(m for m in role.optimizer._masters if m.dim() == 1 and bool((m == 1).all()))
    for step in range(3):
        role.train(step, [share(like(2), like(3))])
    assert role.model.dtype == torch.bfloat16
    assert bool((norm != 1).any())
    assert float((norm.detach() - 1).abs().max()) < 1e-3


def test_a_learner_in_half_precision_scores_in_float32_as_well(paths: dict[str, str]) -> None:
    """With the weights of now and with those before the last update: what rounding is, and what an update moved."""
    role = actor(paths, dataclasses.replace(scenario(actor_lr=1e-2), model=Model(dtype="bfloat16")))
    before = role.score(0, SAMPLES)
    assert not before.behind and [len(row) for row in before.exact] == [len(row) for row in before.logprob]
    rounding = np.abs(np.concatenate(before.exact) - np.concatenate(before.logprob))
    assert 0 < rounding.max() < 0.1
    role.train(0, [share(before.logprob, like(1))])
    after = role.score(1, SAMPLES)
    assert [row.tolist() for row in after.behind_exact] == [row.tolist() for row in before.exact]
    assert [row.tolist() for row in after.behind] == [row.tolist() for row in before.logprob]
    assert np.abs(np.concatenate(after.exact) - np.concatenate(after.behind_exact)).max() > 0.1
    role.reset()
    assert not role.score(0, SAMPLES).behind
    assert not actor(paths).score(0, SAMPLES).exact  # float32 needs no twin


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_layers_cut_as_ranks_cut_them_are_the_same_model_but_for_rounding(paths: dict[str, str], dtype: str) -> None:
    role = actor(paths, dataclasses.replace(scenario(), model=Model(dtype=dtype)))
    wide = models.load_policy(paths["policy"], dtype="float64")
    ids = torch.tensor([[*SAMPLES[2].prompt, *SAMPLES[2].response]])
    cut = in_parts(wide, 2)
    with torch.no_grad():
        assert torch.allclose(wide(ids).logits, cut(ids).logits, rtol=0, atol=1e-12)
    sequences = [sample.prompt + sample.response for sample in SAMPLES]
    moved = role.sharding(sequences, 2)
    assert [len(row) for row in moved] == [len(ids) - 1 for ids in sequences]
    largest = max(max(row) for row in moved)
    assert 0 < largest <= 4 * max(max(row) for row in role.rounding(sequences))
    assert not any(any(row) for row in role.sharding(sequences, 1))
    assert in_parts(torch.nn.Linear(4, 4), 2) is None  # a model without a plan


def test_a_gradient_that_is_no_number_is_said_at_once(paths: dict[str, str]) -> None:
    model = models.load_policy(paths["policy"])
    optimizer = Optimizer(model, 1e-3, 1.0, DataParallel("actor", RoleSettings(**paths)))
    optimizer.backward(next(model.parameters()).sum() * float("nan"))
    with pytest.raises(DivergedError, match="nan"):
        optimizer.step()


def test_a_missing_policy_is_a_clear_error(paths: dict[str, str]) -> None:
    with pytest.raises(models.ModelError, match="/nowhere"):
        actor(paths | {"policy": "/nowhere"})
