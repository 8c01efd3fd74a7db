"""Models from a path, and what is said of a path that is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from ppo_support import random_models
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

from scenarios import models
from scenarios.models import ModelError
from scenarios.models.saved import widen

pytestmark = pytest.mark.slow  # it imports Transformers, which takes 2 s


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return random_models(tmp_path_factory.mktemp("models"))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/nowhere/model", r"model\.path = '/nowhere/model': no such directory$"),
        ("some-org/some-model", r"no such directory, nor a downloaded model \(`hf download some-org/some-model`"),
        ("builtin:huge", r"no such built-in model; there is 'builtin:tiny'"),
    ],
)
def test_a_path_that_is_no_model(path: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=message):
        models.policy_path(path, seed=0, home=tmp_path)


def test_a_file_and_an_empty_directory_are_no_models(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"")
    with pytest.raises(ModelError, match="this is a file"):
        models.policy_path(str(tmp_path / "model.bin"), seed=0, home=tmp_path)
    with pytest.raises(ModelError, match=r"model\.reward = .*holds no config\.json"):
        models.reward_path(str(tmp_path), seed=0, home=tmp_path)


def test_a_directory_is_taken_as_it_is(paths: dict[str, str], tmp_path: Path) -> None:
    assert models.policy_path(paths["policy"], seed=0, home=tmp_path) == Path(paths["policy"])
    assert models.reward_path(paths["reward"], seed=0, home=tmp_path) == Path(paths["reward"])


def test_a_policy_is_no_reward_model(paths: dict[str, str]) -> None:
    with pytest.raises(ModelError, match=r"is not a sequence-classification model: its files hold no score\.weight"):
        models.load_reward(paths["policy"])


def test_a_reward_model_has_one_label(paths: dict[str, str], tmp_path: Path) -> None:
    config = AutoConfig.from_pretrained(paths["reward"], num_labels=3)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="this one has 3"):
        models.load_reward(tmp_path)


def test_damaged_weights_and_configuration_are_clear_errors(paths: dict[str, str], tmp_path: Path) -> None:
    config = json.loads((Path(paths["policy"]) / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="cannot be loaded as a causal language model"):
        models.load_policy(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "no-such-architecture"}))
    with pytest.raises(ModelError, match="cannot be loaded as a causal language model"):
        models.load_policy(tmp_path)


def test_dtype_is_the_one_asked_for_and_nothing_drops_out(paths: dict[str, str]) -> None:
    for dtype in ("float32", "bfloat16"):
        model = models.load_policy(paths["policy"], dtype=dtype)
        assert model.dtype == getattr(torch, dtype)
        assert not model.training
        assert models.load_value(paths["policy"], seed=0, dtype=dtype).head.weight.dtype == getattr(torch, dtype)


def test_the_value_head_follows_the_seed_alone(paths: dict[str, str]) -> None:
    torch.manual_seed(1)
    first = models.load_value(paths["policy"], seed=4).head.weight
    torch.manual_seed(2)
    assert torch.equal(first, models.load_value(paths["policy"], seed=4).head.weight)
    assert not torch.equal(first, models.load_value(paths["policy"], seed=5).head.weight)


def test_values_are_the_head_on_the_policy_s_trunk(paths: dict[str, str]) -> None:
    ids = torch.tensor([[1, 30, 40, 50]])
    value = models.load_value(paths["policy"], seed=0)
    hidden = models.load_policy(paths["policy"]).model(input_ids=ids).last_hidden_state
    torch.testing.assert_close(value(input_ids=ids), (hidden @ value.head.weight[0]))


@pytest.mark.parametrize(("cap", "attention"), [(2.0, "eager"), (None, "sdpa")])
def test_attention_with_a_soft_cap_is_computed_with_it(cap: float | None, attention: str, tmp_path: Path) -> None:
    """PyTorch's kernels leave it out, also where a model in half precision is computed in float32 again."""
    config = AutoConfig.for_model(
        "gemma2", hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, head_dim=16,
        num_key_value_heads=2, vocab_size=64, sliding_window=8, attn_logit_softcapping=cap,
    )  # fmt: skip
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    with torch.no_grad():
        for weights in (loaded := models.load_policy(tmp_path)).parameters():
            weights.mul_(20)
    loaded.save_pretrained(tmp_path)
    ids = torch.arange(12)[None]
    right = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").float().eval()
    with torch.no_grad():
        expected = right(ids).logits
        for dtype in ("float32", "bfloat16"):
            model = models.load_policy(tmp_path, dtype=dtype)
            assert model.config._attn_implementation == attention
            assert widen(model, torch.float32).config._attn_implementation == attention
        torch.testing.assert_close(models.load_policy(tmp_path)(ids).logits, expected)
