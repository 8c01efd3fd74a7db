"""How a request passes its draw to vLLM, and how a framework's vLLM is started so that it obeys.

The processor itself is in a neighbouring module (`coupled`), which cannot be imported without vLLM. This one can.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from probes.draws import DRAW
from scenarios.engines import canonical
from scenarios.engines.native_arguments import sampling_given
from scenarios.engines.vllm.parameters import SAMPLING
from scenarios.settings import Sampling

PROCESSOR = "scenarios.engines.vllm.coupled:Coupled"


def coupled_engine(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of an engine, extended so that its requests may bring their draws."""
    coupled_options = {
        **options,
        "logits_processors": [*(options.get("logits_processors") or ()), PROCESSOR],
        "async_scheduling": False,
    }
    if options.get("logprobs_mode"):  # after the processor, processed ones would see only the one token that it leaves
        coupled_options["logprobs_mode"] = "raw_logprobs"
    return coupled_options


def drawn(seed: int, sample: int, params: Any, *, otherwise: str) -> Any:
    """Return a copy of the sampling parameters of a sample with its draw; greedy parameters unchanged.

    Raises ValueError for what coupled draws cannot do. `otherwise`: the framework's options that avoid
    log-probabilities of another distribution than the model's.
    """
    if params.temperature == 0:  # greedy: nothing to draw
        return params
    if params.repetition_penalty != 1.0 or params.presence_penalty or params.frequency_penalty:
        raise ValueError("coupled sampling has no penalties: take them out of the sampling parameters")
    canonical_values = sampling_given("vllm", {name: getattr(params, name) for name in canonical.COUPLED})
    neutral = Sampling()
    plain = all(canonical_values[name] == getattr(neutral, name) for name in canonical.COUPLED)
    if params.logprobs is not None and not plain:
        raise ValueError(f"coupled sampling gives log-probabilities of the model's own distribution only: {otherwise}")
    draw = {"seed": seed, "sample": sample, **{name: getattr(params, name) for name in canonical.COUPLED}}
    coupled_params = deepcopy(params)
    # The processor leaves one token, which the engine's own sampler then takes. So it gets no filters.
    for name in canonical.COUPLED:
        setattr(coupled_params, name, SAMPLING[name].write(getattr(neutral, name)))
    coupled_params.extra_args = {**(coupled_params.extra_args or {}), DRAW: draw}
    return coupled_params
