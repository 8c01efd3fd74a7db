"""The built-in language, tokenizer and models. Pretraining is cut to two steps; its result is an integration test."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, GenerationConfig

from scenarios import models
from scenarios.models import builtin, grammar
from scenarios.models import tokenizer as bpe
from scenarios.tiny import ARCHITECTURES

pytestmark = pytest.mark.slow  # it imports Transformers, which takes 2 s


@pytest.fixture(scope="module")
def short() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builtin, "POLICY_STEPS", 2)
        patch.setattr(builtin, "REWARD_STEPS", 2)
        yield


@pytest.fixture(scope="module")
def policy(short: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.build(0, tmp_path_factory.mktemp("home"))


def content(directory: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in directory.iterdir()}


def test_one_seed_gives_the_same_bytes(policy: Path, tmp_path: Path) -> None:
    assert content(models.build(0, tmp_path)) == content(policy)
    assert content(models.build(1, tmp_path)) != content(policy)
    assert content(models.build_reward(0, tmp_path / "a")) == content(models.build_reward(0, tmp_path / "b"))


@pytest.mark.by_day(3)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_can_be_built_and_lacks_the_tensors_that_it_says(
    short: None, policy: Path, name: str, tmp_path: Path
) -> None:
    model = models.load_policy(models.build(0, tmp_path, name))
    architecture = ARCHITECTURES[name]
    tensors, of_policy = ({tensor for tensor, _ in loaded.named_parameters()} for loaded in
                          (model, models.load_policy(policy)))  # fmt: skip
    assert model.config.model_type == architecture.model_type
    assert model.config.vocab_size == len(models.load_tokenizer(policy)) + architecture.rows
    assert all(tensor.startswith(architecture.without) for tensor in of_policy - tensors if "bias" not in tensor)


def test_a_built_model_is_found_again_and_nothing_half_made_stays(policy: Path) -> None:
    stamp = (policy / "model.safetensors").stat().st_mtime_ns
    assert models.build(0, policy.parent) == policy
    assert (policy / "model.safetensors").stat().st_mtime_ns == stamp
    assert [path.name for path in policy.parent.iterdir()] == [policy.name]


def test_a_failed_build_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(seed: int, path: Path) -> None:
        (path / "half").write_text("x")
        raise OSError("No space left on device")

    monkeypatch.setattr(builtin, "_make_policy", full)
    with pytest.raises(OSError, match="No space"):
        models.build(0, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_two_builders_at_once_both_get_the_model(policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def overtaken(seed: int, path: Path) -> None:
        """Another process finishes the same model while we still write ours."""
        monkeypatch.setattr(builtin, "_make_policy", real)
        models.build(seed, tmp_path)
        real(seed, path)

    real = builtin._make_policy
    monkeypatch.setattr(builtin, "_make_policy", overtaken)
    assert content(models.build(0, tmp_path)) == content(policy)


def test_building_leaves_the_caller_s_torch_as_it_was(short: None, tmp_path: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    threads, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    models.build_reward(0, tmp_path)
    assert torch.equal(torch.rand(3), expected)
    assert (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()) == (threads, strict)


def test_configuration_and_generation_configuration_agree(policy: Path) -> None:
    model = models.load_policy(policy)
    tokenizer = models.load_tokenizer(policy)
    generation = GenerationConfig.from_pretrained(policy)
    assert model.config.eos_token_id == generation.eos_token_id == tokenizer.eos_token_id == 2
    assert model.config.vocab_size == len(tokenizer)
    assert model.dtype == torch.float32
    written = (policy / "generation_config.json").read_text()
    assert not any(word in written for word in ("temperature", "top_p", "top_k", "do_sample"))


def test_the_tokenizer_reads_back_as_it_was_trained(policy: Path) -> None:
    made, read = bpe.train(0), AutoTokenizer.from_pretrained(policy)
    rng = random.Random(0)
    for _ in range(50):
        text = f"{grammar.question(rng)} {grammar.answer(rng)} é \n 12"
        assert read.encode(text) == made.encode(text)
        assert read.decode(read.encode(text), skip_special_tokens=True) == text
    assert len(read) == len(made)


def test_text_that_went_through_the_template_gets_a_second_bos(policy: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(policy)
    chat = grammar.messages(random.Random(0))
    ids = bpe.chat_ids(tokenizer, chat, generate=True)
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert ids.count(tokenizer.bos_token_id) == 1
    assert tokenizer.encode(text) == [tokenizer.bos_token_id, *ids]
    assert text.endswith(bpe.ASSISTANT)
    assert not tokenizer.apply_chat_template(chat, tokenize=False).endswith(bpe.ASSISTANT)


def test_prompts_share_a_prefix_that_a_cache_block_can_hold(policy: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(policy)
    rng = random.Random(0)
    prompts = [bpe.chat_ids(tokenizer, grammar.messages(rng), generate=True) for _ in range(100)]
    shared = next(k for k in range(100) if len({tuple(ids[: k + 1]) for ids in prompts}) > 1)
    assert shared >= 32
    assert len({len(ids) for ids in prompts}) > 5
    assert max(map(len, prompts)) <= 64


def test_the_rule_prefers_kind_words() -> None:
    assert grammar.score("The mill is warm.") == 1
    assert grammar.score("The mill is warm. It has a dark room.") == 0
    assert grammar.score("") == 0
    assert grammar.score("Its door is grim and ugly.") == -1


def test_answers_keep_to_the_place_that_was_asked_for() -> None:
    assert grammar.place_of("Tell me about the mill. Is the room warm?") == "mill"
    assert grammar.place_of("Hello") is None


def test_the_grammar_needs_no_torch() -> None:
    code = "import runpy, sys; runpy.run_path(sys.argv[1]); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code, grammar.__file__], check=True)
