"""What a job is told beyond its own options: seeds and coupled sampling, or the sentence that says why not."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.errors import BadInput
from harness.frameworks import steering
from harness.frameworks.record import record
from harness.frameworks.spec import frameworks
from probes.format import Flat, Ragged
from probes.install import start


def steered(framework: str, words: list[str], environ: dict[str, str], **asked: int) -> Any:
    return steering.steered(frameworks()[framework], words, environ, **asked)


WORDS, ENVIRON = ["python", "-m", "train"], {"PATH": "/usr/bin", "PYTHONPATH": "/mine"}


def test_nothing_is_changed_where_nothing_is_asked() -> None:
    for framework in ("openrlhf", "trl", "verl"):
        assert steered(framework, WORDS, ENVIRON) == (WORDS, ENVIRON)


def test_a_seed_is_given_to_openrlhf_alone() -> None:
    words, environ = steered("openrlhf", WORDS, ENVIRON, seed=7)
    assert words == WORDS and environ["RLHF_HARNESS_SEED"] == "7" and "RLHF_HARNESS_COUPLED" not in environ
    assert environ["RLHF_HARNESS_PLUGIN"] == "scenarios.jobs.openrlhf"
    ours, mine = environ["PYTHONPATH"].split(":")
    assert mine == "/mine" and (Path(ours) / "scenarios" / "jobs" / "openrlhf.py").exists()
    assert not list(Path(ours).glob("*.dist-info"))


@pytest.mark.parametrize("framework", ["trl", "verl"])
def test_a_seed_is_refused_where_the_framework_has_its_own(framework: str) -> None:
    with pytest.raises(BadInput, match=f"{framework} has seeds of its own"):
        steered(framework, WORDS, ENVIRON, seed=7)


@pytest.mark.parametrize("number", [-1, 1 << 32])
def test_a_seed_that_numpy_does_not_take_is_refused_before_the_job_starts(number: int) -> None:
    for asked in ({"seed": number}, {"coupled": number}):
        with pytest.raises(BadInput, match=f"--seed {number} is no seed"):
            steered("openrlhf", WORDS, ENVIRON, **asked)


def test_coupled_sampling_seeds_the_prompts_of_openrlhf_as_well() -> None:
    words, environ = steered("openrlhf", WORDS, ENVIRON, coupled=7)
    assert words == WORDS
    assert environ["RLHF_HARNESS_SEED"] == environ["RLHF_HARNESS_COUPLED"] == "7"


def test_coupled_sampling_of_verl_is_in_its_options() -> None:
    words, environ = steered("verl", WORDS, ENVIRON, coupled=7)
    assert words == [*WORDS, *frameworks()["verl"].overrides] and environ["RLHF_HARNESS_COUPLED"] == "7"
    assert not {"RLHF_HARNESS_PLUGIN", "RLHF_HARNESS_SEED"} & set(environ)


def test_coupled_sampling_of_trl_is_a_plugin_and_no_option() -> None:
    words, environ = steered("trl", WORDS, ENVIRON, coupled=7)
    assert words == WORDS and environ["RLHF_HARNESS_COUPLED"] == "7" and "RLHF_HARNESS_SEED" not in environ
    assert environ["RLHF_HARNESS_PLUGIN"] == "scenarios.jobs.trl"
    assert (Path(environ["PYTHONPATH"].split(":")[0]) / "scenarios" / "jobs" / "trl.py").exists()


@pytest.mark.parametrize("plugin", [one.plugin for one in frameworks().values() if one.plugin])
def test_a_plugin_is_a_module_of_ours(plugin: str) -> None:
    assert importlib.util.find_spec(plugin)


def recorded(folder: Path, seed: int | None, *modes: str) -> Path:
    """A recording of OpenRLHF with that seed of its data, and a frame of samples of each mode."""
    recorder = start(folder, role="trainer", groups=False)
    for step, mode in enumerate(modes):
        arrays = {"sample": Flat.of([0], "i8"), "prompt": Ragged.of([[1]], "i4"), "output": Ragged.of([[2]], "i4")}
        recorder.frame("rollout", step=step, arrays=arrays, fields={"mode": mode})
    recorder.close()
    (folder / "run.json").write_text(json.dumps({"format_version": 1, "seeds": {} if seed is None else {"data": seed}}))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "modes", "asked", "said"),
    [
        (None, ["native"], {"seed": None, "coupled": None}, ""),
        (7, ["native"], {"seed": 7, "coupled": None}, ""),
        (None, ["native"], {"seed": 7, "coupled": None}, "not shuffled with the seed 7"),
        (8, ["native"], {"seed": 7, "coupled": None}, "recorded: 8"),
        (7, ["coupled", "coupled"], {"seed": None, "coupled": 7}, ""),
        (None, ["coupled", "coupled"], {"seed": None, "coupled": 7}, "not shuffled"),
        (7, ["coupled", "native"], {"seed": None, "coupled": 7}, "1 of 2 groups of samples were drawn without"),
        (7, [], {"seed": None, "coupled": 7}, "no sample was recorded"),
    ],
)
def test_a_recording_that_was_not_steered_says_so(
    tmp_path: Path, data: int | None, modes: list[str], asked: dict[str, int | None], said: str
) -> None:
    found = steering.unsteered(recorded(tmp_path / "run", data, *modes), frameworks()["openrlhf"], **asked)
    assert said in found and bool(said) == bool(found)


def test_a_recording_with_a_seed_that_its_framework_cannot_take_is_refused_before_it_starts(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="verl has seeds of its own"):
        record([sys.executable, "-m", "verl.trainer.main_ppo"], seed=3, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
