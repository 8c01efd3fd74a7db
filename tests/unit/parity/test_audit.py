"""One run judged by itself: what it shows is found, a sound one passes, and what was not tested never does."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recordings import EOS, TENSORS, VOCABULARY, Recording, check, make, scenario

from harness import cli
from harness.bundle.packing import pack
from harness.parity.audit import audit
from harness.parity.checks.registry import checks
from harness.parity.facts.evidence import Evidence
from harness.parity.gather import gather
from harness.recordings.store import Recording as Store
from reports.model import Verdict


def audited(made: Recording, folder: Path) -> Verdict:
    return audit(made.write(folder / "one"))


def words(verdict: Verdict) -> str:
    """Everything that it says, without the paths."""
    body = verdict.parity
    assert body is not None
    told = [verdict.reason, verdict.fix, *verdict.missing]
    told += [text for one in body.checks for text in (one.name, one.evidence)]
    told += [text for one in verdict.causes for text in (one.name, one.party, one.summary, one.evidence)]
    told += [text for one in verdict.findings for text in (one.name, one.summary, one.effect, one.where)]
    return " ".join(told)


@pytest.mark.slow
@pytest.mark.parametrize("side", ["baseline", "candidate"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_sound_run_is_sound(side: str, dtype: str, tmp_path: Path) -> None:
    plan = scenario()
    plan = dataclasses.replace(plan, model=dataclasses.replace(plan.model, dtype=dtype))
    verdict = audited(make(side, plan, native=False), tmp_path)
    assert (verdict.kind, verdict.verdict, verdict.exit_code) == ("audit", "SOUND", 0), verdict.reason
    assert verdict.coverage["samples"] == 96 and not verdict.causes
    assert not {"baseline", "candidate", "both"} & set(words(verdict).replace("'s", "").split())


def stale(made: Recording) -> None:
    """From version 3 on a sync leaves a tensor out, and the engine keeps the old one."""
    name = TENSORS[2]
    for event in made.events("sync"):
        if event["version"] >= 3:
            event |= {
                "absent": [name],
                "tensors": event["tensors"] - 1,
                "proof": {"max": 0.02, "mean": 0.004, "tokens": 200},
            }
    for event in made.events("weights"):
        if event["source"] == "received" and event["version"] >= 3:
            event["digests"].pop(name, None)
    for frame in made.frames("rollout"):
        if frame.step >= 3:
            frame.arrays["logprob"].values[::3] -= 0.02


def double_bos(made: Recording) -> None:
    from recordings import BOS, jagged

    for frame in made.frames("rollout"):
        frame.arrays["prompt_seen"] = jagged([[BOS, *row] for row in frame.arrays["prompt"].rows()])


def other_tokens(made: Recording) -> None:
    frame = made.frame("experience", 2)
    frame.arrays["tokens"] = frame.arrays["tokens"].copy()
    frame.arrays["tokens"].values[5] += 1


def far(made: Recording) -> None:
    made.frame("rollout", 1).arrays["logprob"].values[7] += 0.3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plant", "named", "confirmed"),
    [
        (stale, f"STALE_WEIGHTS({TENSORS[2]})", "weight-sync"),
        (double_bos, "TOKENIZATION(double BOS)", "token-ids-not-text"),
        (other_tokens, "", "trained-tokens"),
        (far, "", "engine-against-learner"),
    ],
)
def test_what_one_run_shows_is_found(
    plant: Callable[[Recording], None], named: str, confirmed: str, tmp_path: Path
) -> None:
    made = make("baseline", native=False)
    plant(made)
    verdict = audited(made, tmp_path)
    assert (verdict.verdict, verdict.exit_code) == ("UNSOUND", 1), verdict.reason
    assert check(verdict, confirmed).state == "confirmed"
    assert [cause.name for cause in verdict.causes] == ([named] if named else [])
    assert all(cause.party == "run" for cause in verdict.causes)
    if not named:  # which cause it has is not guessed
        assert "harness replay" in verdict.fix and any("it takes a second run" in one for one in verdict.missing)


@pytest.mark.slow
def test_a_token_that_was_trained_on_stands_in_the_column_of_the_run(tmp_path: Path) -> None:
    made = make("baseline", native=False)
    other_tokens(made)
    verdict = audited(made, tmp_path)
    place = verdict.parity.first_divergence if verdict.parity else None
    drawn, trained = (
        made.frame(kind, 2).arrays[name].values[5] for kind, name in (("rollout", "output"), ("experience", "tokens"))
    )
    assert place is not None and place.field == "token trained on"
    assert str(trained) in str(place.baseline) and str(drawn) in str(place.candidate)  # in the run, and expected


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "off", "named"), [
    ("bfloat16", 0.0, ["CONFIG(dtype)"]), ("float32", 0.0, []), ("bfloat16", 2.0, []),
])  # fmt: skip
def test_an_engine_in_another_data_type_explains_rounding_and_nothing_larger(
    dtype: str, off: float, named: list[str], tmp_path: Path
) -> None:
    """A float32 model that the engine loads as bfloat16, the same noise in float32, and a fault beside the type."""
    made = make("baseline", native=False, noise=0.008)
    for event in made.events("engine_info"):
        event["resolved"]["dtype"] = dtype
    for frame in made.frames("rollout"):
        frame.arrays["logprob"].values[::3] -= off
    verdict = audited(made, tmp_path)
    assert (verdict.verdict, [cause.name for cause in verdict.causes]) == ("UNSOUND", named), verdict.reason


def processed(made: Recording) -> None:
    """A framework's job at another temperature, which its learner scores after too."""
    for frame in made.frames("rollout"):
        frame.arrays["processed_logprob"] = frame.arrays.pop("logprob")
        frame.fields["tempered"] = True


@pytest.mark.slow
@pytest.mark.parametrize(
    ("temperature", "after", "cap"),
    [(0.7, True, 1e-4 / 0.7), (0.1, True, 2e-4), (2.0, True, 0.5e-4), (1.0, True, 1e-4), (0.7, False, 1e-4)],
)
def test_a_cap_is_of_the_logits_after_the_temperature(
    temperature: float, after: bool, cap: float, tmp_path: Path
) -> None:
    """A small temperature that a recording claims excuses no more than twice the cap."""
    plan = scenario()
    plan = dataclasses.replace(plan, sampling=dataclasses.replace(plan.sampling, temperature=temperature))
    made = make("baseline", plan, native=False)
    if after:
        processed(made)
    run = Store(made.write(tmp_path / "one"))
    assert gather(run, None, native=False, cap=None).tolerance.cap == pytest.approx(cap)
    assert gather(run, None, native=False, cap=1e-5).tolerance.cap == 1e-5


def filtered(made: Recording) -> None:
    """A job with top-p: the engine's numbers are of fewer tokens than the learner's."""
    processed(made)
    for frame in made.frames("rollout"):
        del frame.fields["tempered"]


def renormalised(made: Recording, *, beyond: float = 0.0) -> None:
    """A job at top-p 0.8 whose importance ratio divides by renormalised numbers; some are further off than a nucleus
    of that mass allows.
    """
    filtered(made)
    made.manifest["scenario"]["sampling"]["top_p"] = 0.8
    for event in made.events("sampling"):
        event["canonical"]["top_p"] = 0.8
    for frame in made.frames("rollout"):
        frame.fields["ratio"] = True
        values = frame.arrays["processed_logprob"].values
        mass = np.random.default_rng(frame.step).uniform(0.8, 1.0, len(values))
        values[:] = np.minimum(values - np.log(mass), 0.0)
        values[::3] -= beyond


def renormalised_and_far(made: Recording) -> None:
    renormalised(made, beyond=1.0)


@pytest.mark.slow
@pytest.mark.parametrize(("plant", "named"), [(renormalised, ["LOGPROB_SEMANTICS(renormalised)"]),
                                              (renormalised_and_far, [])])  # fmt: skip
def test_an_importance_ratio_that_divides_by_filtered_numbers_is_unsound(
    plant: Callable[[Recording], None], named: list[str], tmp_path: Path
) -> None:
    """Without the ratio the same numbers are not compared: `filtered` below."""
    made = make("baseline", native=False)
    plant(made)
    verdict = audited(made, tmp_path)
    assert (verdict.verdict, [cause.name for cause in verdict.causes]) == ("UNSOUND", named), verdict.reason
    assert all(cause.party == "run" and not cause.proofs for cause in verdict.causes)


def processed_and_far(made: Recording) -> None:
    far(made)
    processed(made)


@pytest.mark.slow
@pytest.mark.parametrize(("plant", "verdict", "state"), [
    (processed, "SOUND", "ruled out"), (filtered, "INCONCLUSIVE", "not tested"),
    (processed_and_far, "UNSOUND", "confirmed"),
])  # fmt: skip
def test_processed_numbers_are_held_against_a_learner_that_scores_after_the_temperature(
    plant: Callable[[Recording], None], verdict: str, state: str, tmp_path: Path
) -> None:
    made = make("baseline", native=False)
    plant(made)
    audited_run = audited(made, tmp_path)
    assert (audited_run.verdict, check(audited_run, "engine-against-learner").state) == (verdict, state)


def unmatched(made: Recording) -> None:
    """Of a framework's step three rows were trained on that no sample of it stands for."""
    made.frame("experience", 2).fields["unmatched"] = {"its prompt was submitted in another step": 3}


@pytest.mark.slow
def test_rows_without_a_sample_are_not_tested(tmp_path: Path) -> None:
    made = make("baseline", native=False)
    unmatched(made)
    verdict = audited(made, tmp_path)
    trained = check(verdict, "trained-tokens")
    assert (verdict.verdict, trained.state) == ("INCONCLUSIVE", "not tested")
    assert "3 rows: its prompt was submitted in another step" in trained.evidence


@pytest.mark.slow
def test_what_is_not_tested_never_passes(tmp_path: Path) -> None:
    made = make("candidate", native=False)
    made.drop("weights")
    verdict = audited(made, tmp_path)
    assert (verdict.verdict, verdict.exit_code) == ("INCONCLUSIVE", 3)
    assert check(verdict, "weight-sync").state == "not tested"
    bare = make("candidate", native=False)
    bare.drop("experience", "margins")
    assert audited(bare, tmp_path / "bare").verdict == "INCONCLUSIVE"


def test_a_recording_that_was_cut_short_is_inconclusive_whatever_it_shows(tmp_path: Path) -> None:
    made = make("candidate", native=False)
    stale(made)
    made.logs["rollout"].closed = False
    verdict = audited(made, tmp_path)
    assert verdict.verdict == "INCONCLUSIVE" and "cut short" in verdict.account and verdict.causes == []


class OneSide:
    """Evidence that raises where somebody asks for what a comparison alone has."""

    PAIRED = frozenset({
        "candidate", "engines", "counts", "flips", "learners", "experience", "response_sources", "weights",
        "confounders", "stop_conditions", "lifted", "confounded",
    })  # fmt: skip

    def __init__(self, e: Evidence) -> None:
        self._e = e

    def __getattr__(self, name: str) -> Any:
        assert name not in self.PAIRED, f"it compares two sides: {name}"
        return getattr(self._e, name)


def last_tokens(made: Recording, said: str, token: int, reason: str) -> int:
    """Let samples that end for the reason `said` end with this token, and say `reason` of them."""
    count = 0
    for frame in made.frames("rollout"):
        output = frame.arrays["output"]
        rows = [row for row, one in enumerate(frame.fields["finish"]) if one == said]
        output.values[[int(output.offsets[row + 1]) - 1 for row in rows]] = token
        for row in rows:
            frame.fields["finish"][row] = reason
        made.frame("experience", frame.step).arrays["tokens"].values[:] = output.values
        count += len(rows)
    return count


@pytest.mark.slow
@pytest.mark.parametrize(
    ("said", "token", "reason", "named"),
    [
        ("length", EOS, "length", ["STOP(finish reason)"]),  # the limit is tested before the end tokens
        ("length", EOS + 1, "stop", ["STOP(finish reason)"]),
        ("stop", EOS, "length", ["STOP(finish reason)"]),
        ("stop", EOS + 1, "stop", []),  # the end token is lost, or it stopped at a number that is none
        ("length", EOS, "stop", None),
        ("stop", VOCABULARY, "abort", None),
    ],
)
def test_a_reason_that_the_last_token_contradicts(
    said: str, token: int, reason: str, named: list[str] | None, tmp_path: Path
) -> None:
    made = make("candidate", native=False)
    count = last_tokens(made, said, token, reason)
    verdict = audited(made, tmp_path)
    if named is None:
        assert verdict.verdict == "SOUND" and check(verdict, "ends").state == "ruled out", verdict.reason
        return
    assert verdict.verdict == "UNSOUND" and [one.name for one in verdict.causes] == named, verdict.reason
    found = check(verdict, "ends")
    assert found.state == "confirmed" and found.evidence.startswith(f"{count} of 96 samples"), found.evidence


@pytest.mark.slow
@pytest.mark.parametrize("silent", ["end_ids", "finish", "ignore_eos"])
def test_a_run_that_does_not_tell_its_ends_is_not_held_to_them(silent: str, tmp_path: Path) -> None:
    made = make("candidate", native=False)
    last_tokens(made, "length", EOS, "length")
    for event in made.events("engine_info") if silent == "end_ids" else ():
        del event["resolved"]["end_ids"]
    for event in made.events("sampling") if silent == "ignore_eos" else ():
        event["canonical"]["ignore_eos"] = made.manifest["scenario"]["sampling"]["ignore_eos"] = True
    for frame in made.frames("rollout") if silent == "finish" else ():
        frame.fields["finish"] = [""] * len(frame.fields["finish"])
    verdict = audited(made, tmp_path)
    assert verdict.verdict == "SOUND" and check(verdict, "ends").state == "not tested", verdict.reason


def test_a_stop_at_a_text_shows_in_no_token(tmp_path: Path) -> None:
    made = make("candidate", native=False)
    last_tokens(made, "stop", EOS + 1, "stop")
    for event in made.events("sampling"):
        event["native"]["stop"] = ["."]
    assert check(audited(made, tmp_path), "ends").state == "ruled out"


@pytest.mark.slow
@pytest.mark.parametrize("plant", [None, stale, double_bos, far])
def test_no_check_of_one_run_compares_two_sides(plant: Callable[[Recording], None] | None, tmp_path: Path) -> None:
    made = make("candidate", native=False)
    if plant is not None:
        plant(made)
    recording = Store(made.write(tmp_path / "one"))
    e: Any = OneSide(gather(recording, None, native=False, cap=None).build())
    asked = [one for one in checks() if one.alone and one.applies(e)]
    assert len(asked) > 8
    for one in asked:
        bool(one.required(e))
        one.run(e)


@pytest.mark.slow
def test_the_command_reads_runs_sides_and_bundles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "pair"
    for side in ("baseline", "candidate"):
        make(side, native=False).write(folder / side)
    pack([folder], tmp_path / "pair.zip")
    pack([folder / "candidate"], tmp_path / "one.zip")
    for given in (folder / "candidate", tmp_path / "pair.zip" / "candidate", tmp_path / "one.zip"):
        assert cli.main(["audit", str(given)]) == 0
        printed = capsys.readouterr().out
        assert printed.splitlines()[-1].startswith("SOUND, but 1 check was not tested (exit code 0)")
        assert f"harness audit {given}" in printed
    for pair in (folder, tmp_path / "pair.zip"):
        assert cli.main(["audit", str(pair)]) == 2
        told = capsys.readouterr().err
        assert "baseline and candidate" in told and f"harness audit {pair}/baseline" in told


@pytest.mark.slow
@pytest.mark.parametrize("format", ["md", "json", "html", "junit", "openmetrics"])
def test_every_format_shows_it(format: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = make("candidate", native=False)
    stale(made)
    assert cli.main(["audit", str(made.write(tmp_path / "one")), "--format", format]) == 1
    assert "UNSOUND" in capsys.readouterr().out


def test_evidence_of_a_hang_is_sent_to_triage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "evidence.json").write_text("{}")
    assert cli.main(["audit", str(tmp_path)]) == 2
    assert f"harness triage {tmp_path}" in capsys.readouterr().err
