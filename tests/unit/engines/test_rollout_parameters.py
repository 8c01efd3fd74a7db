"""The mapping: every canonical parameter arrives, or is refused by name."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import pytest

from scenarios.engines import canonical, canonical_request, native_arguments, registry
from scenarios.engines.engine_interface import ParameterRefused
from scenarios.engines.sglang import parameters as sglang
from scenarios.engines.vllm import parameters as vllm
from scenarios.settings import Engine, Placement, Sampling, Scenario


def test_every_engine_parameter_has_an_image_in_both_engines() -> None:
    """Changing any canonical engine parameter changes the native arguments: nothing is dropped."""
    base = Engine()
    changed = {
        "max_model_len": 96, "seed": 5, "prefix_caching": False, "enforce_eager": False, "max_num_seqs": 3,
        "chunked_prefill": False, "memory_fraction": 0.4, "tensor_parallel": 2, "kv_cache_tokens": 512,
    }  # fmt: skip
    assert set(changed) | {"engines", "router", "sleep_level"} == {f.name for f in dataclasses.fields(Engine)}
    for device in ("cpu", "cuda"):
        for key, value in changed.items():
            other = dataclasses.replace(base, **{key: value})
            # KV room is a fraction of the accelerator on CUDA and a number of tokens on a CPU.
            if key == ("memory_fraction" if device == "cpu" else "kv_cache_tokens"):
                continue
            for images in (_vllm, _sglang):
                assert images(base, device) != images(other, device), (device, key)


def _vllm(engine: Engine, device: str) -> dict[str, Any]:
    return vllm.engine(canonical_request.engine_asked("m", "float32", engine, device=device))


def _sglang(engine: Engine, device: str) -> dict[str, Any]:
    asked = canonical_request.engine_asked("m", "float32", engine, device=device)
    return sglang.engine(asked, longest_context=4096)


def test_eager_is_not_inverted() -> None:
    for eager in (True, False):
        assert _vllm(Engine(enforce_eager=eager), "cpu")["enforce_eager"] is eager
        assert _sglang(Engine(enforce_eager=eager), "cpu")["disable_cuda_graph"] is eager


def test_every_sampling_parameter_has_an_image_in_native_mode() -> None:
    for engine in registry.BUILT_IN:
        ours = native_arguments.sampling_arguments(engine, Sampling())
        for one in canonical.SAMPLING:
            changed = dataclasses.replace(Sampling(), **{one.name: one.variant(one.default)})
            assert ours != native_arguments.sampling_arguments(engine, changed), (engine, one.name)


@pytest.mark.parametrize(
    ("engine", "mode", "sampling", "word"),
    [
        ("sglang", "native", Sampling(top_k=5, top_p=0.9), "joint"),
        ("sglang", "native", Sampling(repetition_penalty=1.1), "output only"),
        ("sglang", "native", Sampling(ignore_eos=True, stop_token_ids=(3,)), "ignore_eos"),
        ("vllm", "native", Sampling(temperature=0.005), "0.01"),
        ("vllm", "native", Sampling(min_p=0.1, top_p=0.9), "min-p"),
        ("sglang", "coupled", Sampling(ignore_eos=True, stop_token_ids=(3,)), "ignore_eos"),
        ("hf", "native", Sampling(repetition_penalty=1.1), "repetition"),
        ("vllm", "coupled", Sampling(repetition_penalty=1.1), "coupled"),
        ("vllm", "coupled", Sampling(temperature=0.0), "greedy"),
    ],
)
def test_what_has_no_faithful_image_is_refused_by_name(engine, mode, sampling, word) -> None:
    with pytest.raises(ParameterRefused, match=word):
        canonical_request.check_sampling(engine, sampling, mode)


def test_filters_are_welcome_in_coupled_mode_for_every_engine() -> None:
    for engine in ("hf", "vllm", "sglang"):
        canonical_request.check_sampling(engine, Sampling(top_k=5, top_p=0.9, min_p=0.1, min_tokens=2), "coupled")


def test_a_context_too_short_is_refused_with_its_numbers() -> None:
    def scenario(context: int) -> Scenario:
        return Scenario(sampling=Sampling(max_tokens=6), engine=Engine(max_model_len=context))

    canonical_request.check_room(10, scenario(16))
    with pytest.raises(ParameterRefused, match=r"max_model_len = 15 .* of 10, .* = 6 are 16 tokens"):
        canonical_request.check_room(10, scenario(15))
    canonical_request.check_room(None, scenario(7))
    with pytest.raises(ParameterRefused, match=r"even a prompt of one token and .* are 7 tokens") as refused:
        canonical_request.check_room(None, scenario(6))
    assert refused.value.fix == "--set engine.max_model_len=70", "64 tokens, the longest prompt that it takes, and 6"


@pytest.mark.parametrize(
    ("longest_prompt", "response", "context", "positions", "fix"),
    [
        (10, 6, 15, 256, "--set engine.max_model_len=16"),
        (10, 6, 1000, 256, "--set engine.max_model_len=256"),  # a response that fits stays as it is
        (None, 6, 6, 70, "--set engine.max_model_len=70"),
        (10, 100_000, 128, 256, "--set engine.max_model_len=256 --set sampling.max_tokens=246"),
        (None, 100_000, 128, 256, "--set engine.max_model_len=256 --set sampling.max_tokens=192"),
        (10, 100_000, 128, 0, "--set engine.max_model_len=100010"),  # nobody knows what the model was made for
        (300, 6, 128, 256, "--set engine.max_model_len=256 --set sampling.max_tokens=1"),
    ],
)
def test_room_is_made_within_what_the_model_was_made_for(longest_prompt, response, context, positions, fix) -> None:
    scenario = Scenario(sampling=Sampling(max_tokens=response), engine=Engine(max_model_len=context))
    assert canonical_request.with_room(longest_prompt, scenario, positions) == fix


def test_more_engines_than_prompts_are_refused() -> None:
    canonical_request.check_engines("hf", Scenario(engine=Engine(engines=2)))
    with pytest.raises(ParameterRefused, match=r"engine\.engines = 9: .* a step has 8 prompts"):
        canonical_request.check_engines("hf", Scenario(engine=Engine(engines=9)))


@pytest.mark.parametrize(
    ("engine", "settings", "why"),
    [
        ("sglang", {}, ""),
        ("sglang", {"engines": 1}, "several engines; set engine.engines"),
        ("sglang", {"place": "a=b"}, "leave placement.engine out"),
        ("vllm", {}, "vLLM has none here"),
        ("hf", {}, "has none here"),
    ],
)
def test_a_router_stands_before_several_engines_of_sglang_on_one_host(
    engine: str, settings: dict[str, Any], why: str
) -> None:
    asked = Engine(engines=settings.get("engines", 2), router="round_robin")
    with pytest.raises(ParameterRefused, match=why) if why else contextlib.nullcontext():
        canonical_request.check_engines(engine, Scenario(engine=asked, placement=Placement(settings.get("place", ""))))


@pytest.mark.parametrize(("engine", "refused"), [("hf", True), ("vllm", False), ("sglang", False)])
def test_workers_that_an_engine_does_not_have_are_refused(engine: str, refused: bool) -> None:
    """A comparison of what was not done would be EQUIVALENT."""
    expected = pytest.raises(ParameterRefused, match=r"engine\.tensor_parallel = 2: .* one process")
    with expected if refused else contextlib.nullcontext():
        canonical_request.check_engines(engine, Scenario(engine=Engine(tensor_parallel=2)))
