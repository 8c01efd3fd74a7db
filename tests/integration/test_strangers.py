"""Another package adds an engine, a check, a framework and a format, without a line changed here.

The package is built as a wheel outside the repository and installed into an environment that sees this one's packages.
"""

from __future__ import annotations

import json
import os
import site
import subprocess
import sys
from pathlib import Path

import pytest

from probes.format import Run

PACKAGE = {
    "pyproject.toml": """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "strangers"
version = "1"

[project.entry-points."rlhf_harness.engines"]
theirs = "strangers.spec:SPEC"
[project.entry-points."rlhf_harness.checks"]
theirs = "strangers.checks"
[project.entry-points."rlhf_harness.frameworks"]
little = "strangers.framework:FRAMEWORK"
[project.entry-points."rlhf_harness.renderers"]
onion = "strangers.renderer:Onion"

[tool.setuptools]
packages = ["strangers"]
""",
    "strangers/__init__.py": "",
    "strangers/spec.py": """
from dataclasses import replace
from scenarios.engines import given, hf

SPEC = replace(
    hf.SPEC, name="theirs", title="their engine", factory="strangers.engine:Theirs",
    engine_arguments=given.table("engine", "hf"), sampling_arguments=given.table("sampling", "hf"),
)
""",
    "strangers/engine.py": """
import dataclasses
from scenarios.engines.hf.engine import HFEngine

class Theirs(HFEngine):
    # Batches of three: it rounds in another way than the learner does.

    def info(self):
        return dataclasses.replace(super().info(), engine="theirs")

    def generate(self, requests, *args, **named):
        parts = (requests[at : at + 3] for at in range(0, len(requests), 3))
        return [one for part in parts for one in super(Theirs, self).generate(part, *args, **named)]
""",
    "strangers/checks.py": """
from harness.parity.checks.registry import check, outcome

@check("their-check")
def their_check(e):
    return outcome("their-check", "confirmed", f"{e.counts['samples']} samples", decides=False)
""",
    "strangers/framework.py": """
from harness.frameworks.spec import Framework

FRAMEWORK = Framework(
    name="little", module="strangers.adapter", commands=(r"^import little_rlhf\\\\b",), starts=r"\\\\.py( |$)",
    engines=("theirs",),
)
""",
    "strangers/adapter.py": """
from probes.adapters.table import Adapter, Hook

ADAPTER = Adapter(
    framework="little", distribution="little-rlhf", versions=("1", "2"), packages=("little_rlhf",),
    hooks=(Hook("little_rlhf.trainer:step", span="train"),),
)
""",
    "strangers/renderer.py": """
from reports.renderers import Renderer

class Onion(Renderer):
    name, suffix = "onion", ".onion"

    def render(self, subject):
        return f"area man finds two engines {subject.verdict}\\\\n"
""",
}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with everything of this one and the stranger's wheel."""
    home = tmp_path_factory.mktemp("strangers")
    for name, text in PACKAGE.items():
        (home / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        (home / "source" / name).write_text(text.replace("\\\\", "\\"))
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", home / "wheel", home / "source"]
    subprocess.run(build, check=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home / "env"], check=True)
    python = home / "env" / "bin" / "python"
    [packages] = (home / "env" / "lib").glob("python*/site-packages")
    ours = "".join(f"import site; site.addsitedir({path!r})\n" for path in site.getsitepackages())
    (packages / "ours.pth").write_text(ours)
    [wheel] = (home / "wheel").glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", packages, wheel], check=True)
    return python


def harness(python: Path, *words: str | Path, **environ: str) -> tuple[int, str, str]:
    command = [python, "-c", "from harness.entry import main; main()", *words]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=600, env={**os.environ, **environ}, cwd=python.parent
    )
    return done.returncode, done.stdout, done.stderr


def test_their_engine_is_compared_their_check_confirms_and_their_format_prints(python: Path, tmp_path: Path) -> None:
    words = ("parity", "hf", "theirs", "--rollout-only", "--steps", "3", "--no-native", "--out", tmp_path / "run")
    code, out, err = harness(python, *words, "--format", "onion")
    assert (code, out) == (0, "area man finds two engines EQUIVALENT\n"), err
    verdict = json.loads((tmp_path / "run" / "verdict.json").read_text("utf-8"))
    checks = {check["name"]: check["state"] for check in verdict["parity"]["checks"]}
    assert checks["their-check"] == "confirmed" and checks["tokens"] == "ruled out"
    assert Run(tmp_path / "run" / "candidate").manifest["backend"] == "theirs"


def test_without_the_package_the_engine_is_refused_with_those_there_are(tmp_path: Path) -> None:
    code, _, err = harness(Path(sys.executable), "parity", "hf", "theirs", "--out", tmp_path / "run")
    assert code == 2 and "theirs" in err and "vllm" in err and "sglang" in err, err


def test_their_framework_is_recorded(python: Path, tmp_path: Path) -> None:
    job = tmp_path / "site" / "little_rlhf"
    job.mkdir(parents=True)
    (job / "__init__.py").write_text("")
    (job / "trainer.py").write_text("def step():\n    return 7\n")
    script = tmp_path / "train.py"
    script.write_text("import little_rlhf.trainer\nprint(little_rlhf.trainer.step())\n")
    words = ("record", "--out", tmp_path / "run", "--", sys.executable, script)
    code, out, err = harness(python, *words, PYTHONPATH=str(tmp_path / "site"))
    assert code == 0 and "7" in out.splitlines(), err
    manifest = Run(tmp_path / "run").manifest
    assert manifest["framework"] == "little" and manifest["hooks"]["fired"] == {"little_rlhf.trainer:step": 1}, err
