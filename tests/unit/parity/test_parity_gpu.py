"""Recordings of vLLM 0.26.0 and SGLang 0.5.17 on one H200, float32, Triton attention (docs/measurements/gpu.md)."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from harness.parity.audit import audit
from harness.parity.verdict import judge
from reports.model import Verdict

PACKED = Path(__file__).parents[2] / "fixtures" / "gpu" / "vllm-sglang-float32.tar.xz"
AT_THE_FLOOR = {"baseline-itself", "candidate-itself", "logprobs", "engine-against-learner", "weight-sync"}


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    with tarfile.open(PACKED) as packed:
        packed.extractall(tmp_path, filter="data")
    return tmp_path / "vllm-sglang"


def judged(pair: Path) -> Verdict:
    return judge(pair / "baseline", pair / "candidate", native=False, cap=None)


def confirmed(verdict: Verdict) -> set[str]:
    assert verdict.parity is not None
    return {check.name for check in verdict.parity.checks if check.state == "confirmed"}


@pytest.mark.slow
def test_engines_that_multiply_in_tf32_differ_by_their_finish_reasons_only(pair: Path) -> None:
    """SGLang 0.5.17 says `length` of an end token at the limit."""
    verdict = judged(pair)
    assert confirmed(verdict) == {"finish-reasons"}
    assert [(str(cause.key), cause.party) for cause in verdict.causes] == [("STOP(finish reason)", "candidate")]


@pytest.mark.slow
def test_each_is_sound_by_itself_but_for_those_reasons(pair: Path) -> None:
    assert audit(pair / "baseline").verdict == "SOUND"
    assert confirmed(audit(pair / "candidate")) == {"ends"}


@pytest.mark.slow
def test_the_same_numbers_of_engines_that_were_forbidden_it_are_no_rounding(pair: Path) -> None:
    for events in pair.glob("*/events/rollout-*.jsonl"):
        text = events.read_text()
        assert '"device":"cuda"' in text
        events.write_text(text.replace('"device":"cuda"', '"device":"cuda","tf32":false'))
    assert confirmed(judged(pair)) >= AT_THE_FLOOR
