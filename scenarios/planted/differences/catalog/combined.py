"""Several faults at once. The verdict must name each of them."""

from __future__ import annotations

from scenarios.planted.differences.catalog.prompts import KEEP, STEP_2
from scenarios.planted.differences.catalog.weights import DOWN
from scenarios.planted.differences.fault import Fault

FAULTS = (
    Fault(
        "temperature-and-shift",
        "another temperature, and log-probabilities one position late",
        settings=("sampling.temperature=0.9",),
        engine={"shift": 1},
        causes=("SAMPLING_PARAM(temperature)", "ALIGNMENT"),
        party="candidate",
    ),
    Fault(
        "text-and-stale-tensor",
        "from step 2 on prompts are sent as text, and a tensor is left out of the first sync",
        engine={"text_samples": "all", "first_sample": STEP_2},
        trainer={"omit_tensors": {1: (DOWN,)}},
        causes=("TOKENIZATION(double BOS)", f"STALE_WEIGHTS({DOWN})"),
        party="candidate",
    ),
    Fault(
        "end-dropped-and-noise",
        "the end token is not returned, and 1e-2 nats of noise",
        engine={"drop_end": True, "noise": 1e-2},
        causes=("STOP(end token dropped)", "candidate-itself"),
        party="candidate",
        half={"engine": {"drop_end": True, "noise": 0.2}},
    ),
    Fault(
        "truncated-and-context",
        "prompts lose their beginning, and samples end two tokens before a context of 68 is full",
        engine={"truncate": {"side": "left", "keep": KEEP}, "short_context": 68},
        causes=("TRUNCATION(left)", "LENGTH(context)"),
        party="candidate",
    ),
    Fault(
        "top-p-and-min-tokens",
        "the mapping sets a top-p that nobody asked for, and drops a minimum of 8 tokens",
        scenario=("sampling.min_tokens=8",),
        mapping={"edits": {"sampling": {"top_p": 0.9, "min_new_tokens": None}}},
        causes=("SAMPLING_PARAM(top_p)", "SAMPLING_PARAM(min_tokens)"),
        party="mapping",
    ),
    Fault(
        "temperature-and-top-p-unsaid",
        "the engine draws at temperature 0.83 and with a top-p of 0.95, and says nothing of either",
        engine={"sampling": {"temperature": 0.83, "top_p": 0.95}},
        causes=("SAMPLING_PARAM(temperature)", "SAMPLING_PARAM(top_p)"),
        party="candidate",
    ),
    Fault(
        "three-unsaid",
        "the baseline's engine draws at temperature 0.6 with a top-p of 0.8 and a top-k of 20, and says nothing of any",
        side="baseline",
        scenario=("steps=2",),  # a candidate with this many flips is asked again after each flip
        engine={"sampling": {"temperature": 0.6, "top_p": 0.8, "top_k": 20}},
        causes=("SAMPLING_PARAM(temperature)", "SAMPLING_PARAM(top_p)", "SAMPLING_PARAM(top_k)"),
        party="baseline",
    ),
    Fault(
        "temperature-unsaid-and-shift",
        "the engine draws at temperature 0.7, says nothing of it, and reports log-probabilities one position late",
        engine={"shift": 1, "sampling": {"temperature": 0.7}},
        causes=("SAMPLING_PARAM(temperature)", "ALIGNMENT"),
        party="candidate",
    ),
    Fault(
        "text-and-three-unsaid",
        "text for ids, and a temperature of 0.8 with a top-p of 0.9 and a top-k of 20, all three unsaid",
        engine={"text_samples": "all", "sampling": {"temperature": 0.8, "top_p": 0.9, "top_k": 20}},
        causes=(
            "TOKENIZATION(double BOS)",
            "SAMPLING_PARAM(temperature)",
            "SAMPLING_PARAM(top_p)",
            "SAMPLING_PARAM(top_k)",
        ),
        party="candidate",
    ),
)
