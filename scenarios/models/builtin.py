"""The built-in models, made without a network: a policy pretrained for some seconds, a reward fitted to a rule.

A random model never ends a sentence, so every length would be the maximum and no fault that depends on lengths could
show. One seed gives one directory, byte for byte, on one kind of machine. Directories are cached by a key over
everything that shapes them: the seed, the sources of this package, the versions of torch and transformers, and the
CPU's vector extensions.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import platform
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2ForSequenceClassification,
)

from scenarios.models import grammar
from scenarios.models import tokenizer as bpe
from scenarios.models.quiet import quiet
from scenarios.tiny import ARCHITECTURES, CONTEXT, POLICY, REWARD, Architecture

RESPONSE = 36  # longest response trained on: longer than a rollout's 32, so that being cut off is not a habit
PROMPT_WEIGHT = 0.2  # of the prompts in the policy's loss
POLICY_RATE, REWARD_RATE = 3e-3, 5e-3
POLICY_STEPS, POLICY_BATCH = 120, 10  # 10 s on one core; the loss is flat by then (1.4 nats a token)
REWARD_STEPS, REWARD_BATCH = 120, 24  # 5 s on one core; correlation with the rule 0.96


def build(seed: int, home: Path, architecture: str = "") -> Path:
    """The built-in policy for `seed`: a Hugging Face directory under `home`, made on first use.

    `architecture`: one of `scenarios.tiny.ARCHITECTURES`; "" for the built-in policy's own.
    """
    if not architecture:
        return _cached(home, "tiny-policy", seed, _make_policy)
    made_of = ARCHITECTURES[architecture]
    make = partial(_make_architecture, made_of)
    return _cached(home, f"tiny-policy-{architecture}", seed, make, made_of=dataclasses.asdict(made_of))


def build_reward(seed: int, home: Path) -> Path:
    """The built-in reward model for `seed`: a sequence-classification directory with the policy's tokenizer."""
    return _cached(home, "tiny-reward", seed, _make_reward)


def _make_policy(seed: int, path: Path) -> None:
    tokenizer = bpe.train(seed)
    with _deterministic(seed):
        model = Qwen2ForCausalLM(_config(tokenizer, POLICY))

        def scores(ids: Tensor) -> Callable[[Tensor], Tensor]:
            hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
            return lambda part: model.lm_head(hidden[part])

        _pretrain(model, tokenizer, seed, scores)
    _save(model, tokenizer, path)


def _make_architecture(architecture: Architecture, seed: int, path: Path) -> None:
    tokenizer = bpe.train(seed)
    vocabulary = {"vocab_size": len(tokenizer) + architecture.rows, **_special_ids(tokenizer)}
    config = AutoConfig.for_model(architecture.model_type, dtype="float32", **architecture.configuration, **vocabulary)
    with _deterministic(seed):
        model = AutoModelForCausalLM.from_config(config).float()

        def scores(ids: Tensor) -> Callable[[Tensor], Tensor]:
            logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
            return lambda part: logits[part]

        _pretrain(model, tokenizer, seed, scores)
    _save(model, tokenizer, path)


def _pretrain(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    seed: int,
    scores: Callable[[Tensor], Callable[[Tensor], Tensor]],
) -> None:
    """Fit a policy to conversations of the grammar.

    `scores`: of token ids [n, t] gives what gives, of a mask [n, t - 1], the logits [masked, vocabulary] there.
    """
    rng = random.Random(f"policy-{seed}")

    def loss() -> Tensor:
        batch = [_conversation(rng, tokenizer) for _ in range(POLICY_BATCH)]
        ids, answers, prompts = _padded(batch, tokenizer)
        logits_of = scores(ids)

        def cross_entropy(part: Tensor) -> Tensor:
            part = part[:, 1:]
            return torch.nn.functional.cross_entropy(logits_of(part), ids[:, 1:][part])

        # Ids that were never learned get log-probabilities of -19, which float32 rounds by 1e-5: too near what
        # the comparison of engines calls a defect. With the prompts learned it is 5e-6, and 3e-7 on average.
        return cross_entropy(answers) + PROMPT_WEIGHT * cross_entropy(prompts)

    _fit(model, loss, POLICY_STEPS, POLICY_RATE)


def _save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, path: Path) -> None:
    # Nothing but ids: a temperature or top_p in generation_config.json would leak into engines that read it.
    model.generation_config = GenerationConfig(**_special_ids(tokenizer))
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)


def _special_ids(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    names = ("bos_token_id", "eos_token_id", "pad_token_id")
    return {name: getattr(tokenizer, name) for name in names}


def _make_reward(seed: int, path: Path) -> None:
    tokenizer = bpe.train(seed)
    rng = random.Random(f"reward-{seed}")
    with _deterministic(seed + 1):
        model = Qwen2ForSequenceClassification(_config(tokenizer, REWARD, num_labels=1))

        def loss() -> Tensor:
            batch = [_conversation(rng, tokenizer) for _ in range(REWARD_BATCH)]
            scores = [grammar.score(str(tokenizer.decode(answer, skip_special_tokens=True))) for _, answer in batch]
            ids, _, _ = _padded(batch, tokenizer)
            return torch.nn.functional.mse_loss(model(input_ids=ids).logits[:, 0], torch.tensor(scores))

        _fit(model, loss, REWARD_STEPS, REWARD_RATE)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)


def _config(tokenizer: PreTrainedTokenizerFast, size: dict[str, Any], **kwargs: Any) -> Qwen2Config:
    return Qwen2Config(
        vocab_size=len(tokenizer),
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=False,
        use_sliding_window=False,
        dtype="float32",
        **_special_ids(tokenizer),
        **size,
        **kwargs,
    )


def _conversation(rng: random.Random, tokenizer: PreTrainedTokenizerFast) -> tuple[list[int], list[int]]:
    """Prompt ids and response ids with EOS, cut at RESPONSE tokens."""
    chat = grammar.messages(rng)
    answer = grammar.answer(rng, grammar.place_of(chat[1]["content"]))
    ids = [*tokenizer.encode(answer, add_special_tokens=False), tokenizer.eos_token_id]
    return bpe.chat_ids(tokenizer, chat, generate=True), ids[:RESPONSE]


def _padded(
    batch: list[tuple[list[int], list[int]]], tokenizer: PreTrainedTokenizerFast
) -> tuple[Tensor, Tensor, Tensor]:
    """Right-padded ids [n, t], and two masks [n, t]: where answers are, and where prompts are."""
    longest = max(len(prompt) + len(answer) for prompt, answer in batch)
    ids = torch.full((len(batch), longest), tokenizer.pad_token_id)
    answers = torch.zeros_like(ids, dtype=torch.bool)
    prompts = torch.zeros_like(answers)
    for row, (prompt, answer) in enumerate(batch):
        ids[row, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
        prompts[row, : len(prompt)] = True
        answers[row, len(prompt) : len(prompt) + len(answer)] = True
    return ids, answers, prompts


def _fit(model: torch.nn.Module, loss: Callable[[], Tensor], steps: int, rate: float) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps, pct_start=0.15)
    for _ in range(steps):
        loss().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()


@contextlib.contextmanager
def _deterministic(seed: int) -> Iterator[None]:
    """One thread, deterministic algorithms and a seeded generator inside; the caller's settings come back after."""
    threads, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        torch.set_num_threads(1)
        torch.use_deterministic_algorithms(True)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            torch.use_deterministic_algorithms(strict)


def _key(seed: int) -> dict[str, Any]:
    sources = hashlib.blake2b(digest_size=16)
    for module in (bpe.__file__, grammar.__file__, __file__):
        sources.update(Path(module).read_bytes())
    return {
        "seed": seed,
        "sources": sources.hexdigest(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "tokenizers": tokenizers.__version__,
        # Matrix products differ in the last bits between vector extensions: another machine, another model.
        "cpu": f"{platform.machine()}-{torch.backends.cpu.get_cpu_capability()}",
    }


def _cached(home: Path, name: str, seed: int, make: Callable[[int, Path], None], **facts: Any) -> Path:
    """The directory of this key; made beside it and renamed, so that no reader ever sees a half-written model.

    `facts`: what shapes the model beside the seed and the sources.
    """
    key = {**_key(seed), **facts}
    content = hashlib.blake2b(json.dumps([name, key], sort_keys=True).encode(), digest_size=8).hexdigest()
    target = home / f"{name}-{content}"
    if target.is_dir():
        return target
    home.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=home))
    try:
        partial.chmod(0o755)  # mkdtemp gives 0700; a shared home is read by other users
        with quiet():
            make(seed, partial)
        (partial / "builtin.json").write_text(json.dumps({"name": name, **key}, indent=2, sort_keys=True) + "\n")
        try:
            os.replace(partial, target)
        except OSError:
            if not target.is_dir():  # else another process was first, with the same bytes
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target
