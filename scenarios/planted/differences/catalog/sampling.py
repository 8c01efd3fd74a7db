"""Faults of the draw: other parameters, another order of the filters, other random numbers."""

from __future__ import annotations

from scenarios.planted.differences.catalog.logprobs import COOL
from scenarios.planted.differences.fault import Fault

HF = ("hf", "hf")  # the engine whose coupled draw sees the tokens that were drawn before
BOTH_FILTERS = ("sampling.top_k=20", "sampling.top_p=0.8")

FAULTS = (
    Fault(
        "temperature",
        "temperature 0.9 for 1.0",
        settings=("sampling.temperature=0.9",),
        causes=("SAMPLING_PARAM(temperature)",),
        party="candidate",
    ),
    Fault(
        "temperature-baseline",
        "temperature 0.9 for 1.0 in the baseline, whose engine says nothing of it",
        side="baseline",
        engine={"sampling": {"temperature": 0.9}},
        causes=("SAMPLING_PARAM(temperature)",),
        party="baseline",
    ),
    Fault(
        "temperature-unsaid",
        "the engine draws at temperature 0.9 for 1.0, and says nothing of it",
        engine={"sampling": {"temperature": 0.9}},
        causes=("SAMPLING_PARAM(temperature)",),
        party="candidate",
    ),
    Fault(
        "temperature-nearly",
        "the engine draws at temperature 0.97 for 1.0, and says nothing of it",
        engine={"sampling": {"temperature": 0.97}},
        causes=("SAMPLING_PARAM(temperature)",),
        party="candidate",
        half=None,  # only 1 of 3,024 tokens is turned beyond what rounding may turn
    ),
    Fault(
        "temperature-dropped",
        "the mapping drops a temperature of 0.7",
        scenario=COOL,
        mapping={"edits": {"sampling": {"temperature": None}}},
        causes=("SAMPLING_PARAM(temperature)",),
        party="mapping",
    ),
    Fault(
        "top-p-leaked",
        "the mapping sets a top-p of 0.9 that nobody asked for",
        mapping={"edits": {"sampling": {"top_p": 0.9}}},
        causes=("SAMPLING_PARAM(top_p)",),
        party="mapping",
    ),
    Fault(
        "top-p-unsaid",
        "the engine draws with a top-p of 0.8, and says nothing of it",
        engine={"sampling": {"top_p": 0.8}},
        causes=("SAMPLING_PARAM(top_p)",),
        party="candidate",
    ),
    Fault(
        "min-tokens-dropped",
        "the mapping drops a minimum of 8 tokens",
        scenario=("sampling.min_tokens=8",),
        mapping={"edits": {"sampling": {"min_new_tokens": None}}},
        causes=("SAMPLING_PARAM(min_tokens)",),
        party="mapping",
    ),
    Fault(
        "min-tokens-dropped-vllm",
        "the mapping of vLLM as candidate drops a minimum of 8 tokens",
        pair=("sglang", "vllm"),
        scenario=("sampling.min_tokens=8",),
        mapping={"edits": {"sampling": {"min_tokens": None}}},
        causes=("SAMPLING_PARAM(min_tokens)",),
        party="mapping",
    ),
    Fault(
        "joint-filters",
        "top-p is taken over the whole mass beside top-k, not over what top-k leaves",
        scenario=BOTH_FILTERS,
        engine={"draw": {"joint": True}},
        causes=("SAMPLER(joint top-k/top-p)",),
        party="candidate",
        half=None,  # rounding moves tokens over the edges of a filter as far as the fault does
    ),
    Fault(
        "joint-filters-baseline",
        "the baseline takes top-p over the whole mass beside top-k",
        side="baseline",
        scenario=BOTH_FILTERS,
        engine={"draw": {"joint": True}},
        causes=("SAMPLER(joint top-k/top-p)",),
        party="baseline",
        half=None,
    ),
    Fault(
        "seed-ignored",
        "the engine draws with another seed than it was given",
        engine={"seed_offset": 1},
        causes=("RNG(seed ignored)",),
        party="candidate",
    ),
    Fault(
        "clones",
        "the samples of a prompt share one stream of random numbers",
        engine={"clones": 4},
        causes=("RNG_COLLISION",),
        party="candidate",
    ),
    Fault(
        "clones-baseline",
        "the samples of a prompt share one stream of random numbers in the baseline",
        side="baseline",
        scenario=("steps=3",),
        engine={"clones": 4},
        causes=("RNG_COLLISION",),
        party="baseline",
    ),
    Fault(
        "repetition-leaked",
        "the engine draws with a repetition penalty of 1.3 that was not asked for, and does not report it",
        pair=HF,
        engine={"draw": {"repetition": 1.3}},
        causes=("SAMPLING_PARAM(repetition_penalty)",),
        party="candidate",
    ),
    Fault(
        "presence-leaked",
        "the engine draws with a presence penalty of 0.6, and reports log-probabilities after it",
        pair=HF,
        engine={"draw": {"presence": 0.6, "reported": "penalised"}},
        causes=("SAMPLING_PARAM(presence_penalty)",),
        party="candidate",
    ),
    Fault(
        "second-best",
        "the engine takes the second best token every eleventh time",
        engine={"draw": {"second": 11}},
        causes=("SAMPLER(another token now and then)",),
        party="candidate",
    ),
    Fault(
        "exchanged-in-groups",
        "the first two responses of every group are exchanged",
        engine={"permute": "pairs"},
        causes=("ORDER",),
        party="candidate",
    ),
    Fault(
        "limit-shortened",
        "the engine ends samples at 20 tokens, whatever it is asked, and says nothing of it",
        engine={"limit": 20},
        causes=("LENGTH",),
        party="candidate",
    ),
)
