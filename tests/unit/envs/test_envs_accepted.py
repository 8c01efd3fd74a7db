"""What an engine takes is asked of it once, when its environment is made or later, and kept in its folder."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from fake_environments import FakeUv, venv

from harness.envs import creation, registration
from harness.envs.environment import Environment
from harness.envs.stored_arguments import accepted
from scenarios.engines import accepted as asking
from scenarios.engines.accepted import FILE, Accepted

# vLLM as far as it is asked.
ENGINE = {
    "__init__.py": "class LLM:\n    def __init__(self, model, *, seed=0, **kwargs): ...\n"
                   "class SamplingParams:\n    def __init__(self, temperature=1.0, top_k=0): ...\n",
    "engine/__init__.py": "",
    "engine/arg_utils.py": "import dataclasses\nclass Options:\n    @staticmethod\n    def add_cli_args(parser):\n"
                           "        parser.add_argument('--dtype', choices=['auto', 'half'])\n"
                           "        parser.add_argument('--model', choices=[None, 'a'])\n"
                           "        parser.add_argument('--seed', type=int, choices=[1, 2])\n"
                           "        parser.add_argument('--serving', choices=['x'])\n"
                           "EngineArgs = dataclasses.make_dataclass('Args', ['model', 'dtype'], bases=(Options,))\n",
    "entrypoints/__init__.py": "",
    "entrypoints/cli/__init__.py": "",
    "entrypoints/cli/serve.py": "class ServeSubcommand:\n    def subparser_init(self, commands):\n"
                                "        parser = commands.add_parser('serve')\n"
                                "        parser.add_argument('--max-model-len', '-l')\n        return parser\n",
    "utils/__init__.py": "",
    "utils/argparse_utils.py": "from argparse import ArgumentParser as FlexibleArgumentParser\n",
    "platforms/__init__.py": "class current_platform:\n    is_cpu = staticmethod(lambda: False)\n",
}  # fmt: skip
TAKES = Accepted(
    ("dtype", "model", "seed"),
    ("temperature", "top_k"),
    server=("help", "max_model_len"),
    choices={"dtype": ("auto", "half"), "model": ("a",)},
)

pytestmark = pytest.mark.slow  # each makes an environment


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    """An environment of the user's own, with a vLLM that says what it takes."""
    monkeypatch.setenv("HARNESS_HOME", str(tmp_path / "home"))
    python = venv(tmp_path / "mine")
    (site,) = (tmp_path / "mine").glob("lib/python3*/site-packages")
    for name, text in ENGINE.items():
        file = site / "vllm" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return registration.add("mine", "vllm", str(python))


def test_an_engine_that_was_there_before_is_asked_once(made: Environment) -> None:
    told: list[str] = []
    assert accepted(made, ask=False, say=told.append) == Accepted() and not told
    assert accepted(made, ask=True, say=told.append) == TAKES
    assert accepted(made, ask=True, say=told.append) == accepted(made, ask=False) == TAKES
    assert len(told) == 1 and "vllm 0.32.0" in told[0]


def test_another_version_is_asked_anew(made: Environment) -> None:
    assert accepted(made, ask=True) == TAKES
    newer = dataclasses.replace(made, version="0.33.0")
    assert accepted(newer, ask=False) == Accepted()
    assert accepted(newer, ask=True) == TAKES


def test_a_list_without_choices_is_read_and_renewed_where_it_is_asked_for(made: Environment) -> None:
    assert accepted(made, ask=True) == TAKES
    data = json.loads((made.folder / FILE).read_text())
    del data["choices"]
    (made.folder / FILE).write_text(json.dumps(data))
    assert accepted(made, ask=True) == dataclasses.replace(TAKES, choices={})
    assert accepted(made, ask=True, renew=True) == accepted(made, ask=False) == TAKES


def test_a_parser_without_choices_hides_nothing_else(made: Environment, tmp_path: Path) -> None:
    (file,) = (tmp_path / "mine").glob("lib/python3*/site-packages/vllm/engine/arg_utils.py")
    file.write_text("import dataclasses\nEngineArgs = dataclasses.make_dataclass('Args', ['model', 'dtype'])\n")
    assert accepted(made, ask=True) == dataclasses.replace(TAKES, choices={})


def test_a_broken_list_is_asked_anew(made: Environment) -> None:
    made.folder.mkdir(exist_ok=True)
    (made.folder / FILE).write_text('{"version": "0.32.0"')
    assert accepted(made, ask=True) == TAKES


def test_a_server_whose_parser_is_somewhere_else_hides_nothing_else(made: Environment, tmp_path: Path) -> None:
    (file,) = (tmp_path / "mine").glob("lib/python3*/site-packages/vllm/entrypoints/cli/serve.py")
    file.unlink()
    assert accepted(made, ask=True) == dataclasses.replace(TAKES, server=())


def test_an_engine_that_does_not_say_stops_nothing(made: Environment, tmp_path: Path) -> None:
    (file,) = (tmp_path / "mine").glob("lib/python3*/site-packages/vllm/engine/arg_utils.py")
    file.unlink()
    assert accepted(made, ask=True) == Accepted()
    asking.keep("no-engine", "1", str(tmp_path / "list"))
    assert not (tmp_path / "list").exists()


def test_the_list_is_made_with_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(creation, "uv_binary", lambda: FakeUv(tmp_path).binary)
    monkeypatch.setattr(creation.indexes, "pip_configuration", lambda: {})
    monkeypatch.setattr(
        creation.stored_arguments, "keeping",
        lambda engine, version, file: (f"open({str(file)!r}, 'w').write({json.dumps([engine, version])!r})", {}),
    )  # fmt: skip
    environment, _ = creation.create(creation.order("vllm", device="cpu"))
    assert json.loads((environment.folder / FILE).read_text()) == ["vllm", environment.version]
