"""Attribution of whole recorded runs on embedded engines: recorded, judged, put on the bench, named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from bench_support import BASE, Laboratory, compared, laboratory
from ppo_support import random_models

from harness.parity.attribution import attribute
from harness.parity.attribution.clean import clean
from scenarios.planted.differences.fault import Fault

TENSOR = "model.layers.1.mlp.down_proj.weight"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laboratory]:
    with laboratory(random_models(tmp_path_factory.mktemp("models"))) as made:
        yield made


def test_a_sound_pair_is_left_as_it_is_and_its_baseline_is_clean(lab: Laboratory, tmp_path: Path) -> None:
    judged, bench = compared(lab, tmp_path, Fault("control"))
    assert judged.verdict.verdict == "EQUIVALENT", judged.verdict.reason
    assert attribute(judged, bench) is judged.verdict
    assert clean(tmp_path / "baseline")


@pytest.mark.by_day(2)
@pytest.mark.parametrize(
    ("fault", "cause", "party"),
    [
        (Fault("temperature", settings=("sampling.temperature=0.8",)), "SAMPLING_PARAM(temperature)", "candidate"),
        (
            Fault("stale", trainer={"omit_from": 1, "omit_names": (TENSOR,)}),
            f"STALE_WEIGHTS({TENSOR})",
            "candidate",
        ),
        pytest.param(
            Fault(
                "dropped", side="baseline", scenario=("sampling.temperature=0.7",),
                mapping={"edits": {"sampling": {"temperature": None}}},
            ),
            "SAMPLING_PARAM(temperature)",
            "mapping",
            marks=pytest.mark.night,
        ),
        pytest.param(
            Fault("refused", engine={"misloaded": {"names": [TENSOR], "how": "refused", "from": 1}}),
            f"STALE_WEIGHTS({TENSOR})",
            "candidate",
            marks=pytest.mark.night,
        ),
        pytest.param(
            Fault("permuted", engine={"misloaded": {"names": [TENSOR], "how": "permuted", "from": 1}}),
            f"WEIGHTS({TENSOR})",
            "candidate",
            marks=pytest.mark.night,
        ),
        (Fault("mixed", engine={"drawn_before_sync": {"tokens": 6, "from": 1}}), "MIXED_VERSION", "candidate"),
    ],
    ids=lambda one: one.name if isinstance(one, Fault) else "",
)  # fmt: skip
def test_the_cause_is_named_with_a_live_proof(
    lab: Laboratory, tmp_path: Path, fault: Fault, cause: str, party: str
) -> None:
    judged, bench = compared(lab, tmp_path, fault, BASE)
    assert judged.verdict.verdict == "DIVERGENT", judged.verdict.reason
    verdict = attribute(judged, bench)
    named = {one.name: one for one in verdict.causes}
    assert set(named) == {cause}
    live = [proof for proof in named[cause].proofs if proof.on == "live engines"]
    assert live and live[0].removed >= 0.98
    assert named[cause].party == party
    if cause != "MIXED_VERSION":  # recordings name it; the bench adds the proof by drawing at all
        assert verdict.figures["attribution"]["seconds_to_cause"] > 0
    if fault.side == "baseline":
        assert not clean(tmp_path / "baseline")


@pytest.mark.night
def test_draws_that_depend_on_the_batch_are_no_noise(lab: Laboratory, tmp_path: Path) -> None:
    judged, bench = compared(lab, tmp_path, Fault("padded", engine={"padded_right": True}), BASE)
    verdict = attribute(judged, bench)
    assert [(one.name, one.party) for one in verdict.causes] == [("BATCH", "candidate")]


@pytest.mark.night
def test_a_fault_of_a_position_is_no_mixed_version(lab: Laboratory, tmp_path: Path) -> None:
    """It is there before anything is synced, and that is what tells them apart."""
    judged, bench = compared(lab, tmp_path, Fault("late", engine={"moved": {"by": 0.02, "position": 9}}), BASE)
    verdict = attribute(judged, bench)
    assert [(one.name, one.party) for one in verdict.causes] == [("candidate-itself(decoding)", "candidate")]
    assert "it does not draw as it scores" in verdict.causes[0].evidence


def test_sequences_that_the_engine_cannot_score_whole_are_counted(
    lab: Laboratory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged, bench = compared(lab, tmp_path, Fault("temperature", settings=("sampling.temperature=0.8",)), BASE)
    session = lab.session("candidate")._target  # type: ignore[attr-defined]
    snapshot, rescore = session.snapshot, session.rescore
    longest = 32
    sent: list[int] = []

    def scored(sequences: list[tuple[int, ...]]) -> list[list[float]]:
        sent.extend(map(len, sequences))
        return rescore(sequences)  # type: ignore[no-any-return]

    monkeypatch.setattr(session, "snapshot", lambda: {**snapshot(), "resolved": {"max_model_len": longest + 1}})
    monkeypatch.setattr(session, "rescore", scored)
    verdict = attribute(judged, bench)
    assert [one.name for one in verdict.causes] == ["SAMPLING_PARAM(temperature)"] and max(sent) == longest
    live = next(one for one in verdict.findings if one.name == "live interventions")
    (said,) = [note for note in live.details["notes"] if "scores no more than 32 tokens of a sequence" in note]
    assert said.startswith("the candidate's engine") and said.endswith("were scored up to there")
