"""Arguments that a job passes on to its engine: held against the stored list of what that engine takes."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from harness.amended_command import amended
from harness.errors import BadInput
from harness.frameworks import detection, job_parity
from harness.frameworks.engine_arguments import judged, unknown_arguments
from harness.frameworks.examine import look
from harness.frameworks.installed import Installation
from harness.frameworks.spec import frameworks
from reports.doctor_model import Hazard, Unchecked

KWARGS = "actor_rollout_ref.rollout.engine_kwargs"
VERL = frameworks()["verl"]
TAKES = {"engine": ["max_num_seqs", "seed"], "sampling": [], "head_sizes": [], "server": ["port"], "choices": {}}


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The interpreter of a job with vLLM 0.32.0; an environment of the harness has the list of that version."""
    monkeypatch.setenv("HARNESS_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(detection, "ask", lambda python, *_, **__: Installation(python, "", {}))
    monkeypatch.setattr(job_parity, "refuse_absent", lambda *_: None)
    folder = tmp_path / "home" / "envs" / "vllm"
    folder.mkdir(parents=True)
    facts = {"name": "vllm", "engine": "vllm", "version": "0.32.0", "python": "/nowhere/python", "ray": "", "torch": "",
             "python_version": "3.11", "device": "cpu", "owned": False}  # fmt: skip
    (folder / "env.json").write_text(json.dumps(facts))
    (folder / "accepted.json").write_text(json.dumps({"version": "0.32.0", **TAKES}))
    return interpreter(tmp_path / "job", "0.32.0")


def interpreter(venv: Path, version: str) -> str:
    info = venv / "lib" / "python3.11" / "site-packages" / f"vllm-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    (venv / "bin").mkdir()
    (program := venv / "bin" / "python").write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return str(program)


def command(python: str, *words: str) -> list[str]:
    return [python, "-m", "verl.trainer.main_ppo", *words]


def test_an_argument_that_no_engine_has_is_refused_with_the_nearest(python: str) -> None:
    job = command(python, f"+{KWARGS}.vllm.max_num_seq=8", "data.seed=1")
    with pytest.raises(BadInput) as refused:
        job_parity.plan("vllm", "vllm", job, job_parity.JobOptions())
    assert "max_num_seq; did you mean max_num_seqs?" in refused.value.message
    fix = amended(["parity", "vllm", "vllm", "--", *job], refused.value.fix or "")
    mended = command(python, f"+{KWARGS}.vllm.max_num_seqs=8", "data.seed=1")
    assert shlex.split(fix.partition("   # ")[0]) == ["harness", "parity", "vllm", "vllm", "--", *mended]


@pytest.mark.parametrize(
    "word",
    [
        f"+{KWARGS}.vllm.max_num_seqs=8",
        f"+{KWARGS}.vllm.port=1",  # of the server, as whose options verl passes them on
        f"+{KWARGS}.vllm.max-num-seqs=8",
        f"+{KWARGS}.vllm.nosuch=null",  # verl leaves it out
        f"+{KWARGS}.sglang.nosuch=1",  # of an engine that does not draw
    ],
)
def test_an_argument_that_the_engine_takes_is_let_through(word: str, python: str) -> None:
    job_parity.plan("vllm", "vllm", command(python, word), job_parity.JobOptions())
    found = [item for item in look(command(python, word)) if item.check == "engine-arguments"]
    assert not any(isinstance(item, Hazard) for item in found)


def test_the_list_of_another_version_refuses_nothing_and_is_told(python: str, tmp_path: Path) -> None:
    other = interpreter(tmp_path / "other", "0.31.0")
    for job in (command(other, f"+{KWARGS}.vllm.nosuch=1"), command("nowhere", f"+{KWARGS}.vllm.nosuch=1")):
        job_parity.plan("vllm", "vllm", job, job_parity.JobOptions())
        [found] = [item for item in look(job) if item.check == "engine-arguments"]
        assert isinstance(found, Hazard) and found.severity == "warning"
    [certain] = [item for item in look(command(python, f"+{KWARGS}.vllm.nosuch=1")) if item.check == "engine-arguments"]
    assert isinstance(certain, Hazard) and certain.severity == "error"


def test_without_a_list_nothing_is_judged(python: str, tmp_path: Path) -> None:
    (tmp_path / "home" / "envs" / "vllm" / "accepted.json").unlink()
    job = command(python, f"+{KWARGS}.vllm.nosuch=1")
    job_parity.plan("vllm", "vllm", job, job_parity.JobOptions())
    assert unknown_arguments(VERL, {f"{KWARGS}.vllm.nosuch": 1}, "vllm", python) is None
    [found] = [item for item in look(job) if item.check == "engine-arguments"]
    assert isinstance(found, Unchecked)
    assert not [*judged(VERL, {"data.seed": 1}, ["vllm"], python)]
