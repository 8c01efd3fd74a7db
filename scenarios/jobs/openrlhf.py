"""Orders OpenRLHF's prompts by our seed, and couples the sampling of its engines.

The adapters' loader imports this module in each process of the job where RLHF_HARNESS_PLUGIN names it, just before
OpenRLHF itself. It acts only where a seed is set. RLHF_HARNESS_SEED: OpenRLHF does not seed its driver, so the driver
is seeded as OpenRLHF seeds its training actors, just before it makes a data loader. RLHF_HARNESS_COUPLED: each prompt
is sent to its engine with its draw, and each sample of it gets its own. The processor in `scenarios.engines.vllm`
obeys it. Samples are passed on in the order of their prompts instead of their arrival.

A sample is identified by its prompt's position in the order of submission and by its position in the group. Prompts
that a filter submits later, and samples of which an environment writes parts, are numbered as they come.
"""

from __future__ import annotations

import functools
import os
from copy import deepcopy
from types import ModuleType
from typing import Any

from probes.adapters import SEED
from probes.adapters.imports import Finder
from probes.draws import COUPLED, DRAW, SEEDED, SEEN
from scenarios.engines.vllm.draws import drawn

PLAIN = "--rollout.temperature 1 --rollout.top_p 1, or --algo.advantage.is_correction_level off"
LOADERS = "openrlhf.utils.deepspeed.deepspeed"
SAMPLES = "openrlhf.trainer.ppo_utils.samples_generator"
ENGINES = "openrlhf.trainer.ray.vllm_engine"
_GROUP = 12  # bits of a sample's number for its position in the group
_TURN = 20  # bits of a position for its place in one answer; the bits above count the sample's answers


def placed(params: Any, *, sample: int = 0, offset: int = 0) -> Any:
    """Return a copy of parameters with a draw, for another sample of the group or a later position; others
    unchanged.
    """
    draw = (getattr(params, "extra_args", None) or {}).get(DRAW)
    if draw is None:
        return params
    placed_params = deepcopy(params)
    placed_params.extra_args[DRAW] = {
        **draw,
        "sample": draw["sample"] + sample,
        "offset": draw.get("offset", 0) + offset,
    }
    return placed_params


class _Engine:
    """The handle of an engine that adds the draw to each prompt."""

    def __init__(self, handle: Any, seed: int, sent: list[int]) -> None:
        self._handle, self._seed, self._sent = handle, seed, sent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name)

    @property
    def generate_responses(self) -> _Engine:
        return self

    def remote(self, *, sampling_params: Any, **options: Any) -> Any:
        coupled_params = drawn(self._seed, self._sent[0] << _GROUP, sampling_params, otherwise=PLAIN)
        self._sent[0] += 1
        return self._handle.generate_responses.remote(sampling_params=coupled_params, **options)


def _seeded(original: Any, seed: int) -> Any:
    @functools.wraps(original)
    def setup_dataloader(self: Any, *args: Any, **kwargs: Any) -> Any:
        import torch
        import transformers

        grouped = torch.distributed.is_initialized()  # a training actor, which OpenRLHF has seeded, with its sampler
        if not grouped:
            transformers.set_seed(seed)
        loader = original(self, *args, **kwargs)
        if not grouped:
            setattr(loader, SEEDED, seed)
        return loader

    return setup_dataloader


def _sending_draws(original: Any, seed: int) -> Any:
    @functools.wraps(original)
    def _dispatch_prompts_to_vllm(self: Any, *args: Any, **kwargs: Any) -> Any:
        sent = self.__dict__.setdefault("_rlhf_harness_sent", [0])
        handles = self.vllm_engines
        self.vllm_engines = [_Engine(handle, seed, sent) for handle in handles]
        try:
            return original(self, *args, **kwargs)
        finally:
            self.vllm_engines = handles

    return _dispatch_prompts_to_vllm


def _numbered(original: Any) -> Any:
    @functools.wraps(original)
    def _process_response_into_experience(self: Any, response: Any, **kwargs: Any) -> Any:
        made = original(self, response, **kwargs)
        if DRAW in response:
            self.__dict__.setdefault("_rlhf_harness_made", []).append((made, response[DRAW]))
        return made

    return _process_response_into_experience


def _sorted(original: Any) -> Any:
    @functools.wraps(original)
    def _generate_vllm(self: Any, *args: Any, **kwargs: Any) -> Any:
        experiences, *remaining = original(self, *args, **kwargs)
        numbers = {id(made): number for made, number in self.__dict__.pop("_rlhf_harness_made", [])}
        if all(id(experience) in numbers for experience in experiences):
            experiences = sorted(experiences, key=lambda experience: numbers[id(experience)])
        return (experiences, *remaining)

    return _generate_vllm


# Ray pickles an actor's methods by value, so what they need is imported inside.


def _started(original: Any) -> Any:
    @functools.wraps(original)
    async def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        from scenarios.engines.vllm.draws import coupled_engine

        await original(self, *args, **coupled_engine(kwargs))

    return __init__


def _grouped(original: Any) -> Any:
    @functools.wraps(original)
    async def generate_responses(self: Any, *args: Any, sampling_params: Any, num_samples: int = 1, **kw: Any) -> Any:
        import asyncio

        from scenarios.jobs import openrlhf as own

        async def draw_sample(place: int) -> Any:
            params = own.placed(sampling_params, sample=place)
            [response] = await original(self, *args, sampling_params=params, num_samples=1, **kw)
            draw = (getattr(params, "extra_args", None) or {}).get(DRAW)
            if draw is not None and self.__dict__.get("_rlhf_harness_turns", {}).pop(draw["sample"], 0):
                response[DRAW] = draw["sample"]
                response[SEEN] = self.__dict__["_rlhf_harness_prompts"].pop(draw["sample"], None)
            return response

        return await asyncio.gather(*(draw_sample(place) for place in range(num_samples)))

    return generate_responses


def _generated(original: Any) -> Any:
    @functools.wraps(original)
    async def generate(self: Any, prompt_token_ids: Any, sampling_params: Any, *args: Any, **kwargs: Any) -> Any:
        from scenarios.jobs import openrlhf as own

        draw = (getattr(sampling_params, "extra_args", None) or {}).get(DRAW)
        if draw is None:
            return await original(self, prompt_token_ids, sampling_params, *args, **kwargs)
        turns = self.__dict__.setdefault("_rlhf_harness_turns", {})
        turn = turns.get(draw["sample"], 0)
        turns[draw["sample"]] = turn + 1
        placed_params = own.placed(sampling_params, offset=turn << own._TURN)
        answer = await original(self, prompt_token_ids, placed_params, *args, **kwargs)
        if not turn:
            prompt_seen = getattr(answer, "prompt_token_ids", None)
            self.__dict__.setdefault("_rlhf_harness_prompts", {})[draw["sample"]] = prompt_seen
        return answer

    return generate


def _imported(module: ModuleType) -> None:
    if module.__name__ == LOADERS:
        strategy = module.DeepspeedStrategy
        strategy.setup_dataloader = _seeded(strategy.setup_dataloader, int(os.environ[SEED]))
    elif module.__name__ == SAMPLES:
        samples, seed = module.SamplesGenerator, int(os.environ[COUPLED])
        samples._dispatch_prompts_to_vllm = _sending_draws(samples._dispatch_prompts_to_vllm, seed)
        samples._process_response_into_experience = _numbered(samples._process_response_into_experience)
        samples._generate_vllm = _sorted(samples._generate_vllm)
    else:
        engine = module.RolloutRayActor.__ray_metadata__.modified_class  # the methods that Ray copied
        engine.__init__ = _started(engine.__init__)
        engine.generate_responses = _grouped(engine.generate_responses)
        engine.generate = _generated(engine.generate)


_WANTED = {LOADERS} if os.environ.get(SEED) else set()
if os.environ.get(COUPLED):
    _WANTED |= {SAMPLES, ENGINES}
if _WANTED:
    Finder(_WANTED, _imported).install()
