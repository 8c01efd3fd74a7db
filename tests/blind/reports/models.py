"""A tiny model of an architecture, with the built-in tokenizer, trained for some seconds on the built-in grammar.

Run with the harness's interpreter: models.py KIND DIR [steps=120] [rows=N extra vocabulary rows] [generation={...}] key=json ...
"""

import json
import random
import sys

import torch
from harness.envs import home
from scenarios import models
from scenarios.models import build, builtin
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

SMALL = {
    "hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "intermediate_size": 256, "max_position_embeddings": 512, "tie_word_embeddings": False,
}
SMALL_GPT2 = {"n_embd": 128, "n_layer": 4, "n_head": 4, "n_positions": 512, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}

kind, directory, *words = sys.argv[1:]
given = {}
for word in words:
    key, _, value = word.partition("=")
    try:
        given[key] = json.loads(value)
    except ValueError:
        given[key] = value
steps, rows, generation = given.pop("steps", 120), given.pop("rows", 0), given.pop("generation", {})

tokenizer = models.load_tokenizer(build(0, home.directory("models")))
ends = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
shape = dict(SMALL_GPT2 if kind == "gpt2" else SMALL, **given)
torch.manual_seed(0)
model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, vocab_size=len(tokenizer) + rows, dtype="float32", **shape, **ends)).float()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98), weight_decay=0.01)
rng = random.Random(kind)


def loss_on(logits, ids, part):
    part = part[:, 1:]
    return torch.nn.functional.cross_entropy(logits[part].float(), ids[:, 1:][part])


for _ in range(steps):
    ids, answers, prompts = builtin._padded([builtin._conversation(rng, tokenizer) for _ in range(10)], tokenizer)
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
    loss = loss_on(logits, ids, answers) + 0.2 * loss_on(logits, ids, prompts)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
model.generation_config = GenerationConfig(**{**ends, **generation})
model.save_pretrained(directory)
tokenizer.save_pretrained(directory)
