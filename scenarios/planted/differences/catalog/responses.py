"""Faults of a response: its ids, its end, its length, and the sample that it belongs to."""

from __future__ import annotations

from scenarios.planted.differences.catalog.prompts import STEP_2
from scenarios.planted.differences.fault import Fault

FULL_STOP = 20  # "." in the built-in tokenizer: a response has several
STOPS = (f"sampling.stop_token_ids=[{FULL_STOP}]",)
EARLY = (*STOPS, "sampling.max_tokens=6")  # a third of the first sentences end with the sixth token

FAULTS = (
    Fault(
        "retokenized",
        "responses are decoded and encoded again",
        engine={"encoded_again": True},
        causes=("RETOKENIZATION",),
        party="candidate",
    ),
    Fault(
        "retokenized-baseline",
        "the baseline's responses are decoded and encoded again",
        side="baseline",
        engine={"encoded_again": True},
        causes=("RETOKENIZATION",),
        party="baseline",
    ),
    Fault(
        "end-dropped",
        "the token that ended a sample is not returned",
        engine={"drop_end": True},
        causes=("STOP(end token dropped)",),
        party="candidate",
    ),
    Fault(
        "end-dropped-baseline",
        "the token that ended a sample is not returned by the baseline, from step 2 on",
        side="baseline",
        engine={"drop_end": True, "first_sample": STEP_2},
        causes=("STOP(end token dropped)",),
        party="baseline",
    ),
    Fault(
        "limit-first",
        "a sample whose last allowed token ends it is said to be cut by the limit",
        scenario=EARLY,
        engine={"limit_first": True},
        causes=("STOP(finish reason)",),
        party="candidate",
    ),
    Fault(
        "limit-first-baseline",
        "the same in the baseline",
        side="baseline",
        scenario=EARLY,
        engine={"limit_first": True},
        causes=("STOP(finish reason)",),
        party="baseline",
    ),
    Fault(
        "other-end-set",
        "the mapping makes the candidate stop at every full stop",
        mapping={"edits": {"sampling": {"stop_token_ids": [FULL_STOP]}}},
        causes=("STOP(other end set)",),
        party="mapping",
    ),
    Fault(
        "ignore-eos",
        "the mapping sets ignore_eos, beside a stop token that both were asked for",
        scenario=STOPS,
        mapping={"edits": {"sampling": {"ignore_eos": True}}},
        causes=("STOP(ignore_eos)",),
        party="mapping",
    ),
    Fault(
        "short-context",
        "the engine ends samples two tokens before a context of 88 is full",
        engine={"short_context": 88},
        causes=("LENGTH(context)",),
        party="candidate",
    ),
    Fault(
        "short-context-baseline",
        "the baseline ends samples two tokens before a context of 84 is full",
        side="baseline",
        engine={"short_context": 84},
        causes=("LENGTH(context)",),
        party="baseline",
    ),
    Fault(
        "context-copied",
        "the mapping gives SGLang a context of prompt and response, of which it keeps two tokens",
        pair=("vllm", "sglang"),
        scenario=("sampling.min_tokens=32", "steps=3"),  # every response is as long as it may be
        mapping={"edits": {"engine": {"context_length": 96}}},  # with less, SGLang refuses the longest request
        causes=("LENGTH(context)",),
        party="mapping",
        half=None,  # in half precision responses differ, and it refuses to score the longest
    ),
    Fault(
        "context-copied-hf",
        "the mapping gives the engine a context of 86",
        pair=("hf", "hf"),
        mapping={"edits": {"engine": {"max_model_len": 86}}},
        causes=("LENGTH(context)",),
        party="mapping",
    ),
    Fault(
        "kv-pool",
        "the mapping gives SGLang a KV pool of 88 tokens",
        pair=("vllm", "sglang"),
        scenario=("rollout.samples_per_prompt=2", "steps=3"),  # so small a pool holds one sample at a time
        mapping={"edits": {"engine": {"max_total_tokens": 88}}},
        causes=("CAPACITY(kv pool)",),
        party="mapping",
    ),
    Fault(
        "order",
        "each response of a batch goes to the next sample",
        engine={"permute": "responses"},
        causes=("ORDER",),
        party="candidate",
    ),
    Fault(
        "order-free",
        "each response of a batch goes to the next sample, while both runs go on from their own tokens",
        scenario=("guided=false",),
        engine={"permute": "responses"},
        causes=("ORDER",),
        party="candidate",
    ),
    Fault(
        "order-from-step-2",
        "from step 2 on each answer, with the prompt that it saw, goes to the next sample",
        engine={"permute": "answers", "first_sample": STEP_2},
        causes=("ORDER",),
        party="candidate",
    ),
    Fault(
        "foreign-id",
        "every fourth response ends in an id that the tokenizer does not have",
        engine={"foreign_id": 4},
        causes=("VOCAB",),
        party="candidate",
    ),
    Fault(
        "nan-stop",
        "a NaN ends every fifth sample, and is called a stop",
        engine={"nan_stop": {"every": 5, "position": 3}},
        causes=("NUMERIC_FATAL",),
        party="candidate",
    ),
    Fault(
        "nan-stop-once",
        "a NaN ends one sample of step 2, and is called a stop",
        engine={"nan_stop": {"every": 77, "position": 2}, "first_sample": STEP_2},
        causes=("NUMERIC_FATAL",),
        party="candidate",
    ),
)
