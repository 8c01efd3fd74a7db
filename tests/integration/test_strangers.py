"""Another package adds an engine, a check, a cause, a framework and a format, without a line changed here.

The package is built as a wheel outside the repository and installed into an environment that sees this one's packages.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from foreign_packages import environment_with, harness

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
bits = "strangers.spec:BITS"
[project.entry-points."rlhf_harness.checks"]
theirs = "strangers.checks"
[project.entry-points."rlhf_harness.causes"]
bits = "strangers.cause:IN_BITS"
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
BITS = replace(SPEC, name="bits", title="their engine of bits", factory="strangers.engine:Bits")
""",
    "strangers/engine.py": """
import dataclasses
import math
from scenarios.engines.hf.engine import HFEngine

class Theirs(HFEngine):
    called = "theirs"
    # Batches of three: it rounds in another way than the learner does.

    def info(self):
        return dataclasses.replace(super().info(), engine=self.called)

    def generate(self, requests, *args, **named):
        parts = (requests[at : at + 3] for at in range(0, len(requests), 3))
        return [one for part in parts for one in super(Theirs, self).generate(part, *args, **named)]

class Bits(Theirs):
    called = "bits"

    def generate(self, *args, **named):
        return [
            dataclasses.replace(one, logprobs=tuple(number / math.log(2) for number in one.logprobs))
            for one in super().generate(*args, **named)
        ]
""",
    "strangers/checks.py": """
from harness.parity.checks.registry import check, outcome

@check("their-check")
def their_check(e):
    return outcome("their-check", "confirmed", f"{e.counts['samples']} samples", decides=False)
""",
    "strangers/cause.py": """
import math
from harness.parity.interventions.trial import Trial
from harness.parity.causes.family import CauseFamily
from harness.parity.causes.turns import Turn
from harness.parity.facts.divergence import Kind
from harness.parity.facts.explanation import Explanation, scored_otherwise
from reports.model import Cause, Proof

def bits(e, so_far):
    for side in e.sides:
        kind = Kind.ENGINE.of(side.name)
        found = e.readings.get(kind)
        if found is not None and len(so_far.left(kind)):
            rows = (found["beyond"] > 0) & (abs(found["scale"] - math.log(2)) < 1e-3)
            proof = Proof("multiply by ln 2", int(found["beyond"][rows].sum()), int(found["scale left"][rows].sum()))
            cause = Cause.of(IN_BITS.key(), side.name, "log-probabilities are in bits", "", {}, [proof])
            if proof.removed == 1:
                yield Explanation(cause, (kind, Kind.LOGPROB.of(), *scored_otherwise(e, side.name)))

def report_bits(s):
    if s.rest.of("logprobs") and not s.rest.of("scores"):
        change = {"report": f"scale:{1 / math.log(2)!r}"}
        yield Trial(IN_BITS.key(), "the reference reports bits", "log-probabilities are in bits", change)

IN_BITS = CauseFamily(
    "IN_BITS", fix="ask the engine for nats", alone="no other unit is 1.44 times another",
    rules=(Turn(bits, "alignment", "before any other factor is fitted"),),
    trials=(Turn(report_bits, "parameters", "before any other factor is fitted"),),
)
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
    return environment_with(home / "source", home)


def test_their_engine_is_compared_their_check_confirms_and_their_format_prints(python: Path, tmp_path: Path) -> None:
    words = ("parity", "hf", "theirs", "--rollout-only", "--steps", "3", "--no-native", "--out", tmp_path / "run")
    code, out, err = harness(python, *words, "--format", "onion")
    assert (code, out) == (0, "area man finds two engines EQUIVALENT\n"), err
    verdict = json.loads((tmp_path / "run" / "verdict.json").read_text("utf-8"))
    checks = {check["name"]: check["state"] for check in verdict["parity"]["checks"]}
    assert checks["their-check"] == "confirmed" and checks["tokens"] == "ruled out"
    assert Run(tmp_path / "run" / "candidate").manifest["backend"] == "theirs"


def test_their_cause_is_recognised_proven_by_their_trial_and_named_with_their_fix(python: Path, tmp_path: Path) -> None:
    words = ("parity", "hf", "bits", "--rollout-only", "--steps", "3", "--no-native", "--out", tmp_path / "run")
    code, out, err = harness(python, *words)
    assert code == 1 and "IN_BITS, in the candidate, proven" in out and "ask the engine for nats" in out, err
    [cause] = json.loads((tmp_path / "run" / "verdict.json").read_text("utf-8"))["causes"]
    assert cause["key"]["family"] == "IN_BITS"
    assert [(one["intervention"], one["on"]) for one in cause["proofs"]] == [
        ("multiply by ln 2", "recordings"),
        ("the reference reports bits", "live engines"),
    ]


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
