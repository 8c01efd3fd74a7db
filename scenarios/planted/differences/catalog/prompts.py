"""Faults of the prompt that the engine gets: text instead of ids, a cut, no generation prompt."""

from __future__ import annotations

from scenarios.planted.differences.fault import Fault

STEP_2 = 64  # the first sample of step 2: 8 prompts of 4 samples per step
# Built-in prompts have 45 to 64 tokens. A cut of one token would be a missing BOS or generation prompt.
KEEP = 42

FAULTS = (
    Fault(
        "text-prompt",
        "one prompt is sent as text, so the tokenizer adds its BOS again",
        engine={"text_samples": [5]},
        causes=("TOKENIZATION(double BOS)",),
        party="candidate",
    ),
    Fault(
        "text-prompts",
        "every prompt is sent as text",
        engine={"text_samples": "all"},
        causes=("TOKENIZATION(double BOS)",),
        party="candidate",
    ),
    Fault(
        "padded-right",
        "prompts of a batch that are shorter than its longest go on behind pads, and the engine reports none",
        engine={"padded_right": True},
        causes=("BATCH",),
        party="candidate",
        half=None,  # not measured there
    ),
    Fault(
        "text-prompts-from-step-2",
        "from step 2 on every prompt is sent as text",
        engine={"text_samples": "all", "first_sample": STEP_2},
        causes=("TOKENIZATION(double BOS)",),
        party="candidate",
    ),
    Fault(
        "text-prompts-baseline",
        "the baseline's prompts are sent as text",
        side="baseline",
        engine={"text_samples": "all"},
        causes=("TOKENIZATION(double BOS)",),
        party="baseline",
    ),
    Fault(
        "truncated-left",
        "prompts are cut to 42 tokens, their beginning goes",
        engine={"truncate": {"side": "left", "keep": KEEP}},
        causes=("TRUNCATION(left)",),
        party="candidate",
    ),
    Fault(
        "truncated-right",
        "prompts are cut to 42 tokens, their end goes",
        engine={"truncate": {"side": "right", "keep": KEEP}},
        causes=("TRUNCATION(right)",),
        party="candidate",
    ),
    Fault(
        "truncated-unsaid",
        "prompts are cut to 42 tokens for drawing, not for scoring, and the engine says that it saw all of them",
        engine={"truncate": {"side": "left", "keep": KEEP, "unsaid": True}},
        causes=("TRUNCATION(left)",),
        party="candidate",
    ),
    Fault(
        "truncated-left-baseline",
        "the baseline's prompts are cut to 42 tokens, their beginning goes",
        side="baseline",
        engine={"truncate": {"side": "left", "keep": KEEP}},
        causes=("TRUNCATION(left)",),
        party="baseline",
    ),
    Fault(
        "bos-lost-unsaid",
        "the engine loses the BOS of every prompt and says that it saw it",
        engine={"bos_lost": True},
        causes=("TOKENIZATION(no BOS)",),
        party="candidate",
    ),
    Fault(
        "no-generation-prompt",
        "the chat template is applied without its generation prompt",
        engine={"no_generation_prompt": True},
        causes=("TEMPLATE(no generation prompt)",),
        party="candidate",
    ),
    Fault(
        "no-generation-prompt-baseline",
        "the baseline's chat template is applied without its generation prompt, from step 2 on",
        side="baseline",
        engine={"no_generation_prompt": True, "first_sample": STEP_2},
        causes=("TEMPLATE(no generation prompt)",),
        party="baseline",
    ),
)
