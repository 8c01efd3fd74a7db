"""What an engine of an environment cannot start with is refused before anything starts, on both sides; the rest is
let through."""

from __future__ import annotations

import dataclasses
import json
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from harness import config, envs
from harness.envs import stored_arguments as kept
from harness.envs.environment import Environment
from harness.errors import BadInput, mistakes_of
from harness.model_shape import Shape
from harness.parity.runs import fits, run
from harness.parity.runs.fits import check_fit
from harness.parity.runs.run_options import ParityOptions
from probes.plugins import Plugin
from scenarios import tiny
from scenarios.engines import registry
from scenarios.engines.accepted import FILE, Accepted
from scenarios.engines.canonical_request import engine_asked
from scenarios.engines.native_arguments import sampling_arguments
from scenarios.engines.spec import EngineSpec
from scenarios.settings import Engine, Model, Sampling, Scenario

SCENARIO = Scenario()
SIZES = (32, 64, 128)


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    """One of SGLang, whose list of arguments is kept. Its interpreter is ours: nothing of SGLang is imported."""
    monkeypatch.setenv("HARNESS_HOME", str(tmp_path / "home"))
    made = Environment(
        name="sglang", engine="sglang", version="0.5.23", python=sys.executable, python_version="3.11", ray="2",
        torch="2", device="cpu", owned=False,
    )  # fmt: skip
    keep(made, Accepted((*ours(made), "tokenizer_path"), tuple(sampling_arguments("sglang", SCENARIO.sampling)), SIZES))
    return made


def ours(environment: Environment) -> dict[str, Any]:
    spec = registry.get(environment.engine)
    asked = engine_asked("model", "float32", Engine(), device="cpu")
    assert spec.maps is not None
    return {**spec.machine(asked), **spec.maps(asked, 256)}


def keep(environment: Environment, accepts: Accepted) -> None:
    environment.folder.mkdir(parents=True, exist_ok=True)
    data = {"version": environment.version, **dataclasses.asdict(accepts)}
    (environment.folder / FILE).write_text(json.dumps(data))


def checked(environment: Environment, source: str = "", scenario: Scenario = SCENARIO) -> None:
    mapping = {"file": "/mine.py", "source": source} if source else {}
    check_fit(environment, scenario, mapping, lambda line: None)


def model(tmp_path: Path, **config: Any) -> Scenario:
    (tmp_path / "config.json").write_text(json.dumps(config))
    return Scenario(model=Model(path=str(tmp_path)))


@pytest.mark.by_day(4)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "body", "words"),
    [
        (
            "engine",
            "return {**ours, 'mem_fraction_static': asked['memory_fracton']}",
            "line 2.*'memory_fracton'.*mean memory_fraction",
        ),
        ("engine", "return {**ours, 'tokenizer_pat': 'x'}", "'tokenizer_pat'.*did you mean tokenizer_path"),
        ("sampling", "return {**ours, 'max_tokens': 3}", "no sampling parameter .*'max_tokens'"),
        ("engine", "return 1 / 0", "line 2, raised ZeroDivisionError"),
        ("engine", "raise SystemExit(3)", "line 2, raised SystemExit: 3"),
        ("engine", "return None", "returned NoneType"),
        ("engine", "__import__('os')._exit(3)", "the mapping /mine.py ends the process .* with exit code 3"),
        ("engine", "__import__('os').kill(__import__('os').getpid(), 9)", "with signal 9"),
        ("engine", "return {**ours, 'random_seed': -5}", "sglang_engine gives random_seed=-5: a seed is"),
        ("engine", "return {**ours, 'random_seed': 2**32}", "random_seed=4294967296: a seed is"),
        ("sampling", "return {**ours, 'min_new_tokens': 2**63}", "min_new_tokens=9223372036854775808: a recording"),
        ("sampling", "return {**ours, 'top_k': 0}", "sglang_sampling gives top_k=0: top_k must be"),
        ("engine", "return {**ours, 'context_length': '130'}", "_engine gives context_length='130', a string where"),
        ("sampling", "return {**ours, 'temperature': 'hot'}", "temperature='hot', a string where SGLang takes a num"),
        ("sampling", "return {**ours, 'top_k': float('nan')}", "top_k=nan, a number that is not finite where"),
    ],
)  # fmt: skip
def test_what_a_mapping_cannot_have_is_refused(environment: Environment, part: str, body: str, words: str) -> None:
    with pytest.raises(BadInput, match=words) as refused:
        checked(environment, f"def sglang_{part}(asked, ours):\n    {body}\n")
    assert refused.value.fix and "\n" not in refused.value.message


@pytest.mark.slow
def test_a_value_outside_of_the_choices_of_the_engine_is_refused(environment: Environment) -> None:
    takes = kept.accepted(environment, ask=False)
    keep(environment, dataclasses.replace(takes, choices={"dtype": ("auto", "half", "float32", "bfloat16")}))
    checked(environment)
    checked(environment, "def sglang_engine(asked, ours):\n    return dict(ours, dtype='half')\n")
    with pytest.raises(BadInput, match=r"0.5.23 does not take dtype='float33'.*mean float32 or .*auto, half, float32"):
        checked(environment, "def sglang_engine(asked, ours):\n    return dict(ours, dtype='float33')\n")


@pytest.mark.slow
def test_a_defect_of_the_harness_is_not_called_a_fault_of_the_mapping(
    environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fits, "PROGRAM", "fits_defect")
    monkeypatch.setenv("PYTHONPATH", "")
    folder = environment.folder.parent
    (folder / "fits_defect.py").write_text(
        "from scenarios.engines import ahead\nahead.ahead = lambda *_: 1 / 0\nahead.main()\n"
    )
    monkeypatch.setattr(fits, "bundle", lambda plugins: f"{kept.bundle(plugins=plugins)}:{folder}")
    checked(environment, "def sglang_engine(asked, ours):\n    return ours\n")


@pytest.mark.slow
def test_all_mistakes_of_a_mapping_are_refused_together(environment: Environment) -> None:
    engine = "def sglang_engine(asked, ours):\n    return {**ours, 'random_seed': -5, 'no_such': 1}\n"
    with pytest.raises(BadInput) as refused:
        checked(environment, engine + "def sglang_sampling(asked, ours):\n    return {**ours, 'nor_this': 2}\n")
    mistakes = mistakes_of(refused.value)
    assert len(mistakes) == 3
    for name in ("random_seed", "no_such", "nor_this"):
        assert any(name in mistake.message for mistake in mistakes)


@pytest.mark.slow
def test_an_argument_that_the_embedded_engine_does_not_take_is_refused_with_the_rest() -> None:
    source = "def hf_engine(asked, ours):\n    return {**ours, 'seed': 2**63, 'max_num_seqs': 2**63, 'no_such': 1}\n"
    source += "def hf_sampling(asked, ours):\n    return {**ours, 'seed': 3}\n"
    with pytest.raises(BadInput) as refused:
        checked(envs.resolve("hf"), source)
    mistakes = mistakes_of(refused.value)
    assert len(mistakes) == 4 and all(str(mistake.fix).startswith("harness mapping ") for mistake in mistakes)
    checked(envs.resolve("hf"), "def hf_engine(asked, ours):\n    return dict(ours)\n")
    checked(envs.resolve("hf"))


@pytest.mark.slow
def test_the_mappings_of_both_sides_are_refused_together(tmp_path: Path) -> None:
    for name in ("mine", "other"):
        (tmp_path / f"{name}.py").write_text(f"def hf_engine(asked, ours):\n    return {{**ours, 'of_{name}': 1}}\n")
    options = ParityOptions(
        baseline_mapping=str(tmp_path / "mine.py"), mapping=str(tmp_path / "other.py"), out=tmp_path / "out"
    )
    for refuse in (run.check_parity, run.run_parity):
        with pytest.raises(BadInput) as refused:
            refuse("hf", "hf", options)
        assert ["of_mine" in mistake.message for mistake in mistakes_of(refused.value)] == [True, False]
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_sound_mapping_is_let_through(environment: Environment) -> None:
    checked(environment, "def sglang_engine(asked, ours):\n    return {**ours, 'tokenizer_path': asked['model']}\n")


def test_our_own_mapping_asks_nobody(environment: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fits.subprocess, "run", lambda *_, **__: pytest.fail("a process was started"))
    checked(environment)
    (environment.folder / FILE).unlink()
    checked(environment)


def test_an_argument_that_another_version_does_not_take_is_refused(environment: Environment) -> None:
    keep(environment, Accepted(tuple(name for name in ours(environment) if name != "random_seed")))
    with pytest.raises(BadInput, match=r"'random_seed'"):
        checked(environment)


def test_a_list_of_another_version_does_not_count(environment: Environment) -> None:
    keep(dataclasses.replace(environment, version="0.4.0"), Accepted(("nothing",)))
    checked(environment)


@pytest.mark.parametrize(
    ("config", "settings", "words"),
    [
        ({"max_position_embeddings": 64}, {}, "made for 64 tokens"),
        ({"n_positions": 64}, {}, "made for 64 tokens"),
        ({"text_config": {"max_position_embeddings": 64}}, {}, "made for 64 tokens"),
        ({"max_position_embeddings": 64, "rope_scaling": {"factor": 2.0}}, {}, ""),
        ({"max_position_embeddings": 128}, {}, ""),
        ({}, {}, ""),
        ({"num_attention_heads": 4, "hidden_size": 64}, {}, "computes with heads of 32, 64, 128.*have 16"),
        ({"num_attention_heads": 4, "hidden_size": 64, "head_dim": 64}, {}, ""),
        ({"num_attention_heads": 4, "hidden_size": 64, "kv_lora_rank": 8}, {}, ""),
        ({"num_attention_heads": 6, "hidden_size": 192}, {"tensor_parallel": 4}, "6 attention heads"),
        ({"num_attention_heads": 6, "hidden_size": 192}, {"tensor_parallel": 3}, ""),
    ],
)
def test_a_model_that_the_engine_cannot_have_is_refused(
    environment: Environment, tmp_path: Path, config: dict[str, Any], settings: dict[str, Any], words: str
) -> None:
    scenario = dataclasses.replace(model(tmp_path, **config), engine=Engine(**settings))
    if not words:
        checked(environment, scenario=scenario)
        return
    with pytest.raises(BadInput, match=words) as refused:
        checked(environment, scenario=scenario)
    assert str(refused.value.fix).startswith(("--set ", "--model "))


def test_the_built_in_model_is_known_without_being_made(environment: Environment) -> None:
    with pytest.raises(BadInput, match=f"made for {tiny.CONTEXT} tokens"):
        checked(environment, scenario=Scenario(engine=Engine(max_model_len=tiny.CONTEXT + 1)))
    assert Shape.read("builtin:tiny") == Shape(tiny.CONTEXT, 4, 32)


@pytest.mark.parametrize("engine", ["hf", "sglang", "vllm"])
def test_a_context_that_no_model_has_is_refused_for_each_engine_before_anything_starts(engine, environment) -> None:
    other = dataclasses.replace(environment, name=engine, engine=engine)
    long = Scenario(engine=Engine(max_model_len=1000), sampling=Sampling(max_tokens=400))
    with pytest.raises(BadInput, match="made for") as refused:
        checked(other, scenario=long)
    words = refused.value.fix.replace("--set", "").split()
    checked(other, scenario=config.changed(long, words))


def test_a_variable_lets_a_longer_context_through(environment: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    other = dataclasses.replace(environment, name="vllm", engine="vllm", version="0.32.0")
    longer = Scenario(engine=Engine(max_model_len=tiny.CONTEXT + 1))
    with pytest.raises(BadInput, match="made for"):
        checked(other, scenario=longer)
    monkeypatch.setenv("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "1")
    checked(other, scenario=longer)


@pytest.mark.slow
def test_an_environment_without_the_package_of_an_engine_is_refused(
    environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = EngineSpec(name="theirs", title="Theirs", factory="nowhere:Nothing")
    plugin = Plugin(EntryPoint("theirs", "nowhere:SPEC", registry.GROUP))
    monkeypatch.setattr(registry, "get", lambda name: spec)
    monkeypatch.setattr(registry, "home", lambda name: plugin)
    with pytest.raises(BadInput, match=r"cannot start theirs: .*is not installed there") as refused:
        checked(dataclasses.replace(environment, engine="theirs", name="theirs"))
    assert environment.python in str(refused.value.fix)


@pytest.mark.slow
def test_both_sides_are_looked_at_before_one_starts(
    environment: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "_record_pair", lambda *_, **__: pytest.fail("a run was started"))
    mine = tmp_path / "mine.py"
    mine.write_text("def hf_engine(asked, ours):\n    return {**ours, 'seed': asked['sed']}\n")
    for side in ("mapping", "baseline_mapping"):
        with pytest.raises(BadInput, match=r"asks for 'sed'.*did you mean seed"):
            run.run_parity("hf", "hf", ParityOptions(**{side: str(mine)}))  # type: ignore[arg-type]
        with pytest.raises(BadInput, match="asks for 'sed'"):
            run.check_parity("hf", "hf", ParityOptions(**{side: str(mine)}))  # type: ignore[arg-type]
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_an_engine_is_asked_once(environment: Environment) -> None:
    (environment.folder / FILE).unlink()
    told: list[str] = []
    found = kept.accepted(environment, ask=True, say=told.append)  # SGLang is not installed here: it does not say
    assert found == Accepted() and len(told) == 1
    keep(environment, Accepted(("a",)))
    assert kept.accepted(environment, ask=True, say=told.append) == Accepted(("a",)) and len(told) == 1
