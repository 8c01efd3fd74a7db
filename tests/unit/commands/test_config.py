"""Scenario files and overrides: everything unknown or out of range is refused with the key's name."""

from __future__ import annotations

import json
import shlex

import pytest

from harness import config, model_shape
from harness.errors import BadInput
from scenarios.settings import Scenario


@pytest.fixture
def toml(tmp_path):
    def write(text: str) -> str:
        path = tmp_path / "mine.toml"
        path.write_text(text)
        return str(path)

    return write


def test_the_resolved_scenario_survives_json(toml) -> None:
    scenario = config.load(
        toml("steps = 3\n[sampling]\nstop_token_ids = [1, 2]\n"), ["sampling.temperature=0.9"], seed=7
    )
    assert (scenario.steps, scenario.seed, scenario.sampling.temperature) == (3, 7, 0.9)
    assert Scenario.from_json(json.loads(json.dumps(scenario.to_json()))) == scenario


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "overrides", "words"),
    [
        ("[sampling]\ntemprature = 1.0\n", [], ["sampling.temprature", "temperature"]),
        ("stepz = 3\n", [], ["stepz", "steps"]),
        ("[nonsense]\na = 1\n", [], ["nonsense"]),
        ("steps = 'many'\n", [], ["steps", "many"]),
        ("steps = 0\n", [], ["steps", "at least 1"]),
        ("", ["sampling.top_p=1.5"], ["sampling.top_p", "1.5"]),
        ("", ["sampling.top_k=0"], ["top_k", "-1"]),
        ("", ["sampling.temperature"], ["section.key=value"]),
        ("", ["ppo.train_batch_size=7"], ["multiple", "ppo.train_batch_size"]),
        ("", ["rollout.mode=copled"], ["rollout.mode", "copled"]),
        ("not toml at all", [], ["not TOML"]),
        ("a = " + "[" * 5000, [], ["not TOML"]),
        ("", ["ppo.actor_lr=-1"], ["ppo.actor_lr = -1.0", "above 0"]),
        ("", ["ppo.critic_lr=0"], ["ppo.critic_lr", "above 0"]),
        ("", ["ppo.clip=0"], ["ppo.clip", "above 0"]),
        ("", ["ppo.gamma=1.1"], ["ppo.gamma", "between 0 and 1"]),
        ("", ["ppo.gae_lambda=-0.1"], ["ppo.gae_lambda", "between 0 and 1"]),
        ("", ["ppo.checkpoint_every=-1"], ["ppo.checkpoint_every", "at least 0"]),
        ("", ["sampling.repetition_penalty=0"], ["sampling.repetition_penalty", "above 0"]),
        ("", ["sampling.stop_token_ids=[2, -1]"], ["sampling.stop_token_ids", "at least 0"]),
        ("", ["engine.seed=4294967296"], ["engine.seed", "between 0 and 4294967295"]),
        ("seed = -1\n", [], ["seed = -1"]),
        ("seed = true\n", [], ["seed = true", "not a number"]),
        ("", ["ppo.clip=true"], ["ppo.clip = true", "not a number"]),
        ("name = '../x'\n", [], ["name = '../x'"]),
        ("name = ''\n", [], ["name = ''"]),
    ],
)
def test_bad_settings_are_refused_by_name(toml, text, overrides, words) -> None:
    with pytest.raises(BadInput) as caught:
        config.load(toml(text), overrides)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "options", "fix"),
    [
        (["top_p=0.9"], {}, "--set sampling.top_p=0.9"),
        (["top_p=1"], {}, "--set sampling.top_p=1"),
        (["sampling.top_q=many"], {}, "--set sampling.top_p=1.0"),
        (["rollout.mod=native"], {}, "--set rollout.mode=native"),
        (["seed=-1"], {}, "--set seed=0"),
        ([], {"steps": -1}, "--steps 1"),
        ([], {"seed": -1}, "--seed 0"),
    ],
)
def test_a_fix_is_the_option_that_was_typed_corrected(overrides, options, fix) -> None:
    with pytest.raises(BadInput) as refused:
        config.load("ppo-tiny", overrides, **options)
    assert refused.value.fix == fix


@pytest.mark.parametrize("command_line", [["sampling.max_tokens=100000"], ["engine.max_model_len=3"]])
def test_the_fix_of_a_short_context_is_not_refused_in_turn(command_line) -> None:
    """Once the fix asked for a context that the model does not have, whose fix was refused with the first again."""
    with pytest.raises(BadInput) as refused:
        config.load("ppo-tiny", command_line)
    scenario = config.load("ppo-tiny", [*command_line, *shlex.split(refused.value.fix.replace("--set", ""))])
    assert scenario.engine.max_model_len <= model_shape.longest(scenario.model.path)


def test_unknown_and_missing_scenarios_say_what_there_is(tmp_path) -> None:
    with pytest.raises(BadInput, match="no scenario"):
        config.load("nope")
    with pytest.raises(BadInput, match="does not exist"):
        config.load(str(tmp_path / "nope.toml"))


def test_a_changed_side_keeps_the_rest(toml) -> None:
    base = config.load(toml("steps = 3\n"))
    other = config.changed(base, ["engine.seed=9"])
    assert other.engine.seed == 9 and config.changed(other, ["engine.seed=0"]) == base


@pytest.mark.parametrize(
    ("text", "wrong"), [("[sampling]\ntemprature = 1.0\n", "temprature = 1.0"), ("stepz = 3\n", "stepz = 3")]
)
def test_the_fix_of_a_wrong_key_in_a_file_is_its_line(toml, text: str, wrong: str) -> None:
    """`--set` would leave the wrong key where it is."""
    with pytest.raises(BadInput) as refused:
        config.load(toml(text))
    line = str(refused.value.fix).partition("   #")[0]
    config.load(toml(text.replace(wrong, line)))
