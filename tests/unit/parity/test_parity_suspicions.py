"""The eleven suspicions, each confirmed by its own planted difference and not tested without its evidence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from recordings import Recording, check, jagged, pair, put, scenario

from reports.model import SUSPICIONS

pytestmark = pytest.mark.slow


def plain() -> tuple[Recording, Recording]:
    return pair(native=False)


@pytest.mark.by_day(3)
@pytest.mark.parametrize(
    "number, kinds",
    [
        (2, ("boundaries",)),
        (3, ("shapes",)),
        (4, ("floor",)),
        (5, ("group",)),
        (6, ("engine_info",)),
        (7, ("sampling",)),
        (11, ("span", "step")),
    ],
)
def test_without_its_evidence_a_suspicion_is_not_tested(tmp_path: Path, number: int, kinds: tuple[str, ...]) -> None:
    baseline, candidate = plain()
    candidate.drop(*kinds)
    verdict = put(tmp_path, baseline, candidate)
    found = check(verdict, SUSPICIONS[number])
    assert found.number == number
    state = "ruled out" if number == 4 else "not tested"  # the baseline's own floor is still there
    assert found.state == state, found.evidence


def test_sizes_of_half_of_the_steps_are_not_those_of_all(tmp_path: Path) -> None:
    baseline, candidate = plain()
    log = candidate.logs["trainer"]
    log.events = [one for one in log.events if one[0] != "shapes" or one[1]["step"] < 3]
    found = check(put(tmp_path, baseline, candidate), SUSPICIONS[11])
    assert found.state == "not tested" and "step 3" in found.evidence


@pytest.mark.parametrize("mode", ["coupled", "native"])
def test_sampling_parameters_of_one_mode_are_not_those_of_the_other(tmp_path: Path, mode: str) -> None:
    baseline, candidate = pair()
    for log in candidate.logs.values():
        log.events = [one for one in log.events if one[0] != "sampling" or one[1]["mode"] != mode]
    found = check(put(tmp_path, baseline, candidate), SUSPICIONS[7])
    assert found.state == "not tested" and f"of the candidate in {mode} mode" in found.evidence


@pytest.mark.parametrize("number", [1, 10])
def test_an_engine_that_does_not_say_what_it_saw(tmp_path: Path, number: int) -> None:
    baseline, candidate = plain()
    for frame in candidate.frames("rollout"):
        del frame.arrays["prompt_seen"]
    assert check(put(tmp_path, baseline, candidate), SUSPICIONS[number]).state == "not tested"


def test_another_special_token_at_a_boundary(tmp_path: Path) -> None:
    baseline, candidate = plain()
    boundary = list(candidate.events("boundaries"))[17]
    boundary["specials"] = [*boundary["specials"], 7]
    verdict = put(tmp_path, baseline, candidate)
    found = check(verdict, "token-boundaries")
    assert found.state == "confirmed" and "specials" in found.evidence
    assert verdict.verdict == "EQUIVALENT"  # a finding: the ids themselves agree


def test_boundaries_of_a_benign_flip_are_no_difference(tmp_path: Path) -> None:
    baseline, candidate = plain()
    for recording in (baseline, candidate):
        recording.frame("experience", 1).arrays["margin"].values[0] = 1e-7
    flipped = int(baseline.frame("experience", 1).arrays["runner_up"].values[0])
    candidate.frame("rollout", 1).arrays["output"].values[0] = flipped
    boundary = next(one for one in candidate.events("boundaries") if one["step"] == 1)
    boundary["output_first"] = [flipped, *boundary["output_first"][1:]]
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.coverage["benign_flips"] == 1
    assert check(verdict, "token-boundaries").state == "ruled out"


def test_boundaries_say_of_how_many_samples_only_the_prompts_were_compared(tmp_path: Path) -> None:
    baseline, candidate = plain()
    shorter = 0
    for frame in candidate.frames("rollout"):
        stopped = [reason == "stop" for reason in frame.fields["finish"]]
        for name in ("output", "logprob"):
            rows = zip(frame.arrays[name].rows(), stopped, strict=True)
            frame.arrays[name] = jagged([row[:-1] if cut else row for row, cut in rows])
        for event, cut in zip(candidate.events("boundaries", step=frame.step), stopped, strict=True):
            event["output_len"] -= int(cut)
        shorter += sum(stopped)
    total = sum(1 for _ in candidate.events("boundaries"))
    found = check(put(tmp_path, baseline, candidate), "token-boundaries")
    assert f"output ends agree in {total - shorter:,} samples" in found.evidence
    assert f"output ends of {shorter:,} samples were not compared" in found.evidence


def test_other_padding_of_the_same_tokens(tmp_path: Path) -> None:
    baseline, candidate = plain()
    next(candidate.events("shapes", step=2))["padded_tokens"] *= 2
    found = check(put(tmp_path, baseline, candidate), "experience-matrix-shapes")
    assert found.state == "confirmed" and "step 2" in found.evidence
    assert "padded_tokens " in found.evidence and "real_tokens" not in found.evidence  # what differs, and no more


def in_micro_batches(recording: Recording) -> list[tuple[str, dict[str, Any]]]:
    """Add two micro-batches of step 2 to the end of its first journal. Returns that journal."""
    log = next(iter(recording.logs.values())).events
    first = next(recording.events("shapes"))
    for samples, longest in ((3, 20), (5, 28)):
        sizes = {"samples": samples, "longest": longest, "real_tokens": 60, "padded_tokens": samples * longest}
        tensors = {"input_ids": [[samples, longest], "int64", "cpu"]}
        log.append(("shapes", {**first, "step": 2, "phase": "actor_minibatch", "tensors": tensors, **sizes}))
    return log


def test_micro_batches_behind_the_end_of_a_cut_recording_are_no_other_ones(tmp_path: Path) -> None:
    baseline, candidate = plain()
    for recording in (baseline, candidate):
        log = in_micro_batches(recording)
    log.pop()
    state = check(put(tmp_path / "whole", baseline, candidate), "experience-matrix-shapes").state
    assert state == "confirmed"
    next(iter(candidate.logs.values())).closed = False
    state = check(put(tmp_path / "cut", baseline, candidate), "experience-matrix-shapes").state
    assert state != "confirmed"


def test_other_micro_batches_of_the_same_experience(tmp_path: Path) -> None:
    baseline, candidate = plain()
    for recording in (baseline, candidate):
        log = in_micro_batches(recording)
    log[-2:] = reversed(log[-2:])  # whichever the learner took first
    found = check(put(tmp_path, baseline, candidate), "experience-matrix-shapes")
    assert found.state == "ruled out" and "shapes that were recorded" in found.evidence
    changed = next(one for one in candidate.events("shapes", step=2) if one["phase"] == "actor_minibatch")
    changed["tensors"] = {"input_ids": [[3, 32], "int64", "cpu"]}
    verdict = put(tmp_path / "changed", baseline, candidate)
    found = check(verdict, "experience-matrix-shapes")
    assert found.state == "confirmed" and "step 2" in found.evidence
    assert "5×28" in found.evidence
    assert verdict.verdict == "EQUIVALENT"  # a finding: the learners stayed bit-identical


def test_another_device_alone_is_no_other_shape(tmp_path: Path) -> None:
    baseline, candidate = plain()
    for event in candidate.events("shapes"):
        event["tensors"] = {key: [*value[:2], "cuda:1"] for key, value in event["tensors"].items()}
    assert check(put(tmp_path, baseline, candidate), "experience-matrix-shapes").state == "ruled out"


def test_nccl_against_gloo(tmp_path: Path) -> None:
    baseline, candidate = plain()
    for event in candidate.events("group"):
        event["backend"] = "nccl"
    found = check(put(tmp_path, baseline, candidate), "collective-backend")
    assert found.state == "confirmed" and "gloo" in found.evidence and "nccl" in found.evidence


def test_another_number_of_workers_makes_other_groups(tmp_path: Path) -> None:
    baseline, candidate = plain()
    for event in candidate.events("group"):
        event["world_size"] = 3
    found = check(put(tmp_path / "unasked", baseline, candidate), "collective-backend")
    assert found.state == "confirmed" and "gloo of 3" in found.evidence
    candidate.manifest["scenario"]["engine"]["tensor_parallel"] = 2
    assert check(put(tmp_path / "asked", baseline, candidate), "collective-backend").state == "ruled out"


def test_a_sampling_parameter_that_was_dropped_is_a_warning_without_a_divergence(tmp_path: Path) -> None:
    baseline, candidate = plain()
    for side in (baseline, candidate):
        side.manifest["scenario"]["sampling"]["min_tokens"] = 4
        for event in side.events("sampling"):
            event["canonical"]["min_tokens"] = 4
            event["given"] = {"min_tokens": 0 if side is candidate else 4}
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "EQUIVALENT" and check(verdict, "sampling-parameter-map").state == "confirmed"
    assert any(one.severity == "warning" and "min_tokens" in one.summary for one in verdict.findings)


def test_hit_rates_that_differ_are_a_finding(tmp_path: Path) -> None:
    baseline, candidate = plain()
    for event in candidate.events("engine_stats"):
        event["cache_hit_rate"] = 0.1
    verdict = put(tmp_path, baseline, candidate)
    assert check(verdict, "cache-hit-rate").state == "ruled out"
    assert any(one.name == "cache hit rate" for one in verdict.findings)


def test_no_cached_token_tests_nothing_about_the_cache(tmp_path: Path) -> None:
    baseline, candidate = plain()
    for recording in (baseline, candidate):
        for frame in recording.frames("rollout"):
            frame.arrays["cached"][:] = 0
    assert check(put(tmp_path, baseline, candidate), "cache-hit-rate").state == "not tested"


@pytest.mark.parametrize(
    ("off", "is_ruled_out"),
    [
        (("baseline", "candidate"), True),
        (("candidate",), False),  # the other may have one of which no token was compared
        ((), False),
    ],
)
def test_engines_without_a_prefix_cache_have_nothing_stale(
    off: tuple[str, ...], is_ruled_out: bool, tmp_path: Path
) -> None:
    """A cache that is off counts only with the engine's own counts: one cached token contradicts it."""

    def found(cached: int) -> str:
        baseline, candidate = plain()
        for name, recording in (("baseline", baseline), ("candidate", candidate)):
            for event in recording.events("engine_info"):
                event["resolved"]["prefix_caching"] = name not in off
            for event in recording.events("engine_stats"):
                event["cache_hit_rate"] = 0.0
            for frame in recording.frames("rollout"):
                frame.arrays["cached"][:] = cached
        return check(put(tmp_path / str(cached), baseline, candidate), "cache-hit-rate").evidence

    text = "every engine of these runs reports its prefix cache off"
    assert found(0).startswith(text) is is_ruled_out
    assert not found(1).startswith(text)


@pytest.mark.parametrize("wrong", [False, True])
def test_where_every_token_was_cached_the_learner_alone_can_rule_the_cache_out(wrong: bool, tmp_path: Path) -> None:
    baseline, candidate = plain()
    for recording in (baseline, candidate):
        for frame in recording.frames("rollout"):
            frame.arrays["cached"][:] = 1
            if wrong and recording is candidate:
                frame.arrays["logprob"].values[:] -= 0.5
    found = check(put(tmp_path, baseline, candidate), "cache-hit-rate")
    assert "every compared token came after a cached prompt" in found.evidence
    assert "tokens cached" in found.evidence  # the figures are told either way
    assert (found.state, "cache nothing, agree" in found.evidence) == (
        ("not tested", False) if wrong else ("ruled out", True)
    )


def test_an_environment_that_differs_beside_a_divergence_is_not_ruled_out(tmp_path: Path) -> None:
    baseline, candidate = plain()
    candidate.frame("rollout", 1).arrays["logprob"].values[3] -= 0.5
    assert check(put(tmp_path, baseline, candidate), "environment").state == "not tested"


def test_one_step_takes_an_hour(tmp_path: Path) -> None:
    baseline, candidate = plain()
    for event in candidate.events("span", name="step", step=4):
        event["dur_ns"] = int(3600e9)
    verdict = put(tmp_path, baseline, candidate)
    found = check(verdict, SUSPICIONS[11])
    assert found.state == "confirmed" and "step 4" in found.evidence and "candidate" in found.evidence
    assert verdict.verdict == "EQUIVALENT"


def test_the_hit_rate_of_a_run_weighs_its_steps(tmp_path: Path) -> None:
    baseline, candidate = plain()
    for recording in (baseline, candidate):
        for event, (rate, tokens) in zip(recording.events("engine_stats"), [(0.0, 300.0), (0.8, 100.0)], strict=False):
            event["cache_hit_rate"], event["prompt_tokens"] = rate, tokens
        for event in [*recording.events("engine_stats")][2:]:
            del event["cache_hit_rate"]  # an engine that did not say so in a step counts for nothing
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.parity.runs[0].rows["cache hit rate"] == pytest.approx(0.2)


def asked_for_caching(asked: bool) -> tuple[Recording, Recording]:
    baseline, candidate = plain()
    for recording in (baseline, candidate):
        recording.manifest["scenario"]["engine"]["prefix_caching"] = asked
        for event in recording.events("engine_info"):
            event["resolved"]["prefix_caching"] = asked
    for event in baseline.events("engine_info"):
        event["resolved"]["prefix_caching"] = not asked
    return baseline, candidate


@pytest.mark.parametrize(("asked", "severity"), [(True, "info"), (False, "warning")])
def test_a_cache_that_nobody_asked_for_is_no_warning(tmp_path: Path, asked: bool, severity: str) -> None:
    verdict = put(tmp_path, *asked_for_caching(asked))
    found = [one for one in verdict.findings if one.name == "CONFIG(prefix_caching)"]
    assert [one.severity for one in found] == [severity]


def test_variables_that_differ_are_named_and_their_values_are_details(tmp_path: Path) -> None:
    baseline, candidate = plain()
    for event in candidate.events("open"):
        if event["role"] == "rollout":
            event["env"] = {**event.get("env", {}), **{f"SETTING_{i}": "x" * 50 for i in range(9)}}
    verdict = put(tmp_path, baseline, candidate)
    found = next(one for one in verdict.findings if one.name == "environment variables")
    assert found.summary.startswith("9 variables differ: SETTING_0, ") and found.summary.endswith("and 3 more")
    assert found.details["rollout.SETTING_8"] == "absent against " + "x" * 50


def test_variables_that_can_matter_come_before_an_engines_own(tmp_path: Path) -> None:
    baseline, candidate = plain()
    for event in candidate.events("open"):
        if event["role"] == "rollout":
            event["env"] = {**event.get("env", {}), "NCCL_CUMEM_ENABLE": "0", "A_CACHE_DIR": "x", "ANY": "1"}
            event["env"] |= {f"SGLANG_{i}": "1" for i in range(9)}
    found = next(one for one in put(tmp_path, baseline, candidate).findings if one.name == "environment variables")
    assert found.summary == "12 variables differ: NCCL_CUMEM_ENABLE, ANY, A_CACHE_DIR and 9 more"
    assert "rollout.SGLANG_8" in found.details


def test_what_one_engine_alone_reads_is_not_listed(tmp_path: Path) -> None:
    baseline, candidate = plain()
    for event in baseline.events("open"):
        if event["role"] == "rollout":
            event["env"] = {**event.get("env", {}), "VLLM_LOGGING_LEVEL": "ERROR"}
    found = next(one for one in put(tmp_path, baseline, candidate).findings if one.name == "environment variables")
    assert found.summary == "1 variable differs: only such as one engine alone reads"


def test_words_are_plain_where_nothing_differs(tmp_path: Path) -> None:
    verdict = put(tmp_path, *plain())
    assert "except" not in check(verdict, "lengths").evidence
    assert "but for outliers" not in check(verdict, "baseline-itself").evidence
    assert "native_samples" not in verdict.coverage


def slow_step(recording: Recording, step: int, seconds: float, tokens: float) -> None:
    """Every step takes a millisecond a token; one of them this long, with so many tokens."""
    for event in recording.events("shapes"):
        size = tokens if event["step"] == step else event["real_tokens"]
        event["real_tokens"], event["padded_tokens"] = size, 2 * size
        for span in recording.events("span", name="step", step=event["step"]):
            span["dur_ns"] = int((seconds if event["step"] == step else 1e-3 * size) * 1e9)


@pytest.mark.parametrize(("tokens", "says"), [(20_000.0, "which explain 20.0 s"), (400.0, "no more than 0.4 s")])
def test_a_slow_step_and_whether_its_size_explains_it(tmp_path: Path, tokens: float, says: str) -> None:
    baseline, candidate = pair(plan=scenario(steps=12), native=False)
    slow_step(candidate, 9, 20.0, tokens)
    found = check(put(tmp_path, baseline, candidate), SUSPICIONS[11])
    assert found.state == "confirmed" and says in found.evidence, found.evidence
    slowest = found.details["candidate"]["slowest"]
    assert slowest[0]["step"] == 9 and len(slowest) == 3
    assert {"tokens", "longest", "padded_tokens", "rollout", "kv_usage"} <= set(slowest[0])


def test_few_steps_do_not_tell_whether_a_size_explains_a_time(tmp_path: Path) -> None:
    baseline, candidate = plain()
    slow_step(candidate, 4, 20.0, 20_000.0)
    found = check(put(tmp_path, baseline, candidate), SUSPICIONS[11])
    assert "too few steps to tell" in found.evidence and found.details["candidate"]["seconds by tokens"] == {}


def test_the_longest_sample_is_named(tmp_path: Path) -> None:
    baseline, candidate = plain()
    verdict = put(tmp_path, baseline, candidate)
    skew = check(verdict, SUSPICIONS[3]).details["candidate"]
    frame = candidate.frame("rollout", skew["longest in step"])
    lengths = frame.arrays["prompt"].lengths + frame.arrays["output"].lengths
    assert skew["longest sample"] == frame.arrays["sample"][int(lengths.argmax())]
    assert skew["skew"] > 1 and len(skew["most padding"]) == 3


def test_the_effect_of_the_cache_is_measured_on_both_kinds_of_tokens(tmp_path: Path) -> None:
    evidence = check(put(tmp_path, *plain()), SUSPICIONS[8]).evidence
    assert "tokens cached" in evidence and "tokens not cached" in evidence and "mean |Δ|" in evidence


def test_an_engine_against_itself_says_what_that_does_not_cover(tmp_path: Path) -> None:
    found = check(put(tmp_path, *plain()), SUSPICIONS[4])
    assert "equal seeds" in found.evidence
    assert any("another start" in one for one in found.details["not covered"])


def test_every_report_has_the_eleven(tmp_path: Path) -> None:
    verdict = put(tmp_path, *plain())
    found = {one.number: one for one in verdict.parity.checks if one.number}
    assert {number: one.name for number, one in found.items()} == SUSPICIONS
    assert all(one.state in ("ruled out", "confirmed", "not tested") and one.evidence for one in found.values())


def test_what_both_native_stages_were_asked_is_as_asked(tmp_path: Path) -> None:
    baseline, candidate = plain()
    for recording in (baseline, candidate):
        asked = next(recording.events("sampling"))["canonical"] | {"repetition_penalty": 1.3}
        log = next(log for log in recording.logs.values() if log.role == "rollout")
        log.event("sampling", canonical=asked, native={"repetition_penalty": 1.3}, mode="native")
    verdict = put(tmp_path, baseline, candidate)
    assert not [one for one in verdict.findings if one.name == "SAMPLING_PARAM(repetition_penalty)"]
    next(candidate.events("sampling", mode="native"))["canonical"]["repetition_penalty"] = 1.2
    (again := tmp_path / "again").mkdir()
    assert [one for one in put(again, baseline, candidate).findings if one.name == "SAMPLING_PARAM(repetition_penalty)"]


def test_an_effect_counts_every_kind_of_divergence(tmp_path: Path) -> None:
    baseline, candidate = plain()
    for event in candidate.events("engine_stats"):
        event["cache_hit_rate"] = 0.1
    frame = candidate.frame("rollout", 1)
    frame.fields["finish"][frame.fields["finish"].index("stop")] = "length"
    verdict = put(tmp_path, baseline, candidate)
    effect = next(one.effect for one in verdict.findings if one.name == "cache hit rate")
    assert effect.startswith("together with everything else") and "(1 sample)" in effect
