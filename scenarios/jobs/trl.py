"""Couples the sampling of TRL's colocated vLLM.

The adapters' loader imports this module in each process of the job where RLHF_HARNESS_PLUGIN names it, just before
TRL itself. It acts only where RLHF_HARNESS_COUPLED sets a seed. The engine that TRL makes gets the processor of
`scenarios.engines.vllm`, and each prompt that TRL passes to it brings its draw.

A sample is identified by its engine (a rank, or the ranks of a tensor-parallel group) and by its position in the
order of that engine's requests, evaluations and the turns of a conversation included.
"""

from __future__ import annotations

import functools
import os
from types import ModuleType
from typing import Any

from probes.adapters.imports import Finder
from probes.draws import COUPLED, DRAW, DRAWN, SEEN
from scenarios.engines.vllm.draws import coupled_engine, drawn

ENGINES = "trl.generation.vllm_generation"
PLAIN = "temperature=1.0, top_p=1.0, top_k=0 and no min_p in GRPOConfig"
_ENGINE = 40  # bits of a sample's number for its position among the samples of one engine


def _made(original: Any, seed: int) -> Any:
    @functools.wraps(original, updated=())
    def LLM(*args: Any, **options: Any) -> Any:
        engine = original(*args, **coupled_engine(options))
        # TRL seeds each engine with the number of its tensor-parallel group.
        engine.generate = _coupling(engine, seed, int(options.get("seed") or 0) << _ENGINE)
        return engine

    return LLM


def _coupling(engine: Any, seed: int, first: int) -> Any:
    original, sent = engine.generate, [first]

    @functools.wraps(original)
    def generate(prompts: Any, sampling_params: Any = None, **options: Any) -> Any:
        several = isinstance(sampling_params, (list, tuple))
        prompt_params = list(sampling_params) if several else [sampling_params] * len(prompts)
        if any(params.n != 1 for params in prompt_params):
            raise ValueError("coupled sampling draws one sample for each prompt that the engine is given: n=1")
        coupled_params = [
            drawn(seed, sent[0] + place, params, otherwise=PLAIN) for place, params in enumerate(prompt_params)
        ]
        sent[0] += len(coupled_params)
        all_coupled = all(DRAW in (params.extra_args or {}) for params in coupled_params)
        setattr(engine, DRAWN, getattr(engine, DRAWN, True) and all_coupled)
        answers = original(prompts, sampling_params=coupled_params, **options)
        setattr(engine, SEEN, [list(getattr(answer, "prompt_token_ids", None) or ()) for answer in answers])
        return answers

    return generate


def _imported(module: ModuleType) -> None:
    if hasattr(module, "LLM"):  # where vLLM is installed
        module.LLM = _made(module.LLM, int(os.environ[COUPLED]))  # type: ignore[attr-defined]


if os.environ.get(COUPLED):
    Finder({ENGINES}, _imported).install()
