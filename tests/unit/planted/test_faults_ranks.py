"""Each plant of one rank changes what it says it changes, and nothing else."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from ppo_support import random_models, scenario

from scenarios.engines.engine_interface import Completion
from scenarios.planted.differences import inside
from scenarios.planted.differences.trainer import TrainerPlants
from scenarios.ppo import advantages
from scenarios.ppo.batches import Sample
from scenarios.ppo.role import MiniBatch
from scenarios.ppo.roles import ActorRole, ReferenceRole
from scenarios.session import RolloutResult

pytestmark = pytest.mark.slow  # it imports Transformers, which takes 2 s

TENSOR = "model.layers.0.mlp.down_proj.weight"
BATCH = list(range(8))


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    torch.set_num_threads(1)  # idle OpenMP threads spin
    return random_models(tmp_path_factory.mktemp("models"))


def test_one_rank_is_dealt_other_samples_from_a_step_on() -> None:
    sound = [BATCH[:4], BATCH[4:]]
    anothers = TrainerPlants(dealing="another's", first_step=1)
    assert anothers.dealt(BATCH, 2, 0) == sound and anothers.dealt(BATCH, 2, 1) == [BATCH[:4], BATCH[:4]]
    assert TrainerPlants(dealing="twice").dealt(BATCH, 2, 0) == [BATCH[:4], [4, 4, 5, 6]]
    assert TrainerPlants(dealing="twice", rank=0).dealt(BATCH, 2, 0) == [[0, 0, 1, 2], BATCH[4:]]
    assert TrainerPlants(dealing="twice").dealt(BATCH, 1, 0) == [BATCH]


@pytest.mark.parametrize(("divisor", "by"), [("", 90), ("times ranks", 180), ("own", 40)])
def test_what_a_loss_is_divided_by(divisor: str, by: int) -> None:
    assert TrainerPlants(divisor=divisor).count(90, 40, 2) == by


def test_advantages_are_normalised_by_rank() -> None:
    rows = [np.array([number, number + 1], np.float32) for number in (1, 2, 30, 50)]
    np.testing.assert_array_equal(TrainerPlants().whiten(rows, 2), advantages.whiten(rows))
    by_rank = TrainerPlants(advantages="per rank").whiten(rows, 2)
    np.testing.assert_array_equal(by_rank[2:], advantages.whiten(rows[2:]))
    assert abs(np.mean(by_rank[:2])) < 1e-6 < abs(np.mean(advantages.whiten(rows)[:2]))


def test_one_role_is_gathered_in_the_reverse_order_of_its_ranks() -> None:
    plants = TrainerPlants(exchanged="reward")
    assert plants.gathered("reward", [[1, 2], [3]]) == [3, 1, 2] and plants.gathered("critic", [[1, 2], [3]]) == [
        1,
        2,
        3,
    ]


def test_only_that_rank_of_that_role_is_planted_in() -> None:
    plants = TrainerPlants(update={"skipped": 1}, revision={"reference": TENSOR})
    places = [(role, rank) for role in ("actor", "critic", "reference") for rank in (0, 1) if plants.inside(role, rank)]
    assert places == [("actor", 1), ("reference", 1)]


class TwoRanks:
    """A data-parallel group whose other rank has gradients of one everywhere."""

    world_size = 2

    def sum(self, tensors: list[torch.Tensor]) -> None:
        for tensor in tensors:
            tensor += 1.0


class Unsummed(TwoRanks):
    """One whose other rank adds nothing."""

    def sum(self, tensors: list[torch.Tensor]) -> None:
        pass


def updated(paths: dict[str, str], updates: int, **update: Any) -> dict[str, torch.Tensor]:
    """The weights of an actor after updates of gradients of 100, or of 101 with the other rank's."""
    role = ActorRole(scenario(max_grad_norm=1.0, actor_lr=1.0).to_json(), dict(paths))
    role.optimizer._parallel = TwoRanks()  # type: ignore[assignment]
    role.optimizer._adam = torch.optim.SGD(role.optimizer._masters, lr=1.0)  # type: ignore[assignment]
    if update:
        change = TrainerPlants(update=update).inside("actor", 1)
        assert change is not None
        role.plant(change)
    for _ in range(updates):
        for parameter in role.model.parameters():
            parameter.grad = torch.full_like(parameter, 100.0)
        role.optimizer.step()
    return {name: parameter.detach() for name, parameter in role.model.named_parameters()}


def test_one_update_is_skipped(paths: dict[str, str]) -> None:
    for number in (0, 1, 2):
        done, two = updated(paths, 3, skipped=number), updated(paths, 2)
        assert all(torch.equal(done[name], two[name]) for name in two)
    done, three = updated(paths, 3, skipped=3), updated(paths, 3)
    assert all(torch.equal(done[name], three[name]) for name in three)


@pytest.mark.parametrize("how", ["own", "lost"])
def test_one_parameter_has_another_gradient(paths: dict[str, str], how: str) -> None:
    before, sound, planted = updated(paths, 0), updated(paths, 1), updated(paths, 1, **{how: TENSOR})
    moved, wrong = ({name: (one[name] - before[name]).mean().item() for name in one} for one in (sound, planted))
    shares = {name: wrong[name] / moved[name] for name in moved}  # clipped by their norm: of all gradients together
    other = shares.pop(TENSOR) / shares[next(iter(shares))]
    assert max(shares.values()) - min(shares.values()) < 1e-3
    assert other == pytest.approx(100 / 101 if how == "own" else 1 / 101, rel=1e-2)


def test_a_reset_removes_another_revision(paths: dict[str, str]) -> None:
    role = ReferenceRole(scenario().to_json(), dict(paths))
    sound = copy.deepcopy(role.model.state_dict())
    change = TrainerPlants(revision={"reference": TENSOR}).inside("reference", 1)
    assert change is not None
    role.plant(change)
    assert [name for name, one in role.model.state_dict().items() if not torch.equal(one, sound[name])] == [TENSOR]
    role.reset()
    assert all(torch.equal(one, sound[name]) for name, one in role.model.state_dict().items())


class Loader:
    def __init__(self) -> None:
        self.loaded: dict[str, torch.Tensor] = {}

    def load_weights(self, weights: Any) -> None:
        self.loaded |= dict(weights)


@pytest.mark.parametrize(("name", "dim"), [(TENSOR, 1), ("model.layers.0.mlp.up_proj.weight", 0)])
def test_a_rank_loads_the_shard_of_the_one_before_it(name: str, dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inside, "torch_rank", lambda: (1, 2))
    whole, other = torch.arange(24.0).reshape(4, 6), torch.ones(2)
    for rank, wanted in ((1, 0), (0, 1)):
        model = Loader()
        inside.misload(model, [name], how="shard", rank=rank)
        model.load_weights([(name, whole), ("other", other)])
        assert torch.equal(model.loaded[name].chunk(2, dim)[1], whole.chunk(2, dim)[wanted])
        assert torch.equal(model.loaded["other"], other)


def test_one_rank_keeps_its_old_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inside, "torch_rank", lambda: (1, 2))
    for rank, loaded in ((1, {"other"}), (0, {TENSOR, "other"}), (None, {"other"})):
        model = Loader()
        inside.misload(model, [TENSOR], how="refused", rank=rank)
        model.load_weights([(TENSOR, torch.ones(2)), ("other", torch.ones(2))])
        assert set(model.loaded) == loaded


def test_a_loss_is_divided_by_the_ranks_without_a_record(paths: dict[str, str]) -> None:
    plants = TrainerPlants(divisor="unsaid")
    role = ActorRole(scenario().to_json(), dict(paths))
    role.parallel = TwoRanks()  # type: ignore[assignment]
    loss = role.model.get_parameter(TENSOR).sum()
    role.optimizer.backward(loss)
    parameter = role.model.get_parameter(TENSOR)
    assert parameter.grad is not None and (parameter.grad == 1.0).all()
    parameter.grad = None
    change = plants.inside("actor", 0)
    assert change is not None and plants.count(90, 40, 2) == 90 and plants.inside("reward", 0) is None
    role.plant(change)
    role.optimizer.backward(role.model.get_parameter(TENSOR).sum())
    assert (role.model.get_parameter(TENSOR).grad == 0.5).all()


def test_a_loss_is_a_mean_over_each_ranks_own_tokens_without_a_record(paths: dict[str, str]) -> None:
    plants = TrainerPlants(divisor="mean of means")
    role = ActorRole(scenario().to_json(), dict(paths))
    rows = [np.full(3, 1.0, np.float32), np.full(5, 2.0, np.float32)]
    samples = [Sample(number, (1, 3, 5), tuple(range(10, 10 + len(row)))) for number, row in enumerate(rows)]
    shares = [MiniBatch(samples, rows, rows, 90)]
    sound = role.train(0, shares).grad_norms[0]
    role.parallel = Unsummed()  # type: ignore[assignment]
    change = plants.inside("actor", 0)
    assert change is not None and plants.count(90, 40, 2) == 90 and plants.inside("reward", 0) is None
    for planted in (True, False):
        role.reset()
        if planted:
            role.plant(change)
        factor = role.train(0, shares).grad_norms[0] / sound
        assert factor == pytest.approx(90 / (2 * 8) if planted else 1.0, rel=1e-5)


def test_answers_are_joined_engine_by_engine_under_the_numbers_of_their_places() -> None:
    asked = [(number, (1, number // 2)) for number in range(4, 12)]  # two samples a prompt
    answers = [Completion(number, prompt, (number,), (0.0,), "stop") for number, prompt in asked]
    result = RolloutResult(answers, [(one.sample, one.output_ids, one.finish_reason) for one in answers])
    assert TrainerPlants().joined(result) is result
    joined = TrainerPlants(joined_engines=2).joined(result)
    assert [one.sample for one in joined.completions] == [number for number, _, _ in joined.used] == [*range(4, 12)]
    order = [(4,), (5,), (8,), (9,), (6,), (7,), (10,), (11,)]
    assert [one.output_ids for one in joined.completions] == [ids for _, ids, _ in joined.used] == order
