"""The trainer's half of a weight sync: both sides start at once, a failure of either stops the other, a proof
follows.

Digests prove the transport, not the loading: an engine may put a tensor that arrived intact into the wrong place. So
after every sync the engine's teacher-forced log-probabilities of a few fixed sequences are compared with the
learner's.
"""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from probes.install import Recorder
from probes.lines import without_none
from scenarios import fleet
from scenarios.engines.engine_interface import SyncGroup, SyncReport, WeightMeta
from scenarios.plants import Injection
from scenarios.prompts import PromptSet
from scenarios.remote import Actor, ActorFailed, Future, call, gather

Numbers = np.ndarray[Any, np.dtype[np.float64]]

PROOF_SEQUENCES = 4  # a choice: few, because they are scored after each sync
PROOF_RESPONSE = 8  # drawn tokens after each prompt
# An engine orders its sums in another way than the learner, so both round, each differently. Several times the
# learner's own error is allowed.
ROUNDING_ALLOWANCE = 10.0


class SyncFailed(RuntimeError):
    """A weight sync that did not happen. The message says which side failed, and why."""


@dataclass(frozen=True)
class Synced:
    """The result of one sync and its proof, in nats.

    `report`: the engine's own. `max_delta`, `mean_delta`: |Δ| between the engine's and the learner's
    log-probabilities. `rounding`: the learner's largest rounding. `excess`: the largest difference beyond what the
    learner's own rounding explains at that token. Some tokens are ill-conditioned: on one of the built-in model,
    float32 and float64 differed by 4e-5 in the learner alone, and vLLM from it by 8.5e-5 with equal weights. `shift`,
    `shift_max`: how far the learner's log-probabilities of the fixed sequences moved since the previous sync, or
    None. `stale`: the control: what `mean_delta` would be if nothing had arrived, that is the engine's
    log-probabilities at the previous sync against the learner's now; or None. `behind`: the engine's
    log-probabilities now against the learner's at the previous sync: almost zero where the engine computes with
    weights that are one update old; None before there were two syncs.
    """

    report: SyncReport
    max_delta: float
    mean_delta: float
    excess: float
    rounding: float
    shift: float | None
    shift_max: float | None
    stale: float | None
    behind: float | None
    engine: int | None = None  # of several engines, the one that these numbers are about


class WeightLink:
    """A process group between the actor role's rank 0 and the engines of a run, and the transfers over it."""

    def __init__(self, actor: Actor, session: Actor) -> None:
        self._actor, self._session = actor, session
        self._group: SyncGroup | None = None

    def connect(self, *, world_size: int, backend: str) -> None:
        """Form the group. `world_size` counts the learner and every engine worker. Raises SyncFailed."""
        group: SyncGroup = call(self._actor, "open_sync", world_size, backend)
        self._group = group
        self._wait_for_both("connect", self._actor.submit("connect_sync"), self._session.submit("join", group))

    def send(
        self, *, step: int, version: int, omit: tuple[str, ...] = (), change: Injection | None = None
    ) -> SyncReport:
        """Send every tensor but `omit`. `change`: see `ActorRole.send_weights`.

        Raises SyncFailed, after the other side was stopped.
        """
        if self._group is None:
            raise SyncFailed("the weight sync group is not connected")
        all_meta: list[WeightMeta] = call(self._actor, "weight_meta")
        sent = [meta for meta in all_meta if meta.name not in omit]
        sending = self._actor.submit("send_weights", tuple(omit), change)
        receiving = self._session.submit("sync", self._group, sent, step=step, version=version)
        _, report = self._wait_for_both("send", sending, receiving)
        done: SyncReport = report
        return done

    def _wait_for_both(self, what: str, sender: Future, receiver: Future) -> tuple[Any, Any]:
        """Wait for both. When one fails, stop the sender (the only side that can be stopped) and raise who failed."""
        sides = {"learner": sender, "engine": receiver}
        waiting = dict(sides)
        pause = 0.0005
        while waiting:
            for side, future in list(waiting.items()):
                if not future.done():
                    continue
                del waiting[side]
                try:
                    future.result()
                except Exception as error:  # whatever the error, the other side must not wait
                    # The learner would wait in its broadcast for an engine that has given up.
                    if side == "engine" and what == "send" and waiting:
                        call(self._actor, "abort_sync")
                    raise SyncFailed(f"weight sync ({what}): the {side} failed: {_first_line(error)}") from error
            time.sleep(pause if waiting else 0)
            pause = min(0.01, pause * 2)
        return sides["learner"].result(), sides["engine"].result()


class WeightSync:
    """Weights from the actor role's rank 0 to the engines of a run, over a process group of their own."""

    def __init__(self, actor: Actor, session: Actor, prompts: PromptSet, seed: int) -> None:
        self._actor, self._session = actor, session
        self._link = WeightLink(actor, session)
        self._sequences = proof_sequences(prompts, seed)
        # The learner's log-probabilities at the previous sync, and each engine's.
        self._before: tuple[Numbers, list[Numbers]] | None = None

    def connect(self, *, world_size: int, backend: str) -> None:
        """Form the group. `world_size` counts the learner and every engine worker. Raises SyncFailed."""
        self._link.connect(world_size=world_size, backend=backend)

    def __call__(
        self,
        recorder: Recorder,
        *,
        step: int,
        version: int,
        omit: tuple[str, ...] = (),
        change: Injection | None = None,
        loaded: Callable[[], None] = lambda: None,
    ) -> Synced:
        """Send weight version `version`, prove it and record it. Raises SyncFailed, after the other side was stopped.

        `omit`, `change`: as in `WeightLink.send`. `loaded`: called before the proof.
        """
        all_meta: list[WeightMeta] = call(self._actor, "weight_meta")
        sent = [meta for meta in all_meta if meta.name not in omit]
        digests = {meta.name: meta.digest for meta in all_meta}
        # First what the learner has: it stays in the recording if the sync never ends.
        recorder.weights(step=step, version=version, digests=digests, source="learner")
        started = time.perf_counter()
        try:
            with recorder.span("sync", step=step, version=version):
                report = self._link.send(step=step, version=version, omit=omit, change=change)
        except SyncFailed as error:
            recorder.event("sync", step=step, version=version, ok=False, message=str(error),
                           seconds=time.perf_counter() - started)  # fmt: skip
            raise
        seconds = time.perf_counter() - started
        loaded()
        # The engine's report of what it received is its own word; its log-probabilities prove what it computes with.
        with recorder.span("proof", step=step, version=version):
            synced = self.prove(report, step)
        recorder.event(
            "sync", step=step, version=version, ok=report.ok, message=report.message, seconds=seconds,
            engine_seconds=report.seconds, tensors=len(sent), bytes=sum(map(size, sent)),
            mismatched=[name for name, digest in report.received.items() if digests.get(name) != digest],
            absent=[meta.name for meta in all_meta if meta.name in omit],
            unreported=[meta.name for meta in sent if meta.name not in report.received],
            loaded=report.loaded, misloaded=[dataclasses.asdict(tensor) for tensor in report.misloaded],
            proof_excess=synced.excess, proof_rounding=synced.rounding,
            proof_max_delta=synced.max_delta, proof_mean_delta=synced.mean_delta, proof_tokens=self.proof_tokens,
            **without_none(proof_stale=synced.stale, proof_behind=synced.behind, proof_engine=synced.engine),
        )  # fmt: skip
        return synced

    @property
    def proof_tokens(self) -> int:
        """Return how many log-probabilities each proof compares."""
        return sum(len(sequence) - 1 for sequence in self._sequences)

    def prove(self, report: SyncReport, step: int = -1) -> Synced:
        """Compare the engine's log-probabilities of the fixed sequences with the learner's, with the present
        weights.
        """
        engines = fleet.members(self._session)
        futures = [
            self._actor.submit("teacher_forced", self._sequences),
            self._actor.submit("rounding", self._sequences),
            *(member.submit("rescore", self._sequences, step=step) for member in engines),
        ]
        learner, rounding, *each = (
            np.array([x for row in rows for x in row], dtype=np.float64) for rows in gather(futures)
        )
        # Of several engines, take the one that is furthest from the learner: a proof must hold for each.
        deltas = [float(np.abs(logprobs - learner).mean()) for logprobs in each]
        furthest = int(np.argmax(np.nan_to_num(deltas, nan=np.inf)))
        engine = each[furthest]
        delta = np.abs(engine - learner)
        # Against the numbers at the sync before: how far the update moved them, how far the engine is from there, and
        # how far an engine that had not changed would be. The judge tells an engine that kept its weights by these.
        shift = shift_max = stale = behind = None
        if self._before is not None:
            learner_before, each_before = self._before
            moved = np.abs(learner - learner_before)
            shift, shift_max = float(moved.mean()), float(moved.max())
            stale = float(np.abs(learner - each_before[furthest]).mean())
            behind = float(np.abs(engine - learner_before).mean())
        self._before = learner, each
        return Synced(
            report=report,
            max_delta=float(delta.max()),
            mean_delta=float(delta.mean()),
            excess=float((delta - ROUNDING_ALLOWANCE * rounding).max()),
            rounding=float(rounding.max()),
            shift=shift,
            shift_max=shift_max,
            stale=stale,
            behind=behind,
            engine=furthest if len(each) > 1 else None,
        )


def proof_sequences(prompts: PromptSet, seed: int) -> list[tuple[int, ...]]:
    """Return the first prompts, each with a few ids that occur in prompts: natural for any model, the same in every
    run.
    """
    rng = random.Random(f"proof-{seed}")
    prompt_tokens = sorted({token for ids in prompts.ids[:64] for token in ids})
    return [ids + tuple(rng.choices(prompt_tokens, k=PROOF_RESPONSE)) for ids in prompts.ids[:PROOF_SEQUENCES]]


def size(meta: WeightMeta) -> int:
    """Return the bytes of one tensor."""
    wide = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2}
    return int(np.prod(meta.shape, dtype=np.int64)) * wide.get(meta.dtype, 1)


def _first_line(error: BaseException) -> str:
    """Return the cause in one line; Ray wraps it in the other process's traceback."""
    cause = getattr(error, "cause", None) or error
    kind, message = type(cause).__name__, str(cause)
    if isinstance(cause, ActorFailed):
        kind, message = cause.kind, cause.message
    return f"{kind}: {message.strip().splitlines()[0]}" if message.strip() else kind
