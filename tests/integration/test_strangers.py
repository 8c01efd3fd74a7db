"""Another package adds an engine, a check, a cause, a framework and a format, without a line changed here; and one of
each kind that misbehaves, which is told with its package's name and disturbs nothing else.

The package is built as a wheel outside the repository and installed into an environment that sees this one's packages.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from foreign_packages import environment_with, harness, write_package

from probes.format import Run

POINTS = {
    "engines": {
        "theirs": "strangers.spec:SPEC",
        "bits": "strangers.spec:BITS",
        "dies": "strangers.spec:DIES",
        "vllm": "strangers.spec:VLLM",
    },
    "checks": {"theirs": "strangers.checks", "leaves": "strangers.leaves"},
    "causes": {
        "bits": "strangers.cause:IN_BITS",
        "raises": "strangers.cause:RAISES",
        "leaves": "strangers.leaves:CAUSE",
    },
    "frameworks": {"little": "strangers.framework:FRAMEWORK", "verl": "strangers.framework:VERL"},
    "renderers": {"onion": "strangers.renderer:Onion", "leaves": "strangers.renderer:Leaves"},
}
PACKAGE = {
    "strangers/__init__.py": "",
    "strangers/spec.py": """
from dataclasses import replace
from scenarios.engines import hf, native_arguments

SPEC = replace(
    hf.SPEC, name="theirs", title="their engine", factory="strangers.engine:Theirs",
    engine_arguments=native_arguments.table("engine", "hf"),
    sampling_arguments=native_arguments.table("sampling", "hf"),
)
BITS = replace(SPEC, name="bits", title="their engine of bits", factory="strangers.engine:Bits")
DIES = replace(SPEC, name="dies", title="their engine that leaves", factory="strangers.engine:Dies")
VLLM = replace(SPEC, name="vllm")
""",
    "strangers/leaves.py": "raise SystemExit(0)\n",
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

class Dies(Theirs):
    called = "dies"

    def generate(self, *args, **named):
        raise SystemExit(0)
""",
    "strangers/checks.py": """
from harness.parity.checks.registry import check, outcome

@check("their-check")
def their_check(e):
    return outcome("their-check", "confirmed", f"{e.counts.samples} samples", decides=False)

@check("their-none")
def none(e):
    pass

@check("their-required", required=lambda e: 1 / 0)
def required(e):
    return outcome("their-required", "ruled out", "nothing")

@check("tokens")
def tokens(e):
    return outcome("tokens", "ruled out", "nothing was looked at")
""",
    "strangers/cause.py": """
import math
from harness.parity.interventions.trial import Trial
from harness.parity.causes.family import CauseFamily, Rule
from harness.parity.causes.proof import either
from harness.parity.facts.divergence import Kind
from harness.parity.facts.explanation import Explanation, scored_otherwise
from reports.model import Cause, Proof

def bits(e, so_far):
    for side in e.sides:
        kind = Kind.ENGINE.of(side.name)
        found = e.log_probabilities.readings.get(kind)
        if found is not None and len(so_far.left(kind)):
            rows = (found["beyond"] > 0) & (abs(found["scale"] - math.log(2)) < 1e-3)
            proof = Proof("multiply by ln 2", int(found["beyond"][rows].sum()), int(found["scale left"][rows].sum()))
            cause = Cause.of(IN_BITS.key(), side.name, "log-probabilities are in bits", "", {}, [proof])
            if proof.removed == 1:
                yield Explanation(cause, (kind, Kind.LOGPROB.of(), *scored_otherwise(e, side.name)))

def report_bits(s):
    if s.remaining.of("logprobs") and not s.remaining.of("scores"):
        change = {"report": f"scale:{1 / math.log(2)!r}"}
        yield Trial(IN_BITS.key(), "the reference reports bits", "log-probabilities are in bits", change)

IN_BITS = CauseFamily(
    "IN_BITS", fix="ask the engine for nats", alone="no other unit is 1.44 times another",
    proof=either("each number, times ln 2, is the learner's"),
    rules=(Rule(bits, "before any other factor is fitted"),), trials=(report_bits,),
)

def raises(*arguments):
    raise KeyError("lost")

RAISES = CauseFamily(
    "RAISES", rules=(Rule(raises, "anywhere"),), trials=(raises,),
)
""",
    "strangers/framework.py": """
from harness.frameworks.spec import Framework

FRAMEWORK = Framework(
    name="little", module="strangers.adapter", commands=(r"^import little_rlhf\\\\b",), starts=r"\\\\.py( |$)",
    engines=("theirs",),
)
VERL = Framework(name="verl", module="strangers.adapter", commands=("verl",), starts="verl", engines=("vllm",))
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

class Leaves(Onion):
    name = "leaves"

    def render(self, subject):
        raise SystemExit(0)
""",
}

REFUSED = ("strangers.leaves", "strangers.leaves:CAUSE", "tokens")  # of checks and causes


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with everything of this one and the stranger's wheel."""
    home = tmp_path_factory.mktemp("strangers")
    write_package(home / "source", POINTS, {name: text.replace("\\\\", "\\") for name, text in PACKAGE.items()})
    return environment_with(home / "source", home)


def test_their_engine_is_compared_their_check_confirms_and_their_format_prints(python: Path, tmp_path: Path) -> None:
    words = ("parity", "hf", "theirs", "--rollout-only", "--steps", "3", "--no-native", "--out", tmp_path / "run")
    code, out, err = harness(python, *words, "--format", "onion")
    assert (code, out) == (0, "area man finds two engines EQUIVALENT\n"), err
    verdict = json.loads((tmp_path / "run" / "verdict.json").read_text("utf-8"))
    checks = {check["name"]: check["state"] for check in verdict["parity"]["checks"]}
    assert checks["their-check"] == "confirmed" and checks["tokens"] == "ruled out"
    broken = {"their-none", "their-required", *(f"plug-in strangers 1 ({one})" for one in REFUSED)}
    assert {name for name in checks if name.startswith(("their-", "plug-in"))} == {"their-check", *broken}
    assert {checks[name] for name in broken} == {"not tested"}
    code, out, err = harness(python, "report", tmp_path / "run", "--format", "leaves")
    assert (code, out) == (2, "") and "the renderer plug-in 'leaves' of strangers 1" in err.splitlines()[0], err
    assert Run(tmp_path / "run" / "candidate").manifest["backend"] == "theirs"


@pytest.mark.night
def test_their_cause_is_recognised_proven_by_their_trial_and_named_with_their_fix(python: Path, tmp_path: Path) -> None:
    words = ("parity", "hf", "bits", "--rollout-only", "--steps", "3", "--no-native", "--out", tmp_path / "run")
    code, out, err = harness(python, *words)
    assert code == 1 and "IN_BITS, in the candidate, proven" in out and "ask the engine for nats" in out, err
    verdict = json.loads((tmp_path / "run" / "verdict.json").read_text("utf-8"))
    said = "the cause plug-in 'raises' of strangers 1 (strangers.cause:RAISES) raised KeyError: 'lost'"
    assert f"plug-in strangers 1 (strangers.cause:RAISES): {said}" in verdict["missing"]
    assert said in next(one for one in verdict["findings"] if one["name"] == "live interventions")["details"]["notes"]
    [cause] = verdict["causes"]
    assert cause["key"]["family"] == "IN_BITS"
    assert [(one["intervention"], one["on"]) for one in cause["proofs"]] == [
        ("multiply by ln 2", "recordings"),
        ("the reference reports bits", "live engines"),
    ]


@pytest.mark.night
def test_their_engine_that_misbehaves_is_blamed_by_its_package(python: Path, tmp_path: Path) -> None:
    words = ("parity", "hf", "dies", "--rollout-only", "--steps", "1", "--no-native", "--out", tmp_path / "run")
    code, _, err = harness(python, *words)
    verdict = json.loads((tmp_path / "run" / "verdict.json").read_text("utf-8"))
    account = "; ".join([verdict["reason"], *verdict["evidence"]])
    said = "PluginError: the engine plug-in 'dies' of strangers 1 (strangers.spec:DIES) raised SystemExit: 0"
    assert code == 3 and f"cut short: candidate (dies), step 0: {said}" in account, err


def test_the_doctor_and_the_lists_name_what_is_refused(python: Path) -> None:
    _, out, err = harness(python, "doctor", "--no-imports", "--format", "json")
    hazards = [one["what"] for one in json.loads(out)["hazards"] if one["check"] == "plug-ins"]
    taken = "of strangers 1 (strangers.{}) cannot be used: the name '{}' is taken by the harness ({})"
    assert len(hazards) == 5 and all("of strangers 1 (" in one for one in hazards), err
    for what in (
        taken.format("spec:VLLM", "vllm", "scenarios.engines.vllm"),
        taken.format("framework:VERL", "verl", "harness.frameworks.verl"),
    ):
        assert any(one.endswith(what) for one in hazards), hazards
    code, out, err = harness(python, "adapters", "list")
    assert code == 0 and "little" in out and "the framework plug-in 'verl' of strangers 1" in err
    code, out, err = harness(python, "explain", "IN_BITS")
    assert code == 0 and "ask the engine for nats" in out and "strangers.leaves" in err


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
    assert code == 3 and "7" in out.splitlines(), err  # their hook recorded no rollout: nothing to judge
    manifest = Run(tmp_path / "run").manifest
    assert manifest["framework"] == "little" and manifest["hooks"]["fired"] == {"little_rlhf.trainer:step": 1}, err
