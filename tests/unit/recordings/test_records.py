"""What a foreign writer may put anywhere: every record is read, and what is no value of its key is missing."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.recordings.records.catalogue import Records
from harness.recordings.records.engine_activity import EngineCall, EngineStats, RoutedRequest
from harness.recordings.records.engine_info import EngineInfo, SamplingRequest
from harness.recordings.records.frame_header import FrameHeader
from harness.recordings.records.learner_update import LearnerUpdate, PromptBatch, RankAnswers, StepMetrics
from harness.recordings.records.process_start import GroupMembership, ProcessEnd, ProcessEnvironment, ProcessStart
from harness.recordings.records.run_settings import RunManifest, RunSettings
from harness.recordings.records.tokenizer_info import TokenizerInfo
from harness.recordings.records.weight_sync import TensorDigests, WeightSync
from probes.kinds import EVENT_KEYS, MANIFEST_KEYS
from scenarios.settings import Scenario

Record = Callable[[dict[str, Any]], Any]

KINDS: dict[str, Record] = {
    "engine_info": EngineInfo.of,
    "sampling": SamplingRequest.of,
    "weights": TensorDigests.of,
    "sync": WeightSync.of,
    "learner": LearnerUpdate.of,
    "step": StepMetrics.of,
    "open": ProcessStart.of,
    "environment": ProcessEnvironment.of,
    "close": ProcessEnd.of,
    "group": GroupMembership.of,
    "data": PromptBatch.of,
    "share": RankAnswers.of,
    "call": EngineCall.of,
    "engine_stats": EngineStats.of,
    "answered": RoutedRequest.of,
    "tokenizer": TokenizerInfo.of,
}
# Of `Records`, what has one entry for each event of a kind.
LISTS = (
    "engines", "sampling", "digests", "syncs", "updates", "steps", "starts", "environments", "ends", "groups",
    "prompts", "answers", "calls", "engine_stats", "routed_requests",
)  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
# An object of the keys that are read one level further down, each with any value.
INNER = st.dictionaries(
    st.sampled_from(
        [
            "dtype",
            "device",
            "end_ids",
            "default_sampling",
            "seed",
            "temperature",
            "max_tokens",
            "min_tokens",
            "stop_token_ids",
            "ignore_eos",
            "first_step",
            "stop",
            "skipped",
            "step",
            "path",
            "hosts",
            "engine",
            "learner",
            "actor",
            "critic",
            "name",
            "kept",
            "rank",
            "world_size",
        ]
    ),
    JSON | st.lists(JSON, max_size=3),
    max_size=6,
)
VALUE = JSON | INNER | st.lists(INNER, max_size=2)


def events(kind: str) -> st.SearchStrategy[dict[str, Any]]:
    keys = [*sorted(EVENT_KEYS[kind] or ()), "file", "role", "rank", "pid"]
    return st.dictionaries(st.sampled_from(keys), VALUE)


def read_whole(record: Any) -> None:
    """Read every field and property of a record, and those of its parts."""
    for name, member in inspect.getmembers(type(record)):
        if isinstance(member, property) or type(member).__name__ == "cached_property":
            getattr(record, name)
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        for part in value if isinstance(value, tuple) else (value,):
            if dataclasses.is_dataclass(part):
                read_whole(part)


@pytest.mark.by_day(8)
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_any_json_value_of_any_key_is_read_without_an_error(kind: str) -> None:
    @given(events(kind))
    def holds(event: dict[str, Any]) -> None:
        read_whole(KINDS[kind](event))

    holds()


@pytest.mark.slow
def test_any_header_of_a_frame_is_read_without_an_error() -> None:
    keys = ["weight_version", "mode", "guided", "uncompared", "request_seed", "fits", "order", "arrival"]

    @given(st.dictionaries(st.sampled_from(keys), VALUE))
    def holds(fields: dict[str, Any]) -> None:
        read_whole(FrameHeader.of(fields))

    holds()


@pytest.mark.slow
@pytest.mark.parametrize("part", [RunManifest, RunSettings])
def test_any_run_json_is_read_without_an_error(part: Any) -> None:
    keys = {RunManifest: MANIFEST_KEYS, RunSettings: {field.name for field in dataclasses.fields(Scenario)}}[part]

    @given(st.dictionaries(st.sampled_from(sorted(keys)), VALUE))
    def holds(run_json: dict[str, Any]) -> None:
        read_whole(part.of(run_json))

    holds()


TEXT: tuple[Any, ...] = (None, 7, 1.5, True, [], ["x"], {})
WHOLE: tuple[Any, ...] = (None, "x", 1.5, True, [], [3], {}, "nan")
NAMED: tuple[Any, ...] = (None, "x", 7, True, [], ["x"])
LISTED: tuple[Any, ...] = (None, "x", 7, True, {}, {"x": 1})
# kind, key, a value of it, how it is read, values that are none of it.
FIELDS: list[tuple[str, str, Any, Callable[[Any], Any], tuple[Any, ...]]] = [
    ("engine_info", "engine", "vllm", lambda info: info.engine, TEXT),
    ("engine_info", "version", "1.0", lambda info: info.version, TEXT),
    ("engine_info", "canonical", {"seed": 1}, lambda info: info.requested, NAMED),
    ("engine_info", "given", {"seed": 1}, lambda info: info.received, NAMED),
    ("engine_info", "asked", {"seed": 1}, lambda info: info.arguments, NAMED),
    ("engine_info", "resolved", {"seed": 1}, lambda info: info.resolved.parameters, NAMED),
    ("engine_info", "moves", {"seed": ["s"]}, lambda info: info.moves, (*NAMED, {"seed": 3}, {"seed": "s"})),
    ("engine_info", "replaced", ["sampler"], lambda info: info.replaced, LISTED),
    ("engine_info", "start_seconds", 2.5, lambda info: info.start_seconds, (None, "x", True, [], {}, "nan")),
    ("sampling", "mode", "coupled", lambda request: request.mode, TEXT),
    ("sampling", "canonical", {"top_p": 0.9}, lambda request: request.effective, NAMED),
    ("weights", "version", 3, lambda record: record.version, WHOLE),
    ("weights", "source", "learner", lambda record: record.source, TEXT),
    ("weights", "digests", {"w": "00"}, lambda record: record.digests, NAMED),
    ("sync", "version", 3, lambda sync: sync.version, WHOLE),
    ("sync", "step", 3, lambda sync: sync.step, WHOLE),
    ("sync", "absent", ["w"], lambda sync: sync.absent, LISTED),
    ("sync", "mismatched", ["w"], lambda sync: sync.mismatched, LISTED),
    ("sync", "loaded", 3, lambda sync: sync.loaded, WHOLE),
    ("sync", "misloaded", [{"name": "w"}], lambda sync: sync.misloaded, (*LISTED, [3], ["w"], [None])),
    ("sync", "proof_engine", 1, lambda sync: sync.proof.furthest_engine, WHOLE),
    ("learner", "step", 3, lambda update: update.step, WHOLE),
    ("learner", "actor", "00", lambda update: update.digests, (*TEXT, "")),
    ("learner", "norms", {"actor": [1.0]}, lambda update: update.norms, (*NAMED, {"actor": 1.0})),
    ("learner", "first", {"parts": [[3]]}, lambda update: update.first.parts, (*NAMED, {"parts": 3}, {"parts": [3]})),
    ("step", "step", 3, lambda record: record.step, WHOLE),
    ("step", "metrics", {"tokens": 3}, lambda record: record.metrics, NAMED),
    ("open", "host", "a", lambda start: start.host, TEXT),
    ("open", "wall_ns", 3, lambda start: start.wall_ns, WHOLE),
    ("open", "packages", {"torch": "2"}, lambda start: start.packages, NAMED),
    ("group", "backend", "nccl", lambda group: group.backend, TEXT),
    ("data", "prompts", "00", lambda batch: batch.digest, TEXT),
    ("data", "samples", [3], lambda batch: batch.samples, LISTED),
    ("share", "step", 3, lambda answers: answers.step, WHOLE),
    ("share", "samples", [3], lambda answers: answers.samples, LISTED),
    ("call", "part", "cache", lambda call: call.part, TEXT),
    ("call", "level", 2, lambda call: call.level, WHOLE),
    ("engine_stats", "kv_usage", 0.5, lambda stats: stats.kv_usage, (None, "x", True, [], {}, "nan")),
    ("answered", "offset", 3, lambda request: request.offset, WHOLE),
    ("tokenizer", "size", 3, lambda tokenizer: tokenizer.size, WHOLE),
    ("tokenizer", "bos", 3, lambda tokenizer: tokenizer.begin_id, WHOLE),
    ("tokenizer", "eos", [3], lambda tokenizer: tokenizer.end_ids, (None, "x", True, {}, ["x"])),
    ("tokenizer", "generation_prompt", [3], lambda tokenizer: tokenizer.generation_prompt, LISTED),
    ("environment", "device", {"name": "a"}, lambda environment: environment.device, NAMED),
]


@pytest.mark.parametrize(("kind", "key", "value", "read", "slips"), FIELDS, ids=lambda part: str(part)[:20])
def test_a_value_of_another_type_is_read_as_an_absent_key(
    kind: str, key: str, value: Any, read: Callable[[Any], Any], slips: tuple[Any, ...]
) -> None:
    missing = read(KINDS[kind]({}))
    assert _is_missing(missing)
    assert not _is_missing(read(KINDS[kind]({key: value})))
    for slip in slips:
        assert _is_missing(read(KINDS[kind]({key: slip}))), slip


def _is_missing(value: Any) -> bool:
    return (
        value is None or (isinstance(value, float) and math.isnan(value)) or (hasattr(value, "__len__") and not value)
    )


def test_a_proof_of_nan_is_not_the_lack_of_a_proof() -> None:
    lacking, unusable = WeightSync.of({}).proof, WeightSync.of({"proof_max_delta": "nan", "proof_tokens": "x"}).proof
    assert lacking.largest is None and lacking.tokens is None
    assert unusable.largest is not None and math.isnan(unusable.largest)
    assert unusable.tokens is not None and math.isnan(unusable.tokens)


def test_a_weight_version_may_be_a_float_and_an_uncompared_step_may_say_why() -> None:
    assert FrameHeader.of({"weight_version": 3.0}).weight_version == 3
    assert FrameHeader.of({"weight_version": 3.5}).weight_version is None
    assert FrameHeader.of({"uncompared": "a tool call"}).uncompared == "a tool call"
    assert FrameHeader.of({"uncompared": 5}).uncompared is None and FrameHeader.of({"uncompared": 5}).unreached == 5


def test_two_records_of_an_update_keep_the_digests_on_which_they_agree() -> None:
    first = LearnerUpdate.of({"actor": "a", "critic": "c", "batch": "b"})
    assert first.agreeing(first).digests == first.digests
    assert first.agreeing(LearnerUpdate.of({"actor": "a", "critic": "d"})).digests == {"actor": "a"}


def test_sampling_is_what_run_json_asks_for_and_else_what_its_first_engine_says() -> None:
    requests = [{"canonical": {"temperature": 0.5}}, {"canonical": {"temperature": 0.7}}]
    configured = {"scenario": {"sampling": {"temperature": 1.0}}}
    assert Records(configured, lambda kind: requests).requested_sampling.temperature == 1.0
    assert Records({}, lambda kind: requests).requested_sampling.temperature == 0.5
    assert not Records({}, lambda kind: []).requested_sampling


def test_each_kind_of_event_is_asked_for_once() -> None:
    reads: Counter[str] = Counter()

    def no_events(kind: str) -> list[dict[str, Any]]:
        reads[kind] += 1
        return []

    records = Records({}, no_events)
    for name in (*LISTS, *LISTS):
        assert getattr(records, name) == ()
    assert records.tokenizer is records.tokenizer is None and not records.model_tensors
    assert records.requested_sampling == {} and records.sampling_in("native").mode is None
    assert reads == dict.fromkeys([*KINDS, "model"], 1)
