"""What the roles of PPO share: a model, a data-parallel group and a recording, inside one actor process.

Every role is made from the scenario and its settings (`RoleSettings` as a dict). Samples come in as token ids,
numbers go out as float32 arrays, one row per sample.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from probes import install, weights
from scenarios import models
from scenarios.plants import Injection
from scenarios.ppo import batches
from scenarios.ppo.batches import Batch, Sample
from scenarios.ppo.losses import Loss
from scenarios.ppo.parallel import DataParallel, RoleSettings, deterministic
from scenarios.settings import Scenario

Rows = list[NDArray[np.float32]]


@dataclass(frozen=True)
class MiniBatch:
    """One rank's share of a mini-batch.

    `old`, `target`: log-probabilities and advantages, or values and returns. `count`: response tokens of the whole
    mini-batch, over all ranks.
    """

    samples: list[Sample]
    old: Rows
    target: Rows
    count: int


@dataclass(frozen=True)
class Trained:
    """Sums over this rank's tokens, gradient norms and this rank's loss of each update, and one digest of all weights
    after the last one.
    """

    sums: dict[str, float]
    grad_norms: list[float]
    losses: list[float]
    digest: str


class Role:
    """What all roles share: a model, a data-parallel group, a recording."""

    name = "role"

    def __init__(self, scenario: dict[str, Any], settings: dict[str, Any]) -> None:
        self.scenario = Scenario.from_json(scenario)
        self.settings = RoleSettings(**settings)
        self.device = self.settings.device
        deterministic(self.device)
        self.parallel = DataParallel(self.name, self.settings)
        self.recorder = install.OFF
        self.tokenizer = models.load_tokenizer(self.settings.policy)
        pad = self.tokenizer.pad_token_id
        self._pad = 0 if pad is None else int(pad)  # any id will do, because padding is never attended to
        self.pristine = True  # whether nothing was trained or resumed since `load`
        self.load()

    def load(self) -> None:
        """Read the initial weights, and make the optimizer where there is one."""
        raise NotImplementedError

    def reset(self) -> None:
        """Return to the initial weights and optimizer, bit for bit as in a fresh process."""
        if not self.pristine:
            self.load()
            self.pristine = True

    def plant(self, change: Injection) -> None:
        """Call `change` with this role, so that it changes the role until the next `reset`."""
        self.pristine = False
        change(self)

    def configure(self, scenario: dict[str, Any]) -> None:
        """Serve runs of another scenario from the next `reset` on. The world size and the models stay."""
        self.scenario = Scenario.from_json(scenario)
        self.pristine = False

    def policy_path(self) -> str:
        """Return the directory of the initial policy, with its tokenizer."""
        return self.settings.policy

    def record_to(self, run_dir: str) -> None:
        """Close the previous recording, and record into `run_dir` from now on."""
        self.recorder.close()
        self.recorder = install.start(
            run_dir, role=self.name, rank=self.parallel.rank, world_size=self.parallel.world_size
        )
        self.parallel.record(self.recorder)

    def end_recording(self) -> None:
        """Close the recording; nothing is recorded from now on."""
        self.recorder.close()
        self.recorder = self.parallel.recorder = install.OFF

    def close(self) -> None:
        """Close the recording and leave the group."""
        self.end_recording()
        self.parallel.close()

    def _answered(self, phase: str, step: int, samples: list[Sample], rows: Rows) -> None:
        """Record which samples this rank scored, and digests of its answer: rows joined, and all numbers sorted.

        Whatever joins answers with samples comes after this, so that the experience can be held against it.
        """
        with self.recorder.own_time():
            answer = np.concatenate([np.zeros(0, np.float32), *rows])
            digests = {"digest": weights.digest(answer), "sorted": weights.digest(np.sort(answer))}
        numbers = [sample.number for sample in samples]
        self.recorder.event("share", step=step, phase=phase, samples=numbers, **digests)

    def _batch(self, samples: list[Sample], dtype: torch.dtype) -> Batch:
        packing = self.scenario.ppo.packing
        return batches.make(samples, pad=self._pad, packing=packing, device=self.device, dtype=dtype)

    def _micro(self, samples: list[Sample]) -> Iterable[slice]:
        return batches.micro(samples, self.scenario.ppo.micro_batch_size)

    def _batches(self, samples: list[Sample], dtype: torch.dtype) -> Iterator[tuple[list[Sample], Batch]]:
        """Yield the micro-batches, each as its samples and as what the model takes."""
        for part in self._micro(samples):
            yield samples[part], self._batch(samples[part], dtype)

    def _shapes(self, phase: str, step: int, batch: Batch, **tensors: Tensor) -> None:
        self.recorder.shapes(
            phase, {"input_ids": batch.ids, **tensors}, step=step, padded_tokens=batch.padded_tokens,
            real_tokens=batch.real_tokens, longest=batch.longest, samples=len(batch.lengths),
        )  # fmt: skip


def response_logits(model: nn.Module, batch: Batch) -> Tensor:
    """Return the logits that predict the response tokens, float32 [tokens, vocabulary]."""
    first, last = int(batch.column.min()), int(batch.column.max())
    kept = torch.arange(first, last + 1, device=batch.ids.device)
    logits = model(**batch.inputs(), logits_to_keep=kept, use_cache=False).logits
    return logits[batch.row, batch.column - first].float()


def token_logprobs(logits: Tensor, target: Tensor) -> Tensor:
    """Return log softmax(logits) at `target`: [tokens]."""
    return logits.log_softmax(dim=-1).gather(-1, target[:, None])[:, 0]


def to_rows(values: Iterable[Tensor]) -> Rows:
    """Return float32 arrays on the CPU."""
    return [value.float().cpu().numpy() for value in values]


def flat(rows: Rows, like: Tensor) -> Tensor:
    """Return the rows joined, on the device of `like`."""
    return torch.from_numpy(np.concatenate(rows)).to(like.device)


@dataclass
class Report:
    """Adds up the results of the micro-batches of one role's training."""

    sums: dict[str, float] = field(default_factory=dict)
    grad_norms: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    def add(self, loss: Loss) -> None:
        """Add the sums of one micro-batch."""
        for name, value in loss.sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + float(value)

    def close(self, digests: Mapping[str, str]) -> Trained:
        """Return the total, with one digest of all weights."""
        return Trained(self.sums, self.grad_norms, self.losses, weights.combine(digests))
