"""Checks 6 and 7, and the causes of a mapping: what was asked, given and resolved, on recordings."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cause_keys import key, of
from recordings import Log, Recording, causes, check, jagged, make, pair, put, scenario

from harness.parity.subjects.sampling import checks_findings
from reports.model import Finding, Verdict
from scenarios.engines import canonical_request
from scenarios.engines.mapping import ParameterMap, map_engine, map_sampling, sampling_event
from scenarios.engines.sglang import parameters as sglang
from scenarios.engines.vllm import parameters as vllm
from scenarios.settings import Sampling

MAP = "engine-parameter-map"
USERS = Path(__file__).parents[3] / "scenarios" / "planted" / "differences" / "users_mapping.py"


def mapped(log: Recording, spec: dict[str, Any], *, sampling: Sampling | None = None, engine: str = "sglang") -> None:
    """Let a recording say what this mapping made of what it asked."""
    mapping, plan = ParameterMap.of(spec), scenario()
    sampling = sampling or plan.sampling
    asked = canonical_request.engine_asked("m", plan.model.dtype, plan.engine, device="cpu")
    ours = {
        "sglang": lambda a: sglang.engine(a, longest_context=4096),
        "vllm": vllm.engine,
    }[engine]
    arguments, told = map_engine(mapping, engine, asked, ours, lambda _: {})
    for event in log.events("engine_info"):
        event |= {"engine": engine, "asked": arguments, **told}
    for event in log.events("sampling"):
        found = map_sampling(mapping, engine, sampling, defaults={}, model_ends=[2])
        event |= sampling_event(mapping, engine, sampling, found, event["mode"])


def named(verdict: Verdict, name: str) -> list[Finding]:
    return [one for one in verdict.findings if one.name == name]


@pytest.mark.slow
def test_our_own_mapping_on_both_sides_has_nothing_to_say(tmp_path: Path) -> None:
    baseline, candidate = pair(native=False)
    mapped(baseline, {}, engine="vllm")
    mapped(candidate, {})
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "EQUIVALENT", verdict.reason
    assert not [one for one in verdict.findings if one.name.startswith(("CONFIG", "SAMPLING", "STOP"))]
    assert check(verdict, "engine-parameter-map").state == "ruled out"


@pytest.mark.slow
def test_a_users_mapping_is_told_apart_parameter_by_parameter(tmp_path: Path) -> None:
    """Inverted, tied, dropped, shortened; and what is dropped without an effect is no warning."""
    baseline, candidate = pair(native=False)
    mapped(baseline, {}, engine="vllm")
    mapped(candidate, {"file": str(USERS)}, sampling=Sampling(**vars(scenario().sampling) | {"min_tokens": 0}))
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "EQUIVALENT", verdict.reason
    (eager,) = named(verdict, "CONFIG(enforce_eager)")
    assert "disable_cuda_graph = False: inverted" in eager.summary and eager.effect.startswith("none")
    (padding,) = named(verdict, "CONFIG(graph_padding)")
    assert "disable_cuda_graph_padding is tied" in padding.summary
    (context,) = named(verdict, "CONFIG(max_model_len)")
    assert "context_length = 128, which is 126" in context.summary
    assert {one.severity for one in (eager, padding, context)} == {"warning"}
    assert next((item.kind, len(item.items)) for item in verdict.reservations) == ("setting", 3)
    assert (verdict.exit_code, verdict.strict.exit_code) == (0, 3)
    (fewest,) = named(verdict, "SAMPLING_PARAM(min_tokens)")
    assert "no min_new_tokens" in fewest.summary and "it is what was asked here" in fewest.summary
    assert fewest.severity == "info"
    for name in ("engine-parameter-map", "sampling-parameter-map"):
        assert check(verdict, name).state == "confirmed"
    assert verdict.fix == f"harness mapping {USERS} --engine sglang"


def _listed(verdict: Verdict, number: int) -> dict[str, list[str]]:
    """Return the groups of parameters in the evidence of suspicion 6 or 7, as they are counted there."""
    [suspicion] = [item for item in verdict.parity.checks if item.number == number]  # type: ignore[union-attr]
    groups = re.findall(r"([a-z, ]+): (\d+) parameters? \(([^)]*)\)", suspicion.evidence)
    assert all(int(count) == len(names.split(", ")) for _, count, names in groups)
    return {group.strip(): names.split(", ") for group, _, names in groups}


@pytest.mark.slow
def test_suspicions_6_and_7_name_each_setting_that_the_headline_counts(tmp_path: Path) -> None:
    """What a mapping drops, and what was asked all the same, is no setting that did not reach the engine."""
    baseline, candidate = pair(native=False)
    mapped(baseline, {}, engine="vllm")
    mapped(candidate, {"file": str(USERS)}, sampling=Sampling(**vars(scenario().sampling) | {"min_tokens": 0}))
    verdict = put(tmp_path, baseline, candidate)
    engine, sampling = _listed(verdict, 6), _listed(verdict, 7)
    counted = next(len(item.items) for item in verdict.reservations if item.kind == "setting")
    assert {name.split()[0] for name in engine["not as asked"]} == {"max_model_len", "enforce_eager", "graph_padding"}
    assert counted == len(engine["not as asked"]) and "not as asked" not in sampling
    assert "min_tokens of the candidate" in sampling["not passed on, and as asked by chance"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("argument", "parameter", "fixed", "as_asked"),
    [
        ("max_running_requests", "max_num_seqs", 2, False),
        ("max_running_requests", "max_num_seqs", 0, True),
        ("max_total_tokens", "kv_cache_tokens", 64, False),
    ],
)
def test_a_fixed_value_is_as_asked_by_chance_only_if_it_is_the_value_asked_for(
    tmp_path: Path, argument: str, parameter: str, fixed: int, as_asked: bool
) -> None:
    """`fixed`: how much more than asked for the mapping gives, whatever is asked."""
    asked = getattr(scenario().engine, parameter)
    baseline, candidate = pair(native=False)
    mapped(baseline, {}, engine="vllm")
    mapped(candidate, {"edits": {"engine": {argument: asked + fixed}}})
    for event in candidate.events("engine_info"):
        event["resolved"][parameter] = asked + fixed
    verdict = put(tmp_path, baseline, candidate)
    [finding] = named(verdict, f"CONFIG({parameter})")
    assert (finding.about, finding.severity) == (("", "info") if as_asked else ("setting", "warning"))
    assert finding.details["given"] == asked + fixed
    groups = _listed(verdict, 6)
    assert (f"{parameter} of the candidate" in groups.get("not as asked", [])) is not as_asked


@pytest.mark.slow
def test_both_sides_alike_in_not_being_as_asked_are_counted_in_the_first_line(tmp_path: Path) -> None:
    """A prefix cache that an engine has and does not use changes no result, and is not as asked all the same."""
    baseline, candidate = pair(native=False)
    for side, engine in ((baseline, "vllm"), (candidate, "sglang")):
        mapped(side, {}, engine=engine)
        for event in side.events("engine_info"):
            event["resolved"]["prefix_caching"] = True
    control = put(tmp_path, baseline, candidate)
    assert [item.kind for item in control.reservations] == ["untested"], "the native stage was left out"
    for side in (baseline, candidate):
        for event in side.events("engine_info"):
            event["resolved"]["prefix_caching"] = False
    verdict = put(tmp_path, baseline, candidate)
    assert {one.severity for one in named(verdict, "CONFIG(prefix_caching)")} == {"info"}
    assert next((item.kind, len(item.items)) for item in verdict.reservations) == ("setting", 2)
    assert verdict.headline.startswith("EQUIVALENT, but 2 settings") and "2 param" in check(verdict, MAP).evidence
    assert (verdict.strict.verdict, verdict.strict.exit_code) == ("EQUIVALENT", 3)


@pytest.mark.slow
def test_a_default_that_an_engine_does_not_have_is_not_asked_of_it(tmp_path: Path) -> None:
    """The embedded engine has no prefix cache, and nobody asked for one."""
    baseline, candidate = pair(native=False)
    for side in (baseline, candidate):
        side.manifest["backend"] = "hf"
        for event in side.events("engine_info"):
            event["engine"] = "hf"
            event["asked"] = event["asked"] | {"prefix_caching": True}
            event["resolved"] |= {"prefix_caching": False}
    verdict = put(tmp_path, baseline, candidate)
    assert len(named(verdict, "CONFIG(prefix_caching)")) == 2 and "prefix_caching" in check(verdict, MAP).evidence
    assert check(verdict, MAP).state == "ruled out"
    assert [item.kind for item in verdict.reservations] == ["untested"], verdict.reason


@pytest.mark.by_day(3)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("edits", "name", "words"),
    [
        ({"random_seed": None}, "CONFIG(seed)", "was given no random_seed: dropped"),
        ({"dtype": "auto"}, "CONFIG(dtype)", "SGLang's dtype = 'auto'"),
        ({"dtype": None}, "CONFIG(dtype)", "was given no dtype, which then is 'auto': dropped"),
        ({"disable_cuda_graph_padding": True}, "CONFIG(graph_padding)", "nothing was asked"),
        ({"mem_fraction_static": 0.9}, "CONFIG(memory_fraction)", "weights and KV pool only"),
        ({"sampling_defaults": "model"}, "CONFIG(generation_config)", "OpenAI endpoint only"),
        ({"disable_radix_cache": True}, "CONFIG(prefix_caching)", "disable_radix_cache = True"),
    ],
)
def test_each_parameter_that_is_lost_is_named(tmp_path: Path, edits: dict[str, Any], name: str, words: str) -> None:
    baseline, candidate = pair(native=False)
    mapped(candidate, {"edits": {"engine": edits}})
    for event in candidate.events("engine_info"):
        event["resolved"]["seed"] = 99 if name == "CONFIG(seed)" else event["resolved"]["seed"]
    verdict = put(tmp_path, baseline, candidate)
    assert any(words in one.summary and one.where == "candidate" for one in named(verdict, name)), verdict.findings
    assert verdict.verdict == "EQUIVALENT"


@pytest.mark.slow
def test_generation_config_that_leaks_names_the_files_value_and_is_the_cause(tmp_path: Path) -> None:
    baseline, candidate = drawn_otherwise()
    spec = {"edits": {"engine": {"generation_config": "auto"}, "sampling": {"temperature": None}}}
    mapped(candidate, spec, engine="vllm")
    for event in candidate.events("engine_info"):
        event["resolved"] |= {"generation_config": True, "default_sampling": {"temperature": 0.7}}
    for event in candidate.events("sampling"):
        event["given"] = event["given"] | {"temperature": 0.7}
    verdict = put(tmp_path, baseline, candidate)
    assert causes(verdict) == ["CONFIG(generation_config)"]
    assert verdict.causes[0].party == "mapping" and verdict.causes[0].details["given"] == 0.7
    assert any("temperature 0.7" in one.summary for one in named(verdict, "CONFIG(generation_config)"))


def drawn_otherwise() -> tuple[Recording, Recording]:
    """A candidate that draws the learner's second choice here and there, as another temperature does."""
    baseline, candidate = pair(native=False)
    rng = np.random.default_rng(2)
    for frame in candidate.frames("rollout"):
        truth = baseline.frame("experience", frame.step).arrays
        flips = rng.random(len(truth["margin"].values)) < 0.06 * np.exp(-truth["margin"].values)
        frame.arrays["output"].values[flips] = truth["runner_up"].values[flips]
        frame.arrays["logprob"].values[flips] -= 0.7
    return baseline, candidate


@pytest.mark.slow
def test_a_temperature_that_the_mapping_changed_is_the_mappings_fault(tmp_path: Path) -> None:
    baseline, candidate = drawn_otherwise()
    mapped(candidate, {"edits": {"sampling": {"temperature": 0.9}}})
    verdict = put(tmp_path, baseline, candidate)
    assert causes(verdict) == ["SAMPLING_PARAM(temperature)"]
    cause = verdict.causes[0]
    assert cause.party == "mapping"
    assert {key: cause.details[key] for key in ("side", "asked", "given")} == {
        "side": "candidate", "asked": 1.0, "given": 0.9,
    }  # fmt: skip
    (finding,) = [one for one in named(verdict, "SAMPLING_PARAM(temperature)") if one.where == "candidate"]
    assert "named cause" in finding.effect


@pytest.mark.slow
def test_a_temperature_that_the_candidate_asked_for_itself_is_the_candidates(tmp_path: Path) -> None:
    baseline, candidate = drawn_otherwise()
    for event in candidate.events("sampling"):
        event["canonical"]["temperature"] = 0.9
    verdict = put(tmp_path, baseline, candidate)
    assert [(one.name, one.party) for one in verdict.causes] == [("SAMPLING_PARAM(temperature)", "candidate")]


@pytest.mark.slow
def test_the_same_wrong_parameter_on_both_sides_explains_no_difference_between_them(tmp_path: Path) -> None:
    """Control: both were given 0.9; what differs has another cause, or none that is known."""
    baseline, candidate = drawn_otherwise()
    for side in (baseline, candidate):
        mapped(side, {"edits": {"sampling": {"temperature": 0.9}}})
    assert causes(put(tmp_path, baseline, candidate)) == ["UNEXPLAINED"]


@pytest.mark.slow
@pytest.mark.parametrize(("edits", "party"), [({"dtype": "auto"}, "mapping"), ({}, "candidate")])
def test_another_data_type_than_was_asked_is_the_cause(tmp_path: Path, edits: dict[str, Any], party: str) -> None:
    """The mapping left it to the engine, or the engine took another than it was given."""
    baseline, candidate = make("baseline", native=False), make("candidate", native=False, noise=0.008)
    mapped(candidate, {"edits": {"engine": edits}})
    for event in candidate.events("engine_info"):
        event["resolved"]["dtype"] = "float16"
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "DIVERGENT"
    assert [(one.name, one.party) for one in verdict.causes] == [("CONFIG(dtype)", party)]
    assert named(verdict, "CONFIG(dtype)")


@pytest.mark.slow
def test_noise_in_the_type_that_was_asked_is_no_other_data_type(tmp_path: Path) -> None:
    baseline, candidate = make("baseline", native=False), make("candidate", native=False, noise=0.008)
    mapped(candidate, {})
    assert "CONFIG(dtype)" not in causes(put(tmp_path, baseline, candidate))


@pytest.mark.slow
def test_a_largest_length_that_the_mapping_lost_is_proven_by_cutting_the_other_run_there(tmp_path: Path) -> None:
    baseline, candidate = pair(native=False)
    for frame in candidate.frames("rollout"):
        rows = frame.arrays["output"].rows()
        cut = [len(row) > 16 for row in rows]
        for name in ("output", "logprob"):
            frame.arrays[name] = jagged([row[:16] for row in frame.arrays[name].rows()])
        frame.fields["finish"] = [
            "length" if is_cut else old for is_cut, old in zip(cut, frame.fields["finish"], strict=True)
        ]
    mapped(candidate, {"edits": {"sampling": {"max_new_tokens": 16}}})
    verdict = put(tmp_path, baseline, candidate)
    found = next(one for one in verdict.causes if one.name == "SAMPLING_PARAM(max_tokens)")
    assert found.party == "mapping" and found.proofs[0].after == 0 and found.proofs[0].before > 0
    assert "LENGTH(context)" not in causes(verdict)


def test_effects_are_measured_again_when_the_causes_change() -> None:
    findings = [
        Finding("CONFIG(seed)", "s", "x", cause=key("CONFIG(seed)")),
        Finding("node", "n", "x"),
        Finding("STOP(ignore_eos)", "i", "x", cause=key("STOP(ignore_eos)")),
    ]
    stop, rest = of("STOP(ignore_eos)", "mapping", ""), of("UNEXPLAINED", "unknown", "")
    assert checks_findings.measured(findings, []) == findings
    one, other, cause = (found.effect for found in checks_findings.measured(findings, [stop]))
    assert one == "none measured: without STOP(ignore_eos) nothing differs beyond the floor"
    assert other == "x" and "named cause" in cause
    assert "not separated" in checks_findings.measured(findings, [stop, rest])[0].effect


def _second_engine(run: Recording) -> Log:
    """Another engine that was asked, given and resolved what the first one was."""
    log = Log("rollout", run.logs["rollout"].pid - 50)
    kinds = ("open", "engine_info", "sampling")
    log.events = [(kind, copy.deepcopy(fields)) for kind, fields in run.logs["rollout"].events if kind in kinds]
    log.events[0][1].update(pid=log.pid, rank=1)
    run.logs["another"] = log
    return log


def _event(log: Log, kind: str) -> dict[str, Any]:
    return next(fields for known, fields in log.events if known == kind)


@pytest.mark.slow
def test_each_of_several_engines_is_held_against_what_was_asked(tmp_path: Path) -> None:
    baseline, candidate = pair(native=False)
    for run in (baseline, candidate):
        mapped(run, {}, engine="vllm")
        for event in run.events("engine_info"):
            event["resolved"]["end_ids"] = [2]
        log = _second_engine(run)
    info, sampling = _event(log, "engine_info"), _event(log, "sampling")
    verdict = put(tmp_path / "alike", baseline, candidate)
    assert check(verdict, "engine-parameter-map").state == "ruled out"
    assert not named(verdict, "CONFIG(max_model_len)")
    info["given"] = {**info["given"], "max_model_len": 80}
    info["resolved"] = {**info["resolved"], "max_model_len": 80, "end_ids": [7]}
    sampling["given"] = {**sampling["given"], "top_k": 5}
    verdict = put(tmp_path / "one", baseline, candidate)
    (context,) = named(verdict, "CONFIG(max_model_len)")
    assert context.summary.startswith("engine 1 of 2: ") and context.details["engines"] == [1]
    (top_k,) = named(verdict, "SAMPLING_PARAM(top_k)")
    assert top_k.summary.startswith("engine 1 of 2: ") and top_k.where == "candidate"
    (ends,) = named(verdict, "STOP(other end set)")
    assert "[2] and [7]" in ends.summary
    info["resolved"] = {}
    verdict = put(tmp_path / "silent", baseline, candidate)
    found = check(verdict, "engine-parameter-map")
    assert found.state == "not tested" and "engine 1" in found.evidence
    first = next(iter(candidate.events("engine_info")))
    first["resolved"] = {**first["resolved"], "max_model_len": 80}
    verdict = put(tmp_path / "first", baseline, candidate)
    assert check(verdict, "engine-parameter-map").state == "confirmed"
    assert named(verdict, "CONFIG(max_model_len)") and any("of engine 1" in one for one in verdict.missing)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name"), [("engine_info", "engine-parameter-map"), ("sampling", "sampling-parameter-map")]
)
def test_an_engine_that_said_nothing_is_not_passed_for_another_one(tmp_path: Path, kind: str, name: str) -> None:
    baseline, candidate = pair(native=False)
    for run in (baseline, candidate):
        mapped(run, {}, engine="vllm")
        run.manifest["scenario"]["engine"]["engines"] = 2
        log = _second_engine(run)
    log.events = [one for one in log.events if one[0] != kind]
    found = check(put(tmp_path, baseline, candidate), name)
    assert found.state == "not tested" and "engine 1" in found.evidence, found.evidence
