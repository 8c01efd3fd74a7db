"""Asked, native, given: what a mapping gives is read back, whoever made it."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import pytest
from hypothesis import given as over
from hypothesis import strategies as st

from scenarios.engines import canonical_request, native_arguments
from scenarios.engines.engine_interface import ParameterRefused
from scenarios.engines.hf import parameters as hf
from scenarios.engines.mapping import ParameterMap, map_engine, map_sampling, sampling_event
from scenarios.engines.sglang import parameters as sglang
from scenarios.engines.vllm import parameters as vllm
from scenarios.settings import Engine, Sampling

BROKEN = """
def sglang_engine(asked, ours):
    return dict(ours, disable_cuda_graph=not asked["enforce_eager"],
                disable_cuda_graph_padding=not asked["prefix_caching"])

def sglang_sampling(asked, ours):
    return {"max_new_tokens": asked["max_tokens"], "temperature": asked["temperature"], "top_p": asked["top_p"],
            "top_k": asked["top_k"], "repetition_penalty": asked["repetition_penalty"]}
"""
USERS = {"file": "users.py", "source": BROKEN}


def asked(**changed: Any) -> dict[str, Any]:
    return canonical_request.engine_asked("m", "float32", Engine(**changed), device="cpu")


def ours(backend: str) -> Any:
    return {
        "vllm": vllm.engine,
        "sglang": partial(sglang.engine, longest_context=4096),
        "hf": hf.engine,
    }[backend]


def nothing(asked: Any) -> dict[str, Any]:
    """What the harness itself needs: nothing."""
    return {}


engines = st.builds(
    Engine,
    max_model_len=st.integers(2, 3000),
    seed=st.integers(0, 2**32 - 1),
    prefix_caching=st.booleans(),
    enforce_eager=st.booleans(),
    max_num_seqs=st.integers(1, 512),
    chunked_prefill=st.booleans(),
    tensor_parallel=st.integers(1, 8),
    kv_cache_tokens=st.integers(1, 512).map(lambda n: 32 * n),
)
samplings = st.builds(
    Sampling,
    temperature=st.one_of(st.just(0.0), st.floats(0.01, 2)),
    top_k=st.one_of(st.just(-1), st.integers(1, 1000)),
    top_p=st.floats(0.01, 1),
    min_p=st.floats(0, 1),
    repetition_penalty=st.floats(0.5, 2),
    max_tokens=st.integers(1, 999),
    min_tokens=st.integers(0, 999),
    stop_token_ids=st.lists(st.integers(0, 9), max_size=3).map(tuple),
)


@pytest.mark.slow
@over(engines, st.sampled_from(["vllm", "sglang", "hf"]))
def test_our_mapping_gives_what_was_asked_of_an_engine(engine: Engine, backend: str) -> None:
    wanted = canonical_request.engine_asked("m", "bfloat16", engine, device="cpu")
    _, told = map_engine(ParameterMap(), backend, wanted, ours(backend), nothing)
    for name, value in told["given"].items():
        if name == "max_model_len" and backend == "sglang":
            assert value >= wanted[name]
        elif name in told["canonical"]:
            assert value == told["canonical"][name], name
    assert told["mapping"] == "ours" and told["moves"] == {}


@over(samplings, st.sampled_from(["vllm", "sglang", "hf"]))
def test_our_mapping_gives_what_was_asked_of_a_sampler(sampling: Sampling, backend: str) -> None:
    found = map_sampling(ParameterMap(), backend, sampling, defaults={}, model_ends=[2])
    assert found.canonical == sampling
    assert found.end_ids == {2, *sampling.stop_token_ids}


def test_the_users_mapping_is_read_back_as_what_it_gives() -> None:
    arguments, told = map_engine(
        ParameterMap.of(USERS), "sglang", asked(), ours("sglang"), lambda _: {"log_level": "error"}
    )
    assert arguments["log_level"] == "error"  # what the harness needs, where the mapping says nothing
    assert told["canonical"]["enforce_eager"] is True and told["given"]["enforce_eager"] is False
    assert told["mapping"] == "users.py"
    assert told["moves"]["enforce_eager"] == ["disable_cuda_graph"]
    # Tied to another parameter: it shows although the value is SGLang's own default here.
    assert told["given"]["graph_padding"] is True
    assert told["moves"]["prefix_caching"] == ["disable_cuda_graph_padding", "disable_radix_cache"]
    mapping, sampling = ParameterMap.of(USERS), Sampling(min_tokens=4, stop_token_ids=(7,), ignore_eos=True)
    found = map_sampling(mapping, "sglang", sampling, defaults={}, model_ends=[2])
    assert (found.canonical.min_tokens, found.canonical.stop_token_ids, found.canonical.ignore_eos) == (0, (), False)
    assert found.end_ids == {2}
    event = sampling_event(mapping, "sglang", sampling, found, "coupled")
    assert event["moves"]["min_tokens"] == [] and event["moves"]["temperature"] == ["temperature"]
    assert event["canonical"]["min_tokens"] == 4 and event["given"]["end_ids"] == [2]


def test_what_the_harness_supplies_follows_what_was_asked() -> None:
    mapping = ParameterMap.of({"file": "m.py", "source": "def sglang_engine(a, o): return {'dtype': a['dtype']}"})
    arguments, told = map_engine(mapping, "sglang", asked(), ours("sglang"), sglang.machine)
    assert arguments["max_total_tokens"] == told["given"]["kv_cache_tokens"] == Engine().kv_cache_tokens
    assert told["moves"]["kv_cache_tokens"] == ["max_total_tokens"] and told["moves"]["max_num_seqs"] == []


def test_a_file_for_another_engine_leaves_this_one_ours() -> None:
    mapping = ParameterMap.of(USERS)
    assert mapping.ours("vllm", "engine") and not mapping.ours("sglang", "sampling")
    found = map_sampling(mapping, "vllm", Sampling(min_tokens=4), defaults={}, model_ends=[])
    assert found.canonical.min_tokens == 4


def test_an_edit_changes_one_native_argument_and_another_leaves_one_out() -> None:
    mapping = ParameterMap.of({"edits": {"engine": {"random_seed": None}, "sampling": {"temperature": 0.5}}})
    _, told = map_engine(mapping, "sglang", asked(seed=3), ours("sglang"), nothing)
    assert told["given"]["seed"] is None and told["moves"]["seed"] == []
    assert told["given"]["dtype"] == "float32" and told["moves"]["dtype"] == ["dtype"]
    found = map_sampling(mapping, "sglang", Sampling(temperature=0.9), defaults={}, model_ends=[])
    assert found.canonical == Sampling(temperature=0.5)


def test_what_is_left_out_is_what_the_engine_fills_in() -> None:
    """generation_config.json leaks where a mapping gives no temperature and the engine reads the file."""
    mapping = ParameterMap.of({"edits": {"sampling": {"temperature": None, "max_tokens": None}}})
    found = map_sampling(mapping, "vllm", Sampling(), defaults={"temperature": 0.7}, model_ends=[])
    assert (found.canonical.temperature, found.native["temperature"], found.canonical.max_tokens) == (0.7, 0.7, 16)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"edit": {}}, "edits of engine and sampling"),
        ({"edits": {"motor": {}}}, "motor"),
        ({"edits": {"sampling": {"min_tokens": None}}}, "min_tokens"),
        ({"file": "/nowhere/m.py"}, "/nowhere/m.py cannot be read"),
        ({"file": "m.py", "source": "1 / 0"}, "m.py, line 1, raised ZeroDivisionError"),
        ({"file": "m.py", "source": "import sys\nsys.exit(3)"}, "m.py, line 2, raised SystemExit: 3"),
        ({"file": "m.py", "source": "def sglang_sampling(a, o): return a['nope']"}, "line 1, asks for 'nope'"),
        ({"file": "m.py", "source": "def sglang_sampling(a, o): return None"}, "returned NoneType"),
        ({"file": "m.py", "source": "def sglang_sampling(a): return {}"}, "raised TypeError"),
    ],
)
def test_a_mapping_that_cannot_be_used_is_refused_with_its_reason(spec: dict[str, Any], words: str) -> None:
    with pytest.raises(ParameterRefused, match=words):
        map_sampling(ParameterMap.of(spec), "sglang", Sampling(), defaults={}, model_ends=[])


def test_each_engine_reads_parameters_its_own_way() -> None:
    read = native_arguments.sampling_given
    assert read("vllm", {"temperature": 0.005})["temperature"] == 0.01
    assert read("vllm", {"temperature": 1e-7})["temperature"] == 0.01
    assert read("sglang", {"temperature": 1e-7})["temperature"] == 0.0
    assert read("vllm", {"top_k": 0})["top_k"] == read("sglang", {"top_k": -1})["top_k"] == -1
    stops = {"ignore_eos": True, "stop_token_ids": [3]}
    assert read("vllm", stops)["stop_token_ids"] == (3,)
    assert read("sglang", stops)["stop_token_ids"] == ()
    assert read("sglang", {})["max_tokens"] == 128 and read("vllm", {})["max_tokens"] == 16
    joint = dataclasses.asdict(Sampling(top_k=5, top_p=0.9))
    assert "joint" in native_arguments.unlike("sglang", joint)["top_k with top_p"]
    assert native_arguments.unlike("vllm", joint) == {}
    assert native_arguments.engine_given("sglang", {"context_length": 128})["max_model_len"] == 126
