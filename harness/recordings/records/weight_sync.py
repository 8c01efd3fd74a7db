"""What was recorded of weights: digests of tensors as they were sent or received, and the syncs themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.recordings.records.values import (
    filled_text,
    integer,
    name_list,
    parameters,
    text,
    texts_by_name,
    whole_number,
)
from probes.format import number

LEARNER, RECEIVED = "learner", "received"  # what wrote digests: who sends the tensors, or who received them


@dataclass(frozen=True)
class TensorDigests:
    """One `weights` event. `digests`: tensor -> digest, empty text where it has none."""

    file: str
    step: int | None
    version: int | None
    source: str | None
    digests: Mapping[str, str]

    @property
    def nonempty(self) -> dict[str, str]:
        """`digests` without the tensors of which none was made."""
        return {name: digest for name, digest in self.digests.items() if digest}

    @classmethod
    def of(cls, event: Mapping[str, Any]) -> TensorDigests:
        return cls(
            file=str(event.get("file")),
            step=integer(event.get("step")),
            version=integer(event.get("version")),
            source=text(event.get("source")),
            digests=texts_by_name(event.get("digests")),
        )


@dataclass(frozen=True)
class WorkerReport:
    """A tensor of which a worker does not hold what arrived for it. `kept`: it holds what it had before the load;
    `engine`, `rank`: which worker, None where there is one."""

    tensor: str
    kept: bool
    engine: int | None
    rank: int | None

    @classmethod
    def of(cls, report: Mapping[str, Any]) -> WorkerReport:
        return cls(
            tensor=str(report.get("name")),
            kept=report.get("kept") is True,
            engine=integer(report.get("engine")),
            rank=integer(report.get("rank")),
        )


@dataclass(frozen=True)
class SyncProof:
    """Teacher-forced log-probabilities of fixed sequences, engine against learner, in nats. `largest`, `mean`: |Δ|;
    `unexplained`: the largest beyond what the learner's own rounding explains; `stale_mean`: the mean if nothing had
    arrived; `behind_mean`: that from the learner's weights of the sync before; `tokens`: NaN where they were not
    counted; `furthest_engine`: whose proof it is, of several."""

    largest: float | None
    mean: float | None
    unexplained: float | None
    stale_mean: float
    behind_mean: float
    tokens: float | None
    furthest_engine: int | None

    @classmethod
    def of(cls, event: Mapping[str, Any]) -> SyncProof:
        return cls(
            largest=_measured(event.get("proof_max_delta")),
            mean=_measured(event.get("proof_mean_delta")),
            unexplained=number(event["proof_excess"]) if "proof_excess" in event else None,
            stale_mean=number(event.get("proof_stale")),
            behind_mean=number(event.get("proof_behind")),
            tokens=_measured(event.get("proof_tokens")),
            furthest_engine=integer(event.get("proof_engine")),
        )


def _measured(value: Any) -> float | None:
    """A recorded number; NaN for any other value. A proof of NaN proves nothing, but it is no missing proof."""
    return None if value is None else number(value)


@dataclass(frozen=True)
class WeightSync:
    """One `sync` event. Tensors: how many were sent (NaN: not counted), `mismatched` arrived otherwise, `absent` were
    not sent, `unreported` have no digest of the engine, `loaded` were read back after the load, of which `misloaded`
    are not what arrived."""

    file: str
    rank: int | None
    step: int | None
    version: int | None
    succeeded: bool
    message: str | None
    seconds: float
    tensors: float | None
    mismatched: tuple[str, ...]
    absent: tuple[str, ...]
    unreported: tuple[str, ...]
    loaded: int | None
    misloaded: tuple[WorkerReport, ...]
    proof: SyncProof

    @classmethod
    def of(cls, event: Mapping[str, Any]) -> WeightSync:
        reports = event.get("misloaded")
        return cls(
            file=str(event.get("file")),
            rank=whole_number(event.get("rank")),
            step=integer(event.get("step")),
            version=integer(event.get("version")),
            succeeded=event.get("ok") in (True, 1),
            message=filled_text(event.get("message")),
            seconds=number(event.get("seconds")),
            tensors=_measured(event.get("tensors")),
            mismatched=name_list(event.get("mismatched")) or (),
            absent=name_list(event.get("absent")) or (),
            unreported=name_list(event.get("unreported")) or (),
            loaded=integer(event.get("loaded")),
            misloaded=tuple(
                WorkerReport.of(report)
                for report in map(parameters, reports if isinstance(reports, list) else ())
                if report
            ),
            proof=SyncProof.of(event),
        )
