"""A byte-level BPE tokenizer trained on the built-in grammar, with chat markers and a template that writes BOS.

Both the template and the post-processor write BOS, as in many released models: text that went through the template
and is encoded again with special tokens holds two. A rollout engine that is sent text instead of ids falls into
exactly that.

Normaliser, pre-tokeniser and unknown token are those of Qwen2: Transformers 5 reads the tokenizer of every `qwen2`
model as `Qwen2Tokenizer`, whatever class was saved, and would otherwise rebuild another pipeline and add an id beyond
the vocabulary.
"""

from __future__ import annotations

import random

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from scenarios.models import grammar
from scenarios.tiny import CONTEXT

BOS, EOS, PAD = "<|bos|>", "<|endoftext|>", "<|pad|>"
SYSTEM, USER, ASSISTANT, END = "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"
SPECIALS = (PAD, BOS, EOS, SYSTEM, USER, ASSISTANT, END)
VOCABULARY = 640  # an upper bound: the grammar runs out of merges near 600

SPLIT = (  # transformers/models/qwen2/tokenization_qwen2.py
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] }}"
    "{{ eos_token if message['role'] == 'assistant' else '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def train(seed: int) -> PreTrainedTokenizerFast:
    """Train the tokenizer on text of the grammar drawn from `seed`; the vocabulary has at most VOCABULARY entries."""
    rng = random.Random(f"tokenizer-{seed}")
    texts = [grammar.SYSTEM] * 500
    for _ in range(2000):
        texts += [grammar.question(rng), grammar.answer(rng)]
    core = Tokenizer(models.BPE())
    core.normalizer = normalizers.NFC()
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIALS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    core.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B", special_tokens=[(BOS, core.token_to_id(BOS))]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token=BOS,
        eos_token=EOS,
        unk_token=EOS,
        pad_token=PAD,
        additional_special_tokens=[SYSTEM, USER, ASSISTANT, END],
        model_max_length=CONTEXT,
        padding_side="right",
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def chat_ids(tokenizer: PreTrainedTokenizerFast, messages: list[dict[str, str]], *, generate: bool) -> list[int]:
    """Ids of a chat through the template, which writes BOS itself; `generate` adds the assistant's marker."""
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=generate)
    return list(tokenizer.encode(text, add_special_tokens=False))
