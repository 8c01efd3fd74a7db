"""Planted faults of one learner rank: it skips an update, uses or gives a wrong gradient, or holds another revision.

Each function runs in the rank's own process, called by `Role.plant` with the role and its settings. A `reset` reverts
it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from scenarios.ppo import losses


class OtherGradient:
    """A data-parallel group in which this rank keeps its `own` gradient of one parameter, or its gradient is `lost`."""

    def __init__(self, parallel: Any, place: int, how: str) -> None:
        self._parallel, self._place, self._how = parallel, place, how

    def sum(self, tensors: list[torch.Tensor]) -> None:
        chosen = tensors[self._place]
        if self._how == "lost":
            chosen.zero_()
        own_gradient = chosen.clone()
        self._parallel.sum(tensors)
        if self._how == "own":
            chosen.copy_(own_gradient)


def update(role: Any, settings: Mapping[str, Any]) -> None:
    """Plant a wrong update.

    `skipped`: the number of an update that this rank does not apply. `own`, `lost`: the parameter whose gradient it
    does not take from the others, or does not give them.
    """
    optimizer = role.optimizer
    if "skipped" in settings:
        _skip(optimizer, int(settings["skipped"]))
    names = [name for name, parameter in role.model.named_parameters() if parameter.requires_grad]
    for how in {"own", "lost"} & set(settings):
        optimizer._parallel = OtherGradient(optimizer._parallel, names.index(settings[how]), how)


def _skip(optimizer: Any, number: int) -> None:
    apply, updates = optimizer._adam.step, iter(range(number + 1))

    def step() -> None:
        if next(updates, None) != number:
            apply()

    optimizer._adam.step = step


def divided(role: Any, settings: Mapping[str, Any]) -> None:
    """Divide losses by the number of ranks once more, while the recorded divisor stays right."""
    backward = role.optimizer.backward
    role.optimizer.backward = lambda loss: backward(loss / role.parallel.world_size)


def averaged(role: Any, settings: Mapping[str, Any]) -> None:
    """Apply the mean of the ranks' means over their own tokens, while the recorded divisor stays right.

    Only the present optimizer is changed; a `reset` replaces it.
    """
    optimizer, train = role.optimizer, role.train
    apply = optimizer.step
    factors: Iterator[float] = iter(())

    def planted(step: int, shares: list[Any]) -> Any:
        nonlocal factors
        rank_tokens = [
            role.parallel.world_size * sum(len(sample.response) for sample in share.samples) for share in shares
        ]
        factors = iter([share.count / tokens for share, tokens in zip(shares, rank_tokens, strict=True)])
        return train(step, shares)

    def scaled(*arguments: Any) -> float:
        factor = next(factors)
        for parameter in optimizer._parameters:
            if parameter.grad is not None:
                parameter.grad *= factor
        norm: float = apply(*arguments)
        return norm

    optimizer.step, role.train = scaled, planted


def accumulated(role: Any, settings: Mapping[str, Any]) -> None:
    """Apply the mean of the micro-batches' means over their own tokens, while the recorded divisor stays right."""
    optimizer, train = role.optimizer, role.train
    backward = optimizer.backward
    factors: Iterator[float] = iter(())

    def planted(step: int, shares: list[Any]) -> Any:
        nonlocal factors
        factors = iter([factor for share in shares for factor in _of_micro_batches(role, share)])
        return train(step, shares)

    optimizer.backward, role.train = lambda loss: backward(loss * next(factors)), planted


def _of_micro_batches(role: Any, share: Any) -> list[float]:
    """Return a factor for each micro-batch of a share: it turns a mean over all tokens into one over its own tokens."""
    parts = [share.samples[part] for part in role._micro(share.samples)]
    return [share.count / (len(parts) * sum(len(sample.response) for sample in part)) for part in parts]


def present_as_old(role: Any, settings: Mapping[str, Any]) -> None:
    """Let the loss take the present log-probabilities for the old ones, until the role loads another model."""
    model, make = role.model, role._loss

    def loss(step: int, part: Any) -> Any:
        if role.model is not model:
            return make(step, part)
        plain = losses.policy_loss
        losses.policy_loss = lambda logprob, old, *args, **named: plain(logprob, logprob.detach(), *args, **named)
        try:
            return make(step, part)
        finally:
            losses.policy_loss = plain

    role._loss = loss


def revision(role: Any, settings: Mapping[str, Any]) -> None:
    """Give this rank's model another revision of the tensor `name`."""
    from scenarios.planted.differences.trainer import altered

    parameter = role.model.get_parameter(settings["name"])
    with torch.no_grad():
        parameter.copy_(altered(parameter, "revision"))


def cut_prompts(role: Any, settings: Mapping[str, Any]) -> None:
    """Let the role see the last `kept` ids of each prompt, until it loads another model."""
    model, make = role.model, role._batch

    def batch(samples: list[Any], dtype: torch.dtype) -> Any:
        if role.model is model:
            samples = [dataclasses.replace(sample, prompt=sample.prompt[-settings["kept"] :]) for sample in samples]
        return make(samples, dtype)

    role._batch = batch
