"""What an engine is asked in canonical terms. What cannot be expressed faithfully in it is refused, never dropped.

The canonical meaning is that of `scenarios.settings`: top-k, then top-p over the renormalised top-k, then min-p
relative to the largest remaining probability. A repetition penalty covers prompt and output. `max_model_len` bounds
prompt plus response. Each engine's own names, and what it refuses, are in its folder; each refusal names the
difference.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from scenarios.engines import canonical, registry
from scenarios.engines.canonical import DRAWN, FILTERS
from scenarios.engines.engine_interface import ParameterRefused
from scenarios.settings import Engine, Mode, Sampling, Scenario

# The fix of a refusal by an engine's own module, whose sentence says which values are possible.
ITS_SETTINGS = "change it with --set, as the sentence says"


def check_room(longest_prompt: int | None, scenario: Scenario, positions: int = 0) -> None:
    """Refuse a context that cannot hold the longest prompt and a whole response. Raises ParameterRefused.

    `longest_prompt`: in tokens; None before a tokenizer has counted them, and then a prompt has at least one token, and
    at most those that the scenario takes. `positions`: the tokens that the model was made for; 0 where unknown.
    """
    sampling, engine = scenario.sampling, scenario.engine
    need = (longest_prompt or 1) + sampling.max_tokens
    if need > engine.max_model_len:
        prompt = "even a prompt of one token" if longest_prompt is None else f"the longest prompt, of {longest_prompt},"
        raise ParameterRefused(
            f"engine.max_model_len = {engine.max_model_len} is too short: {prompt} and sampling.max_tokens = "
            f"{sampling.max_tokens} are {need} tokens together; raise engine.max_model_len or lower "
            "sampling.max_tokens",
            fix=with_room(longest_prompt, scenario, positions),
        )


def with_room(longest_prompt: int | None, scenario: Scenario, positions: int) -> str:
    """Return the options with which a prompt and a whole response fit into the context, and that into the model. The
    responses are shorter where the model was not made for both. Arguments as in `check_room`.
    """
    prompt = longest_prompt or scenario.prompts.max_tokens
    context = max(prompt + scenario.sampling.max_tokens, scenario.engine.max_model_len)
    if not positions or context <= positions:
        return f"--set engine.max_model_len={context}"
    fix = f"--set engine.max_model_len={positions}"
    shorter = max(1, positions - prompt)  # where even that is too long, the prompts themselves are refused later
    return f"{fix} --set sampling.max_tokens={shorter}" if shorter < scenario.sampling.max_tokens else fix


def check_engines(engine: str, scenario: Scenario) -> None:
    """Refuse workers that `engine` does not have, and more engines than a step has prompts. Raises ParameterRefused."""
    spec, ranks = registry.get(engine), scenario.engine.tensor_parallel
    if ranks > 1 and "tensor_parallel" not in spec.engine_arguments:
        raise ParameterRefused(
            f"engine.tensor_parallel = {ranks}: {spec.title or spec.name} computes in one process; use 1, or several "
            f"engines: engine.engines = {ranks}",
            fix="--set engine.tensor_parallel=1",
        )
    engines, prompts = scenario.engine.engines, scenario.rollout.prompts_per_step
    if engines > prompts:
        raise ParameterRefused(
            f"engine.engines = {engines}: all samples of a prompt go to one engine, and a step has "
            f"{prompts} prompts; lower engine.engines or raise rollout.prompts_per_step",
            fix=f"--set engine.engines={prompts}",
        )
    router = scenario.engine.router
    if router and not spec.routed:
        raise ParameterRefused(
            f"engine.router = {router}: {spec.title or spec.name} has none here; sglang has", fix="--set engine.router="
        )
    if router and engines < 2:
        raise ParameterRefused(
            f"engine.router = {router}: a router stands before several engines; set engine.engines",
            fix="--set engine.engines=2",
        )
    if router and scenario.placement.engine:
        raise ParameterRefused(
            f"engine.router = {router}: the router and its engines listen on one host only; leave placement.engine out",
            fix="--set engine.router=",
        )


def check_sleep(scenario: Scenario) -> None:
    """Refuse an engine that would wake up without weights. Raises ParameterRefused."""
    if scenario.engine.sleep_level == 2 and not scenario.train:
        raise ParameterRefused(
            "engine.sleep_level = 2 gives the weights up, and a run that does not train sends no others; use 1",
            fix="--set engine.sleep_level=1",
        )


def check_sampling(engine: str, sampling: Sampling, mode: Mode, *, ours: bool = True) -> None:
    """Refuse what `engine` cannot sample faithfully in `mode`. Raises ParameterRefused.

    `ours`: the mapping is our own. Where a user's mapping is unfaithful, the comparison finds out instead.
    """
    s = sampling
    if mode != "native":
        if s.repetition_penalty != 1.0:
            raise ParameterRefused(
                f"sampling.repetition_penalty = {s.repetition_penalty} is refused in {mode} mode: engines apply it at "
                "different points (vLLM's V1 runner after the harness's noise, SGLang before); use --mode native",
                fix="--set sampling.repetition_penalty=1.0",
            )
        if mode == "coupled" and s.temperature == 0.0:
            raise ParameterRefused(
                "sampling.temperature = 0 is refused in coupled mode: use --mode greedy", fix="--mode greedy"
            )
    spec = registry.find(engine)
    if spec is None:
        return
    for parameter in canonical.SAMPLING if mode == "native" else ():
        value = getattr(s, parameter.name)
        if value != parameter.default and parameter.argument(engine) is None:
            raise ParameterRefused(
                f"sampling.{parameter.name} = {value} is refused: {spec.title} has no {parameter.concept}",
                fix=f"--set sampling.{parameter.name}={json.dumps(parameter.default)}",
            )
    if why := spec.refusal(s, mode, ours):
        raise ParameterRefused(why, fix=ITS_SETTINGS)


def engine_asked(model: str, dtype: str, engine: Engine, *, device: str) -> dict[str, Any]:
    """Return what a mapping of engine parameters is asked: the canonical ones, the model's path and the device."""
    requested = {"model": model, "device": device, "dtype": dtype, **asdict(engine)}
    # How many engines there are, and the router in front of them, are not parameters of an engine.
    del requested["engines"], requested["router"]
    return requested


def canonical_engine(requested: dict[str, Any]) -> dict[str, Any]:
    """Return what the engine is later checked against.

    Parameters that this device does not use are left out; those that always have the same value are added.
    """
    unused = {
        "model",
        "device",
        "sleep_level",
        "memory_fraction" if requested["device"] == "cpu" else "kv_cache_tokens",
    }
    kept = {name: value for name, value in requested.items() if name not in unused}
    return kept | {"generation_config": False, "graph_padding": True}


def without_draw(native: dict[str, Any], mode: Mode) -> dict[str, Any]:
    """Return `native` for an engine whose own draw is not used: greedy, and in coupled mode without the harness's
    filters.
    """
    if mode == "native":
        return dict(native)
    left_out = {parameter.name for parameter in (DRAWN if mode == "coupled" else FILTERS)}
    return {name: value for name, value in native.items() if name not in left_out} | {"temperature": 0.0}
