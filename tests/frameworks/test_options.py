"""What `harness doctor` reads of a framework's options in its source, against what the framework makes of them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from framework_jobs import interpreter

from harness.doctor.frameworks import flags
from harness.doctor.frameworks.arguments import options
from harness.doctor.frameworks.parameters import parsed
from harness.doctor.frameworks.plan import read
from harness.doctor.frameworks.trl_options import taken
from harness.doctor.outcome import Problem
from harness.frameworks.detection import detect
from harness.frameworks.installed import ask
from probes.adapters import ADAPTERS

_PARSERS = """
import json
from accelerate.commands.launch import launch_command_parser
from trl.scripts.grpo import make_parser
found = {}
for parser in (launch_command_parser(), make_parser()):
    found |= {one[2:]: action.nargs for action in parser._actions for one in action.option_strings if one[:2] == "--"}
print(json.dumps(found))
"""
# The block of `train_ppo_ray.py` that makes its parser, without what it imports above it.
_BLOCK = """
import argparse, ast, json, sys
from datetime import datetime
text = open(sys.argv[1]).read()
tree = ast.parse(text)
lines = [line for one in tree.body if isinstance(one, ast.If) for line in one.body]
end = next(at for at, one in enumerate(lines) if "parse_args" in ast.unparse(one))
exec(compile(ast.Module(lines[:end], []), sys.argv[1], "exec"))
print(json.dumps({one[2:]: action.nargs for action in parser._actions for one in action.option_strings
                  if one[:2] == "--"}))
"""
# One process for all overrides: verl's package is imported to find its configuration, which takes half a minute.
_COMPOSED = """
import json, sys
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import OmegaConf
folder, name, *words = sys.argv[1:]
with initialize_config_dir(folder, version_base=None):
    whole = OmegaConf.to_container(compose(name), resolve=False)
    taken = {}
    for word in words:
        try:
            taken[word] = bool(compose(name, overrides=word.split()))
        except HydraException:
            taken[word] = False
print(json.dumps([whole, taken], default=str))
"""


def _said(python: str, code: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([python, "-c", code, *words], text=True, capture_output=True, check=False)


def test_the_options_of_trl_grpo_are_those_of_its_own_parser() -> None:
    python = interpreter("trl")
    done = _said(python, _PARSERS)
    assert done.returncode == 0, done.stderr[-2000:]
    real = {name.replace("-", "_"): nargs for name, nargs in json.loads(done.stdout.splitlines()[-1]).items()}
    command = [str(Path(python).with_name("trl")), "grpo", "--beta", "1"]
    job = detect(command)
    assert job.installed is not None
    found = taken(read(job, command, {}), job.installed)
    assert not found.unknown and set(found.names) - {"accelerate_config"} == set(real) - {"config"}
    for name, nargs in real.items():
        read_as = found.names[name].values
        assert read_as in ("", "1" if nargs is None else str(nargs)), name  # empty: it was not told
    assert sum(one.values == "" for one in found.names.values()) < len(real) / 5


def test_the_options_of_openrlhf_are_those_of_its_own_parser() -> None:
    python = interpreter("openrlhf")
    installed = ask(python, ADAPTERS["openrlhf"])
    file = installed.source("openrlhf.cli.train_ppo_ray")
    assert file is not None
    done = _said(python, _BLOCK, str(file))
    assert done.returncode == 0, done.stderr[-2000:]
    real = json.loads(done.stdout.splitlines()[-1])
    found = options(parsed(file))
    assert not found.unknown and set(found.names) == set(real) - {"help"} and len(real) > 150
    for name, one in found.names.items():
        assert one.values in ("", "1" if real[name] is None else str(real[name])), name  # empty: it was not told
    assert sum(one.values == "" for one in found.names.values()) < len(real) / 5


OWN = """
hydra: {searchpath: ["pkg://verl.trainer.config"]}
defaults: [ppo_trainer, _self_]
actor_rollout_ref: {rollout: {name: sglang, n: 4, dtype: null}}
custom: {reward: 2}
"""
MINE = "defaults: [base]\nhydra: {searchpath: ['pkg://verl.trainer.config']}\nactor_rollout_ref: {rollout: {n: 8}}\n"


def test_a_hydra_file_is_read_as_hydra_composes_it(tmp_path: Path) -> None:
    python = interpreter("vllm")
    (tmp_path / "base.yaml").write_text(OWN.replace('hydra: {searchpath: ["pkg://verl.trainer.config"]}\n', ""))
    (tmp_path / "mine.yaml").write_text(MINE)
    done = _said(python, _COMPOSED, str(tmp_path), "mine")
    assert done.returncode == 0, done.stderr[-2000:]
    composed, _ = json.loads(done.stdout.splitlines()[-1])
    command = [python, "-m", "verl.trainer.main_ppo", "--config-path", str(tmp_path), "--config-name", "mine"]
    plan = read(detect(command), command, {})
    assert plan.unread == () and len(plan.filed) == 4
    for one in plan.filed:
        value = composed
        for part in one.name.split("."):
            value = value[part]
        assert one.value == ("null" if value is None else str(value)), one.name


def test_hydra_refuses_what_is_said_to_be_unknown_and_takes_the_rest(tmp_path: Path) -> None:
    python = interpreter("vllm")
    (tmp_path / "mine.yaml").write_text(OWN)
    words = {"custom.reward=3": True, "custom.rewards=3": False, "+custom.reward=3": False, "+custom.more=3": True,
             "data.train_batch_size=4": True, "data.train_batch_sizes=4": False, "~data.train_batch_size": True,
             "++data.anything=1": True, "~data.anything": False,
             "+data.custom_cls.path=/x.py": True, "+ray_kwargs.ray_init.num_cpus=8": True,
             "+actor_rollout_ref.rollout.engine_kwargs.vllm={a:true}": True, "+trainer.logger=[console]": True,
             "+trainer.nnodes=1": False, "+my.x=1 my.x=2": True, "+my={} my.x=2": False,
             "~trainer.nnodes +trainer.nnodes=1": True}  # fmt: skip
    start = [python, "-m", "verl.trainer.main_ppo", "--config-path", str(tmp_path), "--config-name", "mine"]
    job = detect(start)
    done = _said(python, _COMPOSED, str(tmp_path), "mine", *words)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1])[1] == words
    for word, taken_by_hydra in words.items():
        refused = [one for one in flags.known(read(job, [*start, *word.split()], {})) if isinstance(one, Problem)]
        assert bool(refused) is not taken_by_hydra, word


@pytest.mark.parametrize("engine", ["megatron", "veomni", "torchtitan"])
def test_another_engines_reference_is_what_hydra_composes(engine: str) -> None:
    python = interpreter("vllm")
    job = detect([python, "-m", "verl.trainer.main_ppo"])
    assert job.installed is not None
    package = job.installed.source("verl")
    assert package is not None
    word = f"model_engine={engine} actor_rollout_ref.actor.{engine}.param_offload=True"
    done = _said(python, _COMPOSED, str(package.parent / "trainer" / "config"), "ppo_trainer", word)
    assert done.returncode == 0, done.stderr[-2000:]
    taken_by_hydra = json.loads(done.stdout.splitlines()[-1])[1][word]
    refused = [one for one in flags.known(read(job, [python, "-m", "verl.trainer.main_ppo", *word.split()], {}))
               if isinstance(one, Problem)]  # fmt: skip
    assert bool(refused) is not taken_by_hydra
