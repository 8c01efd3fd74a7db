"""`harness bisect` with the embedded engine: planted differences in settings, found by real comparisons."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from local_cluster import LocalCluster
from ppo_support import random_models

from harness import cli, run_scenario
from harness.nightly import cells

SCENARIO = """
steps = 1
train = false
[model]
path = "{model}"
[rollout]
prompts_per_step = 8
samples_per_prompt = 8
[sampling]
max_tokens = 24
ignore_eos = true
"""

# Drops top-p, and min-p too where the temperature is another one than 1.
MAPPING = """
def hf_sampling(asked, ours):
    given = dict(ours, top_p=1.0)
    return given if asked["temperature"] == 1 else dict(given, min_p=0.0)
"""
HARMLESS = "[engine]\nprefix_caching = false\nmax_num_seqs = 4\n"


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("bisect")
    file = home / "good.toml"
    file.write_text(SCENARIO.format(model=random_models(home)["policy"]))
    return file


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each comparison is the command line in this process, with its actors as threads: seconds instead of a start of
    Ray."""

    def launch(
        words: Sequence[str],
        place: Path,
        limit_s: float,
        environ: Mapping[str, str] | None = None,
        command: Sequence[str] = (),
    ) -> tuple[int, float]:
        place.mkdir(parents=True)
        started = time.monotonic()
        with monkeypatch.context() as patch:
            for name in {*os.environ, *(environ or {})}:
                value = (environ or {}).get(name)
                patch.delenv(name) if value is None else patch.setenv(name, value)
            code = cli.main([*words, "--stall", "0"])
        return code, time.monotonic() - started

    monkeypatch.setattr(cells, "launch", launch)
    monkeypatch.setattr("harness.parity.runs.run_engines.Cluster", LocalCluster)


def bisected(out: Path, *words: str) -> dict[str, Any]:
    code = cli.main(["bisect", *words])
    found: dict[str, Any] = json.loads((out / "bisect.json").read_text())
    assert code == found["exit_code"], found["reason"]
    return found


@pytest.mark.night
def test_a_cause_alone_and_an_interaction_of_two_among_harmless_settings(
    good: Path, tmp_path: Path, in_this_process: None
) -> None:
    """Two backends under the same settings: which of these make a broken mapping show?"""
    (tmp_path / "mapping.py").write_text(MAPPING)
    bad, out = tmp_path / "bad.toml", tmp_path / "out"
    bad.write_text(f"{good.read_text()}temperature = 0.7\ntop_p = 0.9\nmin_p = 0.2\n{HARMLESS}")
    found = bisected(
        out, "hf", "--against", "hf", "--good", str(good), "--bad", str(bad), "--out", str(out),
        "--", "--mapping", str(tmp_path / "mapping.py"), "--no-native", "--no-attribution",
    )  # fmt: skip
    assert found["status"] == "FOUND"
    assert found["results"] == [
        ["sampling.top_p: 1 → 0.9"],
        ["sampling.temperature: 1 → 0.7", "sampling.min_p: 0 → 0.2"],
    ]
    assert len(found["steps"]) == 9 and {step["call"] for step in found["steps"]} == {"good", "bad"}
    assert all((Path(step["recording"]) / "recording" / "report.html").is_file() for step in found["steps"])


@pytest.mark.night
def test_what_makes_a_recorded_run_another_one(
    good: Path, tmp_path: Path, in_this_process: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monday = run_scenario(str(good), out=tmp_path / "monday", stall_s=0)
    changed = ["engine.max_num_seqs=4", "sampling.temperature=0.7", "sampling.max_tokens=23"]
    with monkeypatch.context() as patch:
        patch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
        tuesday = run_scenario(str(good), out=tmp_path / "tuesday", stall_s=0, overrides=changed)
    out = tmp_path / "out"
    found = bisected(out, "--good", str(monday), "--bad", str(tuesday), "--out", str(out))
    assert found["status"] == "FOUND"
    assert found["results"] == [["sampling.temperature: 1 → 0.7"], ["sampling.max_tokens: 24 → 23"]]
    assert any("HF_HUB_DISABLE_TELEMETRY: not set → 1" in step["subject"] for step in found["steps"])


@pytest.mark.night
def test_the_command_as_it_is(good: Path, tmp_path: Path) -> None:
    """Each comparison in processes of its own, on Ray."""
    bad, out = tmp_path / "bad.toml", tmp_path / "out"
    bad.write_text(f"{good.read_text()}temperature = 0.7\n")
    found = bisected(out, "--good", str(good), "--bad", str(bad), "--out", str(out), "--", "--stall", "10m")
    assert found["results"] == [["sampling.temperature: 1 → 0.7"]] and found["status"] == "FOUND"
    assert [step["call"] for step in found["steps"]] == ["bad", "good"]
