"""Everything that one recording says, as frozen types. Each kind of record is parsed once, when it is first used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

from harness.recordings.records.engine_activity import EngineCall, EngineStats, RoutedRequest
from harness.recordings.records.engine_info import NOTHING_REQUESTED, EngineInfo, SamplingParameters, SamplingRequest
from harness.recordings.records.learner_update import LearnerUpdate, PromptBatch, RankAnswers, StepMetrics
from harness.recordings.records.process_start import GroupMembership, ProcessEnd, ProcessEnvironment, ProcessStart
from harness.recordings.records.run_settings import RunManifest, RunSettings
from harness.recordings.records.tokenizer_info import TokenizerInfo
from harness.recordings.records.values import Parameters, name_list, parameters
from harness.recordings.records.weight_sync import TensorDigests, WeightSync


class Records:
    """The records of one recording. `events`: the events of a kind, in the order of the recording."""

    def __init__(self, manifest: Parameters, events: Callable[[str], list[dict[str, Any]]]) -> None:
        self._manifest, self._events = manifest, events

    @cached_property
    def manifest(self) -> RunManifest:
        return RunManifest.of(self._manifest)

    @cached_property
    def settings(self) -> RunSettings:
        return RunSettings.of(parameters(self._manifest.get("scenario")))

    @cached_property
    def engines(self) -> tuple[EngineInfo, ...]:
        return tuple(map(EngineInfo.of, self._events("engine_info")))

    @cached_property
    def sampling(self) -> tuple[SamplingRequest, ...]:
        return tuple(map(SamplingRequest.of, self._events("sampling")))

    @property
    def requested_sampling(self) -> SamplingParameters:
        """Sampling parameters that the run was asked for: by run.json, else by the word of its first engine."""
        return self.settings.sampling or next(iter(self.sampling), NOTHING_REQUESTED).requested

    def sampling_in(self, mode: str) -> SamplingRequest:
        """What the first engine was to sample with in a mode; nothing where none recorded it."""
        return next((request for request in self.sampling if request.mode == mode), NOTHING_REQUESTED)

    @cached_property
    def digests(self) -> tuple[TensorDigests, ...]:
        return tuple(map(TensorDigests.of, self._events("weights")))

    def digests_of(self, source: str) -> Iterator[tuple[int, TensorDigests]]:
        """(weight version, digests) of what the learner sent or an engine received, where the version is known."""
        for record in self.digests:
            if record.source == source and record.version is not None:
                yield record.version, record

    @cached_property
    def syncs(self) -> tuple[WeightSync, ...]:
        return tuple(map(WeightSync.of, self._events("sync")))

    @cached_property
    def updates(self) -> tuple[LearnerUpdate, ...]:
        return tuple(map(LearnerUpdate.of, self._events("learner")))

    @cached_property
    def steps(self) -> tuple[StepMetrics, ...]:
        return tuple(map(StepMetrics.of, self._events("step")))

    @cached_property
    def prompts(self) -> tuple[PromptBatch, ...]:
        return tuple(map(PromptBatch.of, self._events("data")))

    @cached_property
    def answers(self) -> tuple[RankAnswers, ...]:
        return tuple(map(RankAnswers.of, self._events("share")))

    @cached_property
    def calls(self) -> tuple[EngineCall, ...]:
        return tuple(map(EngineCall.of, self._events("call")))

    @cached_property
    def engine_stats(self) -> tuple[EngineStats, ...]:
        return tuple(map(EngineStats.of, self._events("engine_stats")))

    @cached_property
    def routed_requests(self) -> tuple[RoutedRequest, ...]:
        return tuple(map(RoutedRequest.of, self._events("answered")))

    @cached_property
    def tokenizer(self) -> TokenizerInfo | None:
        """Of the run's first process that recorded one."""
        return next(map(TokenizerInfo.of, self._events("tokenizer")), None)

    @cached_property
    def model_tensors(self) -> frozenset[str]:
        """Names of the tensors of a full weight sync; none where the learner did not list them."""
        lists = (name_list(event.get("tensors")) for event in self._events("model"))
        return frozenset(name for tensors in lists for name in tensors or ())

    @cached_property
    def starts(self) -> tuple[ProcessStart, ...]:
        return tuple(map(ProcessStart.of, self._events("open")))

    @cached_property
    def environments(self) -> tuple[ProcessEnvironment, ...]:
        return tuple(map(ProcessEnvironment.of, self._events("environment")))

    @cached_property
    def ends(self) -> tuple[ProcessEnd, ...]:
        return tuple(map(ProcessEnd.of, self._events("close")))

    @cached_property
    def groups(self) -> tuple[GroupMembership, ...]:
        return tuple(map(GroupMembership.of, self._events("group")))
