"""An issue is what a maintainer asks for, with nothing live in it; OpenMetrics is read by Prometheus' own parser."""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path

import pytest
import reports_examples as examples
from recordings import make

from reports import render
from reports.model import Cause, Party, Place, Proof, Triage, Verdict
from reports.run_model import RecordedRun

SECTIONS = ["Describe the bug", "Reproduction", "Expected behavior", "First divergence", "Evidence", "Environment"]


def divergent(**changes: object) -> Verdict:
    place = Place(3, "rollout", 0, 17, 5, "logprob", -1.25, -1.85, 0.4)
    body = examples.parity(first_divergence=place, checks=examples.checks(token_boundaries="ends differ in 3 samples"))
    proof = Proof("the same stop tokens", 12, 0, "samples", "live engines")
    cause = Cause("STOP(</s>)", "candidate", "it ends elsewhere", "12 of 256 samples", {}, [proof])
    verdict = Verdict(
        "parity", "DIVERGENT", 1, "they differ", causes=[cause], parity=body,
        reproduce="harness parity vllm sglang --scenario ppo-tiny",
    )  # fmt: skip
    return dataclasses.replace(verdict, **changes)  # type: ignore[arg-type]


def test_the_sections_of_the_trackers_forms() -> None:
    text = render(divergent(), "issue")
    assert [section for section in re.findall(r"^### (.+)$", text, re.M) if section in SECTIONS] == SECTIONS
    assert "<!-- Title: [Bug] STOP(‹/s›): it ends elsewhere -->" in text
    assert "harness parity vllm sglang --scenario ppo-tiny" in text and "<code>--steps 4</code> is enough" in text
    assert "token-boundaries: ends differ in 3 samples" in text and "\n  - proof: " in text
    assert "SGLang asks for the output of <code>python3 -m sglang.check&#95;env</code>" in text
    assert "vLLM asks" not in text


def test_a_verdict_that_passes_is_no_bug() -> None:
    equal = divergent(verdict="EQUIVALENT", exit_code=0, reason="every check passed", causes=[])
    assert render(equal, "issue") == "EQUIVALENT: every check passed\n\nThere is nothing to report.\n"


@pytest.mark.slow
def test_the_versions_are_those_of_the_recordings(tmp_path: Path) -> None:
    verdict = divergent()
    assert verdict.parity is not None
    runs = [
        dataclasses.replace(run, path=str(make(run.side).write(tmp_path / run.side))) for run in verdict.parity.runs
    ]
    text = render(dataclasses.replace(verdict, parity=dataclasses.replace(verdict.parity, runs=runs)), "issue")
    environment = text.split("### Environment")[1]
    assert re.search(r"\| torch \| <code>[\d.+a-z]+</code> \| <code>[\d.+a-z]+</code> \|", environment), environment
    for damage in (b"{", b"[" * 100_000, b"\xff", b'{"environment": 3, "packages": []}'):
        (tmp_path / "baseline" / "run.json").write_bytes(damage)
        render(dataclasses.replace(verdict, parity=dataclasses.replace(verdict.parity, runs=runs)), "issue")


def test_nothing_is_live_and_no_secret_is_in_it() -> None:
    hostile = f"@maintainer #123 GH-12 https://example.com --> {examples.HOSTILE} hf_" + "abcdefgh12345678"
    cause = Cause(hostile, "candidate", hostile, hostile)
    text = render(divergent(reason=hostile, causes=[cause], missing=[hostile]), "issue")
    outside = re.sub(r"```.*?```", "", text, flags=re.S)
    assert not re.search(r"@maintainer|#123|GH-12\b|https://|<script", outside)
    assert "abcdefgh12345678" not in text
    title = text.splitlines()[0]
    assert title.startswith("<!-- Title:") and title.endswith(" -->") and title.count("-->") == 1


def test_a_hang() -> None:
    culprit = Party("h:1", "stopped", 1, "rollout", "h", 1, "vllm", "train.py:3 in step")
    body = Triage("K9", [culprit], [], [], [], [], ["look at h:1"])
    text = render(Verdict("triage", "HUNG", 1, "rank 1 stands", triage=body, reproduce="harness triage x"), "issue")
    assert "### Culprits" in text and "No hang (process state)." in text and "vLLM asks for" in text
    assert "[Bug]: rank 1 stands" in text


def test_a_recorded_run_is_no_issue(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not take a verdict of run"):
        render(RecordedRun.of(make("baseline").write(tmp_path)), "issue")


def parsed(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    parser = pytest.importorskip("prometheus_client.openmetrics.parser")
    families = list(parser.text_string_to_metric_families(text))
    samples = [sample for family in families for sample in family.samples]
    return {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for sample in samples}


def test_figures_as_openmetrics() -> None:
    found = parsed(render(divergent(coverage=examples.COVERAGE, figures=examples.FIGURES), "openmetrics"))
    verdict = (("baseline", "vllm"), ("candidate", "sglang"), ("kind", "parity"), ("verdict", "DIVERGENT"))
    assert found["rlhf_harness_verdict", verdict] == 1 and found["rlhf_harness_exit_code", ()] == 1
    assert found["rlhf_harness_checks", (("state", "confirmed"),)] == 1
    assert found["rlhf_harness_coverage", (("name", "compared_tokens"),)] == 4711
    assert any(name == "rlhf_harness_metric" and value == 1.31e-6 for (name, _), value in found.items())


def test_the_help_of_a_metric_says_what_it_is_whatever_the_run_came_to() -> None:
    first, second = (render(divergent(reason=reason), "openmetrics") for reason in ("they differ", "another reason"))
    assert first == second and "# HELP rlhf_harness_verdict 1: the verdict that the labels name\n" in first


def test_hostile_names_and_numbers_are_still_openmetrics() -> None:
    values = {
        examples.HOSTILE: math.nan,
        'a"b\\c\n': math.inf,
        "low": -math.inf,
        "x": {"y": 1, "z": [2, 3]},
        "t": "text",
    }
    found = parsed(render(divergent(reason=examples.HOSTILE, figures=values), "openmetrics"))
    assert found["rlhf_harness_figure", (("name", "low"),)] == -math.inf
    assert len([name for name, _ in found if name == "rlhf_harness_figure"]) >= 4


def test_the_steps_of_a_run_as_openmetrics(tmp_path: Path) -> None:
    run = RecordedRun.of(make("baseline").write(tmp_path))
    found = parsed(render(run, "openmetrics"))
    assert found["rlhf_harness_complete", ()] == 1
    labels = (("backend", "vllm"), ("metric", "reward_mean"), ("step", "0"))
    assert found["rlhf_harness_step", labels] == pytest.approx(run.steps[0]["reward_mean"])


@pytest.mark.parametrize(
    ("command", "needs"),
    [
        ("harness parity vllm sglang", "rlhf-harness[parity]"),
        ("harness diff a b", "rlhf-harness[diff]"),
        ("harness triage runs/x", "rlhf-harness, installed"),
    ],
)
def test_readers_elsewhere_have_no_checkout_to_install_from(command: str, needs: str) -> None:
    text = render(divergent(reproduce=command), "issue")
    assert needs in text and "pip install" not in text and "'.[" not in text
