"""`harness bisect` over the commits of somebody else's small engine: built from each checkout, compared for real."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from foreign_packages import environment_with, harness, write_package

# Two engines: `mine` runs in the harness's interpreter, `apart` in an environment of its own.
POINTS = {
    "engines": {"mine": "mine.spec:MINE", "apart": "mine.spec:APART"},
}
PACKAGE = {
    "mine/__init__.py": "",
    "apart/__init__.py": "",  # what an environment of that engine is known by
    "mine/spec.py": """
from dataclasses import replace
from pathlib import Path
from scenarios.engines import hf, native_arguments

MINE = replace(
    hf.SPEC, name="mine", title="my engine", factory="mine.engine:Mine",
    engine_arguments=native_arguments.table("engine", "hf"),
    sampling_arguments=native_arguments.table("sampling", "hf"),
)
APART = replace(
    MINE, name="apart", factory="mine.engine:Apart", embedded=False, recipes=str(Path(__file__).parent),
    distributions=("mine",), learners_code=False,
)
""",
    "mine/engine.py": """
import dataclasses
from scenarios.engines.hf.engine import HFEngine
from mine.reading import read

class Mine(HFEngine):
    called = "mine"

    def info(self):
        return dataclasses.replace(super().info(), engine=self.called)

    def generate(self, requests, *args, **named):
        # Batches of three: it rounds in another way than the learner does.
        parts = (requests[at : at + 3] for at in range(0, len(requests), 3))
        drawn = [one for part in parts for one in super(Mine, self).generate(part, *args, **named)]
        return [dataclasses.replace(one, logprobs=tuple(map(read, one.logprobs))) for one in drawn]

class Apart(Mine):
    called = "apart"
""",
    "mine/reading.py": "def read(number):\n    return number\n",
    "mine/apart-cpu.toml": """
engine = "apart"
device = "cpu"
package = "mine"
version = "1"
imports = "import mine.spec"
requirements = []
overrides = []
no_deps = []
shims = []
[env]
""",
}
COMMITS = [  # what each changes: file, text
    ("README", "mine\n"),
    ("README", "my engine\n"),
    ("mine/reading.py", "def read(number):\n    return float(number)\n"),
    ("mine/__init__.py", "__version__ = '1'\n"),
    ("mine/reading.py", "def read(number):\n    return float(number) * 1.01\n"),  # the first bad one
    ("README", "my fast engine\n"),
    ("mine/reading.py", "SCALE = 1.01\n\ndef read(number):\n    return SCALE * number\n"),
    ("mine/__init__.py", "__version__ = '2'\n"),
]
BAD = 4
OPTIONS = ("--rollout-only", "--steps", "1", "--no-native", "--no-attribution")


def git(repo: Path, *words: str) -> None:
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(repo), *identity, *words], check=True, capture_output=True)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the engine's first version; its repository lies beside, in `source`."""
    home = tmp_path_factory.mktemp("mine")
    repo = home / "source"
    write_package(repo, POINTS, PACKAGE)
    python = environment_with(repo, home)
    git(repo, "init", "-q", "-b", "trunk")
    (repo / ".gitignore").write_text("build\n*.egg-info\n")
    for number, (name, text) in enumerate(COMMITS):
        (repo / name).write_text(text)
        git(repo, "add", "-A")
        git(repo, "commit", "-q", "-m", f"change {number}")
        git(repo, "tag", f"v{number}")
    return python


def bisect(python: Path, engine: str, out: Path, home: Path) -> None:
    repo = python.parents[2] / "source"
    words = ("bisect", f"{engine}@v0..v7", "--repo", repo, "--against", "hf", "--out", out, "--", *OPTIONS)
    code, _, err = harness(python, *words, timeout_s=1500, HARNESS_HOME=str(home))
    result = json.loads((out / "bisect.json").read_text())
    assert code == 0 and result["status"] == "FOUND", err
    assert result["results"][0][0].endswith(f" change {BAD}"), result
    assert result["last_good"].endswith(f" change {BAD - 1}")
    assert len(result["steps"]) <= 3 + 3 and {step["call"] for step in result["steps"]} == {"good", "bad"}
    assert not (out / "tree").exists() and [path.name for path in (home / "envs").iterdir()] == (
        ["apart"] if engine == "apart" else []
    )
    for step in result["steps"]:
        manifest = json.loads((Path(step["recording"]) / "recording" / "candidate" / "run.json").read_text())
        assert manifest["environment"]["engine"] == engine


@pytest.mark.night
def test_an_engine_in_the_harness_s_own_interpreter(python: Path, tmp_path: Path) -> None:
    bisect(python, "mine", tmp_path / "out", tmp_path / "home")


@pytest.mark.night
def test_an_engine_in_an_environment_of_its_own(python: Path, tmp_path: Path) -> None:
    added = harness(python, "env", "add", "apart", "--engine", "apart", "--python", python,
                    HARNESS_HOME=str(tmp_path / "home"))  # fmt: skip
    assert added[0] == 0, added
    bisect(python, "apart", tmp_path / "out", tmp_path / "home")
