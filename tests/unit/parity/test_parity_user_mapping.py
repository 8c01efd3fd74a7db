"""`--mapping FILE.py`: refused before anything starts, with what is wrong, and never executed by the controller."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from recordings import pair, put

from harness.errors import BadInput
from harness.parity.runs import user_mapping
from scenarios.engines.mapping import ParameterMap


def test_a_mapping_is_taken_with_its_text(tmp_path: Path) -> None:
    file = tmp_path / "users.py"
    file.write_text("raise SystemExit\ndef sglang_engine(asked, ours): return ours\n")  # not executed here
    spec = user_mapping.load(str(file), "sglang")
    assert spec == {"file": str(file), "source": file.read_text()}
    assert user_mapping.defines(spec, "sglang_engine") and not user_mapping.defines(spec, "sglang_sampling")
    assert not user_mapping.defines({}, "sglang_engine")


@pytest.mark.parametrize("how", ["a, o, *rest", "a, o, extra=1", "*both", "asked, /, ours"])
def test_whatever_can_be_called_with_two_is_taken(tmp_path: Path, how: str) -> None:
    file = tmp_path / "users.py"
    file.write_text(f"def vllm_sampling({how}): return {{}}\n")
    assert user_mapping.load(str(file), "vllm")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "does not exist"),
        (b"\xff\xfe", "cannot be read"),
        (b"def sglang_engine(asked, ours)\n    return ours\n", "users.py:1 is not Python"),
        (b"x = 1\n", "defines no function of a mapping; for sglang it must define sglang_engine or sglang_sampling"),
        (b"def vllm_engine(asked, ours): return ours\n", "defines only vllm_engine; for sglang"),
        (b"def sglang_engine(asked): return asked\n", "users.py:1: sglang_engine takes 1 arguments"),
        (b"def sglang_engine(a, b, c): return a\n", "takes 3 arguments"),
    ],
)
def test_what_is_no_mapping_is_refused_with_one_sentence(tmp_path: Path, text: bytes | None, words: str) -> None:
    file = tmp_path / "users.py"
    if text is not None:
        file.write_bytes(text)
    with pytest.raises(BadInput, match=words) as refused:
        user_mapping.load(str(file), "sglang")
    assert "\n" not in str(refused.value)


ENGINE_PARAMS = """
def engine_params(*args, **kwargs):
    return {"model_path": args[0], "dtype": kwargs.get("dtype", "auto"), "tp_size": kwargs.get("tensor_parallel_size")}
"""
SAMPLING = "def sglang_sampling(asked, ours): return dict(ours)\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "uncalled"),
    [
        (ENGINE_PARAMS + SAMPLING, [("engine_params", ["sglang_engine"])]),
        (ENGINE_PARAMS + SAMPLING + "def sglang_engine(a, o): return engine_params(a['model'], **a)\n", []),
        (ENGINE_PARAMS + SAMPLING + "HOW = {'e': engine_params}\ndef sglang_engine(a, o): return HOW['e']('')\n", []),
        (ENGINE_PARAMS + SAMPLING + "sglang_engine = engine_params\n", []),
        (SAMPLING + "def logged(text): print(text)\n", []),
        ("import absent_package\n" + ENGINE_PARAMS + SAMPLING,
         [("engine_params", ["sglang_engine", "sglang_sampling"])]),
        (SAMPLING + "TABLE = {'max_model_len': 'context_length', 'seed': 'random_seed', 'enforce_eager': 'x'}\n",
         [("TABLE", ["sglang_engine"])]),
    ],
)  # fmt: skip
def test_functions_that_map_and_are_not_called_are_listed(
    tmp_path: Path, text: str, uncalled: list[tuple[str, list[str]]]
) -> None:
    file = tmp_path / "users.py"
    file.write_text(text)
    spec = user_mapping.load(str(file), "sglang")
    assert [(function["name"], function["called_as"]) for function in spec.get("uncalled", [])] == uncalled
    assert ParameterMap.of(spec).file == str(file)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "proposed"),
    [
        (ENGINE_PARAMS, ["sglang_engine"]),
        ("def to(p): return dict(max_new_tokens=p.max_tokens, top_p=p.top_p, top_k=p.top_k)\n", ["sglang_sampling"]),
        ("x = 1\n", ["sglang_engine", "sglang_sampling"]),
    ],
)
def test_a_refusal_proposes_the_function_that_the_file_has_the_makings_of(
    tmp_path: Path, text: str, proposed: list[str]
) -> None:
    file = tmp_path / "users.py"
    file.write_text(text)
    with pytest.raises(BadInput) as refused:
        user_mapping.load(str(file), "sglang")
    assert re.findall(r"def (\w+)\(", refused.value.fix or "") == proposed


@pytest.mark.parametrize("side", ["baseline", "candidate"])
@pytest.mark.slow
def test_a_pass_with_a_function_that_was_not_called_is_reserved(tmp_path: Path, side: str) -> None:
    runs = dict(zip(("baseline", "candidate"), pair(), strict=True))
    uncalled = [{"name": "engine_params", "called_as": ["sglang_engine"], "unclear": ""}, "damaged"]
    runs[side].manifest["mapping"] = {"file": "/u/users.py", "source": SAMPLING, "uncalled": uncalled}
    verdict = put(tmp_path, **runs)
    assert (verdict.verdict, verdict.strict.exit_code) == ("EQUIVALENT", 3)
    assert {reserved.kind: reserved.items for reserved in verdict.reservations}["mapping"] == ["engine_params"]
    findings = [(finding.where, finding.details) for finding in verdict.findings if finding.about == "mapping"]
    assert findings == [(side, {"file": "/u/users.py", "function": "engine_params", "called_as": ["sglang_engine"]})]
