"""One prompt through a real engine in its own interpreter, for `harness env check`.

`python -m scenarios.engines.smoke ENGINE`. The model is tiny, random and made on the spot, so nothing is downloaded.
The result is one JSON line, the last thing printed; what the engine prints goes to stderr.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scenarios.engines.engine_interface import Request
from scenarios.engines.engine_processes import descendants
from scenarios.engines.make import make_engine
from scenarios.settings import Engine, Sampling, Scenario
from scenarios.settings import Model as ModelSettings

VOCABULARY = 512  # a choice: small
PROMPT = (1, 5, 9, 13, 17, 21)
TOKENS = 8  # a choice: a few decode steps


def make_model(folder: Path) -> None:
    """Write a random two-layer Qwen2 with a word-level tokenizer in Hugging Face's layout. SGLang needs the
    tokenizer.
    """
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=256,
        bos_token_id=1,
        eos_token_id=2,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    words = {word: i for i, word in enumerate(["<unk>", "<s>", "</s>", *(f"w{i}" for i in range(3, VOCABULARY))])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    named = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named).save_pretrained(folder)


def smoke(engine: str, device: str) -> dict[str, Any]:
    """Start the engine as a run would, draw from one prompt, and end it. Raises what the engine raises."""
    scenario = Scenario(
        name="smoke",
        model=ModelSettings(dtype="float32"),
        sampling=Sampling(max_tokens=TOKENS, ignore_eos=True),
        engine=Engine(max_num_seqs=4, kv_cache_tokens=2048, memory_fraction=0.3),
    )
    with tempfile.TemporaryDirectory(prefix="harness-smoke-") as folder:
        make_model(Path(folder))
        began = time.monotonic()
        live = make_engine(engine, folder, scenario, device=device)
        started = time.monotonic()
        try:
            request = Request(sample=0, prompt_ids=PROMPT, max_tokens=TOKENS)
            (completion,) = live.generate([request], scenario.sampling, seed=0)
            generated = time.monotonic()
        finally:
            live.close()
    shims = sys.modules.get("rlhf_harness_cpu_shims")
    return {
        "tokens": len(completion.output_ids),
        "finite": all(abs(value) < float("inf") for value in completion.logprobs),
        "start_s": started - began,
        "generate_s": generated - started,
        "shims": list(getattr(shims, "ACTIVE", ())),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m scenarios.engines.smoke", description=__doc__.splitlines()[0])
    parser.add_argument("engine")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    options = parser.parse_args(arguments)
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answer:
        os.dup2(2, 1)
        status = 0
        try:
            result = smoke(options.engine, options.device)
        except Exception as error:  # an engine may raise anything; the caller gets its text, as of a success
            result, status = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}, 1
        for pid in descendants(os.getpid()):  # an engine that failed half-way must not outlive its check
            if pid != os.getpid():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        answer.write("\n" + json.dumps({"smoke": options.engine, **result}) + "\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
