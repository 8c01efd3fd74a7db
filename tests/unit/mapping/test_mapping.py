"""A user's mapping is called, and what it drops, inverts, shifts, ties or renames is found; a right one is quiet."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import until

from harness import cli
from harness.envs.environment import Environment
from harness.envs.stored_arguments import of_tables
from harness.errors import BadInput, mistakes_of
from harness.mapping.carried_settings import Setting, owners, settings
from harness.mapping.file import Asked, check, installed
from harness.mapping.judge import Mapping, Takes
from scenarios.engines import registry
from scenarios.engines.accepted import Accepted
from scenarios.engines.canonical import BY_NAME

# After the user's log: what OpenRLHF's engine actor gave SGLang for vLLM's arguments, and its generate for
# vLLM's sampling parameters.
LOG = """
import sglang
import torch


def engine_params(*args, **kwargs):
    return {
        "model_path": args[0],
        "trust_remote_code": kwargs.get("trust_remote_code", True),
        "dtype": kwargs.get("dtype", "auto"),
        "tp_size": kwargs.get("tensor_parallel_size", 1),
        "device": "cuda",
        "disable_radix_cache": not kwargs.get("enable_prefix_caching", False),
        "random_seed": kwargs.get("seed", 42),
        "disable_cuda_graph": not kwargs.get("enforce_eager", False),
        "disable_cuda_graph_padding": not kwargs.get("enable_prefix_caching", False),
        "context_length": kwargs.get("max_model_len", None),
        "log_level": "info",
    }


def sampling_params(sampling_params):
    return dict(
        max_new_tokens=sampling_params.max_tokens,
        top_p=sampling_params.top_p,
        top_k=sampling_params.top_k,
        temperature=sampling_params.temperature,
        repetition_penalty=sampling_params.repetition_penalty,
        skip_special_tokens=sampling_params.skip_special_tokens,
    )
"""
RAISES_WITHOUT_ONE = """
def engine_arguments(**kwargs):
    return {
        "model_path": kwargs["model"],
        "dtype": kwargs["dtype"],
        "random_seed": kwargs.get("seed", 41) + 1,
        "disable_cuda_graph": kwargs.get("enforce_eager", True),
    }
"""
TO_SGLANG = """
def engine_arguments(args):
    return {
        "model_path": args["model"], "tokenizer_path": args.get("tokenizer"), "dtype": args["dtype"],
        "skip_tokenizer_init": args.get("skip_tokenizer_init", False),
        "trust_remote_code": args.get("trust_remote_code", False),
        "kv_cache_dtype": args.get("kv_cache_dtype", "auto").replace("fp8", "fp8_e4m3"),
        "random_seed": args.get("seed", 0), "context_length": args["max_model_len"] + 8,
        "disable_cuda_graph": args.get("enforce_eager", False),
        "disable_radix_cache": not args.get("enable_prefix_caching", True),
        "chunked_prefill_size": 8192 if args.get("enable_chunked_prefill", True) else -1,
        "max_running_requests": args["max_num_seqs"], "tp_size": args.get("tensor_parallel_size", 1),
        "mem_fraction_static": args["gpu_memory_utilization"] - 0.05,
    }

def sampling_arguments(params):
    if params.get("bad_words"):
        raise ValueError("SGLang has no bad_words")
    names = {"max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens", "seed": "sampling_seed",
             "include_stop_str_in_output": "no_stop_trim"}
    given = {names.get(name, name): value for name, value in params.items() if name != "bad_words"}
    return {**given, "top_k": given.get("top_k") or -1}
"""
TO_VLLM = """
def to_vllm(model_path, *, context_length, disable_radix_cache=False, disable_cuda_graph=False, tp_size=1,
            chunked_prefill_size=8192, max_running_requests=64, mem_fraction_static=0.8, random_seed=None,
            dtype="auto", tokenizer_path=None, skip_tokenizer_init=False, trust_remote_code=False,
            kv_cache_dtype="auto", disable_cuda_graph_padding=False, sampling_defaults="model"):
    if disable_cuda_graph_padding:
        raise ValueError("vLLM has no such switch")
    return {"model": model_path, "tokenizer": tokenizer_path, "skip_tokenizer_init": skip_tokenizer_init,
            "trust_remote_code": trust_remote_code, "kv_cache_dtype": kv_cache_dtype, "dtype": dtype,
            "seed": random_seed or 0, "max_model_len": context_length - 2, "enforce_eager": disable_cuda_graph,
            "enable_prefix_caching": not disable_radix_cache, "max_num_seqs": max_running_requests,
            "enable_chunked_prefill": chunked_prefill_size > 0, "tensor_parallel_size": tp_size,
            "gpu_memory_utilization": mem_fraction_static + 0.05,
            "generation_config": "auto" if sampling_defaults == "model" else "vllm"}

def sampling_to_vllm(params):
    given = dict(params)
    for name, target in (("max_new_tokens", "max_tokens"), ("min_new_tokens", "min_tokens"),
                         ("sampling_seed", "seed"), ("no_stop_trim", "include_stop_str_in_output")):
        given[target] = given.pop(name, None)
    return given
"""
IDENTITY = "def same(settings):\n    return dict(settings)\n"


@pytest.fixture
def checked(tmp_path: Path):
    def run(source: str, engine: str = "sglang", of: str = "vllm", **more: object) -> Mapping:
        file = tmp_path / "users.py"
        file.write_text(source)
        return check(Asked(file=str(file), engine=engine, source=of, **more))

    return run


def kinds(found: Mapping) -> dict[str, str]:
    return {item.parameter: item.kind for item in found.findings}


@pytest.mark.by_day(5)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("parameter", "written", "kind"),
    [
        ("memory_fraction", 'args["gpu_memory_utilization"] * 100', "rejected"),
        ("memory_fraction", 'args["gpu_memory_utilization"] - 0.5', "rejected"),
        ("memory_fraction", '1 - args["gpu_memory_utilization"]', "altered"),
        ("memory_fraction", 'str(args["gpu_memory_utilization"])', "rejected"),
        ("memory_fraction", 'args["gpu_memory_utilization"] * 0.9', ""),
        ("max_num_seqs", 'args["max_num_seqs"] * 100', "altered"),
        ("max_num_seqs", '-args["max_num_seqs"]', "rejected"),
        ("max_num_seqs", 'args["max_num_seqs"] + 8', ""),
        ("tensor_parallel", 'args["tensor_parallel_size"] - 1', "rejected"),
    ],
)
def test_a_number_out_of_its_range_or_scale_does_not_arrive(parameter: str, written: str, kind: str, checked) -> None:
    target = BY_NAME[parameter].native("sglang")
    found = checked(f'def params(args):\n    return {{"model_path": args["model"], "{target}": {written}}}\n')
    assert kinds(found).get(parameter, "") == kind


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "seed", "kind"),
    [
        ("hf", "2**63", "rejected"), ("hf", "asked['seed'] - 5", "rejected"), ("hf", "asked['seed']", ""),
        ("vllm", "asked['seed'] + 2**32", "rejected"), ("sglang", "-1", "rejected"), ("sglang", "7", "dropped"),
    ],
)  # fmt: skip
def test_a_seed_that_the_engine_does_not_take_is_rejected(engine: str, seed: str, kind: str, checked) -> None:
    argument = BY_NAME["seed"].native(engine)
    judged = checked(f"def {engine}_engine(asked, ours):\n    return {{**ours, '{argument}': {seed}}}\n", engine=engine)
    assert kinds(judged).get("seed", "") == kind


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parameter", "written", "gets"),
    [
        ("max_model_len", 'str(args["max_model_len"])', "32768"),
        ("max_model_len", '"4096"', "4096"),
        ("max_num_seqs", 'str(args["max_num_seqs"])', "64"),
        ("max_num_seqs", '[args["max_num_seqs"]]', [64]),
        ("seed", 'str(args["seed"])', "1"),
        ("chunked_prefill", '"8192" if args["enable_chunked_prefill"] else "-1"', "8192"),
        ("enforce_eager", 'str(args["enforce_eager"])', "True"),
        ("temperature", 'str(args["temperature"])', "1.0"),
        ("stop_token_ids", "7", 7),
        ("top_k", 'float("nan")', None),
    ],
)
def test_a_value_of_another_type_is_rejected(parameter: str, written: str, gets: object, checked) -> None:
    target = BY_NAME[parameter].native("sglang")
    beside = '"model_path": args["model"]' if BY_NAME[parameter].part == "engine" else '"top_p": args["top_p"]'
    judged = checked(f'def params(args):\n    return {{{beside}, "{target}": {written}}}\n')
    (finding,) = (item for item in judged.findings if item.parameter == parameter)
    assert finding.kind == "rejected" and judged.exit_code == 1
    assert gets is None or finding.gets == {target: gets}


@pytest.mark.slow
def test_a_string_that_vllm_converts_arrives_and_another_one_does_not(checked) -> None:
    strings = "def text(args):\n    return {name: str(value) for name, value in args.items()}\n"
    judged = checked(strings, "vllm", "vllm")
    wrong = {item.parameter for item in judged.findings if item.part == "engine"}
    assert wrong == {"max_num_seqs"}
    judged = checked("def vllm_engine(asked, ours):\n    return dict(ours, max_model_len='long')\n", "vllm")
    assert kinds(judged) == {"max_model_len": "rejected"}


CHOICES = {"dtype": ("auto", "half", "float16", "bfloat16", "float32"), "attention_backend": ("flashinfer", "triton")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "findings"),
    [
        ('dtype="float33"', {("dtype", "rejected")}),
        ('dtype=asked["dtype"].replace("bfloat16", "bf16")', {("dtype", "rejected")}),
        ('attention_backend="flashinferr"', {("attention_backend", "rejected")}),
        ('attention_backend=asked["dtype"].replace("float32", "triton").replace("bfloat16", "tritn")',
         {("attention_backend", "rejected")}),
        ('attention_backend="FlashInfer"', set()),
        ("attention_backend=None", set()),
        ("attention_backend=asked", set()),
    ],
)  # fmt: skip
def test_a_value_outside_of_the_choices_of_the_engine_is_rejected(source: str, findings: set, tmp_path: Path) -> None:
    file = tmp_path / "users.py"
    file.write_text(f"def sglang_engine(asked, ours):\n    return dict(ours, {source})\n")
    judged = check(Asked(str(file), "sglang", "vllm"), Takes(Accepted(), Accepted(choices=CHOICES)))
    assert {(item.setting, item.kind) for item in judged.findings} == findings
    assert all("did you mean" in item.text or item.setting == "dtype" for item in judged.findings)


NAN = """
def engine_params(args):
    return {"model_path": args["model"], "dtype": args["dtype"], "random_seed": float("nan"), "stop": [float("nan")]}
"""


@pytest.mark.slow
def test_nan_follows_no_setting(checked) -> None:
    judged = checked(NAN, more=(("extra", 1),))
    assert {"model", "dtype"} <= {*judged.arrived["engine"]}
    assert {(item.parameter, item.kind) for item in judged.findings if item.kind != "dropped"} == {("seed", "rejected")}
    assert any("--with extra=1 changes nothing" in note for note in judged.notes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parameter", "written", "words"),
    [
        ("max_model_len", 'min(args["max_model_len"] + 8, 8192)', "at most 8192"),
        ("max_num_seqs", 'min(args["max_num_seqs"], 16)', "at most 16"),
        ("max_num_seqs", 'max(args["max_num_seqs"], 512)', "at least 512"),
        ("max_num_seqs", "16", "whatever is asked"),
        ("max_num_seqs", '16 if args["max_num_seqs"] in (64, 65) else args["max_num_seqs"]', "for each of "),
        ("enforce_eager", "True", "whatever is asked"),
        ("dtype", '"float16"', "for each of "),
        ("max_tokens", 'min(args["max_tokens"], 512)', "at most 512"),
    ],
)
def test_a_limit_is_no_constant(parameter: str, written: str, words: str, checked) -> None:
    target, of_engine = BY_NAME[parameter].native("sglang"), BY_NAME[parameter].part == "engine"
    beside = '"model_path": args["model"], "random_seed": args["seed"]' if of_engine else '"top_p": args["top_p"]'
    judged = checked(f'def params(args):\n    return {{{beside}, "{target}": {written}}}\n')
    (finding,) = (item for item in judged.findings if item.parameter == parameter)
    assert words in finding.text and f"no {target}" not in finding.text


def test_a_setting_that_follows_another_is_tied_and_counted_once(checked) -> None:
    found = checked('def params(args):\n    return {"top_k": args["top_k"], "top_p": args["top_k"] / 100}\n')
    assert [item.kind for item in found.findings if item.parameter == "top_p"] == ["tied"]
    dropped = [item for item in found.findings if item.kind == "dropped"]
    assert f"{len(dropped)} settings dropped" in found.reason


@pytest.mark.parametrize(
    ("condition", "parameters"),
    [
        ('asked["tensor_parallel"] >= 4', {"prefix_caching"}),
        ('asked["tensor_parallel"] == 8', {"prefix_caching"}),
        ('asked["memory_fraction"] > 0.9', {"prefix_caching"}),
        ('asked["max_model_len"] > 100_000', {"prefix_caching"}),
        ('asked["max_model_len"] < 1', set()),
    ],
)
@pytest.mark.slow
def test_a_setting_that_follows_another_from_some_value_on_is_tied(
    condition: str, parameters: set[str], checked
) -> None:
    changed = f'if {condition}: ours["disable_radix_cache"] = True'
    found = checked(f"def sglang_engine(asked, ours):\n    {changed}\n    return ours\n")
    assert {item.parameter for item in found.findings} == parameters
    assert {item.kind for item in found.findings} <= {"tied"}


@pytest.mark.slow
@pytest.mark.parametrize("limited", ["max_running_requests", "chunked_prefill_size"])
def test_a_number_that_another_setting_limits_is_not_tied(limited: str, checked) -> None:
    limit = f'ours["{limited}"] = min(ours.get("{limited}", 8192), asked["max_model_len"])'
    found = checked(f"def sglang_engine(asked, ours):\n    {limit}\n    return ours\n")
    assert "tied" not in {item.kind for item in found.findings}


def test_a_function_that_answers_differently_is_not_judged(checked) -> None:
    drawn = "import itertools\ncount = itertools.count()\n"
    source = f"{drawn}def sglang_engine(asked, ours): return {{**ours, 'random_seed': next(count)}}\n"
    with pytest.raises(BadInput, match=r"sglang_engine is not deterministic.*random_seed=0"):
        checked(source)


@pytest.mark.parametrize("words", ['["--tp", str(args["tensor_parallel_size"])]', '("--tp 1",)'])
@pytest.mark.slow
def test_a_function_that_returns_a_command_line_is_told_so(words: str, checked) -> None:
    with pytest.raises(BadInput, match=r"it returned a (list|tuple) of words, not a dictionary"):
        checked(f"def convert(args): return {words}\n")


TIED_TO_THE_OTHER_PART = """
def engine_params(args):
    return {"model_path": args["model"], "dtype": args["dtype"], "random_seed": args["seed"], "top_k": args["seed"]}

def sampling_params(args):
    return {"temperature": args["temperature"], "top_k": args["top_k"], "sampling_seed": args["seed"]}
"""


@pytest.mark.slow
@pytest.mark.parametrize("source", [LOG, TIED_TO_THE_OTHER_PART], ids=["log", "tied to the other part"])
def test_every_setting_is_counted_once(source: str, checked) -> None:
    """`seed` is a setting of the engine and one of the sampling; an argument that is tied may be no setting."""
    found = checked(source)
    total = sum(map(len, found.settings.values()))
    wrong = {(item.part, item.parameter) for item in found.findings if item.parameter in found.settings[item.part]}
    counted, arrived, of = re.match(r"(.*?); (\d+) of (\d+) settings arrive", found.reason).groups()
    assert (int(arrived), int(of)) == (sum(map(len, found.arrived.values())), total)
    assert int(arrived) + len(wrong) == total == int(arrived) + sum(map(int, re.findall(r"(\d+) setting", counted)))


def test_what_is_left_out_is_of_settings_that_arrive(checked) -> None:
    """The function raises where `dtype` is left out. What follows is not taken for what a neighbour does: `seed` is
    wrong whatever it does, and `enforce_eager` is right."""
    found = checked(RAISES_WITHOUT_ONE)
    assert kinds(found)["seed"] == "shifted" and "enforce_eager" not in kinds(found)
    assert [text.split(":")[0] for text in found.left_out] == ["enforce_eager"]


@pytest.mark.slow
def test_every_fault_of_the_mapping_in_the_log_is_found(checked) -> None:
    found = checked(LOG)
    wrong = {name: kind for name, kind in kinds(found).items() if kind != "dropped"}
    assert wrong == {"enforce_eager": "inverted", "graph_padding": "tied", "max_model_len": "shifted",
                     "top_k": "rejected"}  # fmt: skip
    dropped = {name for name, kind in kinds(found).items() if kind == "dropped"}
    assert dropped >= {"min_tokens", "stop_token_ids", "ignore_eos", "stop", "keep_stop", "tokenizer", "skip_tokenizer",
                       "memory_fraction", "max_num_seqs", "min_p", "request_seed"}  # fmt: skip
    assert found.functions == {"engine": "engine_params", "sampling": "sampling_params"}
    assert {"seed", "dtype", "model", "tensor_parallel_size", "enable_prefix_caching"} <= {*found.arrived["engine"]}
    assert "top_p" in found.arrived["sampling"]
    assert any("random_seed=42" in text for text in found.left_out)
    shift = next(item for item in found.findings if item.kind == "shifted")
    assert (shift.asked, shift.gets) == (32768, {"context_length": 32768}) and "context_length=32776" in shift.fix
    assert found.exit_code == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "engine", "of"),
    [(TO_SGLANG, "sglang", "vllm"), (TO_VLLM, "vllm", "sglang"), (IDENTITY, "vllm", "vllm"),
     (IDENTITY, "sglang", "sglang")],
    ids=["to SGLang", "to vLLM", "vLLM to itself", "SGLang to itself"],
)  # fmt: skip
def test_a_right_mapping_is_quiet(checked, source: str, engine: str, of: str) -> None:
    found = checked(source, engine, of)
    assert (kinds(found), found.exit_code, set(found.functions)) == ({}, 0, {"engine", "sampling"})


@pytest.mark.by_day(7)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("right", "wrong", "fault"),
    [
        ('args["dtype"]', '"bfloat16"', {"dtype": "dropped"}),
        ('args.get("seed", 0)', "None", {"seed": "dropped"}),
        ('args.get("seed", 0)', 'args.get("seed", 0) + 1', {"seed": "shifted"}),
        ('args.get("enforce_eager", False)', 'not args.get("enforce_eager")', {"enforce_eager": "inverted"}),
        ('not args.get("enable_prefix_caching", True)', 'args.get("enforce_eager")', {"prefix_caching": "tied"}),
        ("+ 8", "", {"max_model_len": "shifted"}),
        ("+ 8", "// 2", {"max_model_len": "altered"}),
        ('.replace("fp8", "fp8_e4m3")', "", {"kv_cache_dtype": "rejected"}),
        ('"max_running_requests": args', '"max_num_seqs": args', {"max_num_seqs": "renamed"}),
        ('"min_tokens": "min_new_tokens", ', "", {"min_tokens": "renamed"}),
        ('given.get("top_k") or -1', 'given.get("top_k")', {"top_k": "rejected"}),
        ('raise ValueError("SGLang has no bad_words")', "pass", {"bad_words": "dropped"}),
        ('args["max_num_seqs"], "tp_size"', 'args["max_num_seqs"] + args["seed"], "tp_size"',
         {"max_num_seqs": "tied"}),
    ],
)  # fmt: skip
def test_one_fault_in_a_right_mapping_is_the_one_that_is_found(checked, right: str, wrong: str, fault: dict) -> None:
    assert TO_SGLANG.count(right) == 1
    findings = [(item.parameter, item.kind) for item in checked(TO_SGLANG.replace(right, wrong)).findings]
    assert set(fault.items()) <= set(findings) and len(findings) <= 2, findings


@pytest.mark.slow
@pytest.mark.parametrize(
    "source",
    [
        "def f(args):\n    return {'dtype': args['dtype'], 'random_seed': args['seed']}",
        "def f(args):\n    return {'dtype': args.dtype, 'random_seed': args.seed}",
        "def f(args):\n    return type('A', (), {})() if not args else "
        "__import__('types').SimpleNamespace(dtype=args.dtype, random_seed=args.seed)",
        "def f(seed, dtype='auto'):\n    return {'dtype': dtype, 'random_seed': seed}",
        "def f(**kw):\n    return {'dtype': kw['dtype'], 'random_seed': kw['seed']}",
        "def f(pretrain, seed, **kw):\n    return {'model_path': pretrain, 'dtype': kw['dtype'], 'random_seed': seed}",
        "def f(*args, **kw):\n    return {'model_path': args[0], 'dtype': kw['dtype'], 'random_seed': kw['seed']}",
        "NAMES = {'dtype': 'dtype', 'seed': 'random_seed', 'max_num_seqs': None}",
        "from vllm import SamplingParams\nimport torch\nimport sglang as sgl\n"
        "def f(a):\n    return sgl.ServerArgs(dtype=torch.bfloat16 if a.dtype == 'bfloat16' else torch.float32, "
        "random_seed=a.seed)",
        "def f(args):\n    return {'dtype': args['dtype'], 'random_seed': args['seed'], 'x': args['backend']}",
        "def f(a):\n    return ({'dtype': a['dtype'], 'random_seed': a['seed']}, {'max_new_tokens': a['max_tokens']})",
        "def sglang_engine(asked, ours):\n    return {'dtype': asked['dtype'], 'random_seed': asked['seed']}",
    ],
    ids=["items", "attributes", "object", "names", "settings", "model first", "args", "table", "stand-ins",
         "more settings", "both at once", "canonical"],
)  # fmt: skip
def test_shapes_of_a_mapping(checked, source: str) -> None:
    found = checked(source, more=(("backend", "sglang"),))
    assert {"dtype", "seed"} <= {*found.arrived["engine"]}, found.findings
    assert kinds(found)["enforce_eager"] == "dropped"


@pytest.mark.slow
def test_settings_that_are_never_set_are_left_out(checked) -> None:
    without = checked(TO_SGLANG.replace("raise ValueError", "ValueError"), ignored=("bad_words",))
    assert without.exit_code == 0
    with pytest.raises(BadInput, match=r"bad_word.*bad_words"):
        checked(TO_SGLANG, ignored=("bad_word",))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import no_such_package\n", r"users.py:1 cannot be imported: .*no_such_package"),
        ("def f(:\n", r"users.py:1 cannot be imported: SyntaxError"),
        ("import sys\nsys.exit(3)\n", r"users.py:2 cannot be imported: SystemExit: 3"),
        ("x = 1\n", r"no function maps settings of vLLM to arguments of SGLang"),
        ("def f(args):\n    return {'x': 1}\n", r"nothing that it returns follows a setting"),
        ("def f(args):\n    return args['backend']\n", r"KeyError: 'backend'"),
        ("def f(args):\n    return args['dtype']\n", r"str, not a dictionary"),
        ("def f(args):\n    return dict(args)\ndef g(args):\n    return dict(args)\n", r"several functions"),
        ("import os\nos._exit(4)\n", r"users.py:2 cannot be imported: SystemExit: 4"),
        ("import os\nif not os.fork():\n    os._exit(4)\nos.wait()\n", r"no function maps settings of vLLM"),
        ("import os\nos.kill(os.getpid(), 9)\n", r"users.py ends the process that executes it, with signal 9"),
    ],
)
def test_a_file_that_cannot_be_called_is_an_error(checked, source: str, message: str) -> None:
    with pytest.raises(BadInput, match=message) as refused:
        checked(source)
    assert refused.value.fix


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "message", "fix"),
    [
        ("arg['x']", "users.py:2 f raised NameError: name 'arg' is not defined", "sed -n 2p "),
        ("__import__('sys').exit(3)", "users.py:2 f raised SystemExit: 3", "sed -n 2p "),
        ("args['backend']", "users.py:2 f raised KeyError: 'backend'", "--with backend=VALUE"),
    ],
)
def test_an_error_of_a_function_is_its_line(checked, line: str, message: str, fix: str) -> None:
    with pytest.raises(BadInput, match=re.escape(message)) as refused:
        checked(f"def f(args):\n    return {line}\n")
    assert fix in str(refused.value.fix)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "python", "without", "with_environment"),
    [
        ("import mine", "", "env list", "mapping users.py --engine sglang --python {}"),
        ("import yours", "", "env list", "env list"),
        ("", "PATH", "mapping users.py --engine sglang", "mapping users.py --engine sglang --python {}"),
    ],
)
def test_the_interpreter_of_a_fix_exists_and_has_the_module(
    line: str,
    python: str,
    without: str,
    with_environment: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HARNESS_HOME", str(tmp_path))
    Path("users.py").write_text(f"{line}\n{IDENTITY}")
    words = ["mapping", "users.py", "--engine", "sglang", *(["--python", python] if python else [])]
    assert cli.main(words) == 2
    assert command_of(capsys) == f"harness {without}"
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    next(venv.glob("lib/python*/site-packages")).joinpath("mine.py").touch()
    record = Environment("sglang", "sglang", "1", str(venv / "bin/python"), "3.12", "2", "2", "cpu", owned=False)
    folder = tmp_path / "envs" / "sglang"
    folder.mkdir(parents=True)
    (folder / "env.json").write_text(json.dumps(record.to_json()))
    assert cli.main(words) == 2
    assert command_of(capsys) == f"harness {with_environment.format(record.python)}"


@pytest.mark.slow
def test_what_is_wrong_beside_a_function_that_raises_is_told_with_it(tmp_path: Path) -> None:
    """And the embedded engine's arguments are known without an environment."""
    file = tmp_path / "users.py"
    file.write_text(
        "def hf_engine(asked, ours):\n    return {**ours, 'no_such': 1, 'seed': -1}\n"
        "def hf_sampling(asked, ours):\n    return asked['top']\n"
    )
    takes = Takes(Accepted(), installed("hf"))
    with pytest.raises(BadInput) as refused:
        check(Asked(file=str(file), engine="hf", source="vllm"), takes)
    messages = [mistake.message for mistake in mistakes_of(refused.value)]
    assert [name in message for name, message in zip(("'top'", "seed", "no_such"), messages, strict=True)] == [True] * 3
    file.write_text("def hf_engine(asked, ours):\n    return {**ours, 'no_such': 1}\n")
    judged = check(Asked(file=str(file), engine="hf", source="vllm"), takes)
    assert [item.setting for item in judged.findings if item.kind == "unknown"] == ["no_such"]


def command_of(capsys: pytest.CaptureFixture[str]) -> str:
    """The command of the printed fix, without its comment."""
    return capsys.readouterr().err.partition("  fix: ")[2].partition("   #")[0].strip()


@pytest.mark.slow
def test_a_function_that_raises_is_the_error_where_no_other_maps_its_part(checked) -> None:
    """Not a note behind what the function of the other part drops. Beside functions of both parts it is a note."""
    engine = 'def sglang_engine(asked, ours):\n    return dict(ours, x=asked["enforce_eagre"])\n'
    sampling = 'def sglang_sampling(asked, ours):\n    return {"max_new_tokens": asked["max_tokens"]}\n'
    message = "users.py:2 sglang_engine raised KeyError: 'enforce_eagre'; did you mean enforce_eager?"
    with pytest.raises(BadInput, match=re.escape(message)) as refused:
        checked(engine + sampling)
    assert "sed -n 2p " in str(refused.value.fix) and "--function sglang_sampling" in refused.value.message
    both = checked(IDENTITY + 'def broken(settings):\n    return settings["enforce_eagre"]\n', engine="vllm")
    assert both.exit_code == 0 and [note for note in both.notes if "broken raised KeyError" in note]


@pytest.mark.parametrize(
    ("words", "message", "fix"),
    [
        (
            "README.md --engine sglang",
            "README.md is no file of Python",
            "harness help mapping   # what a mapping is",
        ),
        ("my_mapping --engine vllm", "did you mean my_mapping.py?", "harness mapping my_mapping.py --engine vllm"),
        (". --engine sglang", ". is a directory", "ls .   # and name the file"),
        ("my_mapping.py --engine sgl", "did you mean sglang?", "harness mapping my_mapping.py --engine sglang"),
        ("my_mapping.py --engine none", "there are: hf, vllm, sglang", "harness mapping my_mapping.py --engine sglang"),
        (
            "my_mapping.py --engine sglang --from vlm",
            "did you mean vllm?",
            "harness mapping my_mapping.py --engine sglang --from vllm",
        ),
        (
            "my_mapping.py --engine sglang --from trl",
            "no such engine",
            "harness mapping my_mapping.py --engine sglang --from vllm",
        ),
        ("nonexist.py", "there is no such file", "ls ."),
        ("my_mapping.py", "needs --engine", "harness mapping my_mapping.py --engine sglang"),
        (
            "my_mapping.py --engine sglang --ignore nosuch --timeout 9",
            "no such setting",
            "harness mapping my_mapping.py --engine sglang --timeout 9",
        ),
        ("nonexist.py --engine sglang", "there is no such file", "ls ."),
        (
            "my_mapping.py --engine sglang --ignore enforce_eagr",
            "no such setting",
            "harness mapping my_mapping.py --engine sglang --ignore enforce_eager",
        ),
    ],
)
def test_a_wrong_word_has_a_fix_that_can_be_typed(
    words: str,
    message: str,
    fix: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("README.md").write_text("# A heading\n")
    Path("my_mapping.py").write_text(LOG)
    Path("none.py").touch()
    assert cli.main(["mapping", *words.split()]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert message in first and second == f"  fix: {fix}"


@pytest.mark.slow
def test_an_interpreter_of_another_language_is_refused(checked) -> None:
    with pytest.raises(BadInput, match="--python /bin/cat is no interpreter of Python"):
        checked(IDENTITY, python="/bin/cat")


@pytest.mark.slow
def test_nothing_is_left_beside_the_file(checked, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("FACTOR = 1")
    checked("import beside\n" + IDENTITY)
    assert {file.name for file in tmp_path.iterdir()} == {"beside.py", "users.py"}


@pytest.mark.slow
def test_a_function_that_is_not_there(checked) -> None:
    with pytest.raises(BadInput, match="engine_argument; did you mean engine_arguments"):
        checked(TO_SGLANG, functions=("engine_argument",))


@pytest.mark.slow
def test_a_file_that_never_ends_is_given_up_on(checked) -> None:
    with pytest.raises(BadInput, match="did not answer") as refused:
        checked("while True:\n    pass\n", timeout_s=0.5)
    assert str(refused.value.fix).startswith("--timeout 600 ")


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_ends_the_process_of_the_function(tmp_path: Path, number: int, code: int) -> None:
    file, pid_file = tmp_path / "users.py", tmp_path / "pid"
    file.write_text(
        f"import os, pathlib, time\npathlib.Path({str(pid_file)!r}).write_text(str(os.getpid()))\ntime.sleep(100)\n"
    )
    command = [sys.executable, "-m", "harness", "mapping", str(file), "--engine", "sglang"]
    # A shell's background job ignores SIGINT, and so would what these tests start.
    with subprocess.Popen(
        command, start_new_session=True, stderr=subprocess.PIPE, preexec_fn=hear_interrupts
    ) as running:
        until(lambda: pid_file.exists() and pid_file.read_text() != "", process=running)
        pid = int(pid_file.read_text())
        os.killpg(running.pid, number)  # as a terminal does: the function's session is another
        assert running.wait(600) == code
    until(lambda: not alive(pid))


def hear_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "users.py"
    file.write_text(LOG)
    assert cli.main(["mapping", str(file), "--engine", "sglang"]) == 1
    assert "enforce_eager  inverted" in capsys.readouterr().out
    assert cli.main(["mapping", str(file), "--engine", "sglang", "--format", "json"]) == 1
    assert json.loads(capsys.readouterr().out)["exit_code"] == 1
    assert cli.main(["mapping", str(tmp_path / "none.py"), "--engine", "sglang"]) == 2
    assert cli.main(["mapping", str(file), "--engine", "sglan"]) == 2


@pytest.mark.slow
@pytest.mark.parametrize("source", ["hf", "vllm"])
def test_a_model_that_is_wanted_by_its_place_is_given_whether_or_not_it_is_a_setting(source: str, checked) -> None:
    assert checked(LOG, of=source).functions["engine"] == "engine_params"


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "noted"), [("vllm", True), ("sglang", False)])
def test_two_sides_of_one_engine_are_noted(engine: str, noted: bool, checked) -> None:
    notes = checked(IDENTITY, engine=engine).notes
    assert any("both sides are" in note and "--engine sglang" in note for note in notes) == noted


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "source", "noted"), [("vllm", "sglang", True), ("sglang", "vllm", False)])
def test_a_mapping_to_the_other_engine_is_noted(engine: str, source: str, noted: bool, tmp_path: Path) -> None:
    takes = {name: of_tables(name) for name in (engine, source)}
    (tmp_path / "mapping.py").write_text(LOG)
    judged = check(Asked(str(tmp_path / "mapping.py"), engine, source), Takes(takes[source], takes[engine]))
    notes = [note for note in judged.notes if "are arguments of" in note]
    assert [note.endswith("--engine sglang --from vllm") for note in notes] == [True] * noted


@pytest.mark.slow
def test_names_that_are_copied_to_the_other_engine_are_no_mapping_to_the_first(tmp_path: Path) -> None:
    (tmp_path / "mapping.py").write_text(IDENTITY)
    judged = check(Asked(str(tmp_path / "mapping.py"), "sglang", "vllm"), Takes(of_tables("vllm"), of_tables("sglang")))
    assert not [note for note in judged.notes if "are arguments of" in note]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "method"),
    [
        ("class A:\n    def to_sglang(self, args):\n        return {'random_seed': args['seed']}\n", "A.to_sglang"),
        ("class A:\n    def __repr__(self):\n        return 'A'\n    def run(self):\n        pass\n", ""),
    ],
)
def test_methods_of_a_file_without_functions_are_named(source: str, method: str, checked) -> None:
    with pytest.raises(BadInput, match="no function maps") as refused:
        checked(source)
    assert ("a method is not called" in refused.value.message) == bool(method) and method in refused.value.message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("written", "surplus"),
    [("+ 8", "8 more"), ("* 1", ""), ("* 100", "")],  # of the last the finding says it
)
def test_more_than_was_asked_is_noted_where_it_loses_nothing(written: str, surplus: str, checked) -> None:
    judged = checked(TO_SGLANG.replace('args["max_num_seqs"]', f'args["max_num_seqs"] {written}'))
    notes = [note for note in judged.notes if "more than is asked" in note]
    assert len(notes) == bool(surplus) and all(surplus in note and "max_running_requests=" in note for note in notes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "name", "kind"),
    [("engine", "seed", "rejected"), ("sampling", "top_k", "rejected"), ("sampling", "seed", "unknown")],
)
def test_a_constant_that_no_recording_holds_is_found_whatever_it_follows(
    part: str, name: str, kind: str, tmp_path: Path
) -> None:
    file = tmp_path / "mapping.py"
    file.write_text(f"def hf_{part}(asked, ours):\n    return {{**ours, {name!r}: 2**63}}\n")
    judged = check(Asked(str(file), "hf", "vllm"), Takes(Accepted(), installed("hf")))
    assert [item.kind for item in judged.findings if item.setting == name and item.kind != "dropped"] == [kind]


TRIED = [
    (engine, item) for engine in ("vllm", "sglang") for item in settings(registry.get(engine), registry.get(engine))
]


@pytest.mark.parametrize(
    ("engine", "item"), TRIED, ids=lambda value: value if isinstance(value, str) else value.source.name
)
def test_what_is_written_for_an_engine_is_read_back(engine: str, item: Setting) -> None:
    """Of both values with which a mapping is tried; a context is written with room to spare."""
    for value in (item.first, item.second):
        assert item.parameter.fits(value, item.requested(value)), value


@pytest.mark.slow
def test_arguments_that_the_engine_does_not_take_are_named(tmp_path: Path) -> None:
    """Also where no setting bears on them; without the list of its names nothing is said of names."""
    takes = Takes(
        source=Accepted(engine=("model", "enforce_eager")),
        target=Accepted(
            engine=tuple(sorted(parameters("sglang", "engine") | {"log_level"})),
            sampling=tuple(sorted(parameters("sglang", "sampling"))),
        ),
    )
    file = tmp_path / "mapping.py"
    for extra, near in (("log_levl", "log_level"), ("enforce_eager", "leave"), ("log_level", "")):
        file.write_text(TO_SGLANG.replace('return {\n        "model_path"', f'return {{"{extra}": 1, "model_path"'))
        asked = Asked(str(file), "sglang", "vllm")
        judged = check(asked, takes)
        unknown = [item for item in judged.findings if item.kind == "unknown"]
        assert [item.setting for item in unknown] == ([extra] if near else [])
        assert all(near in item.fix and item.gets == {extra: 1} for item in unknown)
        if judged.verdict == "WRONG ARGUMENTS":
            assert re.match(r"1 argument unknown; all (\d+) settings arrive", judged.reason), extra
        assert judged.verdict == ("WRONG ARGUMENTS" if near else "MAPS ALL"), extra
        assert not [item for item in check(asked).findings if item.kind == "unknown"]


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "named"), [("hf", False), ("vllm", True)])
def test_only_an_engine_of_an_environment_is_to_be_installed(engine: str, named: bool, tmp_path: Path) -> None:
    file = tmp_path / "mapping.py"
    file.write_text(f"def {engine}_engine(asked, ours):\n    return ours\n")
    notes = check(Asked(str(file), engine, "sglang"), Takes(Accepted(), Accepted())).notes
    assert any(f"harness env create {engine}" in note for note in notes) == named


def parameters(engine: str, part: str) -> set[str]:
    return {name for owner, name in owners(registry.get(engine)) if owner == part}


@pytest.mark.slow
def test_the_example_of_the_documentation_is_answered_as_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "mapping.md").read_text("utf-8")
    (tmp_path / "my_mapping.py").write_text(re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HARNESS_HOME", str(tmp_path / "home"))
    assert cli.main(["mapping", "my_mapping.py", "--engine", "sglang"]) == 1
    assert re.findall(r"```text\n(.*?)```", page, re.DOTALL)[0] in capsys.readouterr().out


ENGINE_ALONE = f"{TO_SGLANG.partition('def sampling_arguments')[0]}"
ENGINE_NAMES = (
    'NAMES = {"model": "model_path", "tokenizer": "tokenizer_path", "dtype": "dtype", "seed": "random_seed", '
    '"tensor_parallel_size": "tp_size", "max_num_seqs": "max_running_requests"}\n'
)


@pytest.mark.slow
@pytest.mark.parametrize("source", [ENGINE_ALONE, ENGINE_NAMES], ids=["function", "names"])
def test_a_setting_that_both_parts_have_is_no_mapping_of_the_other_part(source: str, checked) -> None:
    """vLLM's engine and its sampling both have a `seed`; a function of the engine alone does not map the sampling."""
    found = checked(source)
    assert set(found.functions) == set(found.settings) == {"engine"}
    assert not [item for item in found.findings if item.part == "sampling"]
    assert any("sampling: not checked" in note for note in found.notes) and "sampling" in found.reason
    assert "seed" in found.arrived["engine"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "part", "kind"),
    [
        ('def f(p):\n    return {"sampling_seed": p["seed"]}\n', "sampling", ""),
        ('def f(p):\n    return {"random_seed": p["seed"]}\n', "engine", ""),
        ('def f(p):\n    return {"temperature": p["temperature"], "random_seed": p["seed"]}\n', "sampling", "renamed"),
    ],
)
def test_whose_seed_it_is_shows_by_the_argument_that_is_given(source: str, part: str, kind: str, checked) -> None:
    found = checked(source)
    name = "request_seed" if part == "sampling" else "seed"
    assert part in found.functions
    assert [item.kind for item in found.findings if item.parameter == name] == ([kind] if kind else [])


RIGHT_SAMPLING = """
def sampling_arguments(params):
    names = {"max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens", "seed": "sampling_seed",
             "include_stop_str_in_output": "no_stop_trim"}
    if params.get("bad_words"):
        raise ValueError("SGLang has no bad_words")
    out = {names.get(name, name): value for name, value in params.items() if name != "bad_words"}
    out["top_k"] = out.get("top_k") or -1
    return out
"""


@pytest.mark.by_day(6)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "parameter"),
    [
        ('out["temperature"] = max(params["temperature"], 0.01)', "temperature"),
        ('out["temperature"] = max(params["temperature"], 0.5)', "temperature"),
        ('out["temperature"] = min(params["temperature"], 1.0)', "temperature"),
        ('out["temperature"] = params["temperature"] or 1.0', "temperature"),
        ('out["top_p"] = min(params["top_p"], 0.9) if params["top_p"] != 0.5 and params["top_p"] != 1 else '
         'params["top_p"]', "top_p"),
        ('out["min_p"] = min(params["min_p"], 0.5)', "min_p"),
        ('out["repetition_penalty"] = max(params["repetition_penalty"], 1.0)', "repetition_penalty"),
        ('out["presence_penalty"] = max(params["presence_penalty"], 0)', "presence_penalty"),
        ('out["top_k"] = params["top_k"] if params["top_k"] != 0 else 50', "top_k"),
        ('out["top_k"] = params["top_k"] or 50 if params["top_k"] != 0 else -1', ""),
        ('out["max_new_tokens"] = max(params["max_tokens"], 16)', "max_tokens"),
        ('out["temperature"] = float(params["temperature"])', ""),
    ],
)  # fmt: skip
def test_the_ends_and_the_special_values_of_a_setting_are_tried(line: str, parameter: str, checked) -> None:
    found = checked(RIGHT_SAMPLING.replace("    return out\n", f"    {line}\n    return out\n"))
    assert list(kinds(found)) == ([parameter] if parameter else []), found.findings


@pytest.mark.by_day(7)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "parameter"),
    [
        ('out["max_new_tokens"] = min(params["max_tokens"], 4096)', "max_tokens"),
        ('out["max_new_tokens"] = params["max_tokens"] // 16 * 16 or 1', "max_tokens"),
        ('out["temperature"] = round(params["temperature"], 1)', "temperature"),
        ('out["top_p"] = params["top_p"] if params["top_p"] < 0.9 else 1.0', "top_p"),
        ('out["min_p"] = params["min_p"] if params["min_p"] > 0.05 else 0.0', "min_p"),
        ('out["top_k"] = min(params["top_k"], 100)', "top_k"),
        ('out["sampling_seed"] = params["seed"] % 65536', "request_seed"),
        ('out["repetition_penalty"] = round(params["repetition_penalty"], 1)', "repetition_penalty"),
        ('out["presence_penalty"] = round(params["presence_penalty"] * 2) / 2', "presence_penalty"),
        ('out["n"] = min(params["n"], 8)', "samples"),
        # Quiet: what leaves every value as it is.
        ('out["max_new_tokens"] = min(params["max_tokens"], params.get("max_model_len", 1 << 20))', ""),
        ('out["min_new_tokens"] = min(params["min_tokens"], params["max_tokens"])', ""),
        ('out["top_p"] = float(str(params["top_p"]))', ""),
        ('out["sampling_seed"] = params["seed"] & 0x7FFFFFFFFFFFFFFF', ""),
    ],
)  # fmt: skip
def test_ordinary_values_within_the_range_are_tried(line: str, parameter: str, checked) -> None:
    found = checked(RIGHT_SAMPLING.replace("    return out\n", f"    {line}\n    return out\n"))
    assert list(kinds(found)) == ([parameter] if parameter else []), found.findings


@pytest.mark.slow
def test_an_engines_length_and_seed_are_tried_within_their_range(checked) -> None:
    clamped = ENGINE_ALONE.replace('args.get("seed", 0)', 'args.get("seed", 0) % 65536')
    assert kinds(checked(clamped)) == {"seed": "altered"}


@pytest.mark.slow
def test_one_function_for_both_parts_may_give_the_engines_seed_alone(checked) -> None:
    """vLLM names an engine's and a request's seed alike, and a dictionary of both has one of them."""
    both = (
        "def f(p):\n"
        '    return {"model_path": p["model"], "dtype": p["dtype"], "tp_size": p["tensor_parallel_size"],\n'
        '            "random_seed": p["seed"], "temperature": p["temperature"], "top_p": p["top_p"],\n'
        '            "max_new_tokens": p["max_tokens"]}\n'
    )
    found = checked(both)
    assert set(found.functions) == {"engine", "sampling"}
    assert "seed" in found.arrived["engine"] and "request_seed" not in kinds(found)
    assert any("request" in note and "seed" in note for note in found.notes)
    assert kinds(checked(both.replace("random_seed", "seeds")))["request_seed"] == "renamed"


BOTH = "def sglang_engine(asked, ours): return dict(ours{})\ndef sglang_sampling(asked, ours): return dict(ours{})\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "sampling", "wrong"),
    [
        ("", "", {}),
        (", mem_fraction_static=0.5", ", min_p=0.0", {"memory_fraction": "dropped", "min_p": "dropped"}),
        (", random_seed=7", "", {"seed": "dropped"}),
        ("", ", max_new_tokens=asked['max_tokens'] - 1", {"max_tokens": "shifted"}),
    ],
)
def test_functions_of_canonical_parameters_are_judged_by_the_part_in_their_name(
    engine: str, sampling: str, wrong: dict[str, str], checked
) -> None:
    found = checked(BOTH.format(engine, sampling))
    assert found.functions == {"engine": "sglang_engine", "sampling": "sglang_sampling"}
    assert kinds(found) == wrong


@pytest.mark.slow
def test_the_source_engines_names_are_no_canonical_ones(checked) -> None:
    text = "asked.get('enable_prefix_caching', False)"
    found = checked(BOTH.format(f", disable_radix_cache=not {text}", ""))
    assert kinds(found) == {"prefix_caching": "dropped"}
    assert any("enable_prefix_caching (here prefix_caching)" in note for note in found.notes)
    assert not any("looks up" in note for note in checked(BOTH.format(", dtype=asked['dtype']", "")).notes)


@pytest.mark.slow
def test_a_function_that_hands_the_other_parts_settings_on_does_not_map_them(checked) -> None:
    found = checked(RIGHT_SAMPLING)
    assert (set(found.functions), found.findings) == ({"sampling"}, ())
    renames_nothing = checked("def to_sglang(args):\n    return dict(args)\n")
    assert kinds(renames_nothing)["max_num_seqs"] == "renamed"


@pytest.mark.slow
def test_a_special_value_is_reported_with_its_meaning_and_source(checked) -> None:
    line = 'out["temperature"] = max(params["temperature"], 0.01)'
    [item] = checked(RIGHT_SAMPLING.replace("    return out\n", f"    {line}\n    return out\n")).findings
    assert (item.kind, item.asked, item.gets) == ("altered", 0.0, {"temperature": 0.01})
    assert "greedy" in item.text and "sampling_params.py" in item.text and "temperature=0" in item.fix


@pytest.mark.slow
def test_an_engines_seed_of_zero_is_tried(checked) -> None:
    found = checked(ENGINE_ALONE.replace('args.get("seed", 0)', 'args.get("seed") or 42'))
    assert kinds(found) == {"seed": "altered"}


@pytest.mark.slow
def test_a_special_value_that_is_refused_aloud_is_a_note(checked) -> None:
    line = 'if params["temperature"] == 0: raise ValueError("no greedy")'
    found = checked(RIGHT_SAMPLING.replace("    return out\n", f"    {line}\n    return out\n"))
    assert not found.findings and any("temperature=0" in note and "no greedy" in note for note in found.notes)


NAMES_OF_A_FUNCTION = """
NAMES = {"model": "model_path", "tokenizer": "tokenizer_path", "dtype": "dtype", "seed": "random_seed"}

def renamed(values):
    return {NAMES[name]: value for name, value in values.items() if name in NAMES}

def build(args):
    return {**renamed(vars(args)), "tp_size": args.tensor_parallel_size}
"""


@pytest.mark.slow
def test_a_function_is_judged_in_place_of_the_names_that_it_uses(checked) -> None:
    found = checked(NAMES_OF_A_FUNCTION)
    assert found.functions == {"engine": "build"}
    assert {"model", "tokenizer", "dtype", "seed", "tensor_parallel_size"} <= {*found.arrived["engine"]}
    alone = checked(NAMES_OF_A_FUNCTION, functions=("NAMES",))
    assert alone.functions == {"engine": "NAMES"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "way", ["vars(args)", "args.__dict__", "dict(args)", "{**vars(args)}", "dict(vars(args).items())"]
)
def test_settings_can_be_read_from_an_object_in_each_way(way: str, checked) -> None:
    found = checked(
        f"def f(args):\n    given = {way}\n    return {{'dtype': given['dtype'], 'random_seed': given['seed']}}\n"
    )
    assert {"dtype", "seed"} <= {*found.arrived["engine"]}


@pytest.mark.by_day(5)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("word", "value"),
    [("False", False), ("false", False), ("None", None), ("1", 1), ("sglang", "sglang"), ("'x'", "x"), ("[1]", [1]),
     ("(1, 2)", [1, 2]), ("a=b", "a=b")],
)  # fmt: skip
def test_a_word_of_with_is_the_value_that_it_spells_in_python_or_json(
    word: str, value: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "users.py"
    kind = type(value).__name__ if value is not None else "type(None)"
    checks = f"    assert args['x'] == {value!r} and type(args['x']) is {kind}\n"
    file.write_text(f"def f(args):\n{checks}    return {{'dtype': args['dtype']}}\n")
    cli.main(["mapping", str(file), "--engine", "sglang", "--with", f"x={word}", "--format", "json"])
    assert json.loads(capsys.readouterr().out)["arrived"] == {"engine": ["dtype"]}


@pytest.mark.slow
@pytest.mark.parametrize(("share", "copied"), [("", True), (" - 0.05", False)])
def test_an_equal_number_of_another_meaning_is_told(share: str, copied: bool, checked) -> None:
    judged = checked(TO_SGLANG.replace('["gpu_memory_utilization"] - 0.05', f'["gpu_memory_utilization"]{share}'))
    told = [line for line in judged.differs if "gpu_memory_utilization" in line and "mem_fraction_static" in line]
    assert bool(told) is copied and "gpu_memory_utilization" in judged.arrived["engine"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "more", "idle"),
    [
        ('def f(args):\n    return {"dtype": args["dtype"]}\n', {"x": 1}, ["x"]),
        ('def f(args):\n    return {"dtype": args["dtype"], "y": args["x"]}\n', {"x": 1, "z": 2}, ["z"]),
        ('def f(dtype, seed, x=1):\n    return {"dtype": dtype, "y": x}\n', {"x": 1}, ["x"]),  # its own default
        ('def f(dtype, seed, x=1):\n    return {"dtype": dtype, "y": x}\n', {"x": 2, "seed": 7}, ["seed"]),
        ('def f(args, *, x):\n    return {"dtype": args["dtype"], "y": x}\n', {"x": 2}, []),
        ('def f(args, x):\n    return {"dtype": args["dtype"]}\n', {"x": 2}, []),  # it cannot be called without
    ],
)
def test_a_word_of_with_that_changes_nothing_is_told(
    source: str, more: dict[str, int], idle: list[str], checked
) -> None:
    judged = checked(source, more=tuple(more.items()))
    assert "dtype" in judged.arrived["engine"]
    assert [note.split("=")[0].split()[-1] for note in judged.notes if "changes nothing" in note] == idle


@pytest.mark.slow
@pytest.mark.parametrize(
    "source",
    [
        'def f(args, role):\n    return {"dtype": args["dtype"]}\n',
        'def f(seed, dtype, role):\n    return {"dtype": dtype, "random_seed": seed}\n',
        'def f(dtype, *, role):\n    return {"dtype": dtype}\n',
    ],
)
def test_a_parameter_beside_the_settings_is_to_be_given(source: str, checked) -> None:
    with pytest.raises(BadInput, match="role") as refused:
        checked(source)
    assert refused.value.fix == "--with role=VALUE"
    assert "dtype" in checked(source, more=(("role", "actor"),)).arrived["engine"]


DTYPES = {"dtype": ("auto", "bfloat16", "float", "float16", "float32", "half")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "findings"),
    [
        ('asked["dtype"]', set()),
        ('{"half": "float16", "float": "float32"}.get(asked["dtype"], asked["dtype"])', set()),
        ('asked["dtype"].replace("float16", "float32") if asked["dtype"] == "float16" else asked["dtype"]',
         {("dtype", "altered")}),
        ('{"half": "bfloat16"}.get(asked["dtype"], asked["dtype"])', {("dtype", "altered")}),
        ('{"auto": "float16"}.get(asked["dtype"], asked["dtype"])', set()),  # each engine chooses in its own way
    ],
)  # fmt: skip
def test_a_setting_that_is_a_word_is_tried_at_every_word(source: str, findings: set, tmp_path: Path) -> None:
    file = tmp_path / "users.py"
    file.write_text(f"def engine_params(asked):\n    return {{'model_path': asked['model'], 'dtype': {source}}}\n")
    listed = Accepted(choices=DTYPES)

    def wrong(takes: Takes) -> set:
        judged = check(Asked(str(file), "sglang", "vllm"), takes)
        return {(item.setting, item.kind) for item in judged.findings if item.kind != "dropped"}

    assert wrong(Takes(listed, listed)) == findings
    assert not wrong(Takes(Accepted(), Accepted()))  # two words alone are tried where no list is known


def test_a_word_of_the_source_alone_is_not_tried(tmp_path: Path) -> None:
    file = tmp_path / "users.py"
    file.write_text(
        "def engine_params(asked):\n    kind = asked['kv_cache_dtype']\n"
        "    return {'model_path': asked['model'], 'kv_cache_dtype': 'fp8_e4m3' if kind.startswith('fp8') else kind}\n"
    )
    source = Accepted(choices={"kv_cache_dtype": ("auto", "fp8", "fp8_e4m3", "fp8_ds_mla")})
    target = Accepted(choices={"kv_cache_dtype": ("auto", "fp8_e4m3")})
    judged = check(Asked(str(file), "sglang", "vllm"), Takes(source, target))
    assert not [item for item in judged.findings if item.kind != "dropped"]


def test_a_scenario_asks_for_no_second_name_of_a_data_type(tmp_path: Path) -> None:
    file = tmp_path / "users.py"
    file.write_text(
        "TYPES = {'float32': 'float32', 'bfloat16': 'bfloat16', 'float16': 'half'}\n"
        "def sglang_engine(asked, ours):\n    return dict(ours, dtype=TYPES.get(asked['dtype'], 'bfloat16'))\n"
    )
    listed = Accepted(choices=DTYPES)
    assert not check(Asked(str(file), "sglang", "vllm"), Takes(listed, listed)).findings
