"""Faults of the engines' own samplers, which only the native stage can show, and controls.

The suite plants them in the native stage alone; `harness parity --fault NAME` plants them in the whole run.
"""

from __future__ import annotations

from typing import Any

from scenarios.planted.differences.catalog.sampling import BOTH_FILTERS, HF
from scenarios.planted.differences.fault import Fault

# Samples per side. Fewer than equality needs are enough to show a sampler that draws something else.
FEWER = "native.samples=512"

TWO = ("engine.engines=2",)
SHARED: dict[str, Any] = {
    "engine": {"only": 1, "native": {"stream": 1}},
    "stage": "native",
    "causes": ("RNG_COLLISION(engines)",),
    "party": "candidate",
    "told": {"RNG_COLLISION(engines)": "engine 1"},
}

FAULTS = (
    Fault(
        "native-temperature",
        "the engine's own sampler draws at temperature 0.8 for 1.0, and says nothing of it",
        engine={"native": {"sampling": {"temperature": 0.8}}},
        stage="native",
        causes=("SAMPLING_PARAM(temperature)",),
        party="candidate",
    ),
    Fault(
        "native-top-p",
        "the engine's own sampler draws with a top-p of 0.9 that was not asked for, and does not report it",
        engine={"native": {"sampling": {"top_p": 0.9}}},
        stage="native",
        causes=("SAMPLING_PARAM(top_p)",),
        party="candidate",
    ),
    Fault(
        "native-clones",
        "the samples of one prompt share their random numbers in the engine's own sampler",
        engine={"native": {"clones": 4}},
        stage="native",
        pair=("vllm", "vllm"),
        causes=("RNG_COLLISION",),
        party="candidate",
    ),
    Fault(
        "native-engines-share-seeds",
        "in their own samplers one of two engines draws each sample with the seed of one of the other's",
        scenario=TWO,
        pair=HF,
        **SHARED,
    ),
    Fault(
        "native-engines-share-seeds-vllm",
        "the same of two engines of vLLM",
        scenario=TWO,
        pair=("vllm", "vllm"),
        **SHARED,
    ),
    Fault(
        "native-two-engines",
        "two engines, each of whose samples has a seed of its own",
        scenario=TWO,
        stage="native",
        expected="EQUIVALENT",
    ),
    Fault(
        "native-seed-ignored",
        "the engine's own sampler draws with other seeds than it was given, each time anew",
        engine={"native": {"seeds_ignored": True}},
        stage="native",
        pair=("vllm", "vllm"),
        causes=("RNG(seed ignored)",),
        party="candidate",
    ),
    Fault(
        "native-tempered",
        "the mapping asks vLLM for processed log-probabilities of a sampler at temperature 0.7",
        scenario=("sampling.temperature=0.7",),
        mapping={"edits": {"engine": {"logprobs_mode": "processed_logprobs"}}},
        stage="native",
        pair=("sglang", "vllm"),
        causes=("LOGPROB_SEMANTICS",),
        party="mapping",
    ),
    Fault(
        "native-joint",
        "the mapping passes top-k and top-p to SGLang, which takes top-p over the unfiltered mass",
        scenario=(*BOTH_FILTERS, FEWER),
        mapping={"edits": {"sampling": {"top_k": 20}}},
        stage="native",
        pair=("vllm", "sglang"),
        causes=("SAMPLER(joint top-k/top-p)",),
        party="mapping",
    ),
    Fault(
        "native-top-p-edge",
        "the engine's own sampler leaves out of top-p the token that reaches its share",
        scenario=("sampling.top_p=0.8",),
        pair=HF,
        engine={"native": {"draw": {"exclusive": True}}},
        stage="native",
        causes=("SAMPLING_PARAM(top_p)",),
        party="candidate",
    ),
    Fault(
        "native-penalty-blind",
        "the mapping passes a repetition penalty of 1.6 to SGLang, where it does not see the prompt",
        scenario=(FEWER,),  # 1.3 would take 1,024
        native=("sampling.repetition_penalty=1.6",),
        mapping={"edits": {"sampling": {"repetition_penalty": 1.6}}},
        stage="native",
        pair=("vllm", "sglang"),
        causes=("SAMPLING_PARAM(repetition_penalty)",),
        party="mapping",
    ),
    Fault(
        "native-engine-seed",
        "another engine seed: other samples of the same distribution",
        settings=("engine.seed=1234",),
        stage="native",
        expected="EQUIVALENT",
    ),
    Fault(
        "native-temperature-nearly",
        "the engine's own sampler draws at temperature 0.93 for 1.0, and says nothing of it",
        engine={"native": {"sampling": {"temperature": 0.93}}},
        stage="native",
        causes=("SAMPLING_PARAM(temperature)",),
        party="candidate",
    ),
    Fault(
        "native-second-best",
        "the engine's own sampler takes the second best token every eleventh time",
        pair=HF,
        engine={"native": {"draw": {"second": 11}}},
        stage="native",
        causes=("SAMPLER(another token now and then)",),
        party="candidate",
    ),
)
