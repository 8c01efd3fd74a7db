"""A proven cause confirms the suspicion it belongs to; a live proof of everything rules out the environment."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from cause_keys import key, of
from recordings import Recording, check, jagged, pair

from harness.parity import explain
from harness.parity.attribution import merge, merged
from harness.parity.attribution.outcome import Attribution
from harness.parity.causes.family import Seen
from harness.parity.facts.evidence import Learned
from harness.parity.interventions.situation import Named
from harness.parity.subjects.precision.causes import STAGE
from harness.parity.verdict import Judged, judged_pair
from reports.model import Proof
from scenarios.bench.case import Symptoms

pytestmark = pytest.mark.slow

SAMPLERS = "sampling-parameter-map"


def judge(folder: Path, baseline: Recording, candidate: Recording) -> Judged:
    return judged_pair(baseline.write(folder / "baseline"), candidate.write(folder / "candidate"))


def moved(folder: Path) -> Judged:
    """A candidate whose log-probabilities lie away for no recorded reason."""
    baseline, candidate = pair(native=False)
    candidate.frame("rollout", 1).arrays["logprob"].values[3:9] -= 0.5
    return judge(folder, baseline, candidate)


def proven(name: str, left: int) -> Attribution:
    """What a bench shows whose intervention leaves so many of 20 differences."""
    proof = Proof("undo it", 20, left, "differences", "live engines")
    excluding = {"STALE_KV": (Seen.PAST_CACHE_AGREES,), "SAMPLING_PARAM(top_p)": (Seen.ALONE_EXPLAINS,)}
    seen = excluding.get(name, ())
    return Attribution(
        first={"candidate": Symptoms(counts={"logprobs": 20})},
        remaining={"candidate": Symptoms(counts={"logprobs": left})},
        named=[Named(key(name), "candidate", "candidate", "the engine does otherwise", proof, {}, seen)],
        reproduced=True,
    )  # fmt: skip


def test_an_end_token_left_out_confirms_the_token_boundaries(tmp_path: Path) -> None:
    baseline, candidate = pair(native=False)
    for frame in candidate.frames("rollout"):
        for name in ("output", "logprob"):
            rows = zip(frame.arrays[name].rows(), frame.fields["finish"], strict=True)
            frame.arrays[name] = jagged([row[:-1] if reason == "stop" else row for row, reason in rows])
    verdict = judge(tmp_path, baseline, candidate).verdict
    found = check(verdict, "token-boundaries")
    assert found.state == "confirmed" and "append the end token" in found.evidence
    confirmed = [one for one in verdict.parity.checks if one.state == "confirmed"]
    assert verdict.coverage["checks"]["confirmed"] == len(confirmed)


@pytest.mark.parametrize(
    ("cause", "suspicion"),
    [("SAMPLING_PARAM(top_p)", SAMPLERS), ("RNG_COLLISION", SAMPLERS), ("STALE_KV", "cache-hit-rate")],
)
def test_a_cause_proven_live_confirms_its_suspicion(tmp_path: Path, cause: str, suspicion: str) -> None:
    found = moved(tmp_path)
    assert check(found.verdict, suspicion).state != "confirmed"
    verdict = merged(found, proven(cause, 0))
    assert [one.name for one in verdict.causes] == [cause]
    assert verdict.causes[0].evidence.startswith("live: undo it: 20 differences before, 0 after")
    now = check(verdict, suspicion)
    assert now.state == "confirmed" and cause in now.evidence and "undo it" in now.evidence
    assert not any(item.startswith(f"{suspicion}: ") for item in verdict.missing)


def test_a_cause_that_belongs_to_no_suspicion_confirms_none(tmp_path: Path) -> None:
    found = moved(tmp_path)
    verdict = merged(found, proven("STALE_DERIVED", 0))
    states = {one.name: one.state for one in found.verdict.parity.checks if one.name != "environment"}
    assert {one.name: one.state for one in verdict.parity.checks if one.name != "environment"} == states


def test_a_live_proof_of_everything_rules_out_the_environment(tmp_path: Path) -> None:
    found = moved(tmp_path)
    assert check(found.verdict, "environment").state == "not tested"
    now = merged(found, proven("STALE_DERIVED", 0))
    assert check(now, "environment").state == "ruled out"
    assert "what differs was removed by: undo it" in check(now, "environment").evidence
    assert not any(item.startswith("environment: ") for item in now.missing)


def test_an_environment_is_not_ruled_out_where_something_is_left(tmp_path: Path) -> None:
    found = merged(moved(tmp_path), proven("STALE_DERIVED", 12))
    assert check(found, "environment").state == "not tested"


@pytest.mark.parametrize(("live", "stands"), [("TRUNCATION(left)", False), ("LOGPROB_SEMANTICS(tempered)", True)])
def test_what_native_samples_are_likely_under_says_nothing_of_an_engine_with_another_prompt(
    live: str, stands: bool, tmp_path: Path
) -> None:
    found = moved(tmp_path)
    fitted = of(
        "SAMPLING_PARAM(temperature)", "candidate", "it draws with temperature 1.2", "",
        {"stage": "native"}, [Proof("read as drawn with temperature 1.2", 9, 1)], (Seen.LIKELIER,),
    )  # fmt: skip
    found.verdict.causes.insert(0, fitted)
    verdict = merged(found, proven(live, 0))
    assert ("SAMPLING_PARAM(temperature)" in [one.name for one in verdict.causes]) == stands
    assert any(one.name == "withdrawn: SAMPLING_PARAM(temperature)" for one in verdict.findings) != stands


@pytest.mark.parametrize(("after", "stands"), [(0, False), (12, True)])
def test_what_a_tensor_explains_on_the_bench_is_no_arithmetic_of_the_format(
    after: int, stands: bool, tmp_path: Path
) -> None:
    """The lifted stage syncs once more, which may cure what a refused tensor did: it agrees then, as if by format."""
    found = moved(tmp_path)
    found.verdict.causes.insert(0, of("ARITHMETIC(bfloat16)", "candidate", "they part in bfloat16 only"))
    verdict = merged(found, proven("STALE_WEIGHTS(model.norm.weight)", after))
    assert ("ARITHMETIC(bfloat16)" in [one.name for one in verdict.causes]) == stands
    assert any(one.name == "withdrawn: ARITHMETIC(bfloat16)" for one in verdict.findings) != stands
    assert verdict.causes[-1].name == "STALE_WEIGHTS(model.norm.weight)" or stands


def test_the_recordings_are_read_once_more_with_what_the_bench_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the evidence stays as it was gathered."""
    found, read = moved(tmp_path), []
    assert found.evidence is not None
    again = explain.find
    monkeypatch.setattr(merge, "find", lambda e, kinds: read.append(e.learned) or again(e, kinds))
    learned = Learned(past_cache=("baseline",))
    verdict = merged(found, Attribution(learned=learned))
    assert read == [learned] and found.evidence.learned == Learned()
    assert [one.name for one in verdict.causes] == [one.name for one in found.verdict.causes]


def test_a_withdrawn_cause_confirms_nothing_any_more(tmp_path: Path) -> None:
    found = merged(moved(tmp_path), proven("STALE_KV", 0))
    before = moved(tmp_path / "again")
    again = Judged(dataclasses.replace(found, causes=[]), before.evidence, before.kinds)
    verdict = merged(again, Attribution())
    assert check(verdict, "cache-hit-rate") == check(before.verdict, "cache-hit-rate")
    assert check(verdict, "environment").state == "not tested"
    assert any(item.startswith("environment: ") for item in verdict.missing)


@pytest.mark.parametrize(
    ("own", "lifted", "party", "named"),
    [
        ("STALE_WEIGHTS(one update behind)", "WEIGHTS(51 of 51 tensors)", "candidate", 1),
        ("WEIGHTS(a.weight)", "WEIGHTS(a.weight, b.weight)", "candidate", 1),
        ("WEIGHTS(a.weight)", "WEIGHTS(a.weight)", "baseline", 2),
        ("WEIGHTS(a.weight)", "TRUNCATION(left)", "candidate", 2),
    ],
)
def test_a_cause_that_the_lifted_stage_names_otherwise_is_named_once(
    tmp_path: Path, own: str, lifted: str, party: str, named: int
) -> None:
    found = moved(tmp_path)
    causes = [of(own, "candidate", "", ""), of(lifted, party, "", "", {"stage": STAGE})]
    both = dataclasses.replace(found.verdict, causes=causes)
    verdict = merged(Judged(both, found.evidence, found.kinds), Attribution())
    assert [one.name for one in verdict.causes] == [own, lifted][:named]
