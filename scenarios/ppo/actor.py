"""The actor role: the policy that learns, its log-probabilities, and the sending end of the weight sync.

Log-probabilities are those of the untempered model (T = 1), like every log-probability in a recording.
"""

from __future__ import annotations

import copy
import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probes import weights
from scenarios import models
from scenarios.engines.engine_interface import SyncGroup, WeightMeta
from scenarios.engines.sampling import OUTSIDE, OUTSIDE_HALF
from scenarios.engines.sync import WeightSender
from scenarios.lifted import EXACT_LIMIT
from scenarios.models import saved
from scenarios.models.quiet import quiet
from scenarios.plants import Injection
from scenarios.ppo import losses, native_fit, native_scores
from scenarios.ppo.batches import Sample
from scenarios.ppo.in_parts import in_parts
from scenarios.ppo.margins import Margins, end_ids
from scenarios.ppo.optimizer import Optimizer
from scenarios.ppo.role import MiniBatch, Rows, flat, response_logits, to_rows, token_logprobs
from scenarios.ppo.trained_role import TrainedRole
from scenarios.settings import Sampling


@dataclass(frozen=True)
class Scored:
    """The actor's scores of its responses: one row per sample, one number per token.

    `logprob`: log-probabilities. `margin`, `runner_up`: see `margins`. The rest is filled only in half precision.
    `edge` and `drawn_edge`: see `margins`. `exact`: what float32 makes of the same weights. `behind` and
    `behind_exact`: `logprob` and `exact` of the weights before the last update, empty before the first.
    """

    logprob: Rows
    margin: Rows
    runner_up: list[NDArray[np.int32]]
    edge: Rows = field(default_factory=list)
    drawn_edge: Rows = field(default_factory=list)
    exact: Rows = field(default_factory=list)
    behind: Rows = field(default_factory=list)
    behind_exact: Rows = field(default_factory=list)

    @staticmethod
    def joined(parts: Sequence[Scored]) -> Scored:
        """Return the scores of all ranks, one after the other."""
        columns: dict[str, Any] = {column.name: [] for column in dataclasses.fields(Scored)}
        for part in parts:
            for name, rows in columns.items():
                rows += getattr(part, name)
        return Scored(**columns)


@dataclass(frozen=True)
class NativeScored:
    """The actor's scores of native samples.

    `logprob`, `exact`: as in `Scored`. `views`: the arrays of `native_scores.scores` for each sample.
    """

    logprob: Rows
    exact: Rows
    views: list[dict[str, NDArray[np.float32]]]

    def add(self, part: NativeScored) -> None:
        """Append the scores of further samples."""
        self.logprob.extend(part.logprob)
        self.exact.extend(part.exact)
        self.views.extend(part.views)


class ActorRole(TrainedRole):
    """The policy that learns, its optimizer, and the sending end of the weight sync."""

    name = "actor"

    def __init__(self, scenario: dict[str, Any], settings: dict[str, Any]) -> None:
        super().__init__(scenario, settings)
        self._sender = WeightSender()
        self._groups = 0

    def load(self) -> None:
        self._load(self.settings.policy)

    def adopt(self, policy: str) -> None:
        """Take the weights in the directory `policy`, to score samples at recorded weights. `reset` reverts it."""
        self.pristine = False
        self._load(policy)

    def _load(self, path: str) -> None:
        scenario, ppo, model = self.scenario, self.scenario.ppo, self.scenario.model
        policy = models.load_policy(path, dtype=model.held or model.dtype, device=self.device)
        self._sent_as = {name: tensor.dtype for name, tensor in saved.tensors(policy).items()} if model.held else {}
        self.model = saved.widen(policy, getattr(torch, model.dtype)) if model.held else policy  # exact
        self.optimizer = Optimizer(self.model, ppo.actor_lr, ppo.max_grad_norm, self.parallel)
        self.margins = Margins(
            scenario, self.model.generation_config.eos_token_id, half=self.model.dtype != torch.float32
        )
        self._digests: dict[str, str] = {}
        self._twin: Any = None  # the model in float32, beside one in half precision
        self._before: Any = None  # the model before the last update, where there is a twin

    @torch.no_grad()
    def score(self, step: int, samples: list[Sample]) -> Scored:
        """Return log-probabilities of the response tokens, and the margins by which sampling would draw them."""
        scored = Scored([], [], [])
        with self.recorder.span("actor_forward", step=step):
            for micro, batch in self._batches(samples, self.model.dtype):
                logits = response_logits(self.model, batch)
                self._shapes("actor_forward", step, batch, logits=logits)
                scored.logprob.extend(to_rows(batch.split(token_logprobs(logits, batch.target))))
                for sample, sample_logits in zip(micro, batch.split(logits), strict=True):
                    rows = self.margins(sample, sample_logits)
                    scored.margin.append(rows.margin)
                    scored.runner_up.append(rows.runner_up)
                    if self.model.dtype != torch.float32:
                        scored.edge.append(rows.edge)
                        scored.drawn_edge.append(rows.drawn_edge)
        self._answered("actor_forward", step, samples, scored.logprob)
        if self._half():
            with self.recorder.span("actor_exact", step=step):
                scored.exact.extend(self._in_float32(samples, self.model))
                if self._before is not None:
                    scored.behind.extend(self._logprobs(samples, self._before))
                    scored.behind_exact.extend(self._in_float32(samples, self._before))
        return scored

    def _half(self) -> bool:
        """Whether the model has a float32 twin: it is in half precision, and small enough for a copy."""
        return self.model.dtype != torch.float32 and self.parameters() <= EXACT_LIMIT

    def _in_float32(self, samples: list[Sample], model: Any) -> Rows:
        """Return log-probabilities of the responses, computed in float32 with the half-precision weights of `model`."""
        if self._twin is None:
            self._twin = copy.deepcopy(self.model).float()
        self._twin.load_state_dict(model.state_dict())
        return self._logprobs(samples, self._twin)

    def _logprobs(self, samples: list[Sample], model: Any) -> Rows:
        rows: Rows = []
        for _, batch in self._batches(samples, model.dtype):
            rows.extend(to_rows(batch.split(token_logprobs(response_logits(model, batch), batch.target))))
        return rows

    @torch.no_grad()
    def score_native(self, samples: list[Sample], sampling: dict[str, Any]) -> NativeScored:
        """Return the learner's scores of samples that an engine's own sampler drew when asked for `sampling`."""
        requested = Sampling(**sampling)
        ends = self._ends(requested)
        scored = NativeScored([], [], [])
        for micro, batch in self._batches(samples, self.model.dtype):
            logits = response_logits(self.model, batch)
            scored.logprob.extend(to_rows(batch.split(token_logprobs(logits, batch.target))))
            pairs = zip(micro, batch.split(logits), strict=True)
            scored.views.extend(native_scores.scores(*pair, requested, ends) for pair in pairs)
        if self._half():
            scored.exact.extend(self._in_float32(samples, self.model))
        return scored

    @torch.no_grad()
    def fit_native(self, samples: list[Sample], sampling: dict[str, Any]) -> list[dict[str, Any]]:
        """Return what the sampler did instead of `sampling`, as `native_fit.Fit`s, from as many samples as fit into
        memory.
        """
        requested = Sampling(**sampling)
        room = max(native_fit.MOST, native_fit.FEWEST * self.model.config.vocab_size)
        pairs = self._with_logits(samples, room)
        slack = OUTSIDE if self.model.dtype == torch.float32 else OUTSIDE_HALF
        fits = native_fit.Fitter(pairs, self._ends(requested), slack).fits(requested)
        # A change with a small effect needs more tokens than fit beside the tables of truncations.
        if not fits and len(pairs) < len(samples):
            more = self._with_logits(samples, native_fit.MORE * room)
            fits = native_fit.Fitter(more, self._ends(requested), slack).fits(requested, filters=False)
        return [dataclasses.asdict(fit) for fit in fits]

    def _with_logits(self, samples: list[Sample], room: int) -> list[tuple[Sample, Tensor]]:
        """Return the first samples with their logits, up to `room` logits and at most one micro-batch more."""
        pairs = list[tuple[Sample, Tensor]]()
        for micro, batch in self._batches(samples, self.model.dtype):
            logits = response_logits(self.model, batch)
            pairs += zip(micro, batch.split(logits), strict=True)
            room -= logits.numel()
            if room <= 0:
                break
        return pairs

    def _ends(self, sampling: Sampling) -> tuple[int, ...]:
        return end_ids(self.model.generation_config.eos_token_id, sampling)

    @torch.no_grad()
    def teacher_forced(self, sequences: list[tuple[int, ...]]) -> list[list[float]]:
        """Return n - 1 log-probabilities for n ids, because nothing predicts the first: the counterpart of
        `Engine.rescore`.
        """
        return self._teacher_forced(self.model, sequences)

    @torch.no_grad()
    def rounding(self, sequences: list[tuple[int, ...]]) -> list[list[float]]:
        """Return how far rounding moves each log-probability of `teacher_forced`, against the same weights in a wider
        type.

        The wider type is float64 for float32 weights, float32 for narrower ones. Zeros for a model of more than
        `EXACT_LIMIT` parameters, whose wider copy would not fit beside it.
        """
        if self.parameters() > EXACT_LIMIT:
            return [[0.0] * (len(ids) - 1) for ids in sequences]
        wide = torch.float64 if self.model.dtype == torch.float32 else torch.float32
        return self._apart(sequences, saved.widen(copy.deepcopy(self.model), wide))

    @torch.no_grad()
    def sharding(self, sequences: list[tuple[int, ...]], parts: int) -> list[list[float]]:
        """Return how far layers that are cut into `parts`, as for tensor parallelism, move each log-probability.

        The log-probabilities are those of `teacher_forced`. Empty for a model of more than `EXACT_LIMIT` parameters,
        and for one without a plan for tensor parallelism.
        """
        twin = in_parts(self.model, parts) if self.parameters() <= EXACT_LIMIT else None
        return [] if twin is None else self._apart(sequences, twin)

    def _apart(self, sequences: list[tuple[int, ...]], twin: Any) -> list[list[float]]:
        """Return |Δ log-probability| of `teacher_forced` between the model and another one, in nats."""
        rows = zip(self._teacher_forced(self.model, sequences), self._teacher_forced(twin, sequences), strict=True)
        return [[abs(p - q) for p, q in zip(*pair, strict=True)] for pair in rows]

    def _teacher_forced(self, model: Any, sequences: list[tuple[int, ...]]) -> list[list[float]]:
        samples = [Sample(number, ids[:1], ids[1:]) for number, ids in enumerate(sequences)]
        return [row.tolist() for row in self._logprobs(samples, model)]

    def _before_training(self) -> None:
        if self._half():
            self._before = self._before or copy.deepcopy(self.model)
            self._before.load_state_dict(self.model.state_dict())

    def _loss(self, step: int, micro: MiniBatch) -> losses.Loss:
        ppo, batch = self.scenario.ppo, self._batch(micro.samples, self.model.dtype)
        logits = response_logits(self.model, batch)
        self._shapes("actor_minibatch", step, batch, logits=logits)
        logprob = token_logprobs(logits, batch.target)
        # Without an entropy bonus the entropy is only reported, so it must not cost a backward pass.
        entropy = losses.entropy(logits if ppo.entropy_coef else logits.detach())
        old, target = flat(micro.old, logprob), flat(micro.target, logprob)
        return losses.policy_loss(logprob, old, target, entropy, ppo, count=micro.count)

    def _trained_digests(self) -> dict[str, str]:
        self._digests = weights.digests(saved.tensors(self.model))
        return self._digests

    def _sent(self) -> dict[str, Tensor]:
        """Return what a sync sends: each tensor in the type in which it was loaded, although the lifted stage
        computes in another.
        """
        tensors = saved.tensors(self.model)
        return {name: tensor.to(self._sent_as.get(name, tensor.dtype)) for name, tensor in tensors.items()}

    def parameters(self) -> int:
        """Return how many parameters the policy has."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    # --- weight sync ------------------------------------------------------------------------------------------------

    def weight_meta(self) -> list[WeightMeta]:
        """Return name, shape, dtype and digest of every tensor, in the order in which they are sent."""
        named = self._sent()
        self._digests = self._digests or weights.digests(named)
        return [
            WeightMeta(name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), self._digests[name])
            for name, tensor in named.items()
        ]

    def open_sync(self, world_size: int, backend: str) -> SyncGroup:
        """Open a rendezvous for the engines. `world_size` counts this process and every engine worker. Rank 0 only.

        Records the names of all tensors of a full sync: a tensor that is neither sent nor received is only missed by
        this list.
        """
        self.recorder.event("model", tensors=list(self._sent()))
        self._groups += 1
        self._sender = WeightSender()
        return self._sender.open(world_size, backend, f"weight-sync-{os.getpid()}-{self._groups}")

    def connect_sync(self) -> None:
        """Wait until every engine worker has joined. Raises EngineError."""
        self._sender.connect()

    def send_weights(self, omit: tuple[str, ...] = (), change: Injection | None = None) -> float:
        """Broadcast every tensor but `omit`, and return the seconds it took. Raises SyncAborted.

        `change`: called as (this role, tensors by name, settings); returns a function (name, tensor) -> the tensor to
        send in its place.
        """
        tensors = self._sent()
        changed = change(self, tensors) if change is not None else lambda name, tensor: tensor
        with self.recorder.span("sync_send"):
            return self._sender.send(
                (name, changed(name, tensor)) for name, tensor in tensors.items() if name not in omit
            )

    def abort_sync(self) -> None:
        """Stop a sync in progress. Urgent: runs concurrently with `send_weights`."""
        self._sender.abort()

    # --- checkpoint -------------------------------------------------------------------------------------------------

    def save_policy(self, path: str) -> None:
        """Write the policy as a Hugging Face directory that engines can load. Rank 0 only."""
        with quiet():
            self.model.save_pretrained(path)
            self.tokenizer.save_pretrained(path)

    def learner_state(self) -> dict[str, Any]:
        """Return the optimizer's state, on the CPU; the weights are in `save_policy`."""
        return {"optimizer": self.optimizer.state_dict()}

    def load_learner(self, policy: str, state: dict[str, Any]) -> None:
        """Continue from `save_policy` and `learner_state`."""
        self.pristine = False
        self._load(policy)
        self.optimizer.load_state_dict(state["optimizer"])
