"""AdamW over a data-parallel group: gradients are summed across ranks, clipped by their norm, and applied in float32.

Losses are sums over the tokens of a rank divided by the count of the whole mini-batch, so summed gradients equal
those of one process. Models in half precision keep float32 master weights: at a learning rate of 1e-6, a bfloat16
weight would never change.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from probes.errors import AddressedError
from scenarios.ppo.parallel import DataParallel
from scenarios.ppo.updates import UpdateLog

FLOAT16_SCALE = 1024.0  # keeps float16 gradients above 6e-8, the smallest subnormal; divided out before clipping


class DivergedError(AddressedError, RuntimeError):
    """A gradient or a loss is NaN or infinite. The message says which and at which step.

    `fix`: options of the command line.
    """


class Optimizer:
    """AdamW(lr, no weight decay) on the parameters of `module`. `log`: what updates did, where there are several
    ranks.
    """

    def __init__(self, module: nn.Module, lr: float, max_grad_norm: float, parallel: DataParallel) -> None:
        named = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self._parameters = list(named.values())
        self._masters = [
            p if p.dtype == torch.float32 else p.detach().float().requires_grad_() for p in self._parameters
        ]
        self._scale = FLOAT16_SCALE if any(p.dtype == torch.float16 for p in self._parameters) else 1.0
        self._max_grad_norm = max_grad_norm
        self._parallel = parallel
        self._adam = torch.optim.AdamW(self._masters, lr=lr, weight_decay=0.0)
        self.log = UpdateLog(list(named), self._masters) if parallel.world_size > 1 else None
        self.loss: Tensor | None = None  # of the update so far: what this rank's gradients are of

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of one micro-batch's loss."""
        (loss * self._scale).backward()
        self.loss = loss.detach() if self.loss is None else self.loss + loss.detach()

    def take_loss(self) -> float:
        """Return this rank's loss of the update, and begin the next one."""
        loss, self.loss = self.loss, None
        return 0.0 if loss is None else float(loss)

    def step(self, own_time: Callable[[], AbstractContextManager[None]] = nullcontext) -> float:
        """Sum gradients across ranks, clip, update and clear them; return the norm before clipping. Raises
        DivergedError.

        `own_time`: the recorder's, for what is only recorded.
        """
        grads = [
            torch.zeros_like(master) if p.grad is None else p.grad.float() / self._scale
            for p, master in zip(self._parameters, self._masters, strict=True)
        ]

        def logged(note: Callable[[UpdateLog], None]) -> None:
            if self.log is not None:
                with own_time():
                    note(self.log)

        logged(lambda log: log.before(grads))
        self._parallel.sum(grads)
        logged(lambda log: log.after(grads))
        for parameter, master, grad in zip(self._parameters, self._masters, grads, strict=True):
            parameter.grad = None
            master.grad = grad
        # The sum comes before the norm: every rank must clip by the norm of the whole gradient, and so by the same.
        norm = float(nn.utils.clip_grad_norm_(self._masters, self._max_grad_norm))
        if norm != norm or norm == float("inf"):
            raise DivergedError(
                f"the gradient norm is {norm}: lower the learning rate, or train in float32",
                fix="--set ppo.actor_lr=1e-4 --set ppo.critic_lr=1e-4   # or --set model.dtype=float32",
            )
        # Adam works on float32 masters, since a small update is lost in half precision. The model gets them rounded.
        self._adam.step()
        with torch.no_grad():
            for parameter, master in zip(self._parameters, self._masters, strict=True):
                if master is not parameter:
                    parameter.copy_(master)
                master.grad = None
        logged(lambda log: log.applied(norm))
        return norm

    def state_dict(self) -> dict[str, Any]:
        """Return Adam's moments, and the master weights where they are not the model's own. Tensors are on the CPU."""
        masters = [m.detach().cpu() for p, m in zip(self._parameters, self._masters, strict=True) if m is not p]
        return {"adam": _on_cpu(self._adam.state_dict()), "masters": masters}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`."""
        self._adam.load_state_dict(state["adam"])
        masters = [m for p, m in zip(self._parameters, self._masters, strict=True) if m is not p]
        with torch.no_grad():
            for master, saved in zip(masters, state["masters"], strict=True):
                master.copy_(saved)


def _on_cpu(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: _on_cpu(item) for key, item in value.items()}
    return [_on_cpu(item) for item in value] if isinstance(value, (list, tuple)) else value
