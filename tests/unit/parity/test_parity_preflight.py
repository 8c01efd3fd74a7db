"""What is refused before anything starts, and what is not."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from harness import cli, config, envs
from harness.errors import BadInput
from harness.parity.runs import preflight as preflights
from harness.parity.runs import run
from harness.parity.runs.preflight import (
    PROCESS_BYTES,
    check_device,
    check_machine,
    check_resume,
    environment_for,
    preflight,
)
from harness.parity.runs.run_options import RunOptions
from scenarios import memory_fit
from scenarios.settings import Engine, Model, Prompts, Scenario

MANIFEST = {"format": 1, "step": 3, "version": 4, "scenario": {}, "files": {}}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    from huggingface_hub import constants

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gpt2", "'gpt2': no such directory; a model of the Hugging Face cache is named OWNER/NAME"),
        ("./nowhere", "no such directory"),
        ("builtin:big", "there is 'builtin:tiny'"),
        ("empty", "holds no config.json"),
        ("file", "this is a file"),
        ("owner/absent", "nor a downloaded model"),
        ("owner/not a name", "nor a downloaded model"),
    ],
)
def test_a_model_that_cannot_be_is_refused(name: str, words: str, cache: Path) -> None:
    Path("empty").mkdir()
    Path("file").touch()
    with pytest.raises(BadInput, match=r"model\.path") as caught:
        preflight(Scenario(model=Model(path=name)), "hf")
    assert words in caught.value.message
    reward = Scenario(model=Model(reward=name))
    with pytest.raises(BadInput, match=r"model\.reward"):
        preflight(reward, "hf")
    preflight(dataclasses.replace(reward, train=False), "hf")  # nothing is rewarded in a rollout-only run


def test_a_model_directory_and_a_downloaded_model_are_welcome(cache: Path) -> None:
    Path("mine").mkdir()
    (Path("mine") / "config.json").write_text("{}")
    preflight(Scenario(model=Model(path="mine")), "hf")
    snapshot = cache / "models--owner--name" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (cache / "models--owner--name" / "refs").mkdir()
    (cache / "models--owner--name" / "refs" / "main").write_text("abc")
    preflight(Scenario(model=Model(path="owner/name")), "hf")


def test_a_missing_model_and_missing_prompts_are_named_together(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The fix takes a path of a similar name, else what is built in."""
    words = ["parity", "hf", "hf", "--model", "nosuch", "--prompts", "nosuch.jsonl"]
    assert cli.main(words) == 2
    model, prompts, fix = capsys.readouterr().err.splitlines()
    assert "model.path" in model and "prompts.path" in prompts
    assert "harness parity hf hf --model builtin:tiny --prompts builtin:tiny" in fix
    Path("nosuchs").mkdir()
    Path("nosuchs", "config.json").touch()
    Path("nosuhc.jsonl").touch()
    assert cli.main(words) == 2
    assert "harness parity hf hf --model nosuchs --prompts nosuhc.jsonl" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"engine": Engine(engines=9)}, "engine.engines = 9: all samples of a prompt go to one engine"),
        ({"engine": Engine(tensor_parallel=2)}, "tensor_parallel = 2: .* computes in one process"),
    ],
)
def test_parameters_without_an_image_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        preflight(Scenario(**settings), "hf")


@pytest.mark.parametrize(
    ("rows", "chat", "words"),
    [
        (["a", 3], False, r"p\.jsonl:2: column 'prompt' holds a number, text was expected"),
        (["a"], True, "holds text, chat messages were expected"),
        ([], False, "holds no prompt"),
    ],
)
def test_prompts_of_the_wrong_kind_are_refused(rows: list[Any], chat: bool, words: str, tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text("".join(json.dumps({"prompt": row}) + "\n" for row in rows))
    with pytest.raises(BadInput, match=words):
        preflight(Scenario(prompts=Prompts(path=str(file), chat=chat)), "hf")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("garbage", "cannot be read"),
        ("\udcff", "cannot be read"),
        ("[]", "no 'format'"),
        (json.dumps(MANIFEST | {"version": "4"}), "no 'version'"),
    ],
)
def test_a_broken_manifest_is_refused(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(BadInput, match=words):
        check_resume(str(tmp_path), Scenario())


def test_a_checkpoint_after_which_nothing_is_left_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"no manifest\.json"):
        check_resume(str(tmp_path), Scenario())
    (tmp_path / "manifest.json").write_text(json.dumps(MANIFEST))
    check_resume(str(tmp_path), Scenario(steps=5))
    for steps in (3, 4):
        with pytest.raises(BadInput, match=r"after 4 steps.* nothing is left") as caught:
            check_resume(str(tmp_path), Scenario(steps=steps))
        assert str(caught.value.fix).startswith("--steps ")


def test_a_run_with_a_mapping_of_the_users_is_not_held_to_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our mapping to SGLang cannot express both parameters; what a user's makes of them is found by the comparison."""
    mapping = tmp_path / "mapping.py"
    mapping.write_text("def sglang_sampling(asked, ours):\n    return {}\n")
    refused = RunOptions(overrides=["sampling.ignore_eos=true", "sampling.stop_token_ids=[5]"])
    monkeypatch.setattr(run, "recording_in", mock.Mock(side_effect=KeyError("past the preflight")))
    with pytest.raises(BadInput, match="ignore_eos disables"):
        run.run_scenario("ppo-tiny", refused, backend="sglang")
    with pytest.raises(KeyError, match="past the preflight"):
        run.run_scenario("ppo-tiny", refused, backend="sglang", mapping=str(mapping))


def test_more_ranks_than_cores_are_refused_before_anything_starts_here_and_on_a_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cores = len(os.sched_getaffinity(0))
    scenario, environment = Scenario(engine=Engine(tensor_parallel=cores + 1)), envs.resolve("hf")
    with pytest.raises(BadInput, match=f"needs a core of its own, and this process may use {cores}") as refused:
        environment_for("hf", scenario)
    assert refused.value.fix == f"--set engine.tensor_parallel={cores}"
    assert environment_for("hf", Scenario(engine=Engine(tensor_parallel=cores))) == environment
    assert environment_for("hf", scenario, "10.0.0.1:6379") == environment
    monkeypatch.setattr(envs, "resolve", lambda backend: dataclasses.replace(environment, device="cuda"))
    assert environment_for("hf", scenario).device == "cuda"


def ranks(learner: int, **engine: int) -> Scenario:
    ppo = (f"world_size={learner}", "micro_batch_size=1", f"train_batch_size={2 * learner}")
    settings = [f"ppo.{one}" for one in ppo] + [f"engine.{name}={value}" for name, value in engine.items()]
    return config.load("ppo-tiny", [*settings, f"rollout.prompts_per_step={2 * learner}"])


def test_more_ranks_of_the_learner_than_fit_into_memory_are_refused(
    monkeypatch: pytest.MonkeyPatch, _fixes: Any
) -> None:
    said: list[str] = []
    monkeypatch.setattr(memory_fit, "free", lambda: 48 * PROCESS_BYTES + 1)
    with pytest.raises(BadInput, match="256 processes") as refused:
        check_machine([ranks(64)], None, said.append)
    assert str(refused.value.fix).startswith("--set ppo.world_size=8 ")  # 12 fit, and 128 samples are no multiple of 12
    _fixes.made.clear()  # it is for a command with this scenario's batch, which the recorder does not know
    check_machine([ranks(64)], "10.0.0.1:6379", said.append)
    check_machine([ranks(12), dataclasses.replace(ranks(48), train=False)], None, said.append)
    monkeypatch.setattr(memory_fit, "free", lambda: None)
    check_machine([ranks(64)], None, lambda line: None)


def test_ranks_that_take_turns_at_the_cores_are_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(memory_fit, "free", lambda: 2**40)
    check_machine([ranks(2), ranks(1, engines=2)], None, said.append)
    assert said == []
    check_machine([ranks(2, engines=2, tensor_parallel=2), ranks(3)], None, said.append)
    assert said == [
        "the 4 ranks of the engines (engine.engines x engine.tensor_parallel) take turns at 2 cores; "
        "the 3 ranks of the learner (ppo.world_size) take turns at 2 cores: steps take longer"
    ]
    check_machine([ranks(3)], "10.0.0.1:6379", said.append)
    assert len(said) == 1


@pytest.mark.parametrize("option", ["overrides", "candidate_overrides"])
def test_the_fix_of_a_setting_names_the_option_that_set_it(option: str) -> None:
    with pytest.raises(BadInput) as caught:
        run.run_parity("hf", "hf", **{option: ["engine.engines=0"]})
    said = "--set engine.engines=1" if option == "overrides" else "--candidate-set engine.engines=1"
    assert caught.value.fix == said
    assert "override" not in caught.value.message


def test_the_fix_of_a_candidate_s_model_names_the_option_that_set_it() -> None:
    with pytest.raises(BadInput) as refused:
        run.run_parity("hf", "hf", candidate_overrides=["model.path=/nope"])
    assert str(refused.value.fix).startswith("--candidate-set model.path=builtin:tiny ")


@pytest.mark.parametrize(
    ("override", "fix"),
    [
        ("top_p=0.9", "--candidate-set sampling.top_p=0.9"),
        ("sampling.top_p", "--candidate-set sampling.top_p=0.5"),
        ("sampling.top_q=0.9", "--candidate-set sampling.top_p=0.9"),
        ("sampling.top_p=7", "--candidate-set sampling.top_p=1"),
    ],
)
def test_the_fix_of_a_candidate_s_setting_can_be_typed(override: str, fix: str) -> None:
    with pytest.raises(BadInput) as refused:
        run.run_parity("hf", "hf", candidate_overrides=[override])
    assert refused.value.fix == fix
    config.changed(Scenario(), [fix.removeprefix("--candidate-set ")])


def test_a_setting_that_is_like_no_other_is_refused_with_the_form_of_one() -> None:
    with pytest.raises(BadInput) as refused:
        run.run_parity("hf", "hf", candidate_overrides=["nonsense=7"])
    assert refused.value.fix == "--candidate-set SECTION.KEY=VALUE   # with one of these keys"


def test_a_router_is_refused_on_a_cluster_of_hosts() -> None:
    routed = Scenario(engine=Engine(engines=2, router="round_robin"))
    check_machine([routed], None, lambda _: None)
    with pytest.raises(BadInput, match="listen on one host only"):
        check_machine(iter([Scenario(), routed]), "10.0.0.1:6379", lambda _: None)


def test_cuda_is_refused_where_there_is_no_gpu_and_not_on_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflights, "nvidia_gpu", lambda: False)
    with pytest.raises(BadInput) as refused:
        check_device("cuda", None)
    assert refused.value.fix == "--device cpu"
    check_device("cuda", "10.0.0.1:6379")
    check_device("auto", None)
    monkeypatch.setattr(preflights, "nvidia_gpu", lambda: True)
    check_device("cuda", None)
